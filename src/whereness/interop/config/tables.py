"""Encodings that are no rotation, as specs: learned tables, sinusoids, T5, ALiBi, Shaw."""

from collections.abc import Callable
from typing import Any

from whereness.interop.config.keys import (
    LARGEST_WIDTH,
    ConfigError,
    Reading,
    integer,
    listed,
    number,
    shown,
)
from whereness.interop.config.specs import NOPE, Spec, spec
from whereness.interop.families import Family

LARGEST_TABLE = 2**28
"""Entries of a learned table: 1 GiB in float32. The largest released one has below 2^25."""
LARGEST_ROWS = 2**24


def _learned(reading: Reading, family: Family) -> Spec:
    told = reading.get("position_embedding_type")
    if told not in (None, "absolute"):  # BERT's has no table then, or one of another kind
        raise ConfigError(
            f"{reading.name('position_embedding_type')} = {shown(told)} is not read: a learned "
            "table of absolute positions is all that is known of this family.",
            "",
        )
    dim = reading.needed("the model's width", family.dim, LARGEST_WIDTH * 16)
    first = family.first_row
    positions: Any
    if family.grid:
        positions = _grid(reading, family.grid[0])
        rows = positions[0] * positions[1]
    else:
        rows = positions = reading.needed("its positions", family.num_positions, LARGEST_ROWS)
    if family.first_row_after:
        key = family.first_row_after
        first = 1 + reading.needed("the padding token", (key,), LARGEST_ROWS, least=0)
        positions = rows - first
        if positions < 1:
            raise ConfigError(
                f"{reading.name(family.num_positions[0])} = {rows} must be above "
                f"{reading.name(key)} + 1 = {first}: positions begin after the padding row.",
                "K14",
            )
    if rows * dim > LARGEST_TABLE:
        raise ValueError(f"A table of {rows} rows of {dim} is larger than any model has.")
    return spec(
        "LearnedAbsolute",
        dim=dim,
        num_positions=positions,
        num_prefix=family.num_prefix or None,
        first_row=first or None,
        **family.options,
    )


def _grid(reading: Reading, keys: str) -> tuple[int, int]:
    """Rows and columns of patches: a quotient of keys, each a number or (height, width)."""
    image, patch = (_pair(reading, key) for key in keys.split("//"))
    found = tuple(a // b for a, b in zip(image, patch, strict=True))
    if min(found) < 1:
        raise ConfigError(f"{keys} gives no patch: {image} // {patch}.", "K15")
    return found[0], found[1]


def _pair(reading: Reading, key: str) -> tuple[int, int]:
    value, name = reading.get(key), reading.name(key)
    if value is None:
        raise ValueError(f"{name} is missing: the grid of positions needs it.")
    both = listed(name, value, 2) if isinstance(value, (list, tuple)) else [value, value]
    if len(both) != 2:
        raise ValueError(f"{name} must be a number or two, got {len(both)}.")
    high, wide = (integer(name, each, 1, LARGEST_WIDTH) for each in both)
    return high, wide


def _sinusoidal(reading: Reading, family: Family) -> Spec:
    dim = reading.needed("the model's width", family.dim, LARGEST_WIDTH)
    return spec("Sinusoidal", dim=dim, **family.options)


def _heads(reading: Reading, family: Family) -> int:
    return reading.needed("its number of heads", family.num_heads, LARGEST_WIDTH)


def _t5(reading: Reading, family: Family) -> Spec:
    return spec(
        "T5",
        num_heads=_heads(reading, family),
        num_buckets=reading.needed("its buckets", family.num_buckets, LARGEST_ROWS),
        max_distance=reading.needed("its farthest bucket", family.max_distance),
        bidirectional=family.bidirectional,
        **family.options,
    )


def _alibi(reading: Reading, family: Family) -> Spec:
    for key in family.bias_max:
        value = reading.get(key)
        if value is not None and number(reading.name(key), value, 0.0) != 8.0:
            raise ConfigError(
                f"{reading.name(key)} = {value}: the slopes of ALiBi end at 2^-8, those of another "
                "maximum are not built.",
                "",
            )
    return spec("ALiBi", num_heads=_heads(reading, family))


def _shaw(reading: Reading, family: Family) -> Spec:
    head_dim = reading.needed("the width of a head", family.head_dim, LARGEST_WIDTH)
    distance = reading.needed("its farthest offset", family.max_distance, LARGEST_ROWS)
    return spec("Shaw", head_dim=head_dim, max_distance=distance, **family.options)


def _none(*_: object) -> Spec:
    return NOPE


KINDS: dict[str, Callable[[Reading, Family], Spec]] = {
    "learned": _learned,
    "sinusoidal": _sinusoidal,
    "t5": _t5,
    "alibi": _alibi,
    "shaw": _shaw,
    "none": _none,
}
