"""Tokens in a cache move to other positions, or to tables of another length.

What that takes of keys that door 3 has changed.

Axes: B batch, G key/value heads, T held slots, D head_dim, n axes of a position.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whereness.checks import as_int, require, require_device
from whereness.encoding import PositionalEncoding
from whereness.where import Where, checked_positions, filled, moved_by


def check_movable(encoding: PositionalEncoding) -> None:
    """Raise unless cached tokens of this encoding can be moved.

    Raises:
        ValueError: a member that is not relative.
        TypeError: a member whose door 3 cannot be undone.
    """
    for member in encoding.members():
        name = type(member).__name__
        if not member.relative:
            raise ValueError(
                f"{name} is not relative: what a cache holds was computed from the old positions. "
                "Feed the tokens again at the new ones."
            )
        _check_undone(member, encoding.cacheable)


def check_turnable(encoding: PositionalEncoding) -> None:
    """Raise unless cached keys of this encoding can be turned to the tables of other lengths.

    Raises:
        ValueError: a member by length that joins the tokens.
        TypeError: a member by length whose door 3 cannot be undone.
    """
    for member in encoding.members():
        if not member.needs_lengths:
            continue
        if member.site is not None:
            raise ValueError(
                f"{type(member).__name__} joined the tokens by the old lengths: what a cache holds "
                "was computed from that. Feed the tokens again."
            )
        _check_undone(member, encoding.cacheable)


def _check_undone(member: PositionalEncoding, cacheable: bool) -> None:
    name = type(member).__name__
    if cacheable and 3 in member.doors and _turns_keys(member) is None:
        raise TypeError(f"Cached keys of {name} cannot be turned back: it has no rotate_keys().")
    if member.overrides("values"):
        raise TypeError(f"{name} has changed the cached values: they cannot be turned back.")


def check_same_keys(
    given: PositionalEncoding, fed: PositionalEncoding | None, k: Tensor, old: Where, new: Where
) -> None:
    """Raise unless `given` turns these keys as `fed` does, what the layer had; None: not known.

    A copy will do, or other members beside the same turns.
    """
    if fed is None or given is fed:
        return
    mine, theirs = ([m for m in e.members() if 3 in m.doors] for e in (given, fed))
    message = (
        f"The cached keys were turned by {_named(theirs)}, got {_named(mine)}: give the encoding "
        "of the layer."
    )
    if given.cacheable != fed.cacheable or any(_turns_keys(m) is None for m in theirs):
        raise ValueError(message)
    if not fed.cacheable or [*map(id, mine)] == [*map(id, theirs)]:
        return
    found, needed = turned_again(given, k, old, new), turned_again(fed, k, old, new)
    require(found.isclose(needed, rtol=0.0, atol=0.0, equal_nan=True), message)


def _named(members: Sequence[PositionalEncoding]) -> str:
    return ", ".join(map(repr, members)) or "nothing"


def checked_offset(offset: float | Tensor, positions: Tensor, batch: int) -> float | Tensor:
    """A number, or (B,) numbers; whole ones where positions are.

    Raises:
        TypeError: a real offset for integer positions, bool.
        ValueError: a tensor that is not (B,), or on another device.
    """
    whole = not positions.is_floating_point()
    if isinstance(offset, Tensor):
        if offset.dtype == torch.bool or (whole and offset.is_floating_point()):
            raise TypeError(f"offset must hold integers, got {offset.dtype}.")
        if offset.shape != (batch,):
            raise ValueError(
                f"offset must be a number or one a row, ({batch},); got {tuple(offset.shape)}."
            )
        require_device("offset", offset, positions.device)
        require(offset.isfinite(), "offset must be finite.", offset)
        return offset.to(positions.dtype)
    number = as_int(offset)
    if number is not None:
        return number
    if whole or not isinstance(offset, float):
        kind = "an int" if whole else "a number"
        raise TypeError(f"offset must be {kind}, got {type(offset).__name__} ({offset!r}).")
    if not math.isfinite(offset):
        raise ValueError(f"offset must be finite, got {offset!r}.")
    return offset


def moved_beyond(positions: Tensor, offset: float | Tensor, keep: int) -> Tensor:
    """Positions (B or 1, T[, n]), all but the first `keep` moved by `offset`, a number or (B,)."""
    by = offset
    if isinstance(offset, Tensor):
        by = offset.reshape(-1, *[1] * (positions.dim() - 1))
    moved = moved_by(positions[:, keep:], by)
    stay = positions[:, :keep].expand(moved.shape[0], *[-1] * (positions.dim() - 1))
    return checked_positions("positions", torch.cat([stay, moved], 1))


def check_order_kept(old: Where, new: Where, keep: int, key_mask: Tensor | None) -> None:
    """Raise where a token that stood beyond all of the first `keep` would no longer."""
    (before, absent), (after, _) = (filled(w.positions, w.num_axes) for w in (old, new))
    highest = before
    if old.num_axes > 1:
        highest, before, after = before.amax(-1), before.amin(-1), after.amin(-1)
    if key_mask is not None:
        absent = absent | ~key_mask
    nowhere = torch.full_like(highest[:, :1], -(2**62))
    kept = torch.where(absent, nowhere, highest)[:, :keep].amax(-1, keepdim=True)
    stood_beyond = ~absent[:, keep:] & (before[:, keep:] > kept)
    require(
        ~stood_beyond | (after[:, keep:] > kept),
        f"This offset would put moved tokens on or before the first {keep}, which stay. Evict the "
        "tokens between them first (cache.evict), and move by the gap that leaves.",
    )


def turned_again(encoding: PositionalEncoding, k: Tensor, old: Where, new: Where) -> Tensor:
    """Keys (B, G, T, D) as door 3 gave them at `old` -> as it gives them at `new`.

    In float64, rounded once. Several members are undone in the reverse order.
    """
    turns = [rotate for m in encoding.members() if (rotate := _turns_keys(m)) is not None]
    if not turns:
        return k
    wide = k.double()
    for rotate in reversed(turns):
        wide = rotate(wide, old, inverse=True)
    for rotate in turns:
        wide = rotate(wide, new)
    return wide.to(k.dtype)


def _turns_keys(member: PositionalEncoding) -> Callable[..., Tensor] | None:
    """What turns keys by their positions, and with inverse=True back; None if it has none."""
    found = getattr(member, "rotate_keys", None)
    return found if 3 in member.doors and callable(found) else None
