"""From whatever a caller gave to an `At`: the only place that knows the default positions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whereness.checks import require_device
from whereness.encoding import At, PositionalEncoding
from whereness.positions import from_mask
from whereness.where import NOWHERE, Where, as_mask, placed_advice

if TYPE_CHECKING:
    from whereness.attend.cache import KVCache


@dataclass(frozen=True)
class Extent:
    """Sizes of one attention call. `num_keys` counts all keys, those in a cache included."""

    batch: int
    num_queries: int
    num_keys: int
    causal: bool
    cross: bool
    device: torch.device


def locate(
    encoding: PositionalEncoding,
    where: "Where | At | Tensor | None",
    extent: Extent,
    key_mask: Tensor | None = None,
    cache: "KVCache | None" = None,
) -> At:
    """The prepared positions of one attention call, defaults filled in and sizes checked.

    Raises:
        ValueError: positions that are needed and were not given, sizes that do not fit, an `At`
            of another encoding or of an older state of the cache.
    """
    if isinstance(where, At):
        at = _checked_at(encoding, where, key_mask)
    else:
        where = resolve(encoding, where, extent, key_mask, cache)
        where = moved(encoding.members(), where, extent, cache)
        if cache is not None:
            where = extended([encoding], where, cache, key_mask)
        at = encoding.prepare(where)
    _check_sizes(at.where, extent)
    return at


def resolve(
    encoding: PositionalEncoding,
    where: Where | Tensor | None,
    extent: Extent,
    key_mask: Tensor | None,
    cache: "KVCache | None",
) -> Where:
    """A `Where` of the new tokens, with `key_mask` in it and default positions filled in."""
    where = _as_where(where, encoding)
    if encoding.takes_grid:
        where = where.of_tokens(extent.num_queries, extent.num_keys)
    where = _with_key_mask(where, key_mask, extent, cache)
    where.require_device(extent.device)
    if cache is not None and len(cache):
        require_device("The cached keys", cache.k, extent.device)
    return fill_positions(encoding, where, extent, cache)


def moved(
    members: Sequence[PositionalEncoding],
    where: Where,
    extent: Extent,
    cache: "KVCache | None",
    generator: torch.Generator | None = None,
) -> Where:
    """`where` through the training-time maps of all members, once each, in their order.

    Raises:
        ValueError: positions would move under a cache: old keys were not moved by the same draw.
    """
    before = where
    if any(m.training and m.draws_per_sequence for m in members):
        where = where.of_batch(extent.batch)
    for member in members:
        where = member.move(where, generator)
    if cache is not None and where is not before:
        raise ValueError(
            "A map has moved the new positions, and a cache holds tokens that another draw has "
            "moved, or none. Call eval() before decoding."
        )
    return where


def extended(
    encodings: Sequence[PositionalEncoding],
    where: Where,
    cache: "KVCache",
    key_mask: Tensor | None = None,
) -> Where:
    """New tokens -> new tokens against all slots of the cache.

    `key_mask` (B, T) may hide cached tokens from these queries; what the cache holds of them stays.

    Raises:
        ValueError: an encoding depends on `lengths` and there are none.
    """
    needing = [type(e).__name__ for e in encodings if e.needs_lengths]
    if needing and where.lengths is None:
        raise ValueError(
            f"{needing[0]} depends on how long each sequence will get: with a cache "
            "give Where(lengths=...), or keys cached early and late would use different tables."
        )
    where = cache.extend(where)
    if key_mask is None or not len(cache):
        return where
    seen = as_mask(key_mask)
    seen = seen[None] if seen.dim() == 1 else seen
    return replace(where, key_mask=seen if where.key_mask is None else where.key_mask & seen)


def _checked_at(encoding: PositionalEncoding, at: At, key_mask: Tensor | None) -> At:
    if at.encoding is not encoding:
        raise ValueError(
            f"These positions were prepared for another {type(at.encoding).__name__}. "
            "Call prepare() of the encoding that this attention uses."
        )
    if key_mask is not None:
        raise ValueError("Prepared positions have their key_mask: give it to Where, not beside it.")
    return at


def _as_where(where: Where | Tensor | None, encoding: PositionalEncoding) -> Where:
    if where is None:
        return Where(num_axes=encoding.num_axes)
    if isinstance(where, Tensor):
        return Where(where, num_axes=encoding.num_axes)
    if not isinstance(where, Where):
        raise TypeError(
            "where must be a tensor, a wn.Where or what prepare() gave, got "
            f"{type(where).__name__}.{placed_advice(where)}"
        )
    return where


def _with_key_mask(
    where: Where, key_mask: Tensor | None, extent: Extent, cache: "KVCache | None"
) -> Where:
    """Join the argument `key_mask` (B, T) to `where`; with a cache only the new part goes in."""
    if key_mask is None:
        return where
    if where.key_mask is not None:
        raise ValueError("key_mask was given twice: as an argument and inside Where.")
    key_mask = as_mask(key_mask)
    if key_mask.dim() == 1:
        key_mask = key_mask[None]
    if key_mask.dim() != 2 or key_mask.shape[1] != extent.num_keys:
        past = "" if cache is None else f" ({len(cache)} cached and {extent.num_queries} new)"
        raise ValueError(
            f"key_mask must be (B, T) with T={extent.num_keys} keys{past}, "
            f"got {tuple(key_mask.shape)}."
        )
    if key_mask.dim() == 2 and key_mask.shape[0] not in (1, extent.batch):
        raise ValueError(
            f"key_mask must have batch size 1 or {extent.batch}, got {key_mask.shape[0]}."
        )
    require_device("key_mask", key_mask, extent.device)
    if cache is not None:
        cache.check_mask(key_mask[:, : len(cache)])
        key_mask = key_mask[:, len(cache) :]
    return replace(where, key_mask=key_mask)


def fill_positions(
    encoding: PositionalEncoding, where: Where, extent: Extent, cache: "KVCache | None"
) -> Where:
    """Give `where` positions, if it has none, by the rules of the design.

    - from the cache: the last position of each row, plus one; with several axes the largest, plus
      one, on all of them, but for an encoding of grids, whose next cell only the caller knows;
    - from `key_mask`: real tokens counted from 0;
    - in segments: counted from 0 in each;
    - S = T: 0 .. S-1; S < T and causal: the last S of 0 .. T-1;
    - cross-attention: each stream from 0.
    """
    if where.positions is not None:
        return where
    reads = encoding.reads == "positions"
    if reads and encoding.num_axes > 1 and not _goes_on(encoding, cache):
        raise ValueError(_needs_axes(encoding, cache))
    if cache is not None:
        return cache.continued(where, extent)
    where = replace(where, num_axes=1)
    queries, keys = extent.num_queries, extent.num_keys
    if extent.cross:
        q = torch.arange(queries, device=extent.device)
        k = torch.arange(keys, device=extent.device)
        if where.segments is not None:
            q = positions_in_segments(where.segments, None)
            k_segments = where.segments if where.k_segments is None else where.k_segments
            k = positions_in_segments(k_segments, where.key_mask)
        elif where.key_mask is not None:
            k = from_mask(where.key_mask)
        return replace(where, positions=q, k_positions=k)
    if queries == keys and where.k_segments is None:
        where = replace(where, positions=_default(where, keys, extent))
        return where.as_regular() if _is_regular(where) else where
    if extent.causal and queries < keys and where.segments is None:
        k = _default(where, keys, extent)
        first = keys - queries
        where = replace(where, positions=k[..., first:], k_positions=k)
        return where.as_regular() if _is_regular(where) else where
    if not reads:
        q, k = (torch.arange(n, device=extent.device) for n in (queries, keys))
        return replace(where, positions=q, k_positions=k)
    raise ValueError(
        f"{queries} queries and {keys} keys without positions are ambiguous: "
        "give where=Where(positions, k_positions)."
    )


def _goes_on(encoding: PositionalEncoding, cache: "KVCache | None") -> bool:
    """The cache's positions have the encoding's axes, and go on as those of text do."""
    return (
        cache is not None
        and cache.positions is not None
        and cache.num_axes == encoding.num_axes
        and not encoding.takes_grid
    )


def _needs_axes(encoding: PositionalEncoding, cache: "KVCache | None") -> str:
    needs = f"{type(encoding).__name__} needs positions of {encoding.num_axes} axes"
    if cache is None or cache.positions is None:
        return (
            f"{needs}: give where=Where(positions, num_axes={encoding.num_axes}). "
            "wn.positions.grid() makes those of a grid, multimodal() those of text and images."
        )
    if cache.num_axes != encoding.num_axes:
        return f"{needs}, the cached ones have {cache.num_axes}: feed the tokens again."
    return (
        f"{needs} for the new tokens too: give where=Where(positions, num_axes="
        f"{encoding.num_axes}). Those of a grid go on by its cells; after one, text stands at "
        f"wn.positions.continued(positions, num_new, {encoding.num_axes})."
    )


def _default(where: Where, length: int, extent: Extent) -> Tensor:
    if where.segments is not None:
        return positions_in_segments(where.segments, where.key_mask)
    if where.key_mask is not None:
        return from_mask(where.key_mask)
    return torch.arange(length, device=extent.device)


def _is_regular(where: Where) -> bool:
    # With pads or other documents between two tokens, positions and slots have other offsets.
    return where.key_mask is None and where.segments is None


def positions_in_segments(segments: Tensor, key_mask: Tensor | None) -> Tensor:
    """Real tokens of every document counted from 0, pads nowhere: (B, S) -> (B, S).

    A document is its number: if it lies in two parts, the count goes on in the second.
    """
    if key_mask is not None:
        shape = torch.broadcast_shapes(key_mask.shape, segments.shape)
        segments = segments.expand(shape).masked_fill(~key_mask, NOWHERE)  # pads: one more document
    ordered, order = torch.sort(segments, dim=-1, stable=True)
    places = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    first = torch.ones_like(segments, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = places - torch.where(first, places, 0).cummax(-1).values
    positions = torch.empty_like(rank).scatter(-1, order, rank)
    return positions if key_mask is None else positions.masked_fill(~key_mask, NOWHERE)


def _check_sizes(where: Where, extent: Extent) -> None:
    found, needed = (where.num_queries, where.num_keys), (extent.num_queries, extent.num_keys)
    if found != needed:
        raise ValueError(
            f"Positions must match the tokens: needed {needed[0]} queries and {needed[1]} keys, "
            f"got {found[0]} and {found[1]}."
        )
    for name, value in where.tensors().items():
        if value.shape[0] not in (1, extent.batch):
            raise ValueError(
                f"{name} must have batch size 1 or {extent.batch}, got {value.shape[0]}."
            )
    if where.lengths is not None and where.lengths.shape[1] not in (1, extent.num_queries):
        raise ValueError(
            f"lengths must be one a sequence or one a new token, got {tuple(where.lengths.shape)}."
        )
    where.require_device(extent.device)
