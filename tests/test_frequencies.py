"""The geometric spectrum against mpmath, which shares no code with decimal."""

import mpmath
import pytest

from whereness.frequencies import geometric, geometric_low

CASES = [
    (10_000.0, 128, 64),
    (10_000.0, 126, 64),
    (500_000.0, 64, 32),
    (1e7, 128, 64),
    (10, 16, 8),
    (10_000.5, 6, 3),
    (1e-4, 32, 16),
    (1.0, 8, 4),
    (10_000.0, 2048, 1024),
]
each_case = pytest.mark.parametrize(("base", "divisor", "count"), CASES)


def exact(base: float, divisor: int, count: int) -> list[mpmath.mpf]:
    return [mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / divisor) for k in range(count)]


@each_case
def test_frequencies_are_the_nearest_floats(base, divisor, count):
    with mpmath.workdps(60):
        assert geometric(base, divisor, count) == tuple(map(float, exact(base, divisor, count)))


@each_case
def test_low_parts_hold_what_the_floats_lack(base, divisor, count):
    high, low = geometric(base, divisor, count), geometric_low(base, divisor, count)
    assert len(low) == count
    with mpmath.workdps(60):
        for w, h, rest in zip(exact(base, divisor, count), high, low, strict=True):
            assert rest == float(w - mpmath.mpf(h))


@pytest.mark.parametrize("find", [geometric, geometric_low])
def test_none_and_one(find):
    assert find(10_000.0, 8, 0) == ()
    assert find(10_000.0, 8, 1) == ((1.0,) if find is geometric else (0.0,))


@pytest.mark.parametrize("find", [geometric, geometric_low])
def test_a_base_too_small_is_refused(find):
    with pytest.raises(ValueError, match="base must be large enough for finite angles, got 5e-324"):
        find(5e-324, 64, 32)
