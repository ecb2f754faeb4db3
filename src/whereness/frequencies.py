"""The geometric spectrum of sinusoidal and rotary encodings.

    w_k = base^(-2k / divisor),   k = 0 .. count - 1

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Su et al. 2021, arXiv:2104.09864.
Units: radians per token.
"""

import math

from whereness.checks import LARGEST_POSITION


def geometric(base: float, divisor: int, count: int) -> tuple[float, ...]:
    """The frequencies, highest first for a base above 1, as exact as Python floats are.

    A tuple, not a tensor: no cast, meta device or checkpoint can change it.

    Raises:
        ValueError: a base so small that an angle would not be finite.
    """
    found: tuple[float, ...] = ()
    try:
        found = tuple(base ** (-2 * k / divisor) for k in range(count))
        finite = math.isfinite(max(found, default=0.0) * LARGEST_POSITION)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"base must be large enough for finite angles, got {base!r}.")
    return found
