"""Speculative trees: several drafts of a continuation, fed at once after a common prefix.

Axes: B batch, N nodes (tokens) of a tree.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.checks import LARGEST_POSITION, require, require_int
from whereness.where import NOWHERE


def tree(parents: Tensor | Sequence[int], prefix: int | Tensor = 0) -> Tensor:
    """Positions of a tree's tokens: (N,), a list of ints too, or (B, N) -> the same shape.

    A token stands one after its parent, a root right after the prefix: siblings share a position.
    Positions alone do not decode a tree: attention needs `tree_mask(parents)` as well.

    Args:
        parents: node before each node, -1 for roots, NOWHERE where a row has no node. A parent
            comes before its children.
        prefix: tokens before the tree: int, or (B,).

    >>> tree([-1, 0, 0, 1], prefix=10)
    tensor([10, 11, 11, 12])
    """
    nodes, jumps, absent = _checked(parents)
    depth = (jumps < nodes.shape[-1]).long()
    for _ in range(_doublings(nodes)):
        depth = depth + depth.gather(-1, jumps)
        jumps = jumps.gather(-1, jumps)
    ids = depth[..., :-1] + _checked_prefix(prefix, nodes)
    return ids.masked_fill(absent, NOWHERE)


def tree_mask(parents: Tensor | Sequence[int], prefix: int = 0) -> Tensor:
    """Which slot a tree's token may see: the prefix, its ancestors and itself. Bool.

    (N,) -> (N, prefix + N); (B, N) -> (B, 1, N, prefix + N): as `mask` of attention takes it, next
    to causal=True. `prefix` counts the slots before the tree, pads among them, which `key_mask`
    hides.

    >>> tree_mask([-1, 0, 0, 1]).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """
    prefix = require_int("prefix", prefix, 0)
    nodes, jumps, absent = _checked(parents)
    count = nodes.shape[-1]
    itself = torch.eye(count + 1, dtype=torch.bool, device=nodes.device)
    sees = itself.expand(*nodes.shape[:-1], -1, -1)
    for _ in range(_doublings(nodes)):
        # A node sees what it saw and what the ancestor saw that lies so many steps above it.
        sees = sees | sees.gather(-2, jumps[..., None].expand(sees.shape))
        jumps = jumps.gather(-1, jumps)
    sees = sees[..., :count, :count] & ~absent[..., None]
    before = ~absent[..., None].expand(*nodes.shape, prefix)
    mask = torch.cat([before, sees], -1)
    return mask if nodes.dim() == 1 else mask[:, None]


def _checked(parents: Tensor | Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(parents, where to jump from every node and from the place above all roots, absent)."""
    if isinstance(parents, (list, tuple)):
        numbers = [require_int("every parent", n, NOWHERE, LARGEST_POSITION) for n in parents]
        parents = torch.tensor(numbers, dtype=torch.int64)
    if not isinstance(parents, Tensor):
        raise TypeError(
            f"parents must be a list of ints or a tensor of them, got {type(parents).__name__}."
        )
    if parents.is_floating_point() or parents.is_complex() or parents.dtype == torch.bool:
        raise TypeError(f"parents must hold integers, got {parents.dtype}.")
    if parents.dim() not in (1, 2):
        raise ValueError(f"parents must be (N,) or (B, N), got {tuple(parents.shape)}.")
    parents = parents.long()
    count = parents.shape[-1]
    absent = parents == NOWHERE
    own = torch.arange(count, device=parents.device)
    require(
        absent | ((parents >= -1) & (parents < own)),
        "parents must be -1 (a root), NOWHERE (no node) or the number of an earlier node.",
        parents,
    )
    above = parents.new_full((*parents.shape[:-1], 1), count)
    jumps = torch.cat([parents.masked_fill(parents < 0, count), above], -1)
    require(
        ~absent.gather(-1, jumps[..., :-1].clamp(max=max(count - 1, 0)))
        | (jumps[..., :-1] == count),
        "parents must be nodes: a node's parent is NOWHERE.",
    )
    return parents, jumps, absent


def _doublings(parents: Tensor) -> int:
    """Steps after which jumps that double have passed the root of any tree of N nodes."""
    return max(parents.shape[-1], 1).bit_length()


def _checked_prefix(prefix: int | Tensor, parents: Tensor) -> int | Tensor:
    if not isinstance(prefix, Tensor):
        return require_int("prefix", prefix, 0, LARGEST_POSITION)
    if prefix.is_floating_point() or prefix.dtype == torch.bool:
        raise TypeError(f"prefix must hold integers, got {prefix.dtype}.")
    if parents.dim() != 2 or prefix.shape != parents.shape[:1]:
        raise ValueError(
            f"prefix must be an int or one a row of (B, N) parents, got {tuple(prefix.shape)} for "
            f"{tuple(parents.shape)}."
        )
    require(prefix >= 0, "prefix must not be negative.")
    return prefix.long()[:, None]
