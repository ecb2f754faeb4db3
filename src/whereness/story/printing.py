"""The story on a terminal."""

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whereness.story.parts import VISIBLE, ZERO, Measured, Numbers
from whereness.story.steps import MEANINGS, STEPS, chosen, verdict
from whereness.story.telling import shown, told

WIDEST = 88
"""Columns; longer lines are hard to read."""

OPENING = (
    "A complex system that works grew from a simple one that worked (John Gall). This is how "
    "rotary encoding grows from attention that sees no order: each step mends what the one "
    "before it failed, and is measured. Words and weights are random, nothing is trained, and "
    f"all is computed in float64; 0 stands for less than {ZERO:g}. Properties have the names that "
    "they have in whereness measure --json."
)

SOURCES = (
    'After: fleetwood.dev, "You could have designed state of the art positional encoding", 2024 '
    "(the article); Prince, Understanding Deep Learning, 2023, section 12.3.1 (the raccoon)."
)


def print_story(step: int | None) -> None:
    """Print all steps and what they failed, or one step.

    Raises:
        ValueError: there is no such step.
    """
    steps = chosen(step)
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    if step is None:
        _print_text(console, OPENING)
        console.print()
        _print_text(console, SOURCES, "dim")
    failures = []
    for number in steps:
        numbers = STEPS[number - 1].function()
        failures.append(verdict(STEPS[number - 1], numbers))
        _print_step(console, number, numbers)
    if step is None:
        _print_chain(console, failures)


def _print_step(console: Console, number: int, numbers: Numbers) -> None:
    step, words = STEPS[number - 1], told(numbers)
    _print_heading(console, f"{number}  {step.title}")
    if step.answers is not None:
        asked = f"Step {number - 1} failed {step.answers}: {MEANINGS[step.answers]}."
        _print_text(console, asked, "dim")
        console.print()
    _print_text(console, words.tried)
    console.print()
    for grid in words.grids:
        _print_table(console, grid.header, grid.rows)
    _print_text(console, words.says)
    console.print()
    measured = [_measured_row(m) for m in numbers.measured]
    _print_table(console, ("property", "of", "measured", "needed", "result"), measured, left=2)
    _print_text(console, words.then, "bold")


def _print_chain(console: Console, failures: list[Measured]) -> None:
    rows = [
        (str(i), step.title, failure.name, shown(failure.value))
        for i, (step, failure) in enumerate(zip(STEPS, failures, strict=True), start=1)
    ]
    _print_heading(console, "What each step failed, and the next one answered")
    console.print()
    _print_table(console, ("", "step", "failed", "measured"), rows, left=3)


def _measured_row(m: Measured) -> tuple[RenderableType, ...]:
    answer = Text("holds", "green") if m.holds else Text("FAILS", "bold red")
    return (m.name, m.of, shown(m.value), _needed(m), answer)


def _needed(m: Measured) -> str:
    if m.most == ZERO:
        return "0"
    return "not 0" if m.least == VISIBLE else f"at most {m.most:g}"


def _print_heading(console: Console, title: str) -> None:
    console.print()
    console.print(Rule(Text(title, "bold"), align="left"))


def _print_text(console: Console, text: str, style: str | None = None) -> None:
    # Not rich's own wrapping, which leaves blanks at the ends of lines.
    lines = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(lines, style=style, markup=False, soft_wrap=True)


def _print_table(
    console: Console,
    header: Sequence[str],
    rows: Sequence[Sequence[RenderableType]],
    left: int = 1,
) -> None:
    """A table and a blank line: `left` columns to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    console.print()
