"""Pairs of channels turned as complex numbers: an oracle in numpy that shares no code with ours.

Axes: B batch, H heads, S tokens, D head_dim. A pair (i, j) of channels at angle a is the complex
number x[i] + x[j] sqrt(-1), times exp(a sqrt(-1)).
"""

import mpmath
import numpy as np
import torch

ROUNDING = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""Largest relative error of one rounding to nearest."""
SMALLEST = {torch.float16: 2.0**-25, torch.bfloat16: 0.0, torch.float32: 0.0, torch.float64: 0.0}
"""Largest error of one rounding near 0, where numbers have fewer digits."""


def pairs(pairing: str, width: int, start: int = 0) -> list[tuple[int, int]]:
    """The two channels of every pair among `width` channels from `start`."""
    if pairing == "half":
        return [(start + k, start + k + width // 2) for k in range(width // 2)]
    return [(start + 2 * k, start + 2 * k + 1) for k in range(width // 2)]


def turned(
    x: np.ndarray, channels: list[tuple[int, int]], angles: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(x with each pair turned by its angle, size of the pair that each channel is of).

    angles: (..., S, pairs), broadcastable to x (..., S, D).
    """
    out, size = x.copy(), np.zeros_like(x)
    for pair, (i, j) in enumerate(channels):
        z = x[..., i] + 1j * x[..., j]
        z_turned = z * np.exp(1j * angles[..., pair])
        out[..., i], out[..., j] = z_turned.real, z_turned.imag
        size[..., i] = size[..., j] = np.abs(z)
    return out, size


def spectrum(base: float, width: int) -> np.ndarray:
    """base^(-2k / width), correctly rounded."""
    with mpmath.workdps(40):
        exact = [mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / width) for k in range(width // 2)]
        return np.array([float(w) for w in exact])


def agree(found: torch.Tensor, exact: np.ndarray, size: np.ndarray, largest_angle: float) -> None:
    """One rounding of the result, two of each product and of its cosine, one of the angle."""
    work = torch.float64 if found.dtype == torch.float64 else torch.float32
    allowed = (
        ROUNDING[found.dtype] * np.abs(exact)
        + SMALLEST[found.dtype]
        + size * (3 * ROUNDING[work] + 4 * largest_angle * 2.0**-53)
    )
    assert tuple(found.shape) == exact.shape
    if not exact.size:
        return
    error = np.abs(found.detach().double().numpy() - exact)
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), (
        f"at {tuple(map(int, worst))}: got {found[worst].item()!r}, exact {exact[worst]!r}, "
        f"allowed {allowed[worst]:.3g}"
    )


def drawn(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers of `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
