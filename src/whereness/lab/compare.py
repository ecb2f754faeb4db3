"""The main job: from the options of the command to a table, a recommendation and a report."""

import platform
import shlex
import textwrap
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whereness import __version__
from whereness.lab import text
from whereness.lab.interrupts import interrupts_later
from whereness.lab.processors import usable_processors
from whereness.lab.settings import (
    DEFAULT_ENCODINGS,
    Comparison,
    OrderRecipe,
    Recipe,
    Run,
    at_least,
    digest,
    plain,
)

if TYPE_CHECKING:
    from rich.console import Console

    from whereness.cli.compare import Options
    from whereness.encoding import PositionalEncoding
    from whereness.lab.store import Result, Store


def run(options: "Options") -> int:
    """Compare, write the summary and the report, print the table; the exit status, 0.

    Runs that failed are listed below the table.

    Raises:
        ValueError, OSError: settings, a text or a folder that cannot serve; or no language model
            was completed.
    """
    comparison, data = comparison_of(options)
    jobs = jobs_of(options, comparison)
    folder = options.out or Path("runs") / f"compare-{digest(comparison)}"

    # After the checks that need nothing heavy: rich, torch and matplotlib.
    with interrupts_later():
        from whereness.lab import engine, report, summary
        from whereness.lab.progress import Output, progress
        from whereness.lab.store import Store

    check_device(comparison.recipe.device)
    check_encodings(comparison)
    console = Output()
    runs = comparison.runs()
    begin = time.monotonic()
    with Store(folder, what_is_shared(comparison), runs) as store:
        tell(
            console,
            f"{len(runs)} runs of {len(comparison.encodings)} encodings, {jobs} at a time, in "
            f"{text.printable(str(folder))}",
        )
        try:
            with progress(console, runs, done_before(store, runs)) as observer:
                engine.execute(store, jobs, observer)
        except KeyboardInterrupt:
            kept = f"{len(store.finished())} of {len(runs)} runs are done"
            tell(console, f"Interrupted: {kept}. The same command goes on.")
            raise
        results = store.results()
        found = summary.summarise(
            comparison,
            len(data),
            results,
            made_with(options, jobs),
            repeated=share_repeated(comparison.recipe, data),
        )
        paths = [summary.write(folder, found)]
        show(console, found)
        paths.append(report.write(folder, found, trained(store, runs, results)))
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    tell(console, f"Took {minutes} min {seconds} s.")
    for path in paths:
        tell(console, f"{path.stem.capitalize()}: {text.printable(str(path))}")
    if options.open and not webbrowser.open(paths[-1].resolve().as_uri()):
        tell(console, "No browser was found to open the report with.")
    require_a_language_model(found)
    return 0


def require_a_language_model(found: dict[str, Any]) -> None:
    """Raise ValueError, with the first reason, if no language model was completed."""
    entries = found["encodings"].values()
    if not any("language_model" in entry for entry in entries):
        reasons = [failure["reason"] for entry in entries for failure in entry.get("failed", [])]
        raise ValueError(f"No language model was completed: {reasons[0]}")


def comparison_of(options: "Options") -> tuple[Comparison, bytes]:
    """The settings that the options stand for, and the text."""
    for name in ("text", "encodings", "lengths"):
        if getattr(options, name) == ():
            raise ValueError(f"--{name} needs at least one value, got none.")
    model = {name: getattr(options, name) for name in ("width", "depth", "heads", "device")}
    recipe = Recipe(
        train_length=options.train_length,
        lengths=options.lengths or (),
        steps=options.steps,
        batch=options.batch,
        **model,
    )
    found, data = text.find(options.text or ())
    comparison = Comparison(
        text=found,
        recipe=recipe,
        order=OrderRecipe(steps=options.order_steps, **model),
        encodings=options.encodings or DEFAULT_ENCODINGS,
        seeds=options.seeds,
    )
    text.split(data, recipe.longest, recipe.evaluated_bytes)  # raises if it is too short
    return comparison, data


