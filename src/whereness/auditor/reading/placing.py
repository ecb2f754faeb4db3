"""Which layer of which part of the config a module is: by its path."""

import re

from whereness.auditor.reading.views import LayerView, Observed
from whereness.auditor.subject import Subject

WORDS = ("encoder", "decoder", "text", "language", "vision", "visual", "audio", "image", "speech")


def place(subject: Subject, observed: Observed) -> None:
    """Give every view its part and index."""
    names = list(subject.expected) or [""]
    views = [view for view in observed.layers if not view.crosses]
    for view in observed.layers:
        view.part = part_of(view.where, names)
        view.index = first_number(view.where)
    for name in names:
        mine = [view for view in views if view.part == name]
        _renumber(mine, subject, name)


def _renumber(mine: list[LayerView], subject: Subject, name: str) -> None:
    """By their order, where numbers repeat and there are as many as the config has layers."""
    numbers = [view.index for view in mine]
    layers = subject.expected.get(name)
    unique = len(set(numbers)) == len(numbers) and None not in numbers
    if unique or layers is None or not layers.counted or len(layers.each) != len(mine):
        return
    for i, view in enumerate(mine):
        view.index = i


def first_number(path: str) -> int | None:
    """The first integer in a module path."""
    found = next((part for part in path.split(".") if part.isdecimal()), None)
    return None if found is None else int(found)


def part_of(path: str, names: list[str]) -> str | None:
    """The part of the config whose words the path has; None where no part fits."""
    if len(names) == 1 and names[0] in ("", "text_config"):
        others = _words(path) & {"vision", "audio"}
        return None if names[0] == "text_config" and others else names[0]
    mine = _words(path)
    if len(names) == 1:
        apart = {"encoder", "decoder"} & (mine ^ _words(names[0]))
        return None if len(apart) == 2 else names[0]
    scored = [(len(mine & _words(name)), -len(_words(name) - mine), name) for name in names]
    best = max(scored)
    if best[0] > 0:
        return best[2]
    if "text_config" in names and not mine & {"vision", "audio"}:
        return "text_config"
    return "" if "" in names and not mine & {"vision", "audio"} else None


def _words(path: str) -> set[str]:
    """What a path or a part's name tells of its role."""
    found = set(re.findall(r"[a-z]+", path.lower().replace("_config", "")))
    said = {word for word in WORDS if any(word in each for each in found)}
    if "language" in said:
        said = said - {"language"} | {"text"}
    if said & {"visual", "image"}:
        said = said - {"visual", "image"} | {"vision"}
    if "speech" in said:
        said = said - {"speech"} | {"audio"}
    return said
