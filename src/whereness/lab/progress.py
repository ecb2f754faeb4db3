"""How a comparison gets on: bars in a terminal, a line a finished run elsewhere."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from whereness.lab.settings import Run

WIDE = 160
"""Columns of a file or a pipe: the table is not broken there."""


class Output(Console):
    """Standard output."""

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = max(self.width, WIDE)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line; rich would end the program."""
        raise BrokenPipeError


class Lines:
    """A line when a run ends, and nothing else."""

    def __init__(self, console: Console, num_runs: int) -> None:
        self.console, self.num_runs, self.num_done = console, num_runs, 0

    def started(self, run: Run) -> None:
        pass

    def advanced(self, run: Run, done: float, loss: float) -> None:
        pass

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        self.num_done += 1
        self.console.print(
            f"[{self.num_done}/{self.num_runs}] {run.name}: {outcome(result)}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


class Bars(Lines):
    """The lines, and below them a bar for all runs and one for each that is under way."""

    def __init__(self, bars: Progress, num_runs: int) -> None:
        super().__init__(bars.console, num_runs)
        self.bars = bars
        self.everything = self.bars.add_task("all runs", total=num_runs, state="")
        self.tasks: dict[Run, TaskID] = {}
        self.done: dict[Run, float] = {}

    def started(self, run: Run) -> None:
        self.tasks[run] = self.bars.add_task(run.name, total=1.0, state="starting")

    def advanced(self, run: Run, done: float, loss: float) -> None:
        self.bars.update(self.tasks[run], completed=done, state=f"loss {loss:.2f}")
        self._total(run, done)

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        super().finished(run, result)
        self.bars.remove_task(self.tasks.pop(run))
        self._total(run, 1.0)

    def _total(self, run: Run, done: float) -> None:
        self.done[run] = done
        self.bars.update(
            self.everything,
            completed=sum(self.done.values()),
            state=f"{self.num_done} of {self.num_runs}",
        )


@contextmanager
def progress(console: Console, num_runs: int) -> Generator[Lines, None, None]:
    """What suits the place that `console` writes to, for as long as the runs take."""
    if not console.is_terminal:
        yield Lines(console, num_runs)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bars:
        yield Bars(bars, num_runs)


def outcome(result: dict[str, Any]) -> str:
    """A result in a few words."""
    if result["status"] == "failed":
        return f"failed: {result['reason']}"
    means = {s: sum(losses) / len(losses) for s, losses in result["losses"].items()}
    return "loss " + ", ".join(f"{mean:.3f} at {s}" for s, mean in means.items())
