"""Several encodings at once: `encoding=[a, b]` applies them in this order at every door."""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from whereness.encoding import At, Call, Features, PositionalEncoding
from whereness.where import Where


class Combined(PositionalEncoding):
    """The encodings of a list, applied in order at every door.

    Scales multiply, features are kept apart by a name prefix, traits hold if they hold for the
    members that matter. Keys are cached raw when one member changes them at door 3 and another
    reads their content.

    Raises:
        ValueError: an empty list, two members that join X (a `site`), two at door 5, or members
            that read positions of different numbers of axes, or were built for other head sizes.
    """

    parts: Sequence[PositionalEncoding]

    def __init__(self, encodings: Sequence[PositionalEncoding]) -> None:
        super().__init__()
        if not encodings:
            raise ValueError("A combination needs at least one encoding, got an empty list.")
        for member in encodings:
            if not isinstance(member, PositionalEncoding):
                raise TypeError(
                    f"A combination takes whereness encodings, got {type(member).__name__}."
                )
        # Flat: a list in a list is the same order of application.
        parts = [m for e in encodings for m in e.members()]
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        sites = [p.site for p in parts if p.site is not None]
        if len(sites) > 1:
            raise ValueError(f"At most one member may join X, got sites {sites}.")
        fives = [type(p).__name__ for p in parts if 5 in p.doors]
        if len(fives) > 1:
            raise ValueError(f"At most one member may use door 5 (values), got {fives}.")
        self.site = sites[0] if sites else None
        readers = [p for p in parts if p.reads == "positions"]
        self.num_axes = self._common("num_axes", readers) or 1
        self.takes_grid = any(p.takes_grid for p in readers)
        self.num_heads = self._common("num_heads", parts)
        self.head_dim = self._common("head_dim", parts)
        self.causal_only = any(p.causal_only for p in parts)
        self.reads_keys = any(p.reads_keys for p in parts)
        turned = any(3 in p.doors for p in parts)
        self.cacheable = all(p.cacheable for p in parts) and not (turned and self.reads_keys)
        order = {p.reads for p in parts}
        self.reads = next(r for r in ("positions", "order", "nothing") if r in order)
        self.needs_weights = any(p.needs_weights for p in parts)
        self.needs_lengths = any(p.needs_lengths for p in parts)
        # Turns of different pairs do not commute: two members that turn are not relative together.
        self.relative = all(p.relative for p in parts) and sum(3 in p.doors for p in parts) < 2
        self.unbounded = all(p.unbounded for p in parts)
        self.norm_preserving = all(p.norm_preserving for p in parts)
        self.content_aware = any(p.content_aware for p in parts)

    @staticmethod
    def _common(name: str, parts: Sequence[PositionalEncoding]) -> int | None:
        values = [(type(p).__name__, getattr(p, name)) for p in parts]
        values = [(who, value) for who, value in values if value is not None]
        if len({value for _, value in values}) > 1:
            listed = ", ".join(f"{who} {value}" for who, value in values)
            raise ValueError(f"Members must agree in {name}, got {listed}.")
        return values[0][1] if values else None

    def members(self) -> tuple[PositionalEncoding, ...]:
        return tuple(self.parts)

    @property
    def doors(self) -> tuple[int, ...]:
        return tuple(sorted({d for p in self.parts for d in p.doors}))

    @property
    def additive(self) -> bool:
        return all(p.additive for p in self.parts)

    def logit_scale(self, head_dim: int) -> float:
        scale = 1.0
        for part in self.parts:
            scale *= part.logit_scale(head_dim)
        return scale

    def width(self, dim: int) -> int:
        for part in self.parts:
            dim = part.width(dim)
        return dim

    def move(self, where: Where, generator: torch.Generator | None = None) -> Where:
        for part in self.parts:
            where = part.move(where, generator)
        return where

    def reset_parameters(self) -> None:
        for part in self.parts:
            part.reset_parameters()

    def tables(self, where: Where) -> tuple[At, ...]:
        return tuple(part.prepare(where) for part in self.parts)

    def data_of_rows(self, at: At, rows: slice, keys: int | None = None) -> tuple[At, ...]:
        return tuple(
            part.at_rows(own, rows, keys) for part, own in zip(self.parts, at.data, strict=True)
        )

    def tokens(self, x: Tensor, at: At) -> Tensor:
        for part, own in zip(self.parts, at.data, strict=True):
            x = part.tokens(x, own)
        return x

    def inputs(self, x: Tensor, context: Tensor, at: At) -> tuple[Tensor, Tensor, Tensor]:
        for part, own in zip(self.parts, at.data, strict=True):
            if part.site in ("every_layer", "queries_keys"):
                return part.inputs(x, context, own)
        return x, context, context

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        found = {}
        for i, (part, own) in enumerate(zip(self.parts, at.data, strict=True)):
            before = None if past is None else _own(past, i)
            found.update({f"{i}.{n}": t for n, t in part.features(x, own, before).items()})
        return found

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        for i, (part, own) in enumerate(zip(self.parts, at.data, strict=True)):
            q, k = part.queries_keys(q, k, own, _own(features, i))
        return q, k

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        return _total(part.bias(q_positions, k_positions) for part in self.parts)

    def bias_at(self, at: At) -> Tensor | None:
        return _total(own.bias() for own in at.data)

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        for part, own in self._calls(call):
            logits = part.scores(logits, own)
        return logits

    def weights(self, weights: Tensor, logits: Tensor, call: Call) -> Tensor:
        for part, own in self._calls(call):
            weights = part.weights(weights, logits, own)
        return weights

    def values(self, v: Tensor, at: At) -> Tensor:
        for part, own in zip(self.parts, at.data, strict=True):
            v = part.values(v, own)
        return v

    def outputs(self, out: Tensor, weights: Tensor | None, call: Call) -> Tensor:
        for part, own in self._calls(call):
            out = part.outputs(out, weights, own)
        return out

    def _calls(self, call: Call) -> list[tuple[PositionalEncoding, Call]]:
        return [
            (part, replace(call, at=own, features=_own(call.features, i)))
            for i, (part, own) in enumerate(zip(self.parts, call.at.data, strict=True))
        ]


def _own(features: Features, i: int) -> dict[str, Tensor]:
    """The features of member i, without its prefix."""
    prefix = f"{i}."
    return {n[len(prefix) :]: t for n, t in features.items() if n.startswith(prefix)}


def _total(biases: Iterable[Tensor | None]) -> Tensor | None:
    given = [b for b in biases if b is not None]
    return functools.reduce(operator.add, given) if given else None
