"""The keys of a rope dict: `rope_parameters`, or `rope_scaling` as it was called before.

    which(reading, ...)     the dict that rules a layer: flat, or nested per layer type
    rope_type(rope)         the scaling's name, aliases resolved
    checked(rope, ...)      unknown keys refused, dead ones told
    base_of, fraction_of    a value that may stand in several places, which must agree

Conflicts raise: nothing here can know which of two explicit values the weights were trained with.
"""

from collections.abc import Iterable
from typing import Any

from whereness.interop.config.keys import (
    ConfigError,
    Reading,
    counted,
    mapping,
    nearest,
    number,
    shown,
    string,
)
from whereness.interop.families import Family

NAMES = ("rope_parameters", "rope_scaling")

ALIASES = {
    "su": "longrope",
    "mrope": "default",
    "xdrope": "default",
    "axial": "default",
    "none": "default",
    "deepseek_yarn": "yarn",
    "telechat3-yarn": "yarn",
}
"""Other names of a scaling. Only the name differs: the keys beside it are the same."""

OPTIONS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "ntk": frozenset({"factor", "mixed_b"}),
    "dynamic": frozenset({"factor", "alpha", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "truncate",
            "mscale",
            "mscale_all_dim",
            "attention_factor",
            "attn_factor",
            "extrapolation_factor",
        }
    ),
    "longrope": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "short_factor",
            "long_factor",
            "attention_factor",
            "short_mscale",
            "long_mscale",
        }
    ),
    "llama3": frozenset(
        {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
    ),
    "proportional": frozenset({"factor"}),
}
"""The scalings and what each of them reads."""

EVERYWHERE = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
SECTIONS = frozenset({"mrope_section", "mrope_interleaved"})
HARMLESS = frozenset({"finetuned", "max_position_embeddings"})
"""Known, and without effect on any number."""
TEMPERATURE = frozenset({"llama_4_scaling_beta"})
AMPLITUDE = frozenset(
    {
        "attention_factor",
        "attn_factor",
        "long_mscale",
        "mscale",
        "mscale_all_dim",
        "short_mscale",
    }
)
SCALING = frozenset().union(*OPTIONS.values())
KNOWN = SCALING | EVERYWHERE | SECTIONS | TEMPERATURE | HARMLESS

BASE_KEYS = (
    "rope_theta",
    "rotary_emb_base",
    "rotary_base",
    "rope_base",
    "rope_freq_base",
    "rotary_embedding_base",
)
"""Spellings of the base at the top of a config. A family reads its own; another one is dead."""
FRACTION_KEYS = (
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_percent",
    "rope_pct",
    "rotary_emb_fraction",
)
TOP_KEYS = frozenset((*NAMES, *BASE_KEYS, *FRACTION_KEYS, "rotary_dim", "rope_local_base_freq"))


def rope_dict(reading: Reading) -> tuple[str, dict[str, Any]]:
    """(its name, the rope dict), both spellings read; ("", {}) where there is none."""
    found = [(n, mapping(reading.name(n), reading.given[n])) for n in NAMES if reading.given.get(n)]
    if len(found) == 2:
        first, second = (rope for _, rope in found)
        for key in sorted(first.keys() & second.keys()):
            if first[key] != second[key]:
                both = " and ".join(map(reading.name, NAMES))
                raise ConfigError(
                    f"{both} differ in {shown(key)}: {shown(first[key])} and "
                    f"{shown(second[key])}. Keep one of them.",
                    kind_of(key),
                )
        return NAMES[0], {**second, **first}
    if found:
        return found[0]
    default = reading.defaults.get(NAMES[0])
    return (NAMES[0], dict(default)) if default else ("", {})


def nested(rope: dict[str, Any]) -> bool:
    """Whether the dict holds one dict a layer type instead of values."""
    return any(isinstance(value, dict) for value in rope.values())


