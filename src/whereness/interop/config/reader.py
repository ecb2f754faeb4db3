"""A model's config, read: what position each of its layers has.

    read (files) -> translated (dialects) -> part -> family -> a spec a layer -> encodings

The specs are made without torch; `from_config` builds those of one layer.
"""

import itertools
import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from whereness.interop.config.files import read
from whereness.interop.config.keys import (
    MOST_LAYERS,
    ConfigError,
    ConfigWarning,
    Notice,
    short,
    shown,
)
from whereness.interop.config.layers import Slot, slots
from whereness.interop.config.parts import Part, chosen, parts_of, tell_dead
from whereness.interop.config.rotary import rotary_layer
from whereness.interop.config.sight import Sight, sight_of
from whereness.interop.config.specs import Layer, Spec, build_layer, told
from whereness.interop.config.spelling import no_misspelling
from whereness.interop.config.tables import KINDS

if TYPE_CHECKING:
    from whereness.encoding import PositionalEncoding

REFUSED = "refused"
"""Kind of a spec that cannot be built: its "why" says the reason."""


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
    sights: tuple[Sight | None, ...] = ()
    """What each layer sees, where that is said."""

    @property
    def notices(self) -> tuple[Notice, ...]:
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
    layer: SupportsIndex | None = None,
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


def layers_of(part: Part) -> Layers:
    """What every layer of a part has."""
    found = _layers(part)
    tell_dead(part.reading)
    return found


def _layers(part: Part) -> Layers:
    reading, known = part.reading, part.family
    if known.refused:
        where = f"{short(part.name)}: " if part.name else ""
        nameless = f"{'the' if where else 'The'} config"
        what = f"model_type {shown(part.model_type)}" if part.model_type else nameless
        raise ConfigError(f"{where}{what} {known.refused}", "")
    no_misspelling(reading, known)
    length = reading.whole(known.num_positions)
    if known.kind in KINDS:
        one = (KINDS[known.kind](reading, known),)
        count = reading.whole(known.num_layers, MOST_LAYERS)
        return Layers(part, (one,) * (count or 1), count is not None, length)
    found = slots(reading, known)
    made: dict[Slot, Layer] = {}
    for slot in found or (Slot(),):
        if slot not in made:
            made[slot] = _made(part, slot)
    each = tuple(made[slot] for slot in found or (Slot(),))
    types = tuple(slot.type for slot in found or ())
    sights = tuple(sight_of(reading, known, part.model_type, slot) for slot in found or ())
    return Layers(part, each, found is not None, length, types, sights)


def _made(part: Part, slot: Slot) -> Layer:
    why = part.family.refused_types.get(slot.type or "")
    if why and slot.positioned:
        return (Spec(REFUSED, (("why", f"{slot.type}: {why}"),)),)
    reading = part.reading
    if slot.own:
        reading = replace(reading, given={**reading.given, **dict(slot.own)})
    return rotary_layer(reading, part.family, slot)


def one_layer(layers: Layers, layer: SupportsIndex | None) -> Layer:
    """What this layer has; with None what all of them have."""
    groups = layers.groups()
    if layer is None:
        if len(groups) > 1:
            count = len(layers.each)
            listing = "; ".join(f"{spoken(at, count)}: {told(made)}" for made, at in groups.items())
            raise ValueError(f"The layers differ: choose one with layer=. {listing}.")
        found = layers.each[0]
    else:
        layer = layer_number(layer)
        count = len(layers.each)
        if layer < 0 or (layers.counted and layer >= count):
            raise ValueError(f"layer must be in 0 .. {count - 1}, got {shown(layer)}.")
        found = layers.each[layer if layers.counted else 0]
    for each in found:
        if each.kind == REFUSED:
            raise ValueError(str(each.get("why")))
    return found


def layer_number(layer: object) -> int:
    """`layer` as an int; NumPy's integers are welcome, bools are not."""
    if isinstance(layer, bool) or not isinstance(layer, SupportsIndex):
        raise TypeError(f"layer must be an int or None, got {shown(layer)}.")
    return operator.index(layer)


def spoken(found: Sequence[int], count: int) -> str:
    """Some of `count` layers: "layers 0-4, 6", or "every layer but 3, 7, ..., 47" if shorter."""
    others = sorted(set(range(count)) - set(found))
    if not others:
        return "every layer"
    all_but = f"every layer but {numbers(others)}"
    said = f"layer{'s' if len(found) > 1 else ''} {numbers(found)}"
    return min(said, all_but, key=len)


def numbers(found: Sequence[int]) -> str:
    """Layer numbers, runs drawn together: "0-4, 6"; of one step: "3, 7, ..., 47"."""
    steps = {b - a for a, b in itertools.pairwise(found)}
    if len(found) > 4 and len(steps) == 1 and steps != {1}:
        return f"{found[0]}, {found[1]}, ..., {found[-1]}"
    runs: list[list[int]] = []
    for i in found:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
