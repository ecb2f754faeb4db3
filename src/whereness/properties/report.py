"""What `whereness measure` does: measure encodings by name, print tables, write JSON."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from whereness import __version__
from whereness.properties.measuring import FEWEST, measure
from whereness.properties.result import Properties
from whereness.properties.verdicts import GROUPS, RULES
from whereness.registry import create, encodings, unknown

WIDTH = 100
"""Columns of a table where the terminal does not say how many it has."""


@runtime_checkable
class Request(Protocol):
    """The options of the command that are read here."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def json(self) -> str | None: ...
    @property
    def dim(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def length(self) -> int: ...


def run(options: Request) -> int:
    """Measure, write JSON where asked for, print tables; the exit status.

    Raises:
        ValueError: an unknown name, or sizes that do not fit; nothing has been measured then.
    """
    names = options.names or encodings()
    for name in names:
        if name not in encodings():
            raise ValueError(unknown(name))
    if options.length < FEWEST:
        raise ValueError(f"--length must be at least {FEWEST}, got {options.length}.")
    sizes = {"dim": options.dim, "num_heads": options.heads, "length": options.length}
    found = measured(names, sizes)
    if options.json is not None:
        text = json.dumps(as_json(found, sizes), indent=2) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
            return 0
        Path(options.json).write_text(text, encoding="utf-8")
    show(found)
    return 0


def measured(names: Sequence[str], sizes: Mapping[str, Any]) -> dict[str, Properties]:
    """The properties of encodings that have just been made; the same in every run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads wait for one another
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = {name: create(name, **sizes) for name in names}
        return {name: measure(e, num_positions=sizes["length"]) for name, e in made.items()}
    finally:
        torch.set_num_threads(threads)


def as_json(found: Mapping[str, Properties], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The results with what is needed to read them."""
    return {
        "whereness": __version__,
        "settings": dict(sizes),
        "encodings": {name: properties.as_dict() for name, properties in found.items()},
        "meaning_of_failure": {rule.name: rule.meaning for rule in RULES if rule.meaning},
    }


def show(found: Mapping[str, Properties]) -> None:
    """Print a table for each group of properties, what failures mean, and notes."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    cross = "x" if console.options.ascii_only else "✗"
    verdicts = {name: {v.name: v for v in p.verdicts()} for name, p in found.items()}
    for group, title in GROUPS.items():
        console.print(_table(group, title, verdicts, cross))
    failed = [r for r in RULES if any(of[r.name].passed is False for of in verdicts.values())]
    meanings = [(rule.title, rule.meaning) for rule in RULES if rule in failed]
    notes: dict[str, list[str]] = {}
    for name, properties in found.items():
        for note in properties.notes:
            notes.setdefault(note, []).append(name)
    for title, rows in (
        (f"What {cross} means", meanings),
        ("Notes", [(", ".join(names), note) for note, names in notes.items()]),
    ):
        if rows:
            console.print(_pairs(title, rows))


def _table(group: str, title: str, verdicts: Mapping[str, Mapping[str, Any]], cross: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("", no_wrap=True, min_width=max(map(len, verdicts)))
    rules = [rule for rule in RULES if rule.group == group]
    for rule in rules:
        table.add_column(rule.heading, justify="right")
    for name, of in verdicts.items():
        table.add_row(name, *(_cell(of[rule.name], rule.judged, cross) for rule in rules))
    return table


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.title, table.title_justify = title, "left"
    table.add_column(max_width=WIDTH // 3)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _cell(verdict: Any, judged: bool, cross: str) -> str:
    if verdict.passed is False:
        return f"[red]{verdict.shown} {cross}[/red]"
    if verdict.passed is None and judged:
        return "[dim]-[/dim]"
    return verdict.shown
