"""The base of a layer, which may stand in several places."""

from whereness.interop.config import rope_keys
from whereness.interop.config.keys import ConfigError, Reading, counted, number
from whereness.interop.config.layers import Slot
from whereness.interop.config.rules import Rule
from whereness.interop.families import Family, Keys

USUAL_BASE = 10_000.0


def base_of(reading: Reading, family: Family, slot: Slot, rule: Rule) -> float:
    """The base of a layer: from its own rope dict, the top of the config, or the class.

    Raises:
        ValueError: two that differ, one under a name that this family does not read, or none.
    """
    if slot.base is not None:
        return slot.base
    nested = rule.keys.get("rope_theta")
    own = family.types_bases.get(slot.type or "", ())
    top = rope_keys.explicit_numbers(reading, own or family.base, 0.0)
    if nested is not None and (rule.per_type or not own):
        inner = (f"{rule.name}.rope_theta", number(f"{rule.name}.rope_theta", nested, 0.0))
        if not rule.per_type or own:
            rope_keys.agreed("the base", [inner, *top], "K02")
        if rule.per_type:
            _no_other_base(reading, family, rule)
        else:
            _no_dead_base(reading, family, inner[1])
        return inner[1]
    found = rope_keys.agreed("the base", top, "K02")
    if found is None:
        # A type without a base of its own has that of all, in the files of older models.
        found = _default(reading, family, own) or _default(reading, family, family.base)
    if found is None and not family.base:  # the code has it, and no key
        found = reading.defaults.get("rope_theta")
    if found is None:
        raise ConfigError(
            f"The config gives no base: {rule.name or reading.name('rope_parameters')}.rope_theta "
            f"or {' or '.join(reading.name(key) for key in family.base)} is needed. Nothing is "
            "assumed, since models differ in it.",
            "K02",
        )
    _no_dead_base(reading, family, found)
    return found


def _default(reading: Reading, family: Family, keys: Keys) -> float | None:
    """The class's own base: told, unless the config repeats it or never says one."""
    found = rope_keys.default_number(reading, keys, 0.0)
    said = any(reading.given.get(key) is not None for key in keys)
    if found is not None and not said and family.kind in ("rope", "multimodal"):
        reading.notice(
            f"{reading.name(keys[0])} is missing: {counted(found)} is taken, the default of this "
            "family's own code.",
            "K02",
            # The base that code without a default of its own has; others are lost in ports.
            "note" if found == USUAL_BASE else "warning",
        )
    return found


def _no_other_base(reading: Reading, family: Family, rule: Rule) -> None:
    """Refuse a base at the top that no layer type has."""
    if None in rule.bases:
        return  # it is for the types that have none of their own
    for name, value in rope_keys.explicit_numbers(reading, family.base, 0.0):
        if value not in rule.bases:
            told = ", ".join(counted(base) for base in rule.bases if base is not None)
            raise ConfigError(
                f"{name} = {counted(value)} is the base of no layer type: rope_parameters has "
                f"{told}. Remove one of them.",
                "K02",
            )


def _no_dead_base(reading: Reading, family: Family, used: float) -> None:
    """Refuse a base under a name that the family does not read."""
    read = {*family.base, *(key for keys in family.types_bases.values() for key in keys)}
    for key in rope_keys.BASE_KEYS:
        if key not in read:
            for name, value in rope_keys.explicit_numbers(reading, (key,), 0.0):
                if value != used:
                    raise ConfigError(
                        f"{name} = {counted(value)} is not read by this family, which has the base "
                        f"{counted(used)} from {' or '.join(sorted(read))}. Remove one of them.",
                        "K02",
                    )