def checked_nested(name: str, rope: dict[str, Any]) -> None:
    """Refuse values beside the dicts of the layer types."""
    for key, value in rope.items():
        if not (value is None or isinstance(value, dict)) and key != "truncate":
            raise ValueError(
                f"{name} holds one dict a layer type, and beside them {shown(key)} = "
                f"{shown(value)}: move it into each of them."
            )


def rope_type(family: Family, name: str, rope: dict[str, Any]) -> str:
    """The scaling that the dict names, aliases resolved; "default" where it names none."""
    aliases = {**ALIASES, **family.aliases}
    given = {k: string(f"{name}.{k}", rope[k]) for k in ("rope_type", "type") if rope.get(k)}
    resolved = {key: aliases.get(value, value) for key, value in given.items()}
    if len(set(resolved.values())) > 1:
        raise ValueError(
            f"{name} has rope_type {shown(given['rope_type'])} and type {shown(given['type'])}: "
            "two names for the same thing must agree."
        )
    kind = next(iter(resolved.values()), "default")
    if kind not in OPTIONS:
        known = (*OPTIONS, *aliases)
        raise ValueError(
            f"{name} has the unknown rope_type {shown(kind)}.{nearest(kind, known)} "
            f"Known: {', '.join(sorted(known))}."
        )
    return kind


def checked(reading: Reading, family: Family, name: str, rope: dict[str, Any], kind: str) -> None:
    """Refuse keys that nobody knows; tell those that this scaling does not read."""
    own = {key for key in family.rope_keys if key not in SCALING}  # alpha is read by a scaling
    ours = EVERYWHERE | OPTIONS[kind] | HARMLESS | own | set(family.sections)
    if family.interleaved_sections:
        ours |= {family.interleaved_sections}
    if family.temperature == "ministral3":
        ours |= TEMPERATURE
    for key, value in rope.items():
        if key in ours or value is None:
            continue
        if key not in KNOWN:
            raise ValueError(
                f"{name} has the unknown key {shown(key)}.{nearest(key, KNOWN | ours)} "
                f"Known for {kind!r}: {', '.join(sorted(ours))}."
            )
        if kind == "default" and key == "factor" and value != 1:
            raise ConfigError(
                f"{name} has factor {shown(value)} and no scaling that reads it: rope_type is "
                "'default'. Name the scaling, or remove the factor.",
                "K02",
            )
        text = f"{name}.{key} = {shown(value)} has no effect: {kind!r} does not read it."
        reading.notice(text, kind_of(key))


def kind_of(key: str) -> str:
    """Which invariant breaks where this key of a rope dict is lost."""
    if key in SCALING | {"rope_theta"}:
        return "K04" if key in AMPLITUDE else "K02"
    others = {"partial_rotary_factor": "K03", **dict.fromkeys(SECTIONS, "K15")}
    return others.get(key, "K22")


def agreed(what: str, found: Iterable[tuple[str, float]], kind: str) -> float | None:
    """The one value of these places; None without any.

    Raises:
        ConfigError: of this kind, two places with different values.
    """
    first: tuple[str, float] | None = None
    for name, value in found:
        if first is None:
            first = (name, value)
        elif value != first[1]:
            raise ConfigError(
                f"The config gives {what} twice: {first[0]} = {counted(first[1])} and "
                f"{name} = {counted(value)}. Keep the one that the weights were trained with.",
                kind,
            )
    return None if first is None else first[1]


def explicit_numbers(
    reading: Reading, keys: Iterable[str], least: float
) -> list[tuple[str, float]]:
    """(name, value) of the top-level keys that the user gave."""
    given = ((key, reading.explicit(key)) for key in keys)
    return [(reading.name(k), number(reading.name(k), v, least)) for k, v in given if v is not None]


def default_number(reading: Reading, keys: Iterable[str], least: float) -> float | None:
    """The first class default of these keys."""
    for key in keys:
        value = reading.given.get(key) if key in reading.weak else None
        value = reading.defaults.get(key) if value is None else value
        if value is not None:
            return number(reading.name(key), value, least)
    return None
