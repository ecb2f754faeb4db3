"""Weights from one pairing to the other: the rows of queries and keys change places, scores do not.

    channel of pair k, first and second:   half  k, k + R/2      interleaved  2k, 2k + 1

A pairing is a matter of which rows of W_q and W_k lie where: interleaved rows moved to the places
of half, for queries and keys alike, give the same scores under half: a score is a sum over pairs
(Su et al. 2021, arXiv:2104.09864). What lies along those rows moves with them: biases, weights of
norms over a head, scales and zero points of rows, an adapter's `lora_B`. No value is changed.

Axes: D head_dim, R rotary_dim <= D, H query heads, G key/value heads.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from torch import Tensor

from whereness.checks import require_choice, require_int
from whereness.rotary.base import Side
from whereness.rotary.pairing import PAIRINGS, Pairing, split

Fused = Literal["stacked", "grouped", "codegen"]
FUSED = ("stacked", "grouped", "codegen")


def convert_pairing(
    weight: Tensor,
    num_heads: int,
    head_dim: int,
    to: Pairing = "half",
    rotary_dim: int | None = None,
    side: Side = "leading",
    dim: int = 0,
) -> Tensor:
    """A copy of `weight` with the rows of every head in the places that the pairing `to` wants.

    The input must be of the other pairing: nothing in the numbers tells, and a second conversion
    to the same pairing makes a wrong model. Any dtype; rows are moved and never computed with.

    =====================================  ====================================================
    queries                                num_heads = H
    keys                                   num_heads = G, the number of key heads
    biases, scales of rows                 as the weight that they belong to
    weight of a norm over one head         num_heads = 1
    DeepSeek's q_b_proj (or q_proj)        head_dim = nope + rope, rotary_dim = rope, trailing
    DeepSeek's kv_a_proj_with_mqa          num_heads = 1, head_dim = kv_lora_rank + rope,
                                           rotary_dim = rope, trailing
    (in, out): GPT-2's Conv1D, GPTQ, JAX   dim = 1
    queries, keys, values in one tensor    `convert_fused_qkv`
    =====================================  ====================================================

    Args:
        weight: its axis `dim` runs over num_heads * head_dim rows.
        to: "half" takes interleaved weights, "interleaved" takes half.
        rotary_dim: channels of a head that turn, even; None: all. The others stay.
        side: which channels turn, where not all do.
        dim: the axis of the heads.

    Raises:
        ValueError: another number of rows, an odd or too large rotary_dim, an axis or option that
            does not exist.

    >>> convert_pairing(torch.tensor([0, 1, 2, 3, 4, 5]), num_heads=1, head_dim=6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    num_heads = require_int("num_heads", num_heads, 1)
    return move_rows(weight, [True] * num_heads, head_dim, to, rotary_dim, side, dim)


def convert_fused_qkv(
    weight: Tensor,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    layout: Fused = "stacked",
    to: Pairing = "half",
    rotary_dim: int | None = None,
    side: Side = "leading",
    dim: int = 0,
) -> Tensor:
    """`convert_pairing` for queries, keys and values in one tensor; the values stay.

    =========  ===================================  ============================================
    layout     heads along the axis                 used by
    =========  ===================================  ============================================
    stacked    H of q, G of k, G of v               Phi-3, DBRX, ChatGLM, vLLM's qkv_proj
    grouped    G times: H/G of q, one k, one v      GPT-NeoX and Persimmon (G = H), Falcon,
                                                    InternLM2, Megatron's linear_qkv
    codegen    4 times: H/4 of q, of v, of k        CodeGen
    =========  ===================================  ============================================

    A fused bias, and scales of rows, have the layout of their weight.

    Args:
        num_kv_heads: G; None: as many as queries.

    Raises:
        ValueError: as `convert_pairing`; numbers of heads that the layout cannot hold.

    >>> convert_fused_qkv(torch.arange(12), num_heads=1, head_dim=4)
    tensor([ 0,  2,  1,  3,  4,  6,  5,  7,  8,  9, 10, 11])
    """
    num_heads = require_int("num_heads", num_heads, 1)
    num_kv_heads = (
        num_heads if num_kv_heads is None else require_int("num_kv_heads", num_kv_heads, 1)
    )
    require_choice("layout", layout, FUSED)
    turning = turning_heads(num_heads, num_kv_heads, layout)
    return move_rows(weight, turning, head_dim, to, rotary_dim, side, dim)


def turning_heads(num_heads: int, num_kv_heads: int, layout: Fused) -> list[bool]:
    """Of every head along the axis, whether it turns: queries and keys do, values do not.

    Raises:
        ValueError: numbers of heads that the layout cannot hold.
    """
    queries, keys = fused_heads(num_heads, num_kv_heads, layout)
    turning = {*queries, *keys}
    return [head in turning for head in range(num_heads + 2 * num_kv_heads)]


def fused_heads(num_heads: int, num_kv_heads: int, layout: Fused) -> tuple[list[int], list[int]]:
    """Where along the axis the heads of queries stand, and those of keys.

    Raises:
        ValueError: numbers of heads that the layout cannot hold.
    """
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}."
        )
    if layout == "stacked":
        return list(range(num_heads)), list(range(num_heads, num_heads + num_kv_heads))
    if layout == "grouped":
        size = num_heads // num_kv_heads
        firsts = range(0, num_kv_heads * (size + 2), size + 2)
        return [g + i for g in firsts for i in range(size)], [g + size for g in firsts]
    part, rest = divmod(num_heads, 4)
    if rest or num_kv_heads != num_heads:
        raise ValueError(
            "layout 'codegen' has four parts with as many keys as queries, got "
            f"num_heads={num_heads}, num_kv_heads={num_kv_heads}."
        )
    firsts = range(0, 12 * part, 3 * part)  # of each part: queries, values, keys
    queries = [first + i for first in firsts for i in range(part)]
    return queries, [2 * part + i for i in queries]


