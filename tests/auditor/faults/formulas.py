"""Speeds of rotations and slopes of ALiBi, as published; plain numbers."""

import math


def speeds(base: float, width: int) -> tuple[float, ...]:
    """base^(-2i/width)."""
    return tuple(base ** (-2 * i / width) for i in range(width // 2))


def alibi_slopes(heads: int) -> list[float]:
    """The published recipe: powers of two, then every other slope of twice as many heads."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    if power == heads:
        return slopes
    return slopes + alibi_slopes(2 * power)[::2][: heads - power]


def yarn_speeds(
    base: float, width: int, factor: float, original: int, fast: float = 32, slow: float = 1
) -> tuple[float, ...]:
    """YaRN: pairs that turn often keep their speed, those that turn rarely are slowed."""

    def pair_that_turns(times: float) -> float:
        return width * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(fast)), 0)
    high = min(math.ceil(pair_that_turns(slow)), width - 1)
    made = []
    for i, speed in enumerate(speeds(base, width)):
        slowed = min(max((i - low) / max(high - low, 0.001), 0), 1)
        made.append(speed / factor * slowed + speed * (1 - slowed))
    return tuple(made)


def llama3_speeds(
    base: float, width: int, factor: float, original: int, low: float, high: float
) -> tuple[float, ...]:
    """Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended."""
    made = []
    for speed in speeds(base, width):
        waves = original * speed / (2 * math.pi)
        kept = min(max((waves - low) / (high - low), 0), 1)
        made.append((1 - kept) * speed / factor + kept * speed)
    return tuple(made)
