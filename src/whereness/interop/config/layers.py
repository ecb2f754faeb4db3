"""Which layers have a position, and of which type each layer is.

Schedules come in five forms: a list of layer types, a period, a list of flags, an interval of
layers without position, and a list of bases. `Slot` says what one layer gets out of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whereness.interop.config.keys import (
    MOST_LAYERS,
    ConfigError,
    Reading,
    boolean,
    integer,
    listed,
    mapping,
    number,
    shown,
    string,
)
from whereness.interop.families import Family

WITHOUT_ATTENTION = ("conv", "linear_attention", "mamba2", "mlp", "moe", "recurrent")
"""Layer types that have no attention, so no position."""
PER_LAYER = "per_layer_config"
SAME_TYPE = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""Older names of layer types."""


@dataclass(frozen=True)
class Slot:
    """What the schedules say of one layer."""

    type: str | None = None
    positioned: bool = True
    base: float | None = None
    """Its own base, where the config lists one a layer."""
    scaled: bool = True
    """Whether the rope scaling reaches it."""
    own: tuple[tuple[str, Any], ...] = ()
    """Keys of its own (`per_layer_config`), which hide those of the config."""


def slots(reading: Reading, family: Family) -> tuple[Slot, ...] | None:
    """One slot a layer; None where the config does not say how many layers there are."""
    count = reading.whole(family.num_layers, MOST_LAYERS)
    types = _types(reading, family, count)
    if count is None:
        count = None if types is None else len(types)
    if count is None:
        if family.rope_flags or family.layer_bases or family.nope_interval:
            reading.needed("its number of layers", family.num_layers, MOST_LAYERS)
        return None
    flags = _flags(reading, family, count)
    bases = _bases(reading, family, count)
    scaled = _scaled(reading, family, count)
    own = _own(reading)
    silent = family.nope_types
    if family.nope_unless and not reading.get(family.nope_unless):
        silent = ()
    found = []
    for i in range(count):
        type_ = types[i] if types else None
        base = bases[i] if bases else None
        quiet = type_ in silent and not _forced(reading, family, i)
        positioned = flags[i] and type_ not in WITHOUT_ATTENTION and not quiet
        positioned = positioned and not (bases and base is None)
        found.append(Slot(type_, positioned, base, scaled[i], own.get(i, ())))
    return tuple(found)


def _own(reading: Reading) -> dict[int, tuple[tuple[str, Any], ...]]:
    """The plain values of each layer's own keys."""
    given = reading.get(PER_LAYER)
    if given is None:
        return {}
    found, name = {}, reading.name(PER_LAYER)
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be an object with an entry a layer, got {shown(given)}.")
    for key, inner in given.items():
        number_ = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 8 else key
        if isinstance(number_, int):
            keys = mapping(f"{name}.{number_}", inner)
            plain = {k: v for k, v in keys.items() if v is None or isinstance(v, (int, float, str))}
            found[number_] = tuple(plain.items())
    return found


def _forced(reading: Reading, family: Family, layer: int) -> bool:
    """Whether a layer of `nope_types` turns all the same."""
    if family.forced is None:
        return False
    key, entry, other, value = family.forced
    listing = reading.get(key)
    entries = listed(reading.name(key), listing) if listing is not None else []
    return layer < len(entries) and entries[layer] == entry and reading.get(other) == value


def _scaled(reading: Reading, family: Family, count: int) -> list[bool]:
    given = reading.get(family.scaled_layers) if family.scaled_layers else None
    if given is None:
        return [True] * count
    name = reading.name(family.scaled_layers)
    reached = {integer(f"{name}[{i}]", each, 0) for i, each in enumerate(listed(name, given))}
    return [i in reached for i in range(count)]


def _types(reading: Reading, family: Family, count: int | None) -> tuple[str, ...] | None:
    given = reading.get("layer_types")
    if given is not None:
        name = reading.name("layer_types")
        types = [string(f"{name}[{i}]", each) for i, each in enumerate(listed(name, given))]
        _long_enough(name, types, count)
        return tuple(SAME_TYPE.get(each, each) for each in types[:count])
    if count is None:
        return None
    periodic = family.pattern and _periodic(reading, family.pattern, count)
    if periodic:
        return periodic
    if family.cycle is not None:
        first, again, last = family.cycle
        types = [*first, *(again[i % len(again)] for i in range(count))][: count - len(last)]
        return (*types, *last)[:count]
    return (family.types_default,) * count if family.types_default else None


def _periodic(
    reading: Reading, pattern: tuple[str, str, str, int], count: int
) -> tuple[str, ...] | None:
    key, every, others, which = pattern
    period, name = reading.get(key), reading.name(key)
    if period is None:
        return None
    if isinstance(period, str):  # EXAONE-4 writes the letters of a period: "LLLG"
        if not period or set(period) - set("LG"):
            text = f"{name} must be a number or letters L and G, got {period[:20]!r}."
            raise ConfigError(text, "K23")
        return tuple(every if period[i % len(period)] == "G" else others for i in range(count))
    period = integer(name, period, 0, MOST_LAYERS)
    if period == 0:
        return (others,) * count
    return tuple(every if (i - which) % period == 0 else others for i in range(count))


def _flags(reading: Reading, family: Family, count: int) -> list[bool]:
    """Whether each layer has a position: by a list, or by an interval."""
    by_interval = _by_interval(reading, family, count)
    given = reading.get(family.rope_flags) if family.rope_flags else None
    if not given:  # None, or the empty list that stands for it
        return by_interval or [True] * count
    name = reading.name(family.rope_flags)
    entries = listed(name, given)
    _long_enough(name, entries, count)
    flags = [_flag(f"{name}[{i}]", each) for i, each in enumerate(entries[:count])]
    explicit = reading.explicit(family.nope_interval) if family.nope_interval else None
    if explicit is not None and by_interval is not None and by_interval != flags:
        reading.notice(
            f"{name} and {reading.name(family.nope_interval)} = {explicit} name different layers; "
            "the list is used, as Hugging Face does.",
            "K23",
        )
    return flags


def _flag(name: str, value: Any) -> bool:
    return boolean(name, value) if isinstance(value, bool) else bool(integer(name, value, 0, 1))


def _by_interval(reading: Reading, family: Family, count: int) -> list[bool] | None:
    value = reading.get(family.nope_interval) if family.nope_interval else None
    if value is None:
        back = family.nope_back
        return [(count - 1 - i) % back != 0 for i in range(count)] if back else None
    interval = integer(reading.name(family.nope_interval), value, 0, MOST_LAYERS)
    return [not interval or (i + 1) % interval != 0 for i in range(count)]


def _bases(reading: Reading, family: Family, count: int) -> list[float | None] | None:
    given = reading.get(family.layer_bases) if family.layer_bases else None
    if given is None:
        return None
    name = reading.name(family.layer_bases)
    entries = listed(name, given)
    _long_enough(name, entries, count)
    return [
        number(f"{name}[{i}]", each, 0.0) if each else None
        for i, each in enumerate(entries[:count])
    ]


def _long_enough(name: str, entries: list[Any], count: int | None) -> None:
    if count is not None and len(entries) < count:
        raise ConfigError(f"{name} must have an entry a layer, {count}, got {len(entries)}.", "K23")