def move_rows(
    weight: Tensor,
    turning: list[bool],
    head_dim: int,
    to: Pairing,
    rotary_dim: int | None,
    side: Side,
    dim: int,
) -> Tensor:
    """A copy of `weight` with the rows of the heads that turn in the places that `to` wants.

    Args:
        turning: for every head along the axis `dim`, whether it turns.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor, got {type(weight).__name__}.")
    require_choice("to", to, PAIRINGS)
    head_dim = require_int("head_dim", head_dim, 1)
    start, width = rotary_slice(head_dim, rotary_dim, side)
    axis = _axis(weight, dim)
    rows = len(turning) * head_dim
    if weight.shape[axis] != rows:
        raise ValueError(
            f"weight must have {len(turning)} heads of {head_dim} rows, {rows}, on axis {dim}; got "
            f"{weight.shape[axis]} of shape {tuple(weight.shape)}. Keys have heads of their own "
            "number, and rows that are packed together cannot be moved."
        )
    out = weight.clone()
    came: Pairing = "interleaved" if to == "half" else "half"
    for first, count in _runs(turning):
        old, new = (
            t.narrow(axis, first * head_dim, count * head_dim)
            .unflatten(axis, (count, head_dim))
            .narrow(axis + 1, start, width)
            .movedim(axis + 1, -1)
            for t in (weight, out)
        )
        for source, target in zip(split(old, came), split(new, to), strict=True):
            target.copy_(source)
    return out


def rotary_slice(head_dim: int, rotary_dim: int | None, side: Side) -> tuple[int, int]:
    """First channel of a head that turns, and how many do.

    Raises:
        ValueError: an odd or too large width, a side that does not exist.
    """
    width = head_dim if rotary_dim is None else require_int("rotary_dim", rotary_dim, 2)
    require_choice("side", side, ("leading", "trailing"))
    if width % 2 or width > head_dim:
        raise ValueError(
            f"rotary_dim must be even, two channels a pair, and fit head_dim={head_dim}; got "
            f"{width}."
        )
    return (0 if side == "leading" else head_dim - width), width


def _axis(weight: Tensor, dim: int) -> int:
    dim = require_int("dim", dim, -(2**31))
    if not -weight.dim() <= dim < weight.dim():
        raise ValueError(f"dim must be an axis of weight, {tuple(weight.shape)}; got {dim}.")
    return dim % weight.dim()


def _runs(turning: list[bool]) -> Iterator[tuple[int, int]]:
    """First head and number of heads of every stretch that turns."""
    first = 0
    for turns, heads in groupby(turning):
        count = len(list(heads))
        if turns:
            yield first, count
        first += count
