"""A model's config, read: what position each of its layers has.

    read (files) -> translated (dialects) -> part -> family -> a spec a layer -> encodings

The specs are made without torch; `from_config` builds those of one layer.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from whereness.interop import dialects, rope_keys
from whereness.interop.families import Family, families, family
from whereness.interop.files import Source, read
from whereness.interop.keys import ConfigWarning, Reading, nearest, short, shown, string
from whereness.interop.layers import Slot, slots
from whereness.interop.rotary import complete, rotary_layer
from whereness.interop.specs import Layer, Spec, build_layer, told
from whereness.interop.tables import KINDS

if TYPE_CHECKING:
    from whereness.encoding import PositionalEncoding

DECIDED_BY_CODE = (
    "alibi",
    "dual_chunk_attention_config",
    "global_head_dim",
    "mrope_section",
    "no_rope_layer_interval",
    "no_rope_layers",
    "nope_layer_interval",
    "position_embedding_type",
    "qk_rope_head_dim",
    "relative_attention_num_buckets",
    "rotary_dim",
    "sliding_window_pattern",
)
"""Keys that say nothing by themselves: a model that has one and is unknown is refused."""

REFUSED = "refused"
"""Kind of a spec that cannot be built: its "why" says the reason."""


@dataclass(frozen=True)
class Part:
    """One part of a model: a part is what has layers of its own."""

    name: str
    """Key path in the config; "" where the model is one part."""
    model_type: str
    family: Family
    reading: Reading


@dataclass(frozen=True)
class Layers:
    """What the layers of a part have."""

    part: Part
    each: tuple[Layer, ...]
    """One a layer; a single one where the config does not say how many layers there are."""
    counted: bool
    length: int | None
    """Positions that the model was made for."""
    types: tuple[str | None, ...] = ()
    """Type of each layer, where they have one."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What libraries read differently, or what had to be assumed."""
        return tuple(self.part.reading.notices)

    def groups(self) -> dict[Layer, list[int]]:
        """Layers that have the same, in order of first appearance."""
        found: dict[Layer, list[int]] = {}
        for i, layer in enumerate(self.each):
            found.setdefault(layer, []).append(i)
        return found


def from_config(
    config: "Mapping[str, Any] | str | os.PathLike[str] | object",
    layer: int | None = None,
    part: str | None = None,
) -> "PositionalEncoding | tuple[PositionalEncoding, ...]":
    """The positional encoding of a layer of the model that a config describes.

    Reads configs of Hugging Face (old and new keys), vLLM, Megatron (its arguments), DeepSeek and
    Meta, and the metadata of GGUF files. `NoPE()` where a layer has no position, a tuple where it
    has several encodings (rotary and a temperature).

    Args:
        config: a dict, a config object, or the path of a config.json, of its folder or of a .gguf.
        layer: which layer, from 0; needed where layers differ.
        part: key path of a part of a composite model ("text_config", "vision_config"); a model of
            encoder and decoder is read as its "encoder".

    Raises:
        ValueError: keys that are unknown, mistyped, in conflict, or that nothing here can say;
            layers or parts that differ, which are then listed.
        TypeError: something that is no config.
        OSError: a file that cannot be read.

    Warns:
        ConfigWarning: a key that libraries read differently, or a value that was assumed.
    """
    layers = layers_of(chosen(parts_of(read(config)), part))
    found = one_layer(layers, layer)
    for notice in layers.notices:
        warnings.warn(notice, ConfigWarning, stacklevel=2)
    return build_layer(found)


def parts_of(source: Source) -> dict[str, Part]:
    """The parts of a model by name, the default one first."""
    try:
        return _parts(source)
    except RecursionError:
        raise ValueError("The config is nested too deeply to be one.") from None


def _parts(source: Source) -> dict[str, Part]:
    found: dict[str, Part] = {}
    other = dialects.translated(source)
    if other is None:
        _collect(source.keys, source.weak, "", "", found)
    else:
        _add(other.keys, frozenset(), "", other.name, other.family, found)
        for part in found.values():
            part.reading.notices.extend(other.notices)
    return found


