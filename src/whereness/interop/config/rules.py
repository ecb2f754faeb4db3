"""Which rope dict rules a layer: the flat one, or that of its type."""

from dataclasses import dataclass
from typing import Any

from whereness.interop.config import rope_keys
from whereness.interop.config.keys import Reading, shown
from whereness.interop.config.layers import SAME_TYPE, Slot
from whereness.interop.families import Family


@dataclass(frozen=True)
class Rule:
    """The rope dict that rules a layer."""

    name: str
    keys: dict[str, Any]
    per_type: bool
    bases: tuple[Any, ...] = ()
    """Of all layer types, None where one has none of its own."""


def rule_of(reading: Reading, family: Family, slot: Slot) -> Rule | None:
    """The dict that rules a layer; None where the config says that it has no position."""
    type_ = slot.type
    name, rope = rope_keys.rope_dict(reading)
    if not any(reading.given.get(key) for key in rope_keys.NAMES) and family.types_parameters:
        name, rope = "rope_parameters", dict(family.types_parameters)
    path = reading.name(name) if name else ""
    if not rope_keys.nested(rope):
        reached = family.types_scaled is None or type_ is None or type_ in family.types_scaled
        plain = {k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")}
        return Rule(path, rope if reached and slot.scaled else plain, per_type=False)
    rope_keys.checked_nested(path, rope)
    rope = {SAME_TYPE.get(key, key): value for key, value in rope.items()}
    label = family.labels.get(type_ or "", type_)
    if label is None or label not in rope:
        raise ValueError(
            f"{path} is nested per layer type and has no entry for "
            f"{'the layers, which have no type' if label is None else shown(label)}; it has "
            f"{', '.join(sorted(map(shown, rope))[:10])}."
        )
    own = rope[label]
    if own is None:
        return None
    keys = dict(own)
    top = rope.get("truncate")
    if "truncate" in keys and top != keys["truncate"]:
        reading.notice(
            f"{path}.{label}.truncate = {shown(keys['truncate'])} is used; Hugging Face 5.24 reads "
            "truncate beside the layer types alone, and takes true here.",
            "K02",
        )
    elif top is not None:
        keys.setdefault("truncate", top)
    bases = tuple(inner.get("rope_theta") for inner in rope.values() if isinstance(inner, dict))
    return Rule(f"{path}.{label}", keys, per_type=True, bases=bases)
