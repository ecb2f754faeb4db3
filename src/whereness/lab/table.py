"""The table in the terminal."""

from typing import Any

from rich.table import Table
from rich.text import Text

BEST = "bold green"
MARK = "*"
UNTRAINED = "!"


def table(summary: dict[str, Any]) -> Table:
    """Losses of a summary: one row an encoding, one column a length, the best of each marked."""
    lengths = [str(length) for length in summary["settings"]["lengths"]]
    entries = summary["encodings"]
    losses = {n: e["language_model"]["loss"] for n, e in entries.items() if "language_model" in e}
    best = {s: min(losses, key=lambda n: losses[n][s]["mean"]) for s in lengths} if losses else {}
    speeds = {n: e["cost"]["train_tokens_per_second"] for n, e in entries.items() if n in losses}
    fastest = max(speeds, key=lambda n: speeds[n]) if speeds else None

    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("encoding", no_wrap=True)
    for length in lengths:
        made.add_column(length, justify="right")
    made.add_column("tokens/s", justify="right")
    for name, entry in entries.items():
        if name not in losses:
            made.add_row(name, Text("failed", "red"))
            continue
        limit = entry["language_model"].get("untrained_beyond")
        cells = [
            loss_cell(
                losses[name][s]["mean"],
                losses[best[s]][s]["mean"],
                is_best=best[s] == name,
                untrained=limit is not None and int(s) > limit,
            )
            for s in lengths
        ]
        speed = Text(f"{speeds[name]:,.0f}", BEST if name == fastest else "")
        made.add_row(name, *cells, speed.append(MARK if name == fastest else " "))
    return made


def loss_cell(mean: float, least: float, *, is_best: bool, untrained: bool) -> Text:
    """The loss, and how far it is from the best, `least`, of its column."""
    shown = Text(f"{mean:.2f}", BEST if is_best else "")
    shown.append(UNTRAINED if untrained else " ")
    return shown.append(
        f"{MARK:>5}" if is_best else f"{mean - least:+.2f}", "" if is_best else "dim"
    )


def notes(summary: dict[str, Any], jobs: int) -> list[str]:
    """What a reader of the table must know, and what went wrong."""
    settings, entries = summary["settings"], summary["encodings"]
    on_cpu = settings["device"] == "cpu"
    trained = settings["train_length"]
    beside = f"{jobs} runs side by side" if jobs > 1 else "one run at a time"
    lines = [
        f"Trained at {trained}. Loss in nats a byte, at each length, and above the best ({MARK}).",
        f"tokens/s: in training, {beside}{'; a second of one processor' * on_cpu}.",
    ]
    if any("untrained_beyond" in e.get("language_model", {}) for e in entries.values()):
        lines.append(f"{UNTRAINED} reads parameters that training at this length never reached.")
    for name, entry in entries.items():
        lines += [
            f"failed: {name}, seed {f['seed']}: {f['reason']}" for f in entry.get("failed", [])
        ]
    return lines
