"""To which part and layer of a config a tensor belongs, by its name."""

import re

from whereness.auditor.subject import Subject
from whereness.interop.config.reader import Layers
from whereness.interop.config.specs import Layer

STEMS = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "text": ("language_model", "text_model", "text", "llm"),
    "vision": ("vision", "visual", "vit", "image"),
    "audio": ("audio", "speech"),
}
"""Words in the names of modules that tell the part of a composite model."""


def owners(subject: Subject, name: str) -> list[tuple[str, Layers]]:
    """The parts that a tensor may be of: one where its name or the config tells."""
    parts = list(subject.expected.items())
    if len(parts) < 2:
        return parts
    words = name.lower()
    told = [
        (part, layers)
        for part, layers in parts
        for stem, spelled in STEMS.items()
        if stem in part and any(re.search(rf"(^|[._]){word}", words) for word in spelled)
    ]
    return told or [each for each in parts if not any(s in each[0] for s in ("vision", "audio"))]


def index_of(name: str) -> int | None:
    """The layer that a name tells: its first number."""
    found = re.search(r"(?:^|\.)(\d{1,8})(?:\.|$)", name)
    return int(found[1]) if found else None


def layers_for(layers: Layers, name: str) -> list[Layer]:
    """What the layer of a tensor has; what any layer has, where the name tells none."""
    index = index_of(name)
    if index is None or not layers.counted:
        return list(layers.groups())
    return [layers.each[index]] if index < len(layers.each) else []
