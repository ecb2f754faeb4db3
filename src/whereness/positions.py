"""Position ids for the usual layouts of a batch. Vectorised; positions are int64 tokens from 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.checks import LARGEST_POSITION, require, require_int
from whereness.where import NOWHERE, as_mask


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


def grid(*sizes: int, prefix: int = 0, device: torch.device | str | None = None) -> Tensor:
    """Coordinates of a grid in row-major order, (prefix + product of sizes, n).

    `prefix` tokens without a place (CLS, registers) come first. The first coordinate is that of
    the first size: rows, for `grid(height, width)`.

    >>> grid(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if not sizes:
        raise ValueError("grid needs at least one size, as in grid(height, width).")
    sizes = tuple(require_int(f"size {i} of the grid", s, 1) for i, s in enumerate(sizes))
    prefix = require_int("prefix", prefix, 0)
    axes = torch.meshgrid(*(torch.arange(s, device=device) for s in sizes), indexing="ij")
    cells = torch.stack(axes, -1).flatten(0, -2)
    return torch.cat([cells.new_full((prefix, len(sizes)), NOWHERE), cells])


def decode(cache_lengths: Sequence[int] | Tensor, num_new: int = 1) -> Tensor:
    """Positions of `num_new` tokens after caches of these lengths: (B,) -> (B, num_new).

    `cache_lengths` counts tokens that have been fed, not rows that a cache still holds: eviction
    does not turn the clock back.

    >>> decode([5, 2], 2).tolist()
    [[5, 6], [2, 3]]
    """
    num_new = require_int("num_new", num_new, 1)
    if not isinstance(cache_lengths, Tensor):
        counts = [require_int("cache_lengths", n, 0, LARGEST_POSITION) for n in cache_lengths]
        cache_lengths = torch.tensor(counts, dtype=torch.int64)
    if cache_lengths.is_floating_point() or cache_lengths.dtype == torch.bool:
        raise TypeError(f"cache_lengths must hold integers, got {cache_lengths.dtype}.")
    if cache_lengths.dim() != 1:
        raise ValueError(f"cache_lengths must be (B,), got {tuple(cache_lengths.shape)}.")
    require(cache_lengths >= 0, "cache_lengths must not be negative.")
    new = torch.arange(num_new, device=cache_lengths.device)
    return cache_lengths.long()[:, None] + new


def _checked_lengths(lengths: Sequence[int] | Tensor, total: int | None) -> tuple[Tensor, int]:
    if not isinstance(lengths, Tensor):
        counts = [require_int(f"length {i}", n, 0) for i, n in enumerate(lengths)]
        lengths = torch.tensor(counts, dtype=torch.int64)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must hold integers, got {lengths.dtype}.")
    if lengths.dim() != 1 or len(lengths) == 0:
        raise ValueError(f"lengths must be (documents,), at least one; got {tuple(lengths.shape)}.")
    require(lengths >= 0, "lengths must not be negative.")
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
