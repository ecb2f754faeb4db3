"""Rows of text: padded, packed, prefilled in chunks, decoded, continued.

Axes: B batch, T slots of a row, n axes of a position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.checks import LARGEST_POSITION, LARGEST_SIZE, require, require_device, require_int
from whereness.where import NOWHERE, Where, as_mask, filled


def from_mask(attention_mask: Tensor) -> Tensor:
    """Real tokens counted from 0, pads nowhere: (B, T) of 1 and 0 -> (B, T).

    Pads may stand left, right or between. The result is the same for a token whatever pads
    stand around it.

    >>> from_mask(torch.tensor([[0, 0, 1, 1]]))[0, 2:]
    tensor([0, 1])
    """
    mask = as_mask(attention_mask, "attention_mask")
    if mask.dim() not in (1, 2):
        raise ValueError(f"attention_mask must be (B, T) or (T,), got {tuple(mask.shape)}.")
    return (mask.long().cumsum(-1) - 1).masked_fill(~mask, NOWHERE)


def packed(lengths: Sequence[int] | Tensor, total: int | None = None) -> Tensor:
    """Positions of documents packed in one row, each from 0: -> (total,). The tail is nowhere.

    >>> packed([2, 3])
    tensor([0, 1, 0, 1, 2])
    """
    lengths, total = _checked_lengths(lengths, total)
    slots = torch.arange(total, device=lengths.device)
    document = _document_of(slots, lengths)
    starts = lengths.cumsum(0) - lengths
    ids = slots - starts[document.clamp(max=len(lengths) - 1)]
    return ids.masked_fill(document == len(lengths), NOWHERE)


def segments(lengths: Sequence[int] | Tensor, total: int | None = None) -> Tensor:
    """Document number of every token of a packed row: -> (total,). The tail has -1.

    >>> segments([2, 3], total=6)
    tensor([ 0,  0,  1,  1,  1, -1])
    """
    lengths, total = _checked_lengths(lengths, total)
    document = _document_of(torch.arange(total, device=lengths.device), lengths)
    return document.masked_fill(document == len(lengths), -1)


def decode(cache_lengths: Sequence[int] | Tensor, num_new: int = 1, num_axes: int = 1) -> Tensor:
    """Positions of `num_new` tokens after caches of these lengths: (B,) -> (B, num_new[, n]).

    `cache_lengths` counts tokens that have been fed, not rows that a cache still holds: eviction
    does not turn the clock back. With several axes a token of text has one number on all of them.

    >>> decode([5, 2], 2).tolist()
    [[5, 6], [2, 3]]
    """
    num_new = require_int("num_new", num_new, 1)
    num_axes = require_int("num_axes", num_axes, 1)
    starts = _checked_counts("cache_lengths", cache_lengths)
    ids = starts[:, None] + torch.arange(num_new, device=starts.device)
    return ids if num_axes == 1 else ids[..., None].expand(-1, -1, num_axes)


def prefill(
    lengths: Sequence[int] | Tensor,
    start: int,
    size: int,
    cache_lengths: Sequence[int] | Tensor | None = None,
) -> Tensor:
    """Positions of one chunk of a prefill, slots start .. start+size-1: -> (B, size).

    The prompts are padded on the right to a common length; where a row has ended there is no
    place. Feed the chunk with `Where(ids, key_mask=ids != wn.NOWHERE)`, so that nobody sees its
    pads. For prompts padded on the left, take the chunk out of `from_mask(attention_mask)`.

    Args:
        lengths: tokens of every prompt, (B,).
        cache_lengths: tokens that each row's cache had been fed before the prompt; None: 0.

    >>> prefill([5, 3], start=2, size=2).tolist()[0]
    [2, 3]
    """
    start = require_int("start", start, 0, LARGEST_POSITION)
    size = require_int("size", size, 1)
    lengths = _checked_counts("lengths", lengths)
    slots = torch.arange(start, start + size, device=lengths.device)
    ids = slots.expand(len(lengths), -1)
    if cache_lengths is not None:
        before = _checked_counts("cache_lengths", cache_lengths)
        if len(before) != len(lengths):
            raise ValueError(
                f"cache_lengths must be one a row: needed {len(lengths)}, got {len(before)}."
            )
        require_device("cache_lengths", before, lengths.device)
        ids = ids + before[:, None]
    return ids.masked_fill(slots >= lengths[:, None], NOWHERE)


def continued(positions: Tensor, num_new: int = 1, num_axes: int = 1) -> Tensor:
    """Positions of the next tokens: the largest in each row, on any axis, plus one.

    This is how `wn.KVCache` goes on after ids of a caller's own, and how text goes on after an
    image. (S,) or (B, S) -> (1 or B, num_new); with axes (S, n), (B, S, n) -> (.., num_new, n).

    >>> continued(torch.tensor([0, 0, 1, 2, 2, 2]), 2)
    tensor([[3, 4]])
    """
    num_new = require_int("num_new", num_new, 1)
    where = Where(positions, num_axes=num_axes)
    first = next_position(where.positions, where.num_axes)
    ids = first[:, None] + torch.arange(num_new, device=first.device)
    return ids if num_axes == 1 else ids[..., None].expand(-1, -1, num_axes)


def next_position(
    positions: Tensor, num_axes: int = 1, before: Tensor | None = None, pads: Tensor | None = None
) -> Tensor:
    """Largest position plus one: (B, S[, n]) -> (B,). Pads and tokens without a place do not count.

    Args:
        before: (B or 1,) where the row stood before these tokens: it never goes back; None: 0.
        pads: (B or 1, S), True at pads.

    >>> next_position(torch.tensor([[4, 6, 5]]))
    tensor([7])
    """
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a tensor, got {type(positions).__name__}.")
    if positions.dim() != (2 if num_axes == 1 else 3):
        shape = "(B, S)" if num_axes == 1 else "(B, S, n)"
        raise ValueError(f"positions must have shape {shape}, got {tuple(positions.shape)}.")
    if not positions.shape[1]:
        return positions.new_zeros(positions.shape[0]) if before is None else before
    placed, absent = filled(positions, num_axes)
    if num_axes > 1:
        placed = placed.amax(-1)
    if pads is not None:
        absent = absent | pads
        placed = placed.expand(absent.shape)
    lowest = placed.new_full((), -(2**62) - 1)
    last = torch.where(absent, lowest, placed).amax(-1)
    none = absent.all(-1)
    if before is None:
        return torch.where(none, torch.zeros_like(last), last + 1)
    return torch.where(none, before, torch.maximum(before, last + 1))


def _checked_counts(name: str, counts: Sequence[int] | Tensor) -> Tensor:
    """(B,) int64, not negative."""
    if not isinstance(counts, Tensor):
        numbers = [require_int(name, n, 0, LARGEST_POSITION) for n in counts]
        counts = torch.tensor(numbers, dtype=torch.int64)
    if counts.is_floating_point() or counts.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {counts.dtype}.")
    if counts.dim() != 1:
        raise ValueError(f"{name} must be (B,), got {tuple(counts.shape)}.")
    require(counts >= 0, f"{name} must not be negative.")
    return counts.long()


def _checked_lengths(lengths: Sequence[int] | Tensor, total: int | None) -> tuple[Tensor, int]:
    if not isinstance(lengths, Tensor):
        counts = [require_int(f"length {i}", n, 0) for i, n in enumerate(lengths)]
        lengths = torch.tensor(counts, dtype=torch.int64)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must hold integers, got {lengths.dtype}.")
    if lengths.dim() != 1 or len(lengths) == 0:
        raise ValueError(f"lengths must be (documents,), at least one; got {tuple(lengths.shape)}.")
    require(lengths >= 0, "lengths must not be negative.")
    require(lengths <= LARGEST_SIZE, f"lengths must be at most {LARGEST_SIZE}.", lengths)
    if total is None and lengths.is_meta:
        raise ValueError("lengths on the meta device have no values: give total.")
    if total is None:
        return lengths.long(), int(lengths.sum())
    total = require_int("total", total, 0)
    require(
        lengths.sum() <= total,
        lambda: f"total must hold all documents: needed {int(lengths.sum())}, got {total}.",
    )
    return lengths.long(), total


def _document_of(slots: Tensor, lengths: Tensor) -> Tensor:
    """Number of the document that each slot lies in; len(lengths) past the last."""
    return torch.searchsorted(lengths.cumsum(0), slots, right=True)
