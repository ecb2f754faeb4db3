"""The geometric spectrum of sinusoidal and rotary encodings.

    w_k = base^(-2k / divisor),   k = 0 .. count - 1

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Su et al. 2021, arXiv:2104.09864.
Units: radians per token.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from typing import ParamSpec, TypeVar

from whereness.checks import LARGEST_POSITION

_P = ParamSpec("_P")
_R = TypeVar("_R")

DIGITS = 50
"""Two floats hold 32; each of the products below loses at most one more in the last place."""


def _constant_in_graphs(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Under compile Python calls it, once, and not the graph: an encoding may be built there.

    This is all that torch.compiler.assume_constant_result does but for importing torch's compiler,
    which takes longer than importing torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[missing-attribute] # noqa: SLF001
    return function


@_constant_in_graphs
def geometric(base: float, divisor: int, count: int) -> tuple[float, ...]:
    """The frequencies, highest first for a base above 1: the nearest Python floats.

    A tuple, not a tensor: no cast, meta device or checkpoint can change it.

    Raises:
        ValueError: a base so small that an angle would not be finite.
    """
    return _parts(base, divisor, count)[0]


@_constant_in_graphs
def geometric_low(base: float, divisor: int, count: int) -> tuple[float, ...]:
    """What the floats of `geometric` lack of the exact frequencies, as the nearest floats."""
    return _parts(base, divisor, count)[1]


@lru_cache(maxsize=256)
def _parts(base: float, divisor: int, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    digits = Context(prec=DIGITS, traps=[])  # without traps too large a number is infinite
    exponent = digits.divide(Decimal(-2), Decimal(divisor))
    ratio = digits.exp(digits.multiply(exponent, digits.ln(Decimal(base))))
    exact = [Decimal(1)]
    while len(exact) < count:
        exact.append(digits.multiply(exact[-1], ratio))
    high = tuple(float(w) for w in exact[:count])
    if not math.isfinite(max(high, default=0.0) * LARGEST_POSITION):
        raise ValueError(f"base must be large enough for finite angles, got {base!r}.")
    low = tuple(float(digits.subtract(w, Decimal(h))) for w, h in zip(exact, high, strict=False))
    return high, low
