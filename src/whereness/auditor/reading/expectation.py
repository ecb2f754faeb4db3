"""What the config has a layer do, read by the same read-out as the layer itself.

The encodings that the config reader names are built and run on random contents: what they turn,
how fast and how far they grow is then in the same words as what was measured.

Axes: B contents, H heads, S slots, D channels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.reading.basis import Basis
from whereness.auditor.reading.readout import turning
from whereness.auditor.reading.views import LayerView, Side
from whereness.auditor.subject import Subject
from whereness.encoding import PositionalEncoding
from whereness.interop.config.reader import REFUSED
from whereness.interop.config.specs import Layer, Spec, build, told
from whereness.where import Where

CONTENTS = 13
ROTARY = (
    "RoPE",
    "AxialRoPE",
    "MultimodalRoPE",
    "DINOv3RoPE",
    "XPos",
    "FoPE",
)
"""Kinds of spec that turn by what the config says alone."""
LEARNED_TURNS = ("LeRoPE", "MixedRoPE")
"""Kinds that turn by learned numbers: only that they turn can be compared."""
TABLES = ("LearnedAbsolute", "Sinusoidal", "Integer", "Binary")
BIASES = ("T5", "ALiBi", "KERPLE", "Sandwich", "LearnedRelative")
CONTENT = ("Shaw", "DeBERTa", "TransformerXL", "TUPE", "CoPE")


@dataclass(frozen=True)
class Expectation:
    """What a layer is to have: its specs, and the encodings that they call for."""

    layer: Layer
    encodings: tuple[PositionalEncoding, ...]

    def kinds(self) -> tuple[str, ...]:
        """Names of the encodings."""
        return tuple(spec.kind for spec in self.layer)

    def of(self, *kinds: str) -> tuple[Spec, PositionalEncoding] | None:
        """The first spec of these kinds, and its encoding."""
        for spec, encoding in zip(self.layer, self.encodings, strict=True):
            if spec.kind in kinds:
                return spec, encoding
        return None

    @property
    def turns(self) -> bool:
        """Whether it turns queries and keys."""
        return self.of(*ROTARY, *LEARNED_TURNS) is not None

    @property
    def classified(self) -> str:
        """The class that the layer is to have."""
        if self.of(*CONTENT):
            return "content-aware"
        if self.of(*TABLES):
            return "absolute"
        return "relative" if self.turns or self.of(*BIASES) else "none"

    @property
    def grows_with_length(self) -> bool:
        """Whether its table depends on how long a sequence gets."""
        return any(encoding.needs_lengths for encoding in self.encodings)

    def __str__(self) -> str:
        return told(self.layer)


def expectation_of(subject: Subject, view: LayerView) -> Expectation | str:
    """What the config gives the layer of a view; a string says why nothing does."""
    if view.crosses:
        return "a config says nothing of the positions of cross-attention"
    if subject.source is None:
        return "there is no config to compare with"
    if view.part is None or view.part not in subject.expected:
        return "the config says nothing of this part that can be read"
    layers = subject.expected[view.part]
    index = view.index or 0
    if layers.counted and index >= len(layers.each):
        return f"the config has {len(layers.each)} layers, and none of number {index}"
    layer = layers.each[index if layers.counted else 0]
    for spec in layer:
        if spec.kind == REFUSED:
            return str(spec.get("why"))
    built: dict[Layer, Any] = subject.shared.setdefault("built", {})
    if layer not in built:
        try:
            built[layer] = Expectation(layer, tuple(build(spec) for spec in layer))
        except (ValueError, TypeError) as error:
            built[layer] = str(error)
    return built[layer]


def expected_sides(
    subject: Subject, expected: Expectation, positions: tuple[int, ...], width: int
) -> tuple[Side, Side] | str:
    """Queries and keys of one head under the expected encodings; or why they cannot be had."""
    known: dict[Any, Any] = subject.shared.setdefault("expected_sides", {})
    key = (expected.layer, positions, width)
    if key not in known:
        try:
            known[key] = sides_at(expected, torch.tensor(positions), positions, width)
        except (ValueError, TypeError, NotImplementedError) as error:
            known[key] = " ".join(str(error).split())
    return known[key]


def sides_at(
    expected: Expectation, places: Tensor, positions: tuple[int, ...], width: int
) -> tuple[Side, Side]:
    """The same at `places` (S,) or (S, n axes), called `positions` in what is read."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(CONTENTS, 1, 1, width, generator=generator, dtype=torch.float64)
        .expand(-1, -1, len(positions), -1)
        .clone()
        for _ in range(2)
    )
    before = q, k
    for encoding in expected.encodings:
        if type(encoding).queries_keys is not PositionalEncoding.queries_keys:
            ready = encoding.prepare(_where(encoding, places))
            q, k = encoding.queries_keys(q, k, ready, {})
    return _side(q, before[0], positions), _side(k, before[1], positions)


def _where(encoding: PositionalEncoding, places: Tensor) -> Where:
    axes = encoding.num_axes
    if axes > 1 and places.dim() == 1:  # a text token has the same number on every axis
        places = places[:, None].expand(-1, axes)
    lengths = int(places.max()) + 1 if encoding.needs_lengths else None
    return Where(places, lengths=lengths, num_axes=axes)


def _side(x: Tensor, before: Tensor, positions: tuple[int, ...]) -> Side:
    own = torch.arange(x.shape[-1])[None]
    ratio = (x[:, :, 0] / before[:, :, 0]).double().median(0).values
    basis = Basis(own, ratio, torch.ones_like(own, dtype=torch.bool))
    return Side(turning(x, positions), basis)
