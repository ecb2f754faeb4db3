"""Attention with a bias by offset, in blocks of queries: S + T - 1 numbers a head hold the bias.

With its rows in reverse order a Toeplitz matrix is a Hankel matrix, whose row i is the strip from
i on: a plain view of memory with strides (1, 1), which the fused kernel takes as its mask. So the
queries of each block are flipped, and so is what comes out. Causality and windows are -inf in the
same strip, and a block reads only the keys that one of its queries sees.

Axes: B batch, H query heads, G key/value heads, r = H / G, S queries, T keys, L = S + T - 1;
R queries and K keys of a block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whereness.attend.numerics import exact_types
from whereness.kernels.diagonals import form_
from whereness.spans import Span

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default  # noqa: SLF001

ROWS = (256, 768)
"""Least and most queries of a block. The kernel shares out pieces of 256 queries, and smaller ones
below 768; every block wastes the keys after its own queries."""
TILE = (256, 512)
"""Queries and keys of a tile of the backward pass of a learned bias."""
MASK_NUMBERS = 2**21
"""The most numbers of a block's mask where it cannot be a view (8 MiB)."""


@dataclass(frozen=True)
class Plan:
    """What sees what, and how sharply."""

    spans: tuple[Span, ...]
    causal: bool
    window: int | None
    scale: float
    allowed: Callable[[slice, int], Tensor] | None = None
    """(queries, number of keys) -> bool (B or 1, H or 1, R, K), all that hides keys; None: spans,
    causality and the window tell everything."""


class Block(NamedTuple):
    """Queries of one sequence (None: of all) and the keys that at least one of them may see."""

    sequence: int | None
    placed: bool
    rows: slice
    keys: slice


def attend(q: Tensor, k: Tensor, v: Tensor, strip: Tensor, plan: Plan) -> Tensor:
    """(B, H, S, D), from q (B, H, S, D), k and v (B, G, T, D) and the bias (H, L), of one type."""
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (q, k, v, strip)):
        return _run(q, k, v, strip, plan)[0]
    return _Attend.apply(q, k, v, strip, plan)


class _Attend(torch.autograd.Function):
    """A second derivative goes through the plain formula, S x T numbers a head."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, strip: Tensor, plan: Plan) -> Tensor:
        out, logsumexp = _run(q, k, v, strip, plan)
        ctx.save_for_backward(q, k, v, strip, out, logsumexp)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, strip, out, logsumexp = ctx.saved_tensors
        (grad,) = grads
        with exact_types(q.device):
            if torch.is_grad_enabled():  # create_graph=True
                return *_differentiable((q, k, v, strip), grad, ctx.plan), None
            if ctx.needs_input_grad[3]:
                return *_learned(grad, q, k, v, strip, out, logsumexp, ctx.plan), None
            return *_fixed(grad, q, k, v, strip, out, logsumexp, ctx.plan), None, None


def _run(q: Tensor, k: Tensor, v: Tensor, strip: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """(output, logsumexp (B, H, S)); both 0 where a query sees no key."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    logsumexp = q.new_zeros(q.shape[:3])
    biases = _biases(strip, q, k, plan)
    shape = (q.shape[1], k.shape[1])
    for block in _blocks(plan, q, k, _num_rows(q, k, plan)):
        parts = _of_keys(k, block, *shape), _of_keys(v, block, *shape)
        mask = _mask(biases[block.placed], block, q, k, plan)
        mine = _of_queries(q, block, *shape).flip(2)
        part, powers = _forward(mine, *parts, 0.0, False, attn_mask=mask, scale=plan.scale)
        _of_queries(out, block, *shape).copy_(part.flip(2))
        _of_queries(logsumexp, block, *shape).copy_(powers.flip(2))
    return out, logsumexp


