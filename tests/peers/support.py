"""What float32 angles explain, and tensors to compare on.

A peer forms the angle p base^(-2k / width) in float32: the power, its inverse and the product are
each rounded. At the widths used here the exponent is exact.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

ROUNDING = 2.0**-24


def drawn(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


def angles(positions: np.ndarray, base: float, width: int) -> np.ndarray:
    """(S,) -> (S, width / 2), in float64."""
    return positions[:, None] * float(base) ** (-2 * np.arange(width // 2) / width)


def angle_error(positions: np.ndarray, base: float, width: int) -> np.ndarray:
    """Largest error of a float32 angle, (S, width / 2)."""
    return np.abs(angles(positions, base, width)) * 4 * ROUNDING


def explained(
    ours: torch.Tensor, theirs: torch.Tensor, error: np.ndarray, size: np.ndarray | float
) -> None:
    """They differ by at most the error of the angle times the size of what it turns, and roundings
    of products."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    difference = np.abs(ours.detach().double().numpy() - theirs.detach().double().numpy())
    allowed = (error + 8 * ROUNDING) * size
    worst = np.unravel_index(np.argmax(difference - allowed), difference.shape)
    assert (difference <= allowed).all(), f"{difference[worst]} at {worst}, not {allowed.max()}"


def pair_sizes(x: torch.Tensor, pairing: str, width: int) -> np.ndarray:
    """Length of the pair that each of the first `width` channels is of, (..., width / 2)."""
    x = x.detach().double().numpy()[..., :width]
    if pairing == "half":
        return np.hypot(x[..., : width // 2], x[..., width // 2 :])
    return np.hypot(x[..., 0::2], x[..., 1::2])


def spread(per_pair: np.ndarray, pairing: str) -> np.ndarray:
    """One number a pair -> one a channel."""
    if pairing == "half":
        return np.concatenate([per_pair, per_pair], -1)
    return np.repeat(per_pair, 2, -1)


def zetas(width: int) -> np.ndarray:
    """Of xPos, (width / 2,): the authors' gamma is 0.4."""
    return (2 * np.arange(width // 2) + 0.4 * width) / (1.4 * width)


def decay_and_error(
    positions: np.ndarray, centre: float, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """zeta^((p - centre) / 512) and the largest relative error of a float32 one, (S, width / 2).

    zeta is rounded, and the power, before one is raised to the other.
    """
    power, zeta = (positions[:, None] - centre) / 512, zetas(width)
    return zeta**power, (np.abs(power) * (1 + np.abs(np.log(zeta))) + 4) * ROUNDING


def file_of_package(package: str, path: str) -> ModuleType:
    """One file of an installed package, without what its `__init__` imports."""
    found = importlib.util.find_spec(package)
    assert found and found.origin, f"{package} is not installed"
    file = Path(found.origin).parent / path
    spec = importlib.util.spec_from_file_location(f"{package}_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
