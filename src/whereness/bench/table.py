"""Results as a table, for the terminal and for the documentation."""

import math
from collections.abc import Sequence
from typing import Any

from whereness.bench.contest import Bar
from whereness.bench.runner import Reached, Result

HEADINGS = ("what", "against", "bar", "measured", "quartiles", "")
WIDTHS = (45, 24, 13, 13, 15, 11)
RIGHT = (False, False, True, True, True, False)


def amount(bar: Bar, value: float) -> str:
    """A number of a bar with its unit."""
    if not math.isfinite(value):
        return "no end"
    if bar.measure == "memory":
        return f"{value / 2**20:.1f} MiB"
    if bar.measure in ("ratio", "speedup"):
        faster = " faster" if bar.measure == "speedup" else ""
        return f"{value:.3g}×{faster}" if value < 10 else f"{value:.1f}×{faster}"
    if 0 <= value < 1e-3:
        return f"{value * 1e6:.1f} µs"
    return f"{value * 1e3:.1f} ms" if 0 <= value < 0.1 else f"{value:.3f} s"


def limit(bar: Bar) -> str:
    """The bar in words; "" where there is none."""
    if bar.limit is None:
        return ""
    if bar.measure in ("ratio", "speedup"):
        speedup = bar.measure == "speedup"
        return f"≥ {bar.limit:g}× faster" if speedup else f"≤ {bar.limit:g}×"
    if bar.measure == "memory":
        return f"≤ {bar.limit / 2**20:g} MiB"
    small = bar.limit < 1e-3
    return f"≤ {bar.limit * 1e6:g} µs" if small else f"≤ {bar.limit:g} s"


def spread(reached: Reached) -> str:
    """The quartiles; their unit is that of the number, unless they cross into another."""
    low, high = (amount(reached.bar, q) for q in reached.quartiles)
    if reached.bar.measure in ("ratio", "speedup"):
        return " – ".join(text.partition("×")[0] for text in (low, high))
    shared = {text.partition(" ")[2] for text in (low, high, amount(reached.bar, reached.value))}
    if len(shared) == 1:
        low, high = (text.partition(" ")[0] for text in (low, high))
    return f"{low} – {high}"


def verdict(reached: Reached, quick: bool) -> str:
    """pass or FALLS SHORT; nothing is judged at small sizes."""
    if reached.passed is None:
        return "reported"
    if quick:
        return "quick"
    return "pass" if reached.passed else "FALLS SHORT"


def cells(result: Result, quick: bool) -> list[tuple[str, ...]]:
    """The lines of one result, one a bar."""
    if result.status != "done":
        shown = "RED GATE" if result.status == "red gate" else result.status
        what = result.row.what
        return [(what, b.against or "", limit(b), "", "", shown) for b in result.row.bars]
    return [
        (
            result.row.what,
            r.bar.against or "",
            limit(r.bar),
            amount(r.bar, r.value),
            spread(r),
            verdict(r, quick),
        )
        for r in result.reached
    ]


def line(parts: Sequence[str]) -> str:
    """A line of the table in the terminal."""
    padded = (
        part.rjust(width) if right else part.ljust(width)
        for part, width, right in zip(parts, WIDTHS, RIGHT, strict=True)
    )
    return "  ".join(padded).rstrip()


def remarks(result: Result) -> list[str]:
    """What else must be said of a result."""
    said = [f"{result.row.name}: {result.reason}"] if result.reason else []
    return said + [f"{result.row.name}: {note}" for note in result.notes]


def about(facts: dict[str, Any]) -> str:
    """The machine in one paragraph."""
    peers = ", ".join(f"{name} {found}" for name, found in facts["peers"].items() if found)
    return (
        f"{facts['processor']}, {facts['processors']} processors, {facts['threads']} threads, "
        f"{facts['instructions']}; {facts['platform']}; Python {facts['python']}, torch "
        f"{facts['torch']}, whereness {facts['whereness']}, rotary kernel: {facts['rotary']}; "
        f"compiler: {facts['compiler'] or 'none'}; {peers or 'no peers'}; {facts['date']}, load "
        f"{facts['load']}"
    )


def tally(results: Sequence[Result]) -> str:
    """How many bars are reached."""
    judged = [r.passed for result in results for r in result.reached if r.passed is not None]
    red = sum(result.status == "red gate" for result in results)
    absent = sum(result.status == "not run" for result in results)
    text = f"{sum(judged)} of {len(judged)} bars reached"
    text += f", {red} red gates" if red else ", every gate green"
    return text + (f", {absent} rows not run" if absent else "")


def markdown(facts: dict[str, Any], results: Sequence[Result], quick: bool) -> str:
    """The table for the documentation."""
    lines = [
        "| " + " | ".join(HEADINGS) + " |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for result in results:
        lines += ["| " + " | ".join(parts) + " |" for parts in cells(result, quick)]
    notes = [f"- {remark}" for result in results for remark in remarks(result)]
    tail = ["", *notes] if notes else []
    return "\n".join([*lines, "", about(facts) + ".", *tail, ""])
