"""The table in the terminal. Printed elsewhere it is plain text: rich leaves colours out there."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whereness.lab.reasons import TASKS
from whereness.lab.settings import SOLVED
from whereness.lab.words import listed

BEST = "bold green"
MARK = "*"
UNTRAINED = "!"
UNSOLVED = "?"
MISSING = "-"

WIDTH = 100
DIFFERENCES = "differences to the best"
DROPPED = ("memory", "params", "tokens/s", "order", DIFFERENCES)
"""What gives way, in this order, where the table would be too wide: columns, then differences."""

Entry = dict[str, Any]
Cell = Callable[[str, Entry], Text | str]


class Column(NamedTuple):
    """Its header, what it holds, and at which edge.

    At the left edge cells are padded here, for marks hang over the right one: rich would drop the
    space of a number without one.
    """

    header: str
    cell: Cell
    justify: Literal["left", "right"] = "right"


def table(summary: dict[str, Any], width: int = WIDTH) -> Table:
    """One row an encoding: order task, loss at each length and above the best, and costs.

    What does not fit into `width` characters is left out and named below the table. Losses are
    never left out nor cut: lines may be longer. Print it with `crop=False`, or rich cuts those.
    """
    made = filled(summary, [])
    for count in range(1, len(DROPPED) + 1):
        if width_of(made) <= width:
            break
        made = filled(summary, DROPPED[:count])
    made.width = width_of(made)
    return made


def width_of(made: Table) -> int:
    """Characters of its widest line, but for the caption: that is wrapped."""
    wide = Console(width=10_000)
    return made.__rich_measure__(wide, wide.options).maximum


def filled(summary: dict[str, Any], without: Sequence[str]) -> Table:
    """The table without some of what may be dropped."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("encoding", no_wrap=True)
    columns = [c for c in columns_of(summary, without) if c.header not in without]
    for column in columns:
        made.add_column(column.header, justify=column.justify, no_wrap=True)
    for name, entry in summary["encodings"].items():
        made.add_row(name, *(column.cell(name, entry) for column in columns))
    if without:
        made.caption = f"No room for {listed(without)}: see the summary."
        made.caption_justify = "left"
    return made


def columns_of(summary: dict[str, Any], without: Sequence[str]) -> list[Column]:
    """All columns; their losses may be without differences."""
    entries = {n: e for n, e in summary["encodings"].items() if "language_model" in e}
    speeds = {name: entry["cost"]["train_tokens_per_second"] for name, entry in entries.items()}
    fastest = max(speeds, key=lambda n: speeds[n]) if speeds else None
    lengths = summary["settings"]["lengths"]

    def loss(length: int) -> Column:
        is_first = length == lengths[0]
        if DIFFERENCES not in without:
            return Column(str(length), lambda n, e: loss_cell(n, e, length, is_first=is_first))
        losses = [e["language_model"]["loss"][str(length)]["mean"] for e in entries.values()]
        digits = max((len(f"{loss:.2f}") for loss in losses), default=0)
        return Column(
            str(length).rjust(digits),
            lambda n, e: loss_cell(n, e, length, is_first=is_first, digits=digits),
            "left",
        )

    def cost(key: str) -> Cell:
        return lambda _, entry: short(entry["cost"][key]) if "cost" in entry else ""

    def speed(name: str, _: Entry) -> Text | str:
        if name not in speeds:
            return ""
        cell = Text(f"{short(speeds[name]):>7}", BEST if name == fastest else "")
        return cell.append(MARK if name == fastest else "")

    return [
        Column("order", lambda _, entry: order_cell(entry), "left"),
        *map(loss, lengths),
        Column("tokens/s", speed, "left"),
        Column("params", cost("parameters")),
        Column("memory", cost("extra_memory_bytes")),
    ]


def order_cell(entry: Entry) -> Text | str:
    """The accuracy in the order task."""
    order = entry.get("order_task")
    if order is None:
        tasks = {failure["task"] for failure in entry.get("failed", [])}
        return Text("failed", "red") if "order_task" in tasks else f"{MISSING:>4}"
    shown = Text(f"{order['accuracy']:.2f}", "" if order["solved"] else "red")
    return shown.append("" if order["solved"] else UNSOLVED)


def loss_cell(
    name: str, entry: Entry, length: int, *, is_first: bool, digits: int | None = None
) -> Text | str:
    """The loss, and how far it is above the best of its column.

    Args:
        is_first: tells a failure.
        digits: the loss alone, in so many characters, with its marks.
    """
    model = entry.get("language_model")
    if model is None:
        tasks = {failure["task"] for failure in entry.get("failed", [])}
        told = Text("failed", "red") if "language_model" in tasks else MISSING
        return told if is_first else ""
    mean, above = model["loss"][str(length)]["mean"], model["above_best"][str(length)]
    limit = model.get("untrained_beyond")
    is_best = above["best"] == name
    untrained = limit is not None and length > limit
    shown = Text(f"{mean:.2f}".rjust(digits or 0), BEST if is_best else "")
    if digits is not None:
        return shown.append(UNTRAINED * untrained + MARK * is_best)
    shown.append(UNTRAINED if untrained else " ")
    return shown.append(
        f"{MARK:>5}" if is_best else f"{above['mean']:+.2f}", "" if is_best else "dim"
    )


def short(number: float) -> str:
    """Three digits: 950, 52.6k, 1.2M."""
    for unit, suffix in ((1, ""), (1e3, "k"), (1e6, "M")):
        rounded = float(f"{number / unit:.3g}")
        if abs(rounded) < 1000:
            return f"{rounded:g}{suffix}"
    return f"{number / 1e9:.3g}G"


def notes(summary: dict[str, Any]) -> list[str]:
    """What a reader of the table must know, and what went wrong."""
    settings, entries = summary["settings"], summary["encodings"].values()
    models = [e["language_model"] for e in entries if "language_model" in e]
    orders = [e["order_task"] for e in entries if "order_task" in e]
    on_cpu, jobs = settings["device"] == "cpu", summary["made_with"]["jobs"]
    beside = f"{jobs} runs side by side" if jobs > 1 else "one run at a time"
    lines = [
        (
            f"Trained at {settings['train_length']}. Loss in nats a byte, at each length, and "
            f"above the best ({MARK})."
        ),
        (
            f"tokens/s: bytes trained in a second{' of one processor' * on_cpu}, {beside}; a few "
            "percent are chance."
        ),
        (
            "params: of the encoding. memory: bytes that a training step keeps for its backward "
            "pass, above those without encoding."
        ),
    ]
    if orders:
        lines.append("order: accuracy in the order task, where only word order tells who acts.")
    if not all(order["solved"] for order in orders):
        lines.append(f"{UNSOLVED} below {SOLVED} in the order task, in some seed.")
    if any("untrained_beyond" in model for model in models):
        lines.append(f"{UNTRAINED} reads parameters that training at this length never reached.")
    return [*lines, *failures(summary)]


def failures(summary: dict[str, Any]) -> Iterator[str]:
    """A line for each run that failed."""
    for name, entry in summary["encodings"].items():
        for failure in entry.get("failed", []):
            task, seed = TASKS[failure["task"]], failure["seed"]
            yield f"failed: {name}, {task}, seed {seed}: {failure['reason']}"
