"""How long the sequence of each token gets: what dynamic NTK and LongRoPE choose their table by.

Axes: B sequences, S queries, N new keys, n axes of a position.
"""

import torch
from torch import Tensor

from whereness.where import Where, filled


def lengths_of(where: Where) -> tuple[Tensor, Tensor]:
    """Lengths for the queries (B or 1, S or 1) and for the new keys (B or 1, N or 1).

    They are `where.lengths`; where there are none and nothing has been cached, the last position
    plus one: of each sequence, in a packed row of each document.

    Raises:
        ValueError: cached keys and no lengths; lengths a token that do not fit the keys.
    """
    if where.lengths is not None:
        return _given(where, where.lengths)
    if where.cached:
        raise ValueError(
            "Keys were cached and the sequence's length is not known: give Where(lengths=...), or "
            "they and the new keys would use different tables."
        )
    pads = None if where.key_mask is None else ~where.key_mask
    if where.k_positions is None:
        lengths = _last(where.positions, where.segments, where.num_axes, pads) + 1
        return lengths, lengths
    segments = where.segments
    if segments is not None:
        segments = _beside(segments, where.k_segments)
    if pads is not None:
        queries = where.positions.new_zeros(where.positions.shape[:2], dtype=torch.bool)
        pads = _beside(queries, pads)
    tokens = _beside(where.positions, where.k_positions)
    lengths = _last(tokens, segments, where.num_axes, pads) + 1
    if segments is None:
        return lengths, lengths
    num_queries = where.num_queries
    return lengths[:, :num_queries], lengths[:, num_queries:]


def _given(where: Where, lengths: Tensor) -> tuple[Tensor, Tensor]:
    for name, count in (("queries", where.num_queries), ("keys", where.new_keys.shape[1])):
        if lengths.shape[1] not in (1, count):
            raise ValueError(
                f"lengths must be one a sequence or one for each of {count} {name}, got "
                f"{tuple(lengths.shape)}."
            )
    return lengths, lengths


def _beside(first: Tensor, second: Tensor | None) -> Tensor:
    """Queries and keys as one row of tokens."""
    if second is None:
        second = first
    batch = max(first.shape[0], second.shape[0])
    return torch.cat([t.expand(batch, *t.shape[1:]) for t in (first, second)], 1)


def _last(positions: Tensor, segments: Tensor | None, num_axes: int, pads: Tensor | None) -> Tensor:
    """Largest position of each token's sequence, (B, 1), or of its document, (B, S)."""
    placed, _ = filled(positions, num_axes)
    if num_axes > 1:
        placed = placed.amax(-1)
    if pads is not None:
        placed = torch.where(pads, 0, placed)
    if placed.shape[-1] == 0:
        return placed
    if segments is None:
        return placed.amax(-1, keepdim=True)
    batch = max(placed.shape[0], segments.shape[0])
    placed, segments = placed.expand(batch, -1), segments.expand(batch, -1)
    # Documents may have any numbers and lie in pieces: number them by their order in the row.
    order = segments.argsort(-1)
    ordered = segments.gather(-1, order)
    begins = torch.cat([torch.zeros_like(ordered[:, :1]), (ordered.diff(dim=-1) != 0).long()], -1)
    document = torch.empty_like(order).scatter(-1, order, begins.cumsum(-1))
    last = torch.zeros_like(placed).scatter_reduce(-1, document, placed, "amax", include_self=False)
    return last.gather(-1, document)
