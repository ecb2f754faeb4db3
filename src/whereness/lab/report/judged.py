"""The table of properties, from what `wn.measure` found and a summary keeps."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from whereness.properties.result import Properties
from whereness.properties.verdicts import GROUPS, RULES, Rule, judge

BY_NUMBER = ("linear_relation", "extends_to")
"""Fields whose keys are numbers, which JSON made strings."""
BY_NAME_AND_NUMBER = ("precision",)


class Cell(NamedTuple):
    """One property of one encoding."""

    shown: str
    passed: bool | None


class Group(NamedTuple):
    """One table: a column a rule, a row an encoding."""

    title: str
    rules: tuple[Rule, ...]
    headings: tuple[str, ...]
    """Of the columns; they may be broken at soft hyphens."""
    rows: dict[str, tuple[Cell, ...]]


class Failure(NamedTuple):
    """A property that does not hold for some."""

    rule: Rule
    names: list[str]


def restored(plain: Mapping[str, Any]) -> Properties:
    """`Properties` from its own `as_dict()`, which may have been JSON meanwhile."""
    values = {f.name: _value(plain[f.name]) for f in dataclasses.fields(Properties)}
    for name in BY_NUMBER:
        values[name] = _numbered(values[name])
    for name in BY_NAME_AND_NUMBER:
        values[name] = {key: _numbered(inner) for key, inner in values[name].items()}
    return Properties(**values)


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        return {key: _value(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    return float(plain) if plain in ("inf", "-inf", "nan") else plain


def _numbered(found: Mapping[str, Any] | None) -> dict[int, Any] | None:
    return None if found is None else {int(key): value for key, value in found.items()}


def groups(found: Mapping[str, Properties]) -> list[Group]:
    """The tables, in the order of the groups."""
    verdicts = {name: {v.name: v for v in judge(p)} for name, p in found.items()}
    tables = []
    for group, title in GROUPS.items():
        rules = tuple(rule for rule in RULES if rule.group == group)
        rows = {
            name: tuple(Cell(minus(of[r.name].shown), of[r.name].passed) for r in rules)
            for name, of in verdicts.items()
        }
        headings = tuple(r.heading.replace("-\n", "\u00ad").replace("\n", " ") for r in rules)
        tables.append(Group(title, rules, headings, rows))
    return tables


def minus(shown: str) -> str:
    """With signs as wide as a plus; "-" alone stands for no value."""
    return "–" if shown == "-" else shown.replace("-", "\N{MINUS SIGN}")


def failures(found: Mapping[str, Properties]) -> list[Failure]:
    """What does not hold, and for whom, in the order of the rules."""
    failed = {name: {v.name for v in judge(p) if v.passed is False} for name, p in found.items()}
    listed = [Failure(rule, [n for n in found if rule.name in failed[n]]) for rule in RULES]
    return [failure for failure in listed if failure.names]
