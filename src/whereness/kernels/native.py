"""Turning pairs of channels in compiled code, on the CPU: equal to `reference`, bit for bit.

It needs the compiled module, built where a compiler was at hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.kernels.compiled import NATIVE

Tables = tuple[Tensor, Tensor]

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool,
    outs: Sequence[Tensor],
) -> None:
    """Turn xs (B, H, S, D) into outs, which may be the xs themselves.

    Args:
        tables: cos and sin (B or 1, S, H or a divisor of it, P), float64 for float64 xs, else
            float32.
        start: first channel that turns; P pairs follow, the other channels pass untouched.
        transposed: turn by the negative angles, the factor on cos and sin kept.
    """
    jobs, last, told_tables = [], None, ()
    for x, pair, out in zip(xs, tables, outs, strict=True):
        told = _told(x)
        if pair is not last:  # queries and keys mostly share theirs
            last, told_tables = pair, (_told(pair[0]), _told(pair[1]))
        jobs.append((told, told if out is x else _told(out), *told_tables))
    NATIVE.rotate(jobs, start, interleaved, transposed, torch.get_num_threads())


def _told(t: Tensor) -> tuple:
    """All that the compiled code knows of a tensor, and checks: this must be fast, not that."""
    return t.data_ptr(), TYPES[t.dtype], t.shape, t.stride()
