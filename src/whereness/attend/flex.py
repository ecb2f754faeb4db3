"""Attention through torch's FlexAttention: a bias is a function of head, query and key.

    score_mod(score, b, h, i, j) = score + strip[h, j - i + S - 1]        offset-only, O(S) memory
                                   score + bias[b, h, i, j]               where positions are given

Source: Dong et al. 2024, arXiv:2412.05496; torch.nn.attention.flex_attention. On an accelerator a
kernel is compiled that never holds the S x T scores. On the CPU torch holds them and has no
gradients: that path is there to compare with. The compiled kernel was run on a CPU, never on a GPU.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

import functools
import operator
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whereness.attend.numerics import exact_types
from whereness.attend.request import Options, Request
from whereness.checks import as_int, require_int
from whereness.combined import Combined
from whereness.encoding import At, PositionalEncoding, as_encoding
from whereness.relative.bias import Strip
from whereness.where import Where

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, i, j) -> score."""
Look = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, i, j) -> what belongs to this query and key."""

BLOCK = 128
"""Queries and keys of a block that is skipped, masked or seen as a whole."""


def score_mod(
    encoding: PositionalEncoding | Sequence[PositionalEncoding], where: Where | At | Tensor | int
) -> ScoreMod | None:
    """Door 4 of `encoding` for FlexAttention; None: it has no bias.

    Gradients of learned biases pass. The scale stays the caller's (T5 wants `scale=1.0`), and so do
    masks and door 3: call the encoding on q and k before.

    Args:
        where: the number of tokens, counted from 0, whose offsets alone are stored; or positions,
            a `wn.Where` or what `prepare` gave: a table (H, S, T) is stored, unless the library
            counted them itself.

    Raises:
        ValueError: an encoding whose door 4 is more than a bias on logits, or that needs the
            weights; positions that were prepared for another encoding.
    """
    encoding = as_encoding(encoding)
    reason = _unserved(encoding)
    if reason is not None:
        raise ValueError(f"score_mod {reason}")
    if isinstance(where, At):
        if where.encoding is not encoding:
            raise ValueError(
                f"These positions were prepared for another {type(where.encoding).__name__}."
            )
        return _modification(where)
    if as_int(where) is not None:
        length = require_int("where", where, 1)
        where = Where(torch.arange(length, device=_device(encoding))).as_regular()
    return _modification(encoding.prepare(where))  # type: ignore[bad-argument-type]


def refusal(options: Options, encoding: PositionalEncoding) -> str | None:
    """Why it can never serve such calls; None: it can."""
    if options.return_weights:
        return "has no weights to return: use 'reference'."
    if options.dropout:
        return "has no dropout: use 'sdpa' or 'reference'."
    return _unserved(encoding)


def declines(request: Request) -> str | None:
    """Why it cannot serve this call; None: it can."""
    device = request.q.device.type
    if device == "meta":
        return "has no kernel for the device 'meta': use 'sdpa' or 'reference'."
    if device == "cpu" and torch.compiler.is_compiling():
        # torch 2.13 has no kernel there that reads a tensor made in the same graph.
        return "cannot be compiled on the CPU: use 'sdpa' or 'reference'."
    tensors = (request.q, request.k, request.v, *request.encoding.parameters())
    if (
        device in ("cpu", "mps")
        and torch.is_grad_enabled()
        and any(t.requires_grad for t in tensors)
    ):
        return (
            f"has no gradients on the device {device!r}: use 'sdpa' or 'reference', or call it in "
            "torch.no_grad()."
        )
    return None


def serve(request: Request) -> tuple[Tensor, None]:
    """Output (B, H, S, V)."""
    q, k, v = request.q, request.k, request.v
    call = request.call(None)
    if not q.shape[0] or not request.num_queries:
        return request.encoding.outputs(q.new_zeros(*q.shape[:3], v.shape[-1]), None, call), None
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # torch refuses leaves there as well
    with exact_types(q.device):
        out = _attention(q.device)(
            q,
            k,
            v,
            score_mod=_modification(request.at),
            block_mask=_block_mask(request),
            scale=request.scale,
            enable_gqa=k.shape[1] != q.shape[1],
        )
    return request.encoding.outputs(out, None, call), None


def _attention(device: torch.device) -> Callable[..., Tensor]:
    """FlexAttention, compiled on accelerators where that is not done around us."""
    from torch.nn.attention.flex_attention import flex_attention  # brings torch's compiler

    if torch.compiler.is_compiling():
        return flex_attention
    return _uncompiled if device.type == "cpu" else _compiled()


def _uncompiled(*inputs: Tensor, **options: object) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        # It holds the scores of all queries and keys: said above.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(*inputs, **options)  # type: ignore[bad-argument-type]


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)


def _unserved(encoding: PositionalEncoding) -> str | None:
    """Why door 4 or 5 of `encoding` is none of FlexAttention's; None: it is."""
    for member in encoding.members():
        on_weights = member.overrides("bias") and member.on == "weights"
        if member.overrides("scores", "weights") or member.needs_weights or on_weights:
            return (
                "serves biases and factors on logits only, not those of "
                f"{type(member).__name__}: use 'reference' or 'auto'."
            )
    return None


