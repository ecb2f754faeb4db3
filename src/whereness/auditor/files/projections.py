"""Which rows of a checkpoint make the queries and keys of each layer, head by head.

The names of the modules and the layout of what is fused are what the conversion of checkpoints
knows (`whereness.interop.weights.projections`); what it does not know is said and never guessed.

Axes: H query heads, G key heads, R channels of a head that turn, E channels of the input.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from whereness.auditor.files.weights import Held, Weights
from whereness.interop.config.parts import Part
from whereness.interop.strict_json import shown
from whereness.interop.weights.moves import Rule
from whereness.interop.weights.pairing import fused_heads, rotary_slice
from whereness.interop.weights.projections import (
    NAMES,
    Given,
    Names,
    head_counts,
    names_in_gguf,
    rules_for,
    within,
)

WEIGHTS = ("weight", "base_layer.weight")
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
GGUF = "GGUF "
"""How the model_type of a part begins that was read from a GGUF file."""


@dataclass(frozen=True)
class Heads:
    """Heads in a tensor: `first` of each is the row where its channels that turn begin."""

    name: str
    first: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class LayerRows:
    """The rows that turn in a layer. biases: each with the rows that it is for."""

    index: int
    where: str
    queries: Heads
    keys: Heads
    biases: tuple[tuple[Heads, Heads], ...] = ()

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return len(self.queries.first) // len(self.keys.first)


@dataclass
class Found:
    """What was found of a part, and why the rest was not."""

    layers: list[LayerRows] = field(default_factory=list)
    missing: list[tuple[int | None, str]] = field(default_factory=list)


def is_known(part: Part) -> bool:
    """Whether it is known how the modules of a part are named."""
    return part.model_type in NAMES or part.model_type.startswith(GGUF)


def rows_of(part: Part, weights: Weights) -> Found:
    """Rows of queries and keys of the layers of a part; layers without rotation have none."""
    found = Found()
    names = _names(part, weights)
    if names.latent:
        found.missing.append((None, "queries and keys of latent attention read different vectors"))
        return found
    try:
        counts = head_counts(part.reading.given, Given())
        rules = rules_for(part, part.reading.given, names, Given())
        fused = fused_heads(*counts, names.layout) if names.fused else None
    except (ValueError, TypeError) as error:
        found.missing.append((None, str(error)))
        return found
    heads = fused or (list(range(counts[0])), list(range(counts[1])))
    _collect(weights, rules, heads, found)
    if not found.layers and not found.missing:
        patterns = sorted({rule.pattern for rule in rules if rule.role != "norm"})
        found.missing.append((None, f"the file has no tensor of {', '.join(patterns)}"))
    return found


def _names(part: Part, weights: Weights) -> Names:
    if part.model_type.startswith(GGUF):
        return names_in_gguf(weights.tensors)
    return within(NAMES[part.model_type], part)


def _collect(
    weights: Weights, rules: list[Rule], heads: tuple[list[int], list[int]], found: Found
) -> None:
    """Add the layers that have queries and keys."""
    parts: dict[str, dict[str, Heads]] = {}
    for held, rule, module, rest in _named(weights, rules):
        layer = module.rpartition(".")[0]
        why = _unreadable(held, rule, rest)
        if why:
            found.missing.append((_number(module), why))
            continue
        kind = "bias" if rest == "bias" else "weight"
        start, width = rotary_slice(rule.head_dim, rule.rotary_dim, rule.side)
        for role, which in zip(("queries", "keys"), heads, strict=True):
            if rule.role in (role, "fused"):
                first = tuple(head * rule.head_dim + start for head in which)
                parts.setdefault(layer, {})[f"{role} {kind}"] = Heads(held.name, first, width)
    for layer, has in parts.items():
        index = _number(layer)
        queries, keys = has.get("queries weight"), has.get("keys weight")
        if index is None or queries is None or keys is None:
            found.missing.append((index, f"{shown(layer)} has not both queries and keys"))
            continue
        biases = tuple(
            (has[f"{role} bias"], rows)
            for role, rows in (("queries", queries), ("keys", keys))
            if f"{role} bias" in has
        )
        found.layers.append(LayerRows(index, layer, queries, keys, biases))
    found.layers.sort(key=lambda each: each.index)


def _named(weights: Weights, rules: list[Rule]) -> Iterator[tuple[Held, Rule, str, str]]:
    """Tensors that hold rows of queries or keys that turn."""
    for held in weights.tensors.values():
        for rule in rules:
            named = rule.named(held.name)
            if named is None or rule.role in ("norm", "still") or not rule.has(named[0]):
                continue
            if named[1] in (*WEIGHTS, "bias"):
                yield held, rule, *named
                break


def _unreadable(held: Held, rule: Rule, rest: str) -> str:
    """Why the rows of a tensor cannot be told."""
    axes = 1 if rest == "bias" else 2
    if len(held.shape) != axes or held.num_rows != rule.rows:
        return (
            f"{shown(held.name)} of shape {held.shape} has not {rule.rows} rows, as the heads of "
            "the config would: packed, or of another size"
        )
    plain = held.dtype in FLOATS or held.dtype.startswith("Q")
    return "" if plain else f"{shown(held.name)} of type {held.dtype} is scaled by other tensors"


def _number(module: str) -> int | None:
    found = re.search(r"(?:^|\.)(\d{1,8})(?:\.|$)", module)
    return int(found[1]) if found else None
