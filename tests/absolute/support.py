"""Interpolation of a table written out in numpy: an oracle that shares no code with torch's.

Cells are half a step from the border, as image libraries have it: output i of n from m inputs lies
at (i + 1/2) m / n - 1/2.
"""

import numpy as np


def cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' convolution kernel: 1 at 0, 0 at the other integers."""
    t = np.abs(t)
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * (t**3 - 5 * t**2 + 8 * t - 4)
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def nearest(m: int, n: int) -> np.ndarray:
    """(n, m): every output takes the input under its left edge."""
    weights = np.zeros((n, m))
    for i in range(n):
        weights[i, i * m // n] = 1
    return weights


def linear(m: int, n: int) -> np.ndarray:
    """(n, m): straight between the two inputs around, level beyond the first and the last."""
    weights = np.zeros((n, m))
    for i in range(n):
        at = min(max((i + 0.5) * m / n - 0.5, 0.0), m - 1.0)
        left = int(at)
        weights[i, left] += 1 - (at - left)
        weights[i, min(left + 1, m - 1)] += at - left
    return weights


def bicubic(m: int, n: int) -> np.ndarray:
    """(n, m): four inputs around; beyond the ends the last input is repeated. a = -3/4."""
    weights = np.zeros((n, m))
    for i in range(n):
        at = (i + 0.5) * m / n - 0.5
        for tap in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
            weights[i, min(max(tap, 0), m - 1)] += cubic(np.array(at - tap), -0.75)
    return weights


def bicubic_antialiased(m: int, n: int) -> np.ndarray:
    """(n, m): the kernel is as wide as an output cell when shrinking, and sums to 1. a = -1/2."""
    weights, scale = np.zeros((n, m)), max(m / n, 1.0)
    for i in range(n):
        taps = np.arange(m)
        row = cubic((taps - ((i + 0.5) * m / n - 0.5)) / scale, -0.5)
        weights[i] = row / row.sum()
    return weights


def resized(table: np.ndarray, old: tuple, new: tuple, weights) -> np.ndarray:
    """Rows of a grid, (cells, W), in row-major order, one axis after the other."""
    image = table.reshape(*old, -1)
    for axis, (m, n) in enumerate(zip(old, new, strict=True)):
        image = np.moveaxis(np.tensordot(weights(m, n), image, (1, axis)), 0, axis)
    return image.reshape(-1, table.shape[-1])
