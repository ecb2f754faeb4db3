"""Turning pairs of channels in plain torch: what every other backend must equal.

Axes: B batch, H heads, S tokens, D head_dim, P pairs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.rotary.pairing import turn

Tables = tuple[Tensor, Tensor]


def rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool,
    outs: Sequence[Tensor] | None = None,
) -> Sequence[Tensor]:
    """Turn xs (B, H, S, D) into outs, which may be the xs themselves, or into new tensors.

    Args:
        tables: cos and sin (B or 1, S, H or fewer, P) of each x; a group of heads shares one.
        start: first channel that turns; P pairs follow, the other channels pass untouched.
        transposed: turn by the negative angles, the factor on cos and sin kept.
    """
    outs = [torch.empty_like(x) for x in xs] if outs is None else outs
    for x, (cos, sin), out in zip(xs, tables, outs, strict=True):
        turned = turned_part(x, cos, sin, start, interleaved, transposed)
        if out is not x:
            out.copy_(x)
        out.narrow(-1, start, 2 * cos.shape[-1]).copy_(turned)
    return outs


def turned_part(
    x: Tensor, cos: Tensor, sin: Tensor, start: int, interleaved: bool, transposed: bool
) -> Tensor:
    """The channels of x that turn, turned: (B, H, S, 2P), of the dtype of x."""
    part = x.narrow(-1, start, 2 * cos.shape[-1])
    cos, sin = (_over_heads(t, x.shape[1]) for t in (cos, sin))
    pairing = "interleaved" if interleaved else "half"
    return turn(part.to(cos.dtype), cos, -sin if transposed else sin, pairing).to(x.dtype)


def _over_heads(table: Tensor, heads: int) -> Tensor:
    """(B, S, H or fewer, P) -> (B, H or 1, S, P)."""
    if table.shape[2] not in (1, heads):
        table = table.repeat_interleave(heads // table.shape[2], 2)
    return table.transpose(1, 2)
