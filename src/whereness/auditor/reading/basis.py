"""The channels of queries and keys as the weights have them.

Code may permute channels before it turns them (MLA), cut queries, keys and values out of one
projection, or norm them. At position 0 a rotation changes nothing, so every channel of a query is
there some channel of what a projection or a norm gave, times a number.

Axes: B contents, H heads, D channels, F channels of what modules gave.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SAME = {torch.float64: 1e-8, torch.float32: 1e-5}
"""How far the cosine of two equal channels may be from 1; 11 random contents never come near."""


@dataclass(frozen=True)
class Basis:
    """Where the channels of a head come from.

    order: (H, D) each channel's place in its head, as the weights have it. ratio: (H, D) what it is
    times what the module gave, NaN where that was not found. found: (H, D).
    """

    order: Tensor
    ratio: Tensor
    found: Tensor


def basis_of(x: Tensor, made: list[Tensor]) -> Basis:
    """The basis of x (B, H, D) at position 0 among `made`, each (B, F), the latest last."""
    heads, width = x.shape[1:]
    own = torch.arange(width).repeat(heads, 1)
    ratio = torch.full((heads, width), torch.nan, dtype=torch.float64)
    if not made:
        return Basis(own, ratio, torch.zeros_like(own, dtype=torch.bool))
    source = torch.cat([torch.full((m.shape[1],), i) for i, m in enumerate(made)])
    all_made = torch.cat([m.double() for m in made], 1)
    near = SAME.get(x.dtype, 1e-3)
    sizes, x_sizes = all_made.norm(dim=0), x.double().norm(dim=0).flatten()
    units = all_made / sizes.clamp_min(1e-300)
    cos = (x.double().flatten(1) / x_sizes.clamp_min(1e-300)).T @ units
    same = (cos.abs() > 1 - near) & (sizes > 0)
    found = same.any(1)
    last = same.shape[1] - 1 - same.flip(1).to(torch.uint8).argmax(1)
    sign = cos.gather(1, last[:, None])[:, 0].sign()
    measured = sign * x_sizes / sizes[last].clamp_min(1e-300)
    ratio = torch.where(found, measured, torch.nan).view(heads, width)
    found = found.view(heads, width)
    order = own.clone()
    for h in range(heads):
        if bool(found[h].all()):
            order[h] = _order(last.view(heads, width)[h], source)
    return Basis(order, ratio, found)


def _order(last: Tensor, source: Tensor) -> Tensor:
    """Place of each channel: modules in the order of the head, channels in that of the module."""
    own = torch.arange(len(last)).double()
    homes = source[last]
    middle = {int(m): own[homes == m].mean().item() for m in homes.unique()}
    keys = sorted(range(len(last)), key=lambda d: (middle[int(homes[d])], int(last[d]), d))
    order = torch.empty(len(last), dtype=torch.long)
    order[torch.tensor(keys)] = torch.arange(len(last))
    return order
