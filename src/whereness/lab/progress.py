"""How a comparison gets on: bars in a terminal, a line a finished run elsewhere."""

from collections.abc import Collection, Generator, Sequence
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
    """A line when a run ends, and nothing else.

    Args:
        finished: runs that were done before.
    """

    def __init__(self, console: Console, runs: Sequence[Run], finished: Collection[Run]) -> None:
        self.console, self.num_runs, self.num_done = console, len(runs), len(finished)
        if finished:
            told = f"{self.num_done} of {self.num_runs} runs were done before."
            self.console.print(told, highlight=False, soft_wrap=True)

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
    """The lines, and below them a bar for all runs and one for each that is under way.

    The bar for all counts tokens, so the time left is right though runs are of different size.
    """

    def __init__(self, bars: Progress, runs: Sequence[Run], finished: Collection[Run]) -> None:
        super().__init__(bars.console, runs, finished)
        self.bars = bars
        self.tasks: dict[Run, TaskID] = {}
        self.done: dict[Run, float] = {}
        work = sum(run.recipe.tokens for run in runs if run not in finished)
        self.everything = self.bars.add_task("all runs", total=work, state=self._state())

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
        self.done[run] = done * run.recipe.tokens
        self.bars.update(self.everything, completed=sum(self.done.values()), state=self._state())

    def _state(self) -> str:
        return f"{self.num_done} of {self.num_runs}"


@contextmanager
def progress(
    console: Console, runs: Sequence[Run], finished: Collection[Run] = ()
) -> Generator[Lines, None, None]:
    """What suits the place that `console` writes to, for as long as the runs take."""
    if not console.is_terminal:
        yield Lines(console, runs, finished)
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
        yield Bars(bars, runs, finished)


def outcome(result: dict[str, Any]) -> str:
    """A result in a few words."""
    if result["status"] == "failed":
        return f"failed: {result['reason']}"
    if result["task"] == "order_task":
        return f"accuracy {result['accuracy']:.3f}"
    means = {s: sum(losses) / len(losses) for s, losses in result["losses"].items()}
    return "loss " + ", ".join(f"{mean:.3f} at {s}" for s, mean in means.items())
