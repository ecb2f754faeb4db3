"""The rotary encoding of a layer, as a spec: width, pairing, base, scaling and axes."""

import difflib
from dataclasses import dataclass
from typing import Any

from whereness.interop import rope_keys
from whereness.interop.families import LLAMA, Family
from whereness.interop.keys import (
    LARGEST_WIDTH,
    Reading,
    boolean,
    integer,
    listed,
    nearest,
    number,
    shown,
)
from whereness.interop.layers import PER_LAYER, SAME_TYPE, Slot
from whereness.interop.scalings import Rope, scaling_of
from whereness.interop.specs import NOPE, Layer, Spec, spec
from whereness.interop.temperatures import temperature_of


@dataclass(frozen=True)
class Rule:
    """The rope dict that rules a layer."""

    name: str
    keys: dict[str, Any]
    per_type: bool


def rotary_layer(reading: Reading, family: Family, slot: Slot) -> Layer:
    """What a layer of a rotary family has."""
    if not slot.positioned:
        return (NOPE, *temperature_of(reading, family, positioned=False))
    rule = rule_of(reading, family, slot)
    if rule is None:
        return (NOPE, *temperature_of(reading, family, positioned=False))
    turned = _rope(reading, family, slot, rule)
    return (turned, *temperature_of(reading, family, positioned=True, rope=rule.keys))


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
            f"{'the layers, which have no type' if label is None else repr(label)}; it has "
            f"{', '.join(sorted(map(repr, rope)))}."
        )
    own = rope[label]
    if own is None:
        return None
    keys = dict(own)
    top = rope.get("truncate")
    if "truncate" in keys and top != keys["truncate"]:
        reading.notice(
            f"{path}.{label}.truncate = {shown(keys['truncate'])} is used; Hugging Face 5.24 reads "
            "truncate beside the layer types alone, and takes true here."
        )
    elif top is not None:
        keys.setdefault("truncate", top)
    return Rule(f"{path}.{label}", keys, per_type=True)


def _rope(reading: Reading, family: Family, slot: Slot, rule: Rule) -> Spec:
    kind = rope_keys.rope_type(family, rule.name, rule.keys)
    rope_keys.checked(reading, family, rule.name, rule.keys, kind)
    _no_misspelling(reading, family)
    widths = family.head_dims.get(slot.type or "", family.head_dim)
    if reading.get(PER_LAYER) is not None:  # which has them already
        widths = family.head_dim
    head_dim = reading.needed("the width of a head", widths, LARGEST_WIDTH)
    rotary_dim = reading.whole(family.rotary_dim, LARGEST_WIDTH)
    fraction = 1.0
    if "partial_rotary_factor" in family.rope_keys and rotary_dim is None:
        rotary_dim = head_dim  # the key is there, and means something else
    if rotary_dim is None:
        fraction = _fraction(reading, family, slot, rule, kind)
        rotary_dim = head_dim if kind == "proportional" else int(head_dim * fraction)
    if rotary_dim > head_dim:
        raise ValueError(f"{family.rotary_dim[0]} = {rotary_dim} is wider than a head, {head_dim}.")
    rope = Rope(reading, family, rule.name, rule.keys, rotary_dim // 2)
    base = _base(reading, family, slot, rule)
    if rotary_dim % 2 and kind == "default" and family.kind == "rope":
        rotary_dim, base = _even(reading, rotary_dim, head_dim, base)
    options: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "pairing": _pairing(reading, family),
        "rotary_dim": rotary_dim if rotary_dim != head_dim else None,
        "rotary_side": "trailing" if family.side == "trailing" else None,
        "scaling": scaling_of(rope, kind, fraction),
    }
    if family.reversed:
        return _reversed(rule, options)
    if family.kind in ("axial", "dinov3"):
        if options["scaling"] is not None:
            raise ValueError(f"{rule.name}: rope_type {kind!r} is for one axis, and this has more.")
        if family.kind == "dinov3":
            return spec("DINOv3RoPE", **options, **_jitter(reading), **family.options)
        return spec("AxialRoPE", **options, **family.options)
    if family.kind == "multimodal":
        sections = _sections(reading, family, rule)
        if sections is not None:
            options |= {"sections": sections, "order": _order(family, rule)}
            return spec("MultimodalRoPE", **options, **family.options)
    extra = {} if family.kind == "multimodal" else family.options
    return spec("LeRoPE" if family.learned else "RoPE", **options, **extra)