def _fixed(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strip: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    plan: Plan,
) -> tuple[Tensor, ...]:
    """Gradients of q, k and v, block by block through the fused kernel's own."""
    d_q, d_k, d_v = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    biases = _biases(strip, q, k, plan)
    shape = (q.shape[1], k.shape[1])
    for block in _blocks(plan, q, k, _num_rows(q, k, plan)):
        mask = _mask(biases[block.placed], block, q, k, plan)
        of_rows = [_of_queries(t, block, *shape).flip(2) for t in (grad, q, out, logsumexp)]
        parts = _of_keys(k, block, *shape), _of_keys(v, block, *shape)
        found = _backward(
            *of_rows[:2], *parts, *of_rows[2:], 0.0, False, attn_mask=mask, scale=plan.scale
        )
        _of_queries(d_q, block, *shape).copy_(found[0].flip(2))
        for total, part in ((d_k, found[1]), (d_v, found[2])):
            if shape[0] == shape[1]:
                total[_sequences(block), :, block.keys] += part
            else:
                total[block.sequence, :, block.keys] += part.sum(1)
    return d_q, d_k, d_v


def _learned(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strip: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    plan: Plan,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and the strip, by tiles over all heads of one sequence."""
    d_q, d_k, d_v = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    (_, heads, queries, _), groups = q.shape, k.shape[1]
    biases = _biases(strip, q, k, plan)
    sums = {True: torch.zeros_like(strip), False: torch.zeros_like(strip)}
    room = q.new_empty(2, heads * TILE[0] * TILE[1])
    plan = replace(plan, spans=_one_by_one(plan.spans, q.shape[0]))
    for block in _blocks(plan, q, k, TILE[0]):
        b, rows = block.sequence, block.rows
        count = rows.stop - rows.start
        shaped = (groups, heads // groups * count, -1)
        mine, theirs, result = (t[b, :, rows].flip(1) for t in (q, grad, out))
        delta = (theirs * result).sum(-1)
        mine, theirs = mine.reshape(shaped), theirs.reshape(shaped)
        powers = logsumexp[b, :, rows].flip(1)
        d_mine = torch.zeros_like(mine)
        for start in range(block.keys.start, block.keys.stop, TILE[1]):
            keys = slice(start, min(start + TILE[1], block.keys.stop))
            size = (groups, shaped[1], keys.stop - start)
            scores, d_logits = (r[: size[0] * size[1] * size[2]].view(size) for r in room)
            torch.bmm(mine, k[b, :, keys].mT, out=scores)
            torch.bmm(theirs, v[b, :, keys].mT, out=d_logits)
            tiles = scores.view(heads, count, -1), d_logits.view(heads, count, -1)
            if plan.allowed is not None:
                tiles[0].masked_fill_(~_allowed(plan, block._replace(keys=keys)), -torch.inf)
            along = slice(queries - rows.stop + start, queries - rows.start + keys.stop - 1)
            bias, into = biases[block.placed][:, along], sums[block.placed][:, along]
            form_(*tiles, bias, powers, delta, plan.scale, into)
            d_mine.baddbmm_(d_logits, k[b, :, keys], alpha=plan.scale)
            # A product straight into these, which have gaps, would go head by head.
            d_k[b, :, keys].add_(d_logits.mT @ mine, alpha=plan.scale)
            d_v[b, :, keys].add_(scores.mT @ theirs)
        d_q[b, :, rows] = d_mine.view(heads, count, -1).flip(1)
    return d_q, d_k, d_v, sums[True]


def _differentiable(
    inputs: tuple[Tensor, ...], grad: Tensor, plan: Plan
) -> tuple[Tensor | None, ...]:
    """The gradients as the plain formula has them, which can be differentiated again."""
    q, k, v, strip = inputs
    out = torch.zeros_like(q)
    heads, groups = q.shape[1], k.shape[1]
    for block in _blocks(plan, q, k, q.shape[2]):
        mine = _of_queries(q, block, heads, groups)
        keys, values = (_of_keys(t, block, heads, groups) for t in (k, v))
        bias = _mask(_biases(strip, q, k, plan)[block.placed], block, q, k, plan).flip(-2)
        logits = mine @ keys.mT * plan.scale + bias
        blind = (bias == -torch.inf).all(-1, keepdim=True)
        weights = logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        part = (weights @ values).reshape(-1, heads, *mine.shape[2:])
        where = torch.zeros_like(out)
        _of_queries(where, block, heads, heads)[:] = part
        out = out + where
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


# What a block reads


def _num_rows(q: Tensor, k: Tensor, plan: Plan) -> int:
    """Queries of a block: all threads have work, and few keys are read in vain."""
    least, most = ROWS
    rows = max(least, min(most, q.shape[2] // 4))
    if plan.allowed is None:
        return rows
    return max(1, min(rows, MASK_NUMBERS // (q.shape[1] * k.shape[2])))


def _blocks(plan: Plan, q: Tensor, k: Tensor, num_rows: int) -> Iterator[Block]:
    later = k.shape[2] - q.shape[2]  # slots: the queries are the last S of the T keys
    spans = plan.spans
    if plan.allowed is not None or q.shape[1] != k.shape[1]:
        spans = _one_by_one(spans, q.shape[0])
    for span in spans:
        for start in range(*span.queries, num_rows):
            stop = min(start + num_rows, span.queries[1])
            low, high = span.keys
            if plan.causal:
                high = min(high, stop + later)
            if plan.window is not None:
                low = max(low, start + later - plan.window + 1)
                high = min(high, stop + later - 1 + plan.window)
            if low < high:
                yield Block(span.sequence, span.placed, slice(start, stop), slice(low, high))


def _one_by_one(spans: tuple[Span, ...], batch: int) -> tuple[Span, ...]:
    """Each span for one sequence."""
    found = []
    for span in spans:
        each = range(batch) if span.sequence is None else (span.sequence,)
        found += [span._replace(sequence=b) for b in each]
    return tuple(found)


def _sequences(block: Block) -> slice:
    b = block.sequence
    return slice(None) if b is None else slice(b, b + 1)


def _of_queries(x: Tensor, block: Block, heads: int, groups: int) -> Tensor:
    """A view of x (B, H, S, ...): (B, H, R, ...), or (G, r, R, ...) where keys serve groups."""
    x = x[_sequences(block), :, block.rows]
    return x if heads == groups else x[0].unflatten(0, (groups, heads // groups))


def _of_keys(x: Tensor, block: Block, heads: int, groups: int) -> Tensor:
    """A view of x (B, G, T, D): (B, H, K, D), or (G, r, K, D) where keys serve groups."""
    x = x[_sequences(block), :, block.keys]
    return x if heads == groups else x[0].unsqueeze(1).expand(-1, heads // groups, -1, -1)


def _biases(strip: Tensor, q: Tensor, k: Tensor, plan: Plan) -> dict[bool, Tensor]:
    """The strip of queries that have a place, and of those that have none; -inf is hidden."""
    keys = k.shape[2]
    behind = torch.arange(keys - 1, -q.shape[2], -1)
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if plan.causal:
        hidden |= behind < 0
    if plan.window is not None:
        hidden |= (behind if plan.causal else behind.abs()) >= plan.window
    found = {True: strip.masked_fill(hidden, -torch.inf)}
    if not all(s.placed for s in plan.spans):
        found[False] = torch.zeros_like(strip).masked_fill(hidden, -torch.inf)
    return found


def _mask(strip: Tensor, block: Block, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
    """What is added to a block's logits, its queries in reverse order: (B or G, H or r, R, K)."""
    (batch, heads, queries, _), groups = q.shape, k.shape[1]
    batch = 1 if block.sequence is not None else batch
    rows, keys = block.rows, block.keys
    size = (batch, heads, rows.stop - rows.start, keys.stop - keys.start)
    first = strip.storage_offset() + queries - rows.stop + keys.start
    mask = strip.as_strided(size, (0, strip.stride(0), 1, 1), first)
    if plan.allowed is not None:
        mask = mask.masked_fill(~_allowed(plan, block), -torch.inf)
    return mask if heads == groups else mask[0].unflatten(0, (groups, heads // groups))


def _allowed(plan: Plan, block: Block) -> Tensor:
    """Which keys the queries of one sequence see, those in reverse order: (H or 1, R, K)."""
    assert plan.allowed is not None
    allowed = plan.allowed(block.rows, block.keys.stop)[..., block.keys.start :]
    return allowed[block.sequence if allowed.shape[0] > 1 else 0].flip(-2)
