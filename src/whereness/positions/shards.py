"""Shards of one long sequence: which tokens a rank holds in context parallelism.

    contiguous   rank r holds the r-th of W parts
    striped      rank r holds r, r + W, r + 2W, ...
    zigzag       of 2W parts rank r holds the r-th and the (2W-1-r)-th: under a causal mask every
                 rank has the same work

Axes: L length, W world_size.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import require_choice, require_device, require_int

Scheme = Literal["zigzag", "contiguous", "striped"]


def shard(
    length: int,
    rank: int,
    world_size: int,
    scheme: Scheme = "zigzag",
    device: torch.device | str | None = None,
) -> Tensor:
    """Positions of one rank's tokens, (L / world_size,).

    They are the tokens' indices as well: the rank's part of x is `x[:, ids]`.

    Slots of a shard say nothing of order, so causal=True does not serve: attention between shards
    takes `mask=shard_mask(q_positions, k_positions)`.

    Raises:
        ValueError: a length that the scheme cannot deal out evenly: pad it.

    >>> shard(8, 0, 2)
    tensor([0, 1, 6, 7])
    """
    rank = require_int("rank", rank, 0)
    whole = shard_order(length, world_size, scheme, device)
    if rank >= world_size:
        raise ValueError(f"rank must be below world_size={world_size}, got {rank}.")
    return whole.view(world_size, -1)[rank]


def shard_order(
    length: int,
    world_size: int,
    scheme: Scheme = "zigzag",
    device: torch.device | str | None = None,
) -> Tensor:
    """Positions of all shards, one rank after the other, (L,).

    >>> shard_order(8, 2)
    tensor([0, 1, 6, 7, 2, 3, 4, 5])
    """
    length, world_size = require_int("length", length, 0), require_int("world_size", world_size, 1)
    require_choice("scheme", scheme, ("zigzag", "contiguous", "striped"))
    parts = 2 * world_size if scheme == "zigzag" else world_size
    if length % parts:
        raise ValueError(
            f"{scheme} shards of {world_size} ranks need a length that {parts} divides, got "
            f"{length}: pad it to {-(-length // parts) * parts} and hide the pads by key_mask."
        )
    slots = torch.arange(length, device=device)
    if scheme == "contiguous":
        return slots
    if scheme == "striped":
        return slots.view(-1, world_size).T.flatten()
    chunks = slots.view(parts, -1)
    return torch.stack([chunks[:world_size], chunks[world_size:].flip(0)], 1).flatten()


def shard_mask(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Which keys a shard's queries may see in causal attention: those not after them. Bool.

    (S,) and (T,) -> (S, T), as `mask` of attention takes it, without causal=True: that compares
    slots, whose order among shards says nothing. Beside it goes Where(q_positions, k_positions).

    Args:
        q_positions: of the rank's queries, `shard(...)`.
        k_positions: of the keys in the order in which they lie, from whichever ranks they came.

    >>> shard_mask(shard(4, 0, 2), shard_order(4, 2)).int().tolist()
    [[1, 0, 0, 0], [1, 1, 1, 1]]
    """
    for name, ids in (("q_positions", q_positions), ("k_positions", k_positions)):
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
            raise TypeError(f"{name} must be an int64 tensor of one axis, as shard() gives.")
    require_device("k_positions", k_positions, q_positions.device)
    return q_positions[:, None] >= k_positions


def unshard(shards: Sequence[Tensor], scheme: Scheme = "zigzag", dim: int = 1) -> Tensor:
    """The whole sequence from the shards of all ranks, in order of rank.

    Args:
        dim: axis of the tokens: 1 in (B, S, E) and "bshd", 2 in (B, H, S, D), attention's outputs.
            No check can tell: an axis of another meaning that divides evenly would be sorted.

    >>> unshard([torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])], dim=0)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    if not isinstance(shards, (list, tuple)) or not all(isinstance(s, Tensor) for s in shards):
        raise TypeError(f"shards must be a list of tensors, got {type(shards).__name__}.")
    if not shards:
        raise ValueError("unshard needs the shards of all ranks, got none.")
    if len({part.shape for part in shards}) > 1:
        shapes = [tuple(part.shape) for part in shards]
        raise ValueError(f"The shards of all ranks must have one shape, got {shapes}.")
    joined = torch.cat(tuple(shards), dim)
    order = shard_order(joined.shape[dim], len(shards), scheme, joined.device)
    return joined.index_select(dim, order.argsort())
