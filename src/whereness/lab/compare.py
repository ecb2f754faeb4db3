"""The main job: from the options of the command to a table and `summary.json`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whereness.lab import text
from whereness.lab.settings import DEFAULT_ENCODINGS, Comparison, Recipe, at_least, digest

if TYPE_CHECKING:
    from rich.console import Console

    from whereness.cli.compare import Options

FAILED = 2


def run(options: "Options") -> int:
    """Compare, print the table and the path of the summary; the exit status.

    That is 0 if any run was completed: those that failed are listed below the table.

    Raises:
        ValueError, OSError: settings, a text or a folder that cannot serve.
    """
    comparison, num_bytes = comparison_of(options)
    jobs = jobs_of(options, comparison)
    folder = options.out or Path("runs") / f"compare-{digest(comparison)}"

    # After the checks that need nothing heavy: rich and torch.
    from whereness.lab import engine, summary
    from whereness.lab.progress import Output, progress

    check_device(comparison.recipe.device)
    check_encodings(comparison)
    summary.prepare(folder, comparison, num_bytes)

    console = Output()
    runs = comparison.runs()
    with progress(console, len(runs)) as observer:
        results = engine.execute(runs, jobs, observer)
    found = summary.summarise(comparison, num_bytes, results)
    path = summary.write(folder, found)
    show(console, found, jobs, path)
    return 0 if any(r["status"] == "done" for r in results) else FAILED


def comparison_of(options: "Options") -> tuple[Comparison, int]:
    """The settings that the options stand for, and the number of bytes in the text."""
    for name in ("text", "encodings", "lengths"):
        if getattr(options, name) == ():
            raise ValueError(f"--{name} needs at least one value, got none.")
    recipe = Recipe(
        train_length=options.train_length,
        lengths=options.lengths or (),
        steps=options.steps,
        batch=options.batch,
        width=options.width,
        depth=options.depth,
        heads=options.heads,
        device=options.device,
    )
    found, data = text.find(options.text or ())
    comparison = Comparison(
        text=found,
        recipe=recipe,
        encodings=options.encodings or DEFAULT_ENCODINGS,
        seeds=options.seeds,
    )
    text.split(data, recipe.longest)  # raises if it is too short
    return comparison, len(data)


def jobs_of(options: "Options", comparison: Comparison) -> int:
    """Runs side by side: as asked; else one a processor, or one on another device."""
    jobs = options.jobs
    if jobs is None:
        jobs = usable_processors() if comparison.recipe.device == "cpu" else 1
    at_least("jobs", jobs, 1)
    return min(jobs, comparison.seeds * len(comparison.encodings))


def usable_processors() -> int:
    """Processors this process may run on: fewer than the machine has in many containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_device(name: str) -> None:
    """Raise ValueError unless torch can compute on the device."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {name} cannot be used here: {reason}") from error


def check_encodings(comparison: Comparison) -> None:
    """Raise ValueError if the sizes do not fit an encoding: before anything is trained."""
    from whereness.lab.model import make_encoding

    for name in comparison.encodings:
        try:
            make_encoding(name, comparison.recipe)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def show(console: "Console", found: dict[str, Any], jobs: int, path: Path) -> None:
    """Print the table, what must be known to read it, and where the summary lies."""
    from whereness.lab.table import notes, table

    console.print()
    console.print(table(found))
    console.print()
    for line in (*notes(found, jobs), f"Summary: {path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
