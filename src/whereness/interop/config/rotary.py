"""The rotary encoding of a layer, as a spec: width, pairing, base, scaling and axes."""

from typing import Any

from whereness.interop.config import rope_keys
from whereness.interop.config.bases import base_of
from whereness.interop.config.keys import (
    LARGEST_WIDTH,
    ConfigError,
    Reading,
    boolean,
    integer,
    listed,
    number,
)
from whereness.interop.config.layers import Slot
from whereness.interop.config.rules import Rule, rule_of
from whereness.interop.config.scalings import Rope, scaling_of
from whereness.interop.config.specs import NOPE, Layer, Spec, spec
from whereness.interop.config.temperatures import temperature_of
from whereness.interop.config.widths import even, pairing_of, widths_of
from whereness.interop.families import LLAMA, Family


def rotary_layer(reading: Reading, family: Family, slot: Slot) -> Layer:
    """What a layer of a rotary family has."""
    if not slot.positioned:
        return (NOPE, *temperature_of(reading, family, positioned=False))
    rule = rule_of(reading, family, slot)
    if rule is None:
        return (NOPE, *temperature_of(reading, family, positioned=False))
    turned = _rope(reading, family, slot, rule)
    return (turned, *temperature_of(reading, family, positioned=True, rope=rule.keys))


def _rope(reading: Reading, family: Family, slot: Slot, rule: Rule) -> Spec:
    kind = rope_keys.rope_type(family, rule.name, rule.keys)
    rope_keys.checked(reading, family, rule.name, rule.keys, kind)
    widths = widths_of(reading, family, slot, rule, kind)
    head_dim, rotary_dim = widths.head_dim, widths.rotary_dim
    rope = Rope(reading, family, rule.name, rule.keys, rotary_dim // 2, flat=not rule.per_type)
    base = base_of(reading, family, slot, rule)
    if rotary_dim % 2 and kind == "default" and family.kind == "rope":
        rotary_dim, base = even(reading, rotary_dim, head_dim, base)
    options: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "pairing": pairing_of(reading, family),
        "rotary_dim": rotary_dim if rotary_dim != head_dim else None,
        "rotary_side": "trailing" if family.side == "trailing" else None,
        "scaling": scaling_of(rope, kind, widths.fraction),
    }
    if family.reversed:
        return _reversed(rule, options)
    if family.kind in ("axial", "dinov3"):
        if options["scaling"] is not None:
            text = f"{rule.name}: rope_type {kind!r} is for one axis, and this has more."
            raise ConfigError(text, "K02")
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
        raise ConfigError(
            f"{rule.name}: the pairs of this family turn by -position, and no encoding scales such "
            "a spectrum or leaves channels out.",
            "",
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


def complete(reading: Reading) -> bool:
    """Whether an unknown model's config leaves nothing open: a width and a base."""
    width = reading.whole(LLAMA.head_dim, LARGEST_WIDTH)
    _, rope = rope_keys.rope_dict(reading)
    inner = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    base = any(each.get("rope_theta") is not None for each in inner)
    return width is not None and (base or reading.get("rope_theta") is not None)
