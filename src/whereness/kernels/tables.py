"""Tables of cosines and sines: exact angles, rounded once.

    cos[.., k], sin[.., k] = amplitude * (cos, sin)(c[.., k] w_k),   w_k = high_k + low_k

w_k has two parts because one float64 is off by up to 2^-54 of itself: at position 2^24 that is
2^-30 of an angle, little, but beside a zero of cos or sin it is many roundings of a float32.

Compiled (CPU): the angle keeps twice the digits of a float64, so that results are within one
float32 ulp of exact for whole positions below 2^24, and within 2^-24 where an angle is below 2^80.
In torch (other devices, or nothing compiled): within 2^-24 of exact for whole positions below 2^24
and frequencies up to 1.

Axes: S tokens, P pairs. Units: coordinates in tokens (any real number), frequencies in radians per
token.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.kernels.compiled import NATIVE

_LIBRARY = torch.library.Library("whereness", "FRAGMENT")
_LIBRARY.define(
    "cos_sin(Tensor coordinates, Tensor high, Tensor? low, float amplitude) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


def cos_sin(
    positions: Shaped[Tensor, "..."],
    high: Float[Tensor, "... P"],
    low: Float[Tensor, "... P"] | None = None,
    amplitude: float | Tensor = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "... P"], Float[Tensor, "... P"]]:
    """cos and sin of every pair at every position: (..., S) -> (..., S, P).

    Args:
        positions: whole or real, finite.
        high: frequencies, float64: (P,), or one set a token, as (B or 1, S or 1, P).
        low: what `high` lacks of the exact frequencies; None: nothing.
        amplitude: factor on both, applied before the rounding; a tensor has one a token,
            (B or 1, S or 1), and goes through torch.
        dtype: of the tables. Those of float64 come from torch, and their angles are rounded.
    """
    return cos_sin_of_pairs(positions.unsqueeze(-1), high, low, amplitude, dtype)


def cos_sin_of_pairs(
    coordinates: Shaped[Tensor, "..."],
    high: Float[Tensor, "... P"],
    low: Float[Tensor, "... P"] | None = None,
    amplitude: float | Tensor = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "... P"], Float[Tensor, "... P"]]:
    """The same where every pair has a coordinate of its own, (..., S, P), or all share one (1)."""
    if _is_compiled_for(coordinates, high, amplitude, dtype):
        return torch.ops.whereness.cos_sin(coordinates, high, low, amplitude)
    angles = coordinates.to(torch.float64) * high
    factor = amplitude.unsqueeze(-1) if isinstance(amplitude, Tensor) else amplitude
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def _is_compiled_for(
    coordinates: Tensor, high: Tensor, amplitude: float | Tensor, dtype: torch.dtype
) -> bool:
    """The compiled kernel has no gradient, and no other program could run a file that names it."""
    learned = torch.is_grad_enabled() and (coordinates.requires_grad or high.requires_grad)
    return (
        NATIVE is not None
        and coordinates.device.type == high.device.type == "cpu"
        and dtype == torch.float32
        and not isinstance(amplitude, Tensor)
        and not learned
        and not _is_exporting()
    )


def _is_exporting() -> bool:
    asked = getattr(torch.compiler, "is_exporting", None)  # since torch 2.7
    return torch.onnx.is_in_onnx_export() or (asked is not None and asked())


def _empty_tables(coordinates: Tensor, high: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(coordinates.shape, high.shape)
    return (
        coordinates.new_empty(shape, dtype=torch.float32),
        coordinates.new_empty(shape, dtype=torch.float32),
    )


def _on_cpu(
    coordinates: Tensor, high: Tensor, low: Tensor | None, amplitude: float
) -> tuple[Tensor, Tensor]:
    cos, sin = _empty_tables(coordinates, high)
    # Both parts of the frequencies get the same strides, and one set for all is told as such.
    shape = high.shape if high.numel() != high.shape[-1] else high.shape[-1:]
    if low is not None:
        low = _in_three_axes(low.expand(high.shape).reshape(shape).contiguous(), cos.shape)
    high = _in_three_axes(high.reshape(shape).contiguous(), cos.shape)
    coordinates = _in_three_axes(coordinates.to(torch.float64), cos.shape)
    NATIVE.cos_sin(
        coordinates.data_ptr(),
        coordinates.stride(),
        high.data_ptr(),
        0 if low is None else low.data_ptr(),
        high.stride(),
        *coordinates.shape,
        amplitude,
        cos.data_ptr(),
        sin.data_ptr(),
    )
    return cos, sin


def _in_three_axes(x: Tensor, shape: torch.Size) -> Tensor:
    """x as (groups, S, P): a view that repeats what x has once, where there is one."""
    x = x.expand((1,) * (3 - len(shape)) + tuple(shape))
    return x if x.dim() == 3 else x.flatten(0, -3)


def _batched(_: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
    """Rule for vmap: the mapped axis goes first, before as many axes as the widest tensor has."""
    *tensors, amplitude = arguments
    each = list(zip(tensors, in_dims, strict=False))
    axes = max(x.dim() - (axis is not None) for x, axis in each if x is not None)
    tensors = [x if axis is None else _with_first(x, axis, axes) for x, axis in each]
    return torch.ops.whereness.cos_sin(*tensors, amplitude), (0, 0)


def _with_first(x: Tensor, axis: int, axes: int) -> Tensor:
    """x with `axis` moved to the front and `axes` more behind it, the new ones of size 1."""
    x = x.movedim(axis, 0)
    return x.reshape(x.shape[0], *(1,) * (axes + 1 - x.dim()), *x.shape[1:])


_LIBRARY.impl("cos_sin", _on_cpu, "CPU")
torch.library.register_fake("whereness::cos_sin", _empty_tables, lib=_LIBRARY)
torch.library.register_vmap("whereness::cos_sin", _batched, lib=_LIBRARY)
