"""How wide a head is, which of its channels turn, and how they pair."""

from dataclasses import dataclass

from whereness.interop.config import rope_keys
from whereness.interop.config.keys import (
    LARGEST_WIDTH,
    MARK,
    ConfigError,
    Reading,
    boolean,
    counted,
    number,
    shown,
)
from whereness.interop.config.layers import PER_LAYER, Slot
from whereness.interop.config.rules import Rule
from whereness.interop.families import Family, Keys


@dataclass(frozen=True)
class Widths:
    """Channels of a head, those that turn, and the part of these that `proportional` turns."""

    head_dim: int
    rotary_dim: int
    fraction: float


def widths_of(reading: Reading, family: Family, slot: Slot, rule: Rule, kind: str) -> Widths:
    """The widths of a layer under a scaling of this kind."""
    keys = family.head_dims.get(slot.type or "", family.head_dim)
    if reading.get(PER_LAYER) is not None:  # which has them already
        keys = family.head_dim
    head_dim = reading.needed("the width of a head", keys, LARGEST_WIDTH)
    _quotient(reading, keys)
    rotary_dim = reading.whole(family.rotary_dim, LARGEST_WIDTH)
    fraction = 1.0
    if rotary_dim is not None:
        if rotary_dim > head_dim:
            raise ConfigError(
                f"{family.rotary_dim[0]} = {rotary_dim} is wider than a head, {head_dim}.", "K03"
            )
        if kind == "proportional":
            fraction = _fraction_of_part(family, rule)
    elif "partial_rotary_factor" in family.rope_keys:  # there, and it means something else
        rotary_dim = head_dim
    else:
        fraction = _fraction(reading, family, slot, rule, kind)
        rotary_dim = head_dim if kind == "proportional" else int(head_dim * fraction)
    if reading.given.get("rotary_dim") == rotary_dim:
        reading.asked.add("rotary_dim")  # whoever reads it reads the same
    if rotary_dim == head_dim and head_dim % 2:
        given = next(key for key in keys if reading.whole((key,), LARGEST_WIDTH) is not None)
        name = " / ".join(map(reading.name, given.split("//")))
        raise ConfigError(
            f"{name} = {head_dim} is odd: channels turn in pairs, so the width of a head is even.",
            "K03",
        )
    return Widths(head_dim, rotary_dim, fraction)


def _quotient(reading: Reading, keys: Keys) -> None:
    """Check the division that gave a head's width, if one did.

    Raises:
        ValueError: it has a remainder. Classes whose own defaults have one (GLM-4.5) round down.
    """
    used = next((each for each in keys if reading.whole((each,), LARGEST_WIDTH) is not None), "")
    whole, *others = used.split("//")
    if len(others) != 1 or "+" in used:
        return
    size, count = whole, others[0]
    a, b = reading.needed("a width", (size,)), reading.needed("heads", (count,))
    given = {key for key in (size, count) if reading.given.get(key) is not None}
    if len(given) == 1:
        (there,) = given
        key, value = (count, b) if there == size else (size, a)
        reading.notice(
            f"{reading.name(key)} is missing: {value:,} is taken, the default of this family's own "
            f"code, beside {there} = {reading.get(there):,}: heads have {a // b} channels.",
            "K03",
            "note",
        )
    if a % b == 0:
        return
    if any(reading.get(key) != reading.defaults.get(key) for key in (size, count)):
        raise ConfigError(
            f"{reading.name(size)} = {a} is no multiple of {reading.name(count)} = {b}: a head "
            f"would have {a / b:.6g} channels. Correct one of them, or give "
            f"{reading.name('head_dim')}.",
            "K03",
        )
    reading.notice(
        f"{reading.name(size)} / {reading.name(count)} = {a} / {b} is no whole number: {a // b} is "
        "taken, as this family's code does by default.",
        "K03",
    )


def _fraction(reading: Reading, family: Family, slot: Slot, rule: Rule, kind: str) -> float:
    """The part of the channels that turns; 1 where nothing says so."""
    key = "partial_rotary_factor"
    nested = rule.keys.get(key)
    found = [] if nested is None else [(f"{rule.name}.{key}", number(f"{rule.name}.{key}", nested))]
    # Per layer type the nested one may differ from the one at the top, which is for the others.
    outer = []
    if not (rule.per_type and found):
        outer = rope_keys.explicit_numbers(reading, family.fraction, -1.0)
    value = rope_keys.agreed("the part that turns", [*found, *outer], "K03")
    if value is None:
        value = family.types_fractions.get(slot.type or "")
    if value is None:
        value = rope_keys.default_number(reading, family.fraction, -1.0)
    value = 1.0 if value is None else value
    name = (*found, *outer, (key, 0.0))[0][0]
    if not 0.0 < value <= 1.0:
        raise ConfigError(f"{name} must be above 0 and at most 1, got {value:g}.", "K03")
    if found and value != 1.0 and not family.fraction and kind != "proportional":
        raise ConfigError(
            f"{name} = {value:g} is never read by the code of this family, in which every channel "
            "turns. Remove it, or set it to 1.",
            "K03",
        )
    _no_dead_fraction(reading, family, 1.0 if kind == "proportional" and found else value)
    return value


def _no_dead_fraction(reading: Reading, family: Family, used: float) -> None:
    """Refuse a part under a name that the family does not read."""
    dead = [key for key in rope_keys.FRACTION_KEYS if key not in family.fraction]
    for name, value in rope_keys.explicit_numbers(reading, dead, -1.0):
        if value != used:
            raise ConfigError(
                f"{name} = {value:g} is never read by the code of this family, in which "
                f"{used:g} of the channels turns. Remove it.",
                "K03",
            )


def _fraction_of_part(family: Family, rule: Rule) -> float:
    """The part that turns of channels that are a part of the head already."""
    name = f"{rule.name}.partial_rotary_factor"
    value = rule.keys.get("partial_rotary_factor")
    if value is None:
        return 1.0
    if family.fraction:
        raise ConfigError(
            f"{name} is a part of the whole head in this family, and 'proportional' would take a "
            "part of it once more.",
            "K03",
        )
    found = number(name, value, 0.0)
    if found > 1.0:
        raise ConfigError(f"{name} must be at most 1, got {found:g}.", "K03")
    return found


def even(reading: Reading, odd: int, head_dim: int, base: float) -> tuple[int, float]:
    """An even width and a base with the spectrum of the odd width: b^(-2k/d) = B^(-2k/(d+1))."""
    reading.notice(
        f"{odd} of {head_dim} channels turn, an odd number: Hugging Face turns {odd + 1} with the "
        f"spectrum of {odd}, which is that of {odd + 1} with the base {counted(base)} to the power "
        f"of {odd + 1}/{odd}.",
        "K03",
    )
    return odd + 1, base ** ((odd + 1) / odd)


def pairing_of(reading: Reading, family: Family) -> str:
    """The pairing, by a key where the family has one."""
    value = reading.get(family.interleaved) if family.interleaved else None
    found: str = family.pairing
    if value is not None:
        flag = boolean(reading.name(family.interleaved), value)
        found = "interleaved" if flag else "half"
    mark = reading.given.get(MARK)
    if mark is None:
        return found
    if mark not in ("half", "interleaved"):
        raise ConfigError(
            f"{reading.name(MARK)} must be half or interleaved, got {shown(mark)}.", "K01"
        )
    if value is not None and mark != found:
        raise ConfigError(
            f"{reading.name(MARK)} is {mark!r} and {reading.name(family.interleaved)} says "
            f"{found!r}. Keep the one that the weights have.",
            "K01",
        )
    return mark
