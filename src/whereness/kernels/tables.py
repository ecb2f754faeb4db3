"""Tables of cosines and sines: exact angles, rounded once.

    cos[.., k], sin[.., k] = amplitude * (cos, sin)(c[.., k] w_k),   w_k = high_k + low_k

w_k has two parts, because a float64 alone is off by up to 2^-54 of itself: at position 2^24 that is
2^-30 of an angle, nothing in absolute terms, but many float32 roundings beside a zero of cos or sin.

Compiled (CPU): the angle keeps twice the digits of float64, so that results are within one float32
ulp of exact, wherever the angle is below 2^48. In torch (other devices, and without the compiled
kernels): within 2^-24 of exact for positions below 2^24 and frequencies up to 1.

Axes: S tokens, P pairs. Units: coordinates in tokens (any real number), frequencies in radians a
token.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

try:
    from whereness.kernels import _native  # type: ignore[missing-module-attribute]
except ImportError:
    _native = None

_LIBRARY = torch.library.Library("whereness", "FRAGMENT")
_LIBRARY.define(
    "cos_sin(Tensor coordinates, Tensor high, Tensor? low, float amplitude) -> (Tensor, Tensor)"
)


def cos_sin(
    positions: Shaped[Tensor, "*lead S"],
    high: Float[Tensor, "*each P"],
    low: Float[Tensor, "*each P"] | None = None,
    amplitude: float | Tensor = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*table P"], Float[Tensor, "*table P"]]:
    """cos and sin of every pair at every position: (..., S) -> (..., S, P).

    Args:
        positions: whole or real, finite.
        high: frequencies, float64: (P,), or one set a token, as (B or 1, S or 1, P).
        low: what `high` lacks of the exact frequencies; None: nothing.
        amplitude: factor on both, applied before the rounding; a tensor has a number a token,
            (B or 1, S or 1), and goes through torch.
        dtype: of the tables. Compiled are those of float32.
    """
    return cos_sin_of_pairs(positions.unsqueeze(-1), high, low, amplitude, dtype)


def cos_sin_of_pairs(
    coordinates: Shaped[Tensor, "*lead S pairs"],
    high: Float[Tensor, "*each P"],
    low: Float[Tensor, "*each P"] | None = None,
    amplitude: float | Tensor = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*table P"], Float[Tensor, "*table P"]]:
    """The same where every pair has a coordinate of its own, (..., S, P), or all the same one."""
    if _compiled(coordinates, high, amplitude, dtype):
        return torch.ops.whereness.cos_sin(coordinates, high, low, amplitude)
    return _formula(coordinates, high, amplitude, dtype)


def _compiled(
    coordinates: Tensor, high: Tensor, amplitude: float | Tensor, dtype: torch.dtype
) -> bool:
    """Whether the compiled kernel serves: it has no gradient, and no exported file knows it."""
    learned = torch.is_grad_enabled() and (coordinates.requires_grad or high.requires_grad)
    return (
        _native is not None
        and coordinates.device.type == high.device.type == "cpu"
        and dtype == torch.float32
        and not isinstance(amplitude, Tensor)
        and not learned
        and not _exporting()
    )


def _exporting() -> bool:
    asked = getattr(torch.compiler, "is_exporting", None)  # torch 2.7
    return torch.onnx.is_in_onnx_export() or (asked is not None and asked())


def _formula(
    coordinates: Tensor, high: Tensor, amplitude: float | Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    angles = coordinates.to(torch.float64) * high
    cos, sin = angles.cos(), angles.sin()
    if isinstance(amplitude, Tensor):
        amplitude = amplitude.unsqueeze(-1)
    if isinstance(amplitude, Tensor) or amplitude != 1.0:
        cos, sin = cos * amplitude, sin * amplitude
    return cos.to(dtype), sin.to(dtype)