def _reversed(rule: Rule, options: dict[str, Any]) -> Spec:
    """Pairs that turn by -position: frequencies below zero, on one axis."""
    from whereness.frequencies import geometric

    if options["scaling"] is not None or options["rotary_dim"] is not None:
        raise ValueError(
            f"{rule.name}: the pairs of this family turn by -position, and no encoding scales such "
            "a spectrum or leaves channels out."
        )
    width = options["head_dim"]
    frequencies = (tuple(-w for w in geometric(options["base"], width, width // 2)),)
    return spec(
        "AxialRoPE",
        head_dim=width,
        num_axes=1,
        pairing=options["pairing"],
        frequencies=frequencies,
    )


def _jitter(reading: Reading) -> dict[str, float | None]:
    """DINOv3's moves of coordinates in training."""
    found = {name: reading.get(f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    return {
        name: None if value is None else number(reading.name(f"pos_embed_{name}"), value, 0.0)
        for name, value in found.items()
    }


def _even(reading: Reading, odd: int, head_dim: int, base: float) -> tuple[int, float]:
    """An even width and a base with the spectrum of the odd width: b^(-2k/d) = B^(-2k/(d+1))."""
    if odd == head_dim:
        raise ValueError(f"{reading.name('head_dim')} = {odd} is odd: channels turn in pairs.")
    reading.notice(
        f"{odd} of {head_dim} channels turn, an odd number: Hugging Face turns {odd + 1} with the "
        f"spectrum of {odd}, which is that of {odd + 1} with the base {base:g}^({odd + 1}/{odd})."
    )
    return odd + 1, base ** ((odd + 1) / odd)


def _base(reading: Reading, family: Family, slot: Slot, rule: Rule) -> float:
    if slot.base is not None:
        return slot.base
    nested = rule.keys.get("rope_theta")
    own = family.types_bases.get(slot.type or "", ())
    top = rope_keys.explicit_numbers(reading, own or family.base, 0.0)
    if nested is not None and (rule.per_type or not own):
        inner = (f"{rule.name}.rope_theta", number(f"{rule.name}.rope_theta", nested, 0.0))
        if not rule.per_type or own:
            rope_keys.agreed("the base", [inner, *top])
        _no_dead_base(reading, family, inner[1], per_type=rule.per_type)
        return inner[1]
    found = rope_keys.agreed("the base", top)
    if found is None and own:  # one base for all types, in the files of older models
        found = rope_keys.default_number(reading, own, 0.0)
    if found is None:
        found = rope_keys.default_number(reading, family.base, 0.0)
    if found is None:
        raise ValueError(
            f"The config gives no base: {rule.name or reading.name('rope_parameters')}.rope_theta "
            f"or {' or '.join(reading.name(key) for key in family.base)} is needed. Nothing is "
            "assumed, since models differ in it."
        )
    _no_dead_base(reading, family, found, per_type=False)
    return found


def _no_dead_base(reading: Reading, family: Family, used: float, *, per_type: bool) -> None:
    """Refuse a base under a name that the family does not read."""
    read = {*family.base, *(key for keys in family.types_bases.values() for key in keys)}
    if per_type:
        return
    for key in rope_keys.BASE_KEYS:
        if key not in read:
            for name, value in rope_keys.explicit_numbers(reading, (key,), 0.0):
                if value != used:
                    raise ValueError(
                        f"{name} = {value:g} is not read by this family, which has the base "
                        f"{used:g} from {' or '.join(sorted(read))}. Remove one of them."
                    )


def _fraction(reading: Reading, family: Family, slot: Slot, rule: Rule, kind: str) -> float:
    """The part of the channels that turns; 1 where nothing says so."""
    key = "partial_rotary_factor"
    nested = rule.keys.get(key)
    found = [] if nested is None else [(f"{rule.name}.{key}", number(f"{rule.name}.{key}", nested))]
    # Per layer type the nested one may differ from the one at the top, which is for the others.
    outer = (
        []
        if rule.per_type and found
        else rope_keys.explicit_numbers(reading, rope_keys.FRACTION_KEYS, -1.0)
    )
    value = rope_keys.agreed("the part that turns", [*found, *outer])
    if value is None:
        value = family.types_fractions.get(slot.type or "")
    if value is None:
        value = rope_keys.default_number(reading, family.fraction, -1.0)
    if value is None:
        return 1.0
    name = (*found, *outer, (key, 0.0))[0][0]
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value:g}.")
    if value != 1.0 and not family.fraction and kind != "proportional":
        raise ValueError(
            f"{name} = {value:g} is never read by the code of this family, in which every channel "
            "turns. Remove it, or set it to 1."
        )
    return value


def _pairing(reading: Reading, family: Family) -> str:
    if not family.interleaved:
        return family.pairing
    value = reading.get(family.interleaved)
    if value is None:
        return family.pairing
    flag = boolean(reading.name(family.interleaved), value)
    return "interleaved" if flag else "half"


def _sections(reading: Reading, family: Family, rule: Rule) -> tuple[int, ...] | None:
    for key in family.sections:
        value = rule.keys.get(key)
        name = f"{rule.name}.{key}" if value is not None else reading.name(key)
        value = reading.get(key) if value is None else value
        if value is not None:
            entries = enumerate(listed(name, value, 64))
            return tuple(integer(f"{name}[{i}]", each, 0, LARGEST_WIDTH) for i, each in entries)
    return None


def _order(family: Family, rule: Rule) -> str:
    key = family.interleaved_sections
    value = rule.keys.get(key) if key else None
    if value is None:
        return family.order
    return "interleaved" if boolean(f"{rule.name}.{key}", value) else "chunked"


def _no_misspelling(reading: Reading, family: Family) -> None:
    """Refuse a key at the top that is nearly one that would be read."""
    known = {*rope_keys.TOP_KEYS, *family.base, *family.fraction, *family.rotary_dim}
    for key in reading.given:
        if key in known or not key.lower().startswith(("rope_", "rotary_", "rop_", "rotery_")):
            continue
        if key.lower() in known or _one_off(key, known):
            raise ValueError(f"{reading.name(key)[:80]} is an unknown key.{nearest(key, known)}")


def _one_off(key: str, known: set[str]) -> bool:
    """Whether it is a letter or two from a known one."""
    return bool(difflib.get_close_matches(key[:60], sorted(known), n=1, cutoff=0.9))


def complete(reading: Reading) -> bool:
    """Whether an unknown model's config leaves nothing open: a width and a base."""
    width = reading.whole(LLAMA.head_dim, LARGEST_WIDTH)
    _, rope = rope_keys.rope_dict(reading)
    inner = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    base = any(each.get("rope_theta") is not None for each in inner)
    return width is not None and (base or reading.get("rope_theta") is not None)