def jobs_of(options: "Options", comparison: Comparison) -> int:
    """Runs side by side: as asked; else one a processor, or one on another device."""
    jobs = options.jobs
    if jobs is None:
        jobs = usable_processors() if comparison.recipe.device == "cpu" else 1
    at_least("jobs", jobs, 1)
    return min(jobs, len(comparison.runs()))


def check_device(name: str) -> None:
    """Raise ValueError unless torch can compute on the device, in float64 where it must."""
    import torch

    try:
        torch.zeros(1, device=name, dtype=torch.float64).item()
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used here: {reason}. Use cpu.") from error


def check_encodings(comparison: Comparison) -> None:
    """Raise ValueError if the sizes do not fit an encoding: before anything is trained."""
    from whereness.lab.model import make_one

    for name in comparison.encodings:
        try:
            for recipe in (comparison.recipe, comparison.order):
                make_one(name, recipe)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise ValueError(f"{name}: {error or 'not enough memory'}") from error


def what_is_shared(comparison: Comparison) -> dict[str, Any]:
    """What must be the same of all runs in a folder, plain values by name."""
    import torch

    order = {f"order_task {name}": value for name, value in plain(comparison.order).items()}
    return {
        "text": comparison.text.sha256,
        "encodings": list(comparison.encodings),
        "seeds": comparison.seeds,
        **plain(comparison.recipe),
        **order,
        "whereness": __version__,
        "torch": str(torch.__version__),
    }


def made_with(options: "Options", jobs: int) -> dict[str, Any]:
    """The versions, the machine, and the command that repeats it all."""
    import torch

    return {
        "whereness": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "processors": usable_processors(),
        "jobs": jobs,
        "command": command(options),
    }


def command(options: "Options") -> str:
    """The command line of these options; those at their defaults are left out."""
    words = ["whereness", "compare"]
    for field in fields(options):
        value = getattr(options, field.name)
        if value == field.default or field.name in ("out", "jobs", "open"):
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
    return text.printable(shlex.join(words))


def share_repeated(recipe: Recipe, data: bytes) -> float:
    """The part of the shortest held-out windows that stand word for word in the training part."""
    parts = text.split(data, recipe.longest, recipe.evaluated_bytes)
    return text.repeated(*parts, recipe.lengths[0])


def done_before(store: "Store", runs: Sequence[Run]) -> set[Run]:
    """The runs that an earlier command has finished."""
    finished = store.finished()
    return {run for run in runs if digest(run) in finished}


def trained(
    store: "Store", runs: Sequence[Run], results: Sequence["Result"]
) -> dict[str, "PositionalEncoding"]:
    """By name, the encoding of the first layer after training with the first completed seed."""
    from safetensors import SafetensorError

    from whereness.lab.model import unpacked

    completed = {r["run"] for r in results if r["status"] == "done"}
    found: dict[str, PositionalEncoding] = {}
    for run in runs:
        if run.task == "language_model" and digest(run) in completed:
            weights = store.weights(run)
            if weights is not None and run.encoding not in found:
                # What somebody has damaged has no pictures.
                with suppress(SafetensorError, RuntimeError, TypeError, KeyError):
                    found[run.encoding] = unpacked(run, weights)
    return found


def show(console: "Console", found: dict[str, Any]) -> None:
    """Print the table and the recommendation."""
    from whereness.lab.table import notes, table

    console.print()
    console.print(table(found, console.width), crop=False)
    advice = found["recommendation"]
    tell(console, "", *notes(found), "", advice["headline"])
    constructors = found["settings"]["constructors"]
    tell(console, *(f"As tested: {constructors[name]}" for name in advice["use"]))
    tell(console, *(f"- {sentence}" for sentence in advice["because"]))
    for title, part in (
        ("To know:", "to_know"),
        ("What would change this:", "would_change"),
        ("Not tested:", "not_tested"),
    ):
        if advice[part]:
            tell(console, "", title, *(f"- {sentence}" for sentence in advice[part]))
    tell(console, "")


def tell(console: "Console", *lines: str) -> None:
    """Print lines as they are; in a terminal, broken between words."""
    for line in lines:
        parts = [line]
        if console.is_terminal:
            parts = textwrap.wrap(line, console.width, subsequent_indent="  ") or [""]
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=True)
