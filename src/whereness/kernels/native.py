"""Turning pairs of channels in compiled code, on the CPU: equal to `reference`, bit for bit.

It needs the compiled module, built where a compiler was at hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.kernels.compiled import NATIVE

Tables = tuple[Tensor, Tensor]

if NATIVE is not None:
    NATIVE.know(torch)


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
        tables: cos and sin (B or 1, S, H or a divisor of it, P), float64 for float64 xs, else
            float32.
        start: first channel that turns; P pairs follow, the other channels pass untouched.
        transposed: turn by the negative angles, the factor on cos and sin kept.
    """
    return NATIVE.rotate(xs, tables, start, interleaved, transposed, () if outs is None else outs)
