"""Turning pairs of channels in compiled code, on the CPU: equal to `reference`, bit for bit.

Importing this module needs the compiled one, `_native`, built where a compiler was at hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# After torch: the compiled module then shares torch's OpenMP library, and its threads.
from whereness.kernels import _native

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
    kept, jobs = [], []  # kept: what was made here lives until it has been read
    for x, (cos, sin), out in zip(xs, tables, outs, strict=True):
        cos, sin = _tables(x, cos, sin, out)
        kept.append((cos, sin))
        addresses = (x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr())
        strides = (x.stride(), out.stride(), cos.shape, cos.stride())
        jobs.append((*addresses, TYPES[x.dtype], x.shape, *strides))
    _native.rotate(jobs, start, interleaved, transposed, torch.get_num_threads())


def _tables(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tables:
    """cos and sin of one form, contiguous along the last axis."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if cos.dtype != dtype or sin.dtype != dtype:
        raise TypeError(
            f"Tables for {x.dtype} must be {dtype}, got {cos.dtype} and {sin.dtype}."
        )
    if out.dtype != x.dtype or out.shape != x.shape or cos.shape != sin.shape:
        raise ValueError(
            f"An output must be like its tensor {tuple(x.shape)} {x.dtype} and cos like sin; got "
            f"{tuple(out.shape)} {out.dtype}, {tuple(cos.shape)} and {tuple(sin.shape)}."
        )
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        return cos.contiguous(), sin.contiguous()
    return cos, sin
