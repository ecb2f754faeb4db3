"""A report drawn together for readers: what is the same over many layers is said once."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from whereness.auditor.findings import (
    SEVERITIES,
    Compared,
    Finding,
    LayerFacts,
    NotChecked,
    Report,
)
from whereness.interop.config.reader import numbers

State = Literal["error", "warning", "note", "ok", "not checked"]
"""What can be said of a layer: the worst finding, or whether anything was compared there."""

SAME = 1e-5
"""Layers whose numbers agree to this share look the same. What a check can tell apart within it has
a finding, and layers of different findings are never drawn together."""

MOST_VALUES = 3
"""Values of one finding that are shown where each layer has another."""

Said = Finding | Compared | NotChecked
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
AnySaid = TypeVar("AnySaid", Finding, Compared)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that were measured alike, and what was found there."""

    layers: tuple[LayerFacts, ...]
    state: State

    @property
    def facts(self) -> LayerFacts:
        """Of the first of them, which stands for all."""
        return self.layers[0]

    @property
    def label(self) -> str:
        """Their numbers, "0-29"; the module where a layer has no number."""
        return label(self.layers)


@dataclass(frozen=True)
class FindingGroup:
    """The same finding in one or more layers."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """It stands for all in check, kind, severity, cause and remedy."""
        return self.findings[0]

    @property
    def layers(self) -> str:
        """As in "layers 0-29"; empty where it concerns the whole."""
        return layers_said(self.findings)

    @property
    def where(self) -> str:
        """The module, tensor or key, with * for the number of the layer where that differs."""
        places = list(dict.fromkeys(found.where for found in self.findings))
        if len(places) == 1:
            return places[0]
        common = list(dict.fromkeys(without_layer(found) for found in self.findings))
        return ", ".join(common)

    def values(self, of: Literal["expected", "measured"]) -> list[tuple[str, str]]:
        """What was expected or measured, each value with its layers; no layers if all have it.

        Of many values the first ones: the others are in the JSON.
        """
        by_value = collected(self.findings, lambda found: getattr(found, of))
        if len(by_value) == 1:
            return [(next(iter(by_value)), "")]
        told = [(value, layers_said(those)) for value, those in by_value.items()]
        if len(told) <= MOST_VALUES + 1:
            return told
        others = [found for those in list(by_value.values())[MOST_VALUES:] for found in those]
        return [*told[:MOST_VALUES], ("and others like these", layers_said(others))]


def collected(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in order of first appearance."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


# Layers


class Places:
    """Which layer each finding and each comparison is about.

    The one whose module its place lies in, where there is one; else those of its number and part.
    """

    def __init__(self, report: Report) -> None:
        self.modules = {facts.where for facts in report.layers if facts.where}
        self._findings = collected(report.findings, self._key)
        self._compared = collected(report.compared, self._key)

    def _key(self, said: Said) -> str | int | None:
        steps = said.where.split(".")
        for end in range(len(steps), 0, -1):
            if (module := ".".join(steps[:end])) in self.modules:
                return module
        return said.layer

    def findings(self, facts: LayerFacts) -> list[Finding]:
        """What was found in this layer."""
        return about(facts, self._findings)

    def compared(self, facts: LayerFacts) -> list[Compared]:
        """What was compared in this layer."""
        return about(facts, self._compared)


def about(facts: LayerFacts, said: Mapping[str | int | None, list[AnySaid]]) -> list[AnySaid]:
    """What was said of a layer: of its module, and of its number within its part."""
    own = said.get(facts.where, []) if facts.where else []
    by_number = [] if facts.index is None else said.get(facts.index, [])
    return own + [each for each in by_number if each.part in ("", facts.part)]


def layer_groups(report: Report) -> list[LayerGroup]:
    """All layers, those together that are alike, in order of first appearance."""
    places = Places(report)
    found: list[tuple[list[LayerFacts], frozenset[Finding], State]] = []
    for facts in report.layers:
        findings = places.findings(facts)
        marks = frozenset(map(without_numbers, findings))
        now = state(findings, places.compared(facts))
        for members, same, its in found:
            if (same, its) == (marks, now) and alike(members[0], facts):
                members.append(facts)
                break
        else:
            found.append(([facts], marks, now))
    return [LayerGroup(tuple(members), its) for members, _, its in found]


def state(findings: Sequence[Finding], compared: Sequence[Compared]) -> State:
    """The worst finding; else whether anything was compared."""
    severities = {found.severity for found in findings}
    for severity in SEVERITIES:
        if severity in severities:
            return severity
    return "ok" if compared else "not checked"


def alike(one: LayerFacts, other: LayerFacts) -> bool:
    """Whether two layers have the same, their places apart."""
    if one.part != other.part or (one.index is None) != (other.index is None):
        return False
    mine, its = (vars(replace(each, where="", index=None)) for each in (one, other))
    return all(near(mine[name], its[name]) for name in mine)


def near(one: object, other: object) -> bool:
    """Equal, numbers to a share of SAME."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=SAME, abs_tol=1e-12)
    return one == other


def label(layers: Sequence[LayerFacts]) -> str:
    """Numbers of layers, "0-4, 6", behind the name of their part; else their modules."""
    found = sorted(facts.index for facts in layers if facts.index is not None)
    if not found:
        return ", ".join(facts.where for facts in layers)
    part = layers[0].part
    return f"{part} {numbers(found)}" if part else numbers(found)


# Findings and the rest


def finding_groups(report: Report) -> list[FindingGroup]:
    """All findings, the worst first, then by kind; those together that differ in numbers only."""

    def rank(found: Finding) -> tuple[int, str]:
        return SEVERITIES.index(found.severity), found.kind

    by_fault = collected(sorted(report.findings, key=rank), without_numbers)
    return [FindingGroup(tuple(those)) for those in by_fault.values()]


def without_numbers(found: Finding) -> Finding:
    """What a finding has in common with the same one in another layer."""
    if found.layer is None:
        return replace(found, part="")  # of an encoder and its decoder alike
    return replace(found, layer=-1, where=without_layer(found), expected="", measured="")


def without_layer(said: Said) -> str:
    """The place with * for the number of the layer: "model.layers.*.self_attn"."""
    return ".".join("*" if step == str(said.layer) else step for step in said.where.split("."))


def layers_said(said: Sequence[Said]) -> str:
    """As in "layer 3" and "text layers 0-29"; empty where none has a number."""
    parts = []
    for part, those in collected(said, lambda each: each.part).items():
        found = sorted({each.layer for each in those if each.layer is not None})
        if found:
            word = f"layer{'s' if len(found) > 1 else ''} {numbers(found)}"
            parts.append(f"{part} {word}" if part else word)
    return "; ".join(parts)


def not_checked_groups(report: Report) -> list[tuple[list[str], str, str]]:
    """What was not checked: checks, reason, layers; each reason once, the commonest last."""
    groups = []
    for why, those in collected(report.not_checked, lambda said: said.why).items():
        groups.append((list(dict.fromkeys(said.check for said in those)), why, layers_said(those)))
    return sorted(groups, key=lambda group: len(group[0]))


def compared_groups(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was compared: by check, each thing with its layers."""
    groups = []
    for check, those in collected(report.compared, lambda said: said.check).items():
        things = collected(those, lambda said: said.what)
        groups.append((check, [(what, layers_said(said)) for what, said in things.items()]))
    return groups
