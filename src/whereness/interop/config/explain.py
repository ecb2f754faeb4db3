"""What a config, or an encoding, makes each layer do, in words and numbers."""

import contextlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from whereness.encoding import PositionalEncoding, as_encoding
from whereness.interop.config.facts import TIED, Facts, facts
from whereness.interop.config.files import read
from whereness.interop.config.keys import short, shown
from whereness.interop.config.parts import Part, chosen, parts_of
from whereness.interop.config.quarrels import quarrels
from whereness.interop.config.reader import REFUSED, Layers, layer_number, layers_of, spoken
from whereness.interop.config.sight import Sight
from whereness.interop.config.specs import Layer, build

TABLES = ("LearnedAbsolute", "Shaw", "T5")
WIDTH = 92
LABEL = 14


@dataclass(frozen=True)
class Group:
    """Layers that do the same."""

    layers: tuple[int, ...]
    facts: tuple[Facts, ...]
    types: tuple[str, ...] = ()
    refused: str = ""
    sees: tuple[tuple[Sight | None, tuple[int, ...]], ...] = ()
    """What its layers see, and which; empty where that is not said."""


@dataclass(frozen=True)
class Told:
    """What is told of one part of a model."""

    name: str
    model_type: str
    num_layers: int | None
    length: int | None
    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    quarrels: tuple[str, ...] = ()
    refused: str = ""


def explain(config: object, layer: SupportsIndex | None = None, part: str | None = None) -> str:
    """What a model's config, or an encoding, makes each layer do, in words and numbers.

    Width, pairing, base, scaling, the shortest and longest wavelength, how many pairs complete no
    turn in the length of training, amplitude; then what had to be assumed, and where libraries are
    known to read these keys differently. Nothing is warned about: all is in the text.

    Args:
        config: what `from_config` takes, or an encoding, or a list of them.
        layer, part: tell of these alone.

    Raises:
        ValueError, TypeError, OSError: as `from_config`; of several parts, if none can be told.
    """
    if isinstance(config, (PositionalEncoding, list, tuple)):
        group = _of_encodings(config)
        differ = quarrels(_numbers([group]), None, nested=False)
        texts = [*_render_group(group, WIDTH), *_section("Where libraries differ", differ, WIDTH)]
        return "\n".join(texts)
    return render(tell(config, layer, part))


def tell(config: object, layer: SupportsIndex | None = None, part: str | None = None) -> list[Told]:
    """The same as data, a part of the model each."""
    parts = parts_of(read(config))
    if part is not None or len(parts) == 1:
        return _something([_told(chosen(parts, part), layer)])
    found: list[Told] = []
    problems: list[ValueError | TypeError] = []
    for each in parts.values():
        try:
            found.append(_told(each, layer))
        except (ValueError, TypeError) as error:
            problems.append(error)
            found.append(Told(each.name, each.model_type, None, None, refused=str(error)))
    if len(problems) == len(found):
        said = dict.fromkeys(_named(told.name, told.refused) for told in found)
        raise type(problems[0])(" ".join(said))
    return _something(found)


def _named(part: str, problem: str) -> str:
    return problem if problem.startswith(short(part)) else f"{short(part)}: {problem}"


def _something(found: list[Told]) -> list[Told]:
    """The same, if any layer in it can be told of."""
    groups = [group for told in found for group in told.groups]
    if groups and all(group.refused for group in groups):
        raise ValueError(groups[0].refused)
    return found


def _told(part: Part, layer: SupportsIndex | None) -> Told:
    layers = layers_of(part)
    groups = layers.groups()
    if layer is not None:
        groups = {made: where for made, where in groups.items() if _has(layers, where, layer)}
    if not groups:
        raise ValueError(f"layer must be in 0 .. {len(layers.each) - 1}, got {shown(layer)}.")
    told = tuple(_group(made, where, layers, layer) for made, where in groups.items())
    nested = "rope_theta" in str(part.reading.given.get("rope_parameters"))
    return Told(
        part.name,
        part.model_type,
        len(layers.each) if layers.counted else None,
        layers.length,
        told,
        part.family.notes,
        layers.notices,
        tuple(quarrels(_numbers(told), layers.length, nested=nested)),
    )


def _numbers(groups: Iterable[Group]) -> Iterator[dict[str, Any]]:
    return (each.numbers for group in groups for each in group.facts)


def _has(layers: Layers, where: list[int], layer: SupportsIndex) -> bool:
    number = layer_number(layer)
    return number in where if layers.counted else number >= 0


def _group(made: Layer, where: Sequence[int], layers: Layers, asked: SupportsIndex | None) -> Group:
    types = dict.fromkeys(layers.types[i] for i in where if layers.types)
    named = tuple(name for name in types if name is not None)
    for each in made:
        if each.kind == REFUSED:
            return Group(tuple(where), (), named, str(each.get("why")))
    told = tuple(facts(_light(each), layers.length) for each in made)
    seeing = where if asked is None else [layer_number(asked)]
    return Group(tuple(where), told, named, sees=_sees(seeing, layers))