def _device(encoding: PositionalEncoding) -> torch.device:
    parameter = next(encoding.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


# What is captured are tensors, not numbers: another length compiles no other kernel.


def _modification(at: At) -> ScoreMod | None:
    """All biases and factors of `at`, in order of application."""
    members = at.data if isinstance(at.encoding, Combined) else (at,)
    steps = [_step(own) for own in members if own.encoding.overrides("bias")]
    if len(steps) < 2:
        return steps[0] if steps else None

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, i, j)
        return score

    return modified


def _step(at: At) -> ScoreMod:
    """Of one member."""
    # A strip with pads in it says which tokens have a place: the table knows them.
    by_offset = isinstance(at.data, Strip) and at.data.placed is None
    look = _of_strip(at.data) if by_offset else _of_table(at.bias())  # type: ignore[bad-argument-type]
    combine = operator.mul if at.encoding.operation == "multiply" else operator.add

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return combine(score, look(b, h, i, j))

    return modified


def _of_strip(strip: Strip) -> Look:
    values = strip.values
    last = torch.full((), values.shape[-1] - strip.num_keys, device=values.device)  # S - 1

    def look(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return values[h, j - i + last]

    return look


def _of_table(table: Tensor) -> Look:
    """A value for every query and key; axes of length 1 are those of all: (b, h, S, T)."""
    one_batch, one_head, one_query = (n == 1 for n in table.shape[:3])

    def look(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        zero = j - j
        return table[zero if one_batch else b, zero if one_head else h, zero if one_query else i, j]

    return look


def _mask_mod(request: Request) -> Look:
    """What `masks.may_attend` says, of one query and one key."""
    options, where, causal = request.options, request.at.where, request.options.causal
    slots = where.slots
    if slots is None:
        slots = torch.arange(request.num_keys, device=request.q.device)
    q_slots = slots[request.num_keys - request.num_queries :]
    looks = [_of_table(t) for t in _hidden_by(request)]
    labels = (where.segments, where.key_segments)
    segments = [_of_table(s[:, None, None]) for s in labels if s is not None]

    window = None
    if options.window is not None:
        window = torch.full((), options.window, device=slots.device)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        behind = q_slots[i] - slots[j]
        found = [look(b, h, i, j) for look in looks]
        if causal:
            found.append(behind >= 0)
        if window is not None:
            found.append(behind.abs() < window)
        if segments:
            of_query, of_key = segments
            found.append(of_query(b, h, i, i) == of_key(b, h, i, j))
        return functools.reduce(operator.and_, found)

    return visible


def _hidden_by(request: Request) -> list[Tensor]:
    """The key mask and the mask, with four axes."""
    key_mask, mask = request.at.where.key_mask, request.options.mask
    found = [] if key_mask is None else [key_mask[:, None, None]]
    if mask is not None:
        found.append(mask if mask.dim() == 4 else mask[None, None])
    return found


def _block_mask(request: Request) -> object | None:
    """Which blocks are skipped, masked or seen whole; None: every query sees every key.

    Known from sizes alone; what else hides keys (segments, pads, a mask) is left to `_mask_mod`.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if request.sees_all:
        return None
    options, queries, keys = request.options, request.num_queries, request.num_keys
    device = request.q.device
    far = keys if options.window is None else options.window - 1
    near = 0 if options.causal else -far
    first_query = torch.arange(0, queries, BLOCK, device=device)[:, None] + (keys - queries)
    first_key = torch.arange(0, keys, BLOCK, device=device)
    last_query = (first_query + BLOCK - 1).clamp(max=keys - 1)
    last_key = (first_key + BLOCK - 1).clamp(max=keys - 1)
    nearest, farthest = first_query - last_key, last_query - first_key  # slots back
    some = (farthest >= near) & (nearest <= far)
    whole = (nearest >= near) & (farthest <= far)
    # A block that is cut off at the end is masked there.
    whole &= (last_query - first_query == BLOCK - 1) & (last_key - first_key == BLOCK - 1)
    if request.at.where.slots is not None:  # the keys left in a cache do not follow one another
        some, whole = torch.ones_like(some), torch.zeros_like(whole)
    elif _hidden_by(request) or request.at.where.segments is not None:
        whole = torch.zeros_like(whole)
    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_mod(request),
        seq_lengths=(queries, keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and which, those first."""
    order = torch.argsort((~blocks).int(), dim=-1, stable=True)
    return blocks.sum(-1).int()[None, None], order.int()[None, None]