def _collect(
    keys: Mapping[str, Any], weak: frozenset[str], path: str, told_type: str, found: dict[str, Part]
) -> None:
    """Add the part at `path`, or those that it is composed of."""
    model_type = keys.get("model_type")
    model_type = "" if model_type is None else string(_join(path, "model_type"), model_type)
    model_type = model_type or told_type
    known = family(model_type)
    for name, inner, inner_type in _inner(keys, model_type, known):
        _collect(inner, frozenset(), _join(path, name), inner_type, found)
    if known is not None and known.parts:
        if known.text and "text_config" not in keys and _holds_text(keys):
            text = families()[known.text]
            part = Part(path, known.text, text, _reading(keys, weak, path, text))
            others = dict(found)
            found.clear()
            found.update({path or "text_config": part, **others})
        return
    if known is None and any(name.startswith(f"{path}." if path else "") for name in found):
        return  # a wrapper that nobody needs to know: its parts say everything
    _add(keys, weak, path, model_type, known, found)


def _holds_text(keys: Mapping[str, Any]) -> bool:
    return any(keys.get(key) is not None for key in ("hidden_size", "num_hidden_layers"))


def _inner(
    keys: Mapping[str, Any], model_type: str, known: Family | None
) -> list[tuple[str, Mapping[str, Any], str]]:
    """(name, keys, model_type) of the configs within a config."""
    inner = []
    listed = {} if known is None else known.parts
    for path, its_type in listed.items():
        found: Any = keys
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            same = found.get("model_type") in (None, model_type)
            inner.append((path, {**found, "model_type": None} if same else found, its_type))
    if known is not None and not known.parts:
        return []  # a model of one part, whatever else is kept beside it
    for name, value in keys.items():
        if not isinstance(name, str) or any(p.split(".")[0] == name for p in listed):
            continue
        composed = name.endswith("_config") or name in ("encoder", "decoder")
        if not composed or not isinstance(value, Mapping):
            continue
        # Older files repeat the model's own type in a part, or leave it out.
        usual = f"{model_type}_{name.removesuffix('_config')}"
        if value.get("model_type") in (None, model_type) and usual in families():
            inner.append((name, {**value, "model_type": None}, usual))
        elif _is_model(value):
            inner.append((name, value, ""))
    return inner


def _is_model(keys: Mapping[str, Any]) -> bool:
    if isinstance(keys.get("model_type"), str):
        return True
    return any(
        k.endswith("_config") and isinstance(v, Mapping) and _is_model(v)
        for k, v in keys.items()
        if isinstance(k, str)
    )


def _add(
    keys: Mapping[str, Any],
    weak: frozenset[str],
    path: str,
    model_type: str,
    known: Family | None,
    found: dict[str, Part],
) -> None:
    if known is None:
        found[path] = _unknown(keys, weak, path, model_type)
        return
    reading = _reading(keys, weak, path, known)
    for key, value, other in known.when:
        if reading.get(key) == value:
            known = other
            reading = _reading(keys, weak, path, known)
            break
    if known.decoder is None:
        found[path] = Part(path, model_type, known, reading)
        return
    decoder = known.decoder
    for name, one in (("encoder", known), ("decoder", decoder)):
        own = _reading(keys, weak, path, one)
        found[_join(path, name)] = Part(_join(path, name), model_type, one, own)


def _reading(keys: Mapping[str, Any], weak: frozenset[str], path: str, known: Family) -> Reading:
    return Reading(keys, known.defaults, weak, f"{path}." if path else "")


def _unknown(keys: Mapping[str, Any], weak: frozenset[str], path: str, model_type: str) -> Part:
    """A part whose model_type nobody told us about: read as Llama if it leaves nothing open."""
    fractions = rope_keys.FRACTION_KEYS
    plain = Family(fraction=fractions)
    reading = _reading(keys, weak, path, plain)
    what = f"model_type {shown(model_type)}" if model_type else "no model_type"
    where = f"{short(path)}: " if path else ""
    near = nearest(model_type, families())
    opened = [key for key in DECIDED_BY_CODE if reading.get(key) not in (None, [], {})]
    if opened:
        why = f"and its {opened[0]} means what its code makes of it."
        plain = Family(refused=f"is not a known family,{near and ' ' + near.strip()} {why}")
    elif not _complete(reading):
        plain = Family(
            refused=f"is not a known family.{near} Its keys alone do not say its positions: that "
            "takes a base (rope_theta) and a width (head_dim, or hidden_size and "
            "num_attention_heads)."
        )
    else:
        reading.notice(
            f"{where}{what} is not a known family: read as Llama's, every layer rotary, half "
            "pairing."
        )
    return Part(path, model_type, plain, reading)


