"""Which query may see which key. Bool, True = may attend; slots decide, never positions."""

import torch
from jaxtyping import Bool
from torch import Tensor

from whereness.checks import require_device, require_int
from whereness.where import Where


def checked_mask(
    mask: Tensor | None,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    device: torch.device,
) -> None:
    """Raise unless `mask` is bool and fits (B, H, S, T).

    Raises:
        TypeError: not bool. A float mask would be read as True wherever it is not 0.
        ValueError: a shape that does not broadcast to (B, H, S, T), where 3 axes are ambiguous;
            another device.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool tensor, got {type(mask).__name__}.")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool (True = may attend), got {mask.dtype}. "
            "An additive mask becomes one by `mask == 0`."
        )
    wanted = (batch, heads, queries, keys)
    if mask.dim() not in (2, 4):
        raise ValueError(f"mask must have shape (S, T) or (B, H, S, T), got {tuple(mask.shape)}.")
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    leading = all(m in (1, w) for m, w in zip(shape[:2], wanted[:2], strict=True))
    if not leading or shape[2] not in (1, queries) or shape[3] != keys:
        raise ValueError(
            f"mask must broadcast to (B, H, S, T) = {wanted}, got {tuple(mask.shape)}."
        )
    require_device("mask", mask, device)


def checked_window(window: int | None) -> int | None:
    """`window`, if it is None or an int of at least 1."""
    return None if window is None else require_int("window", window, 1)


def may_attend(
    where: Where,
    num_queries: int,
    num_keys: int,
    *,
    causal: bool,
    window: int | None,
    mask: Tensor | None,
    device: torch.device,
    rows: slice | None = None,
    keys: int | None = None,
) -> Bool[Tensor, "b h S T"]:
    """causal & window & segments & key_mask & mask: (B or 1, H or 1, S, T) bool.

    The queries are the last S of T slots, so causal and window masks are anchored at the end.

    Args:
        rows: only these queries; None: all.
        keys: only the first so many keys; None: all.
    """
    rows = slice(None) if rows is None else rows
    first_keys = slice(keys)
    q_slots = torch.arange(num_keys - num_queries, num_keys, device=device)
    k_slots = torch.arange(num_keys, device=device)
    if where.slots is not None:  # a cache that has forgotten keys knows the slots of the rest
        q_slots, k_slots = where.slots[num_keys - num_queries :], where.slots
    behind = q_slots[rows, None] - k_slots[first_keys]  # slots back from query to key
    allowed = torch.ones(1, 1, *behind.shape, dtype=torch.bool, device=device)
    if causal:
        allowed = allowed & (behind >= 0)
    if window is not None:
        allowed = allowed & ((behind if causal else behind.abs()) < window)
    if where.segments is not None:
        k_segments = where.segments if where.k_segments is None else where.k_segments
        same = where.segments[:, rows, None] == k_segments[:, None, first_keys]
        allowed = allowed & same[:, None]
    if where.key_mask is not None:
        allowed = allowed & where.key_mask[:, None, None, first_keys]
    if mask is None:
        return allowed
    # A mask may be the same for all queries.
    of_rows = mask if mask.shape[-2] == 1 else mask[..., rows, :]
    return allowed & of_rows[..., first_keys]


def is_plain(where: Where, window: int | None, mask: Tensor | None) -> bool:
    """Nothing but causality hides a key."""
    return all(o is None for o in (where.segments, where.key_mask, window, mask))