def _sees(where: Sequence[int], layers: Layers) -> tuple[tuple[Sight | None, tuple[int, ...]], ...]:
    found: dict[Sight | None, list[int]] = {}
    for i in where if layers.sights else ():
        found.setdefault(layers.sights[i], []).append(i)
    return tuple((sight, tuple(at)) for sight, at in found.items()) if any(found) else ()


def _light(made: Any) -> PositionalEncoding:
    """The encoding; learned tables, of which nothing here is read, without memory."""
    import torch

    with torch.device("meta") if made.kind in TABLES else contextlib.nullcontext():
        return build(made)


def _of_encodings(encodings: Any) -> Group:
    members = as_encoding(encodings).members()
    return Group((), tuple(facts(each) for each in members))


# Text


def render(parts: Iterable[Told], width: int = WIDTH) -> str:
    """The text of these parts; where libraries differ is said once, at the end."""
    told = list(parts)
    differ = dict.fromkeys(quarrel for part in told for quarrel in part.quarrels)
    texts = ["\n".join(_render(part, width)) for part in told]
    return "\n".join(["\n\n".join(texts), *_section("Where libraries differ", differ, width)])


def _render(part: Told, width: int) -> list[str]:
    what = part.model_type or "model"
    title = f"{part.name} ({what})" if part.name else what
    if part.refused:
        return [f"{title}: cannot be told", *_wrapped(part.refused, "  ", width)]
    sizes = [] if part.num_layers is None else [f"{part.num_layers:,} layers"]
    if part.length is not None:
        sizes.append(f"{part.length:,} positions")
        reach = max((each.reach for group in part.groups for each in group.facts), default=0)
        if reach > part.length:
            sizes.append(f"{reach:,} with YaRN")
    lines = textwrap.wrap(f"{title}: {', '.join(sizes)}" if sizes else title, width)
    for group in part.groups:
        heading = _heading(group, part.num_layers)
        lines += ["", *textwrap.wrap(heading, width, subsequent_indent="       ")]
        lines += _render_group(group, width)
    lines += _section("Read with care", part.notices, width)
    return lines + _section("Of this family", part.notes, width)


def _section(heading: str, texts: Iterable[str], width: int) -> list[str]:
    lines = [line for text in texts for line in _wrapped(text, "  - ", width)]
    return ["", heading, *lines] if lines else []


def _heading(group: Group, count: int | None) -> str:
    if count is None or len(group.layers) == count:
        return "every layer"
    many = f"{len(group.layers)} of {count}" if len(group.layers) > 1 else f"of {count}"
    types = f", {' and '.join(group.types)}" if group.types else ""
    return f"{spoken(group.layers, count)} ({many}){types}"


def _render_group(group: Group, width: int) -> list[str]:
    if group.refused:
        return _wrapped(group.refused, "  ", width)
    lines = []
    for each in group.facts:
        lines.append(f"  {each.name}")
        for label, text in each.rows:
            lines += _row(label, text, width)
    return lines + (_row("sees", _seen(group), width) if group.sees else [])


def _row(label: str, text: str, width: int) -> list[str]:
    return _wrapped(text, f"    {label:{LABEL}}", width)


def _seen(group: Group) -> str:
    if len(group.sees) == 1:
        return str(group.sees[0][0])
    last = max(at[-1] for _, at in group.sees) + 1
    said = [f"{sight} in {spoken(at, last)}" for sight, at in group.sees if sight is not None]
    rest = ["all before it in the others"] if any(sight is None for sight, _ in group.sees) else []
    return "; ".join(said + rest)


def _wrapped(text: str, first: str, width: int) -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )
    return [line.replace(TIED, " ") for line in lines]


def as_data(parts: Iterable[Told]) -> dict[str, Any]:
    """The same for a program: plain values alone."""
    return {"parts": [_plain(part) for part in parts]}


def _plain(part: Told) -> dict[str, Any]:
    groups = [
        {
            "layers": list(group.layers),
            "types": list(group.types),
            "encodings": [each.numbers for each in group.facts],
            "sees": [
                {"layers": list(at), "kind": sight.kind, "tokens": sight.tokens}
                for sight, at in group.sees
                if sight is not None
            ],
            **({"refused": group.refused} if group.refused else {}),
        }
        for group in part.groups
    ]
    return {
        "part": part.name,
        "model_type": part.model_type,
        "num_layers": part.num_layers,
        "length": part.length,
        "groups": groups,
        "notes": [*part.notes],
        "notices": [*part.notices],
        "quarrels": [*part.quarrels],
        "refused": part.refused,
    }
