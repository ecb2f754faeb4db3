"""The report in a terminal, or as plain text in a pipe, a log and an AssertionError.

A wide console gets a table by layer, a narrow one a few lines a layer. What comes from a target is
shown as text: no markup, no control characters.
"""

import io
import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whereness.auditor.findings import KINDS, Report
from whereness.auditor.kinds import TEACHING
from whereness.auditor.telling.grouping import (
    FindingGroup,
    LayerGroup,
    State,
    compared_groups,
    finding_groups,
    layer_groups,
    not_checked_groups,
)
from whereness.auditor.telling.words import (
    amplitude_said,
    check_name,
    encoding_measured,
    headline,
    plain,
    reach,
    short_name,
    speeds_said,
    width,
)

STYLES: dict[State, str] = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "ok": "green",
    "not checked": "dim",
}
WIDE = 90
"""Columns from which on layers are a table."""
READABLE = 110
"""Columns that text fills at most: longer lines are hard to read."""
LABEL = 11


def text(report: Report, columns: int = READABLE) -> str:
    """The report as plain text of so many columns."""
    written = io.StringIO()
    show(report, Console(file=written, width=columns, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def show(report: Report, console: Console) -> None:
    """Print the report."""
    columns = min(console.width, READABLE)
    for part in _parts(report, columns):
        if isinstance(part, Table):
            console.print(part, width=columns)
        else:
            console.print(part, soft_wrap=True)  # broken already; a long word is not cut off


def _parts(report: Report, columns: int) -> Iterator[Text | Table]:
    yield from header(report, columns)
    if groups := layer_groups(report):
        yield Text()
        yield from [table(groups)] if columns >= WIDE else cards(groups, columns)
    yield from findings(report, columns)
    yield from compared(report, columns)
    yield from not_checked(report, columns)
    if report.findings:
        yield Text()
        yield from verdict(report, columns)  # again: the first lines may be out of sight


def header(report: Report, columns: int) -> Iterator[Text]:
    """What was audited, and the verdict."""
    yield from wrapped(plain(report.target), columns, style="bold")
    if report.what:
        yield from wrapped(plain(report.what), columns)
    yield from verdict(report, columns)
    yield from wrapped(reach(report), columns)


def verdict(report: Report, columns: int) -> Iterator[Text]:
    """The verdict in its colour."""
    states: dict[str, State] = {"errors": "error", "warnings": "warning", "clean": "ok"}
    style = "bold" if report.verdict not in states else STYLES[states[report.verdict]]
    yield from wrapped(headline(report), columns, style=style)


# Layers


def table(groups: list[LayerGroup]) -> Table:
    """A row for layers that are alike. Columns that say nothing are left out."""
    rows = [cells(group) for group in groups]
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        short = name in ("layers", "class", "pairing", "width", "verdict")
        made.add_column(name, no_wrap=short and name != "layers", overflow="fold")
    for row, group in zip(rows, groups, strict=True):
        style = {"verdict": STYLES[group.state]}
        made.add_row(*(Text(row[name], style.get(name, "")) for name in shown))
    return made


def cells(group: LayerGroup) -> dict[str, str]:
    """What the table says of a group, by column."""
    facts = group.facts
    speeds = ", ".join(filter(None, (speeds_said(facts.speeds), amplitude_said(facts))))
    return {
        "layers": plain(group.label),
        "class": "" if facts.classified == "unknown" else facts.classified,
        "measured": plain(encoding_measured(facts)),
        "in the config": plain(facts.expected or ""),
        "pairing": plain(facts.pairing or ""),
        "width": width(facts),
        "speed": speeds,
        "verdict": group.state,
    }


def cards(groups: list[LayerGroup], columns: int) -> Iterator[Text]:
    """The same for a narrow console: a heading and a line for each thing."""
    for group in groups:
        row = cells(group)
        state, place = row.pop("verdict"), row.pop("layers")
        word = "layers" if len(group.layers) > 1 else "layer"
        heading = place if group.facts.index is None else f"{word} {place}"
        yield from wrapped(f"{heading}: {state}", columns, style=STYLES[group.state])
        for name, value in row.items():
            if value:
                yield from labelled(name, value, columns, label=15)


# Findings


def findings(report: Report, columns: int) -> Iterator[Text]:
    """Each finding, and then what their kinds are about."""
    groups = finding_groups(report)
    for group in groups:
        yield Text()
        yield from finding(group, columns)
    if groups:
        yield from (Text(), Text("about these kinds", "bold"))
    for kind in sorted({group.first.kind for group in groups}):
        told = f"{kind} {KINDS[kind]}. {' '.join(TEACHING[kind])}"
        yield from wrapped(told, columns, "  ", "    ", style="dim")


def finding(group: FindingGroup, columns: int) -> Iterator[Text]:
    """One finding, in all layers that have it."""
    first = group.first
    title = f"{first.severity}  {first.kind} {KINDS[first.kind]}"
    if layers := plain(group.layers):
        title = f"{title}, {layers}"
    yield from wrapped(title, columns, "", "  ", style=STYLES[first.severity])
    yield from labelled("check", check_name(first.check), columns)
    if group.where:
        yield from labelled("where", plain(group.where), columns)
    for name in ("expected", "measured"):
        for value, layers in group.values(name):
            said = f"{plain(value)} ({plain(layers)})" if layers else plain(value)
            yield from labelled(name, said, columns)
    yield from labelled("cause", plain(first.cause), columns)
    yield from labelled("remedy", plain(first.remedy), columns)


# What was compared, and what was not


def compared(report: Report, columns: int) -> Iterator[Text]:
    """What a verdict rests on."""
    groups = compared_groups(report)
    if groups:
        yield from (Text(), Text("compared with an expectation", "bold"))
    for check, things in groups:
        told = (f"{plain(what)} ({plain(at)})" if at else plain(what) for what, at in things)
        yield from wrapped(f"{check_name(check)}: {'; '.join(told)}", columns, "  ", "    ")


def not_checked(report: Report, columns: int) -> Iterator[Text]:
    """What nothing can be said of, and why."""
    groups = not_checked_groups(report)
    if groups:
        yield from (Text(), Text("not checked", "bold"))
    for checks, why, layers in groups:
        names = ", ".join(map(short_name, checks))
        at = f", {plain(layers)}" if layers else ""
        yield from wrapped(f"{names}{at}: {plain(why)}", columns, "  ", "    ")


# Lines


def labelled(name: str, value: str, columns: int, label: int = LABEL) -> Iterator[Text]:
    """A name and what it has, side by side; the value's further lines below its first."""
    lines = _broken(value, columns - label - 2, "", "") or [""]
    for i, line in enumerate(lines):
        yield Text.assemble("  ", ((name if i == 0 else "").ljust(label), "dim"), line)


def wrapped(
    value: str, columns: int, first: str = "", rest: str | None = None, *, style: str = ""
) -> Iterator[Text]:
    """`value` in lines that begin with `first`, further ones with `rest`."""
    for line in _broken(value, columns, first, first if rest is None else rest):
        yield Text(line, style)


def _broken(value: str, columns: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        value,
        max(columns, 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
