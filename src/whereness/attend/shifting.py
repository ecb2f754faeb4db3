"""Tokens in a cache move to other positions: what that takes of keys that door 3 has changed.

Axes: B batch, G key/value heads, T held slots, D head_dim, n axes of a position.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from whereness.checks import as_int, require, require_device
from whereness.encoding import PositionalEncoding
from whereness.where import Where, checked_positions, moved_by


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
        if encoding.cacheable and 3 in member.doors and _turns_keys(member) is None:
            raise TypeError(
                f"Cached keys of {name} cannot be turned back: it has no rotate_keys()."
            )
        if member.overrides("values"):
            raise TypeError(f"{name} has changed the cached values: they cannot be turned back.")


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


def turned_again(
    encoding: PositionalEncoding, k: Tensor, old: Tensor, new: Tensor, lengths: Tensor | None
) -> Tensor:
    """Keys (B, G, T, D) as door 3 gave them at `old` positions -> as it gives them at `new` ones.

    In float64, rounded once. Several members are undone in the reverse order.
    """
    turns = [rotate for m in encoding.members() if (rotate := _turns_keys(m)) is not None]
    if not turns:
        return k
    axes = 1 if old.dim() == 2 else old.shape[-1]
    before, after = (Where(p, num_axes=axes, lengths=lengths) for p in (old, new))
    wide = k.double()
    for rotate in reversed(turns):
        wide = rotate(wide, before, inverse=True)
    for rotate in turns:
        wide = rotate(wide, after)
    return wide.to(k.dtype)


def _turns_keys(member: PositionalEncoding) -> Callable[..., Tensor] | None:
    """What turns keys by their positions, and with inverse=True back; None if it has none."""
    found = getattr(member, "rotate_keys", None)
    return found if 3 in member.doors and callable(found) else None