def _complete(reading: Reading) -> bool:
    try:
        return complete(reading)
    except (TypeError, ValueError):  # a key that means something else in that model
        return False


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def chosen(parts: Mapping[str, Part], part: str | None) -> Part:
    """The part of this name, or the only one, or the encoder."""
    names = list(parts)
    if part is None:
        if len(parts) == 1:
            return parts[names[0]]
        if set(names) == {"encoder", "decoder"}:
            return parts["encoder"]
        raise ValueError(
            f"The model has {len(parts)} parts: choose one with part=. {_listed(parts)}"
        )
    if not isinstance(part, str):
        raise TypeError(f"part must be a string or None, got {shown(part)}.")
    if part in parts:
        return parts[part]
    if names == [""]:
        raise ValueError(f"The model has no parts: leave part out, got {shown(part)}.")
    raise ValueError(f"The model has no part {shown(part)}.{nearest(part, names)} {_listed(parts)}")


def _listed(parts: Mapping[str, Part]) -> str:
    told = [f"{shown(n)} ({short(p.model_type)})" for n, p in parts.items()]
    more = [f"and {len(told) - 20} more"] if len(told) > 20 else []
    return f"Parts: {', '.join([*told[:20], *more])}."


def layers_of(part: Part) -> Layers:
    """What every layer of a part has."""
    reading, known = part.reading, part.family
    if known.refused:
        where = f"{short(part.name)}: " if part.name else ""
        what = f"model_type {shown(part.model_type)}" if part.model_type else "no model_type"
        raise ValueError(f"{where}{what} {known.refused}")
    length = reading.whole(known.num_positions)
    if known.kind in KINDS:
        one = (KINDS[known.kind](reading, known),)
        count = reading.whole(known.num_layers, 2**16)
        return Layers(part, (one,) * (count or 1), count is not None, length)
    found = slots(reading, known)
    made: dict[Slot, Layer] = {}
    for slot in found or (Slot(),):
        if slot not in made:
            made[slot] = _made(part, slot)
    each = tuple(made[slot] for slot in found or (Slot(),))
    types = tuple(slot.type for slot in found or ())
    return Layers(part, each, found is not None, length, types)


def _made(part: Part, slot: Slot) -> Layer:
    why = part.family.refused_types.get(slot.type or "")
    if why and slot.positioned:
        return (Spec(REFUSED, (("why", f"{slot.type}: {why}"),)),)
    reading = part.reading
    if slot.own:
        reading = replace(reading, given={**reading.given, **dict(slot.own)})
    return rotary_layer(reading, part.family, slot)


def one_layer(layers: Layers, layer: int | None) -> Layer:
    """What this layer has; with None what all of them have."""
    groups = layers.groups()
    if layer is None:
        if len(groups) > 1:
            listing = "; ".join(f"{numbers(where)}: {told(made)}" for made, where in groups.items())
            raise ValueError(f"The layers differ: choose one with layer=. Layers {listing}.")
        found = layers.each[0]
    else:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"layer must be an int or None, got {shown(layer)}.")
        count = len(layers.each)
        if layer < 0 or (layers.counted and layer >= count):
            raise ValueError(f"layer must be in 0 .. {count - 1}, got {shown(layer)}.")
        found = layers.each[layer if layers.counted else 0]
    for each in found:
        if each.kind == REFUSED:
            raise ValueError(str(each.get("why")))
    return found


def numbers(found: list[int]) -> str:
    """Layer numbers, runs drawn together: "0-4, 6"."""
    runs: list[list[int]] = []
    for i in found:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
