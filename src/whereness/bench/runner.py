"""Runs rows: the gate, then samples of all contestants in turns, then medians and quartiles.

All contestants of a row alternate within one process, so that whatever else the machine does meets
all of them. Each round begins with another one.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from whereness.bench.contest import OURS, AbsentError, Bar, Contestant, Row, Scale, Verdict

Clock = Callable[[], float]

FLOOR = 5e-3
"""Seconds: what is faster is done several times for one sample."""

BUDGET = 3.0
"""Seconds for the samples of a row; between FEWEST and MOST rounds."""

FEWEST, MOST, QUICK = 7, 31, 3


@dataclass(frozen=True)
class Reached:
    """A bar and what was measured; quartiles of the number taken round by round."""

    bar: Bar
    value: float
    quartiles: tuple[float, float]

    @property
    def passed(self) -> bool | None:
        """Whether the bar is reached; None if there is none."""
        return self.bar.reached(self.value)


@dataclass(frozen=True)
class Result:
    """What one row gave. status: "done", "red gate" or "not run" (then `reason` says why)."""

    row: Row
    status: str
    reason: str = ""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    reached: tuple[Reached, ...] = ()
    notes: tuple[str, ...] = ()
    threads: int = 0

    def as_json(self) -> dict[str, Any]:
        """Everything, for a line of JSON; what is not finite becomes null."""
        bars = [
            asdict(r.bar) | {"value": r.value, "quartiles": r.quartiles, "passed": r.passed}
            for r in self.reached
        ]
        return _finite(
            {
                "kind": "row",
                "name": self.row.name,
                "what": self.row.what,
                "status": self.status,
                "reason": self.reason,
                "threads": self.threads,
                "notes": self.notes,
                "gates": {name: asdict(v) for name, v in self.verdicts.items()},
                "contestants": {
                    name: {"median": statistics.median(taken), "quartiles": quartiles(taken)}
                    | {"samples": taken}
                    for name, taken in self.samples.items()
                },
                "bars": bars,
            }
        )


def run_row(
    row: Row, scale: Scale, threads: int, repeats: int | None = None, clock: Clock | None = None
) -> Result:
    """Gate and measure one row with its number of torch threads, or with `threads`."""
    used = row.threads or threads
    with threads_set(used):
        try:
            contestants = list(row.make(scale))
        except AbsentError as absent:
            return Result(row, "not run", str(absent), threads=used)
        notes = tuple(f"{c.name}: {c.note}" for c in contestants if c.note)
        verdicts = {c.name: c.gate() for c in contestants}
        wrong = [name for name, verdict in verdicts.items() if verdict.passed is False]
        if wrong:
            # A speed is never told of something wrong, nor against it.
            reason = "; ".join(f"{name} {told(verdicts[name])}" for name in wrong)
            return Result(row, "red gate", reason, verdicts, notes=notes, threads=used)
        rounds = repeats or (QUICK if scale.quick else row.repeats)
        samples = interleaved(contestants, rounds, clock or time.perf_counter)
    reached = tuple(measured(bar, samples) for bar in row.bars)
    return Result(row, "done", "", verdicts, samples, reached, notes, used)


def told(verdict: Verdict) -> str:
    """What the gate found, in words."""
    if verdict.error is None or verdict.tolerance is None:
        return verdict.note
    return f"is off by {verdict.error:.2g}, allowed are {verdict.tolerance:.2g}"


def interleaved(
    contestants: Sequence[Contestant], rounds: int | None, clock: Clock
) -> dict[str, list[float]]:
    """Samples of each, taken in turns; `rounds` None: as many as the budget holds."""
    taken: dict[str, list[float]] = {c.name: [] for c in contestants}
    inner, cost = {}, 0.0
    for contestant in contestants:
        if contestant.sample is not None:
            inner[contestant.name] = 1
            continue
        contestant.run()  # the gate's call may have been of another form
        once = timed(contestant, 1, clock)
        inner[contestant.name] = max(1, math.ceil(FLOOR / max(once, 1e-7)))
        cost += once * inner[contestant.name]
    if rounds is None:
        rounds = min(MOST, max(FEWEST, int(BUDGET / max(cost, 1e-9))))
    with no_collection():
        for number in range(rounds):
            first = number % len(contestants)
            for contestant in (*contestants[first:], *contestants[:first]):
                taken[contestant.name].append(timed(contestant, inner[contestant.name], clock))
    return taken


def timed(contestant: Contestant, times: int, clock: Clock) -> float:
    """One sample: what `sample` gives, or seconds for one of several runs in a row."""
    if contestant.sample is not None:
        return contestant.sample()
    run = contestant.run
    begin = clock()
    for _ in range(times):
        run()
    return (clock() - begin) / times


def measured(bar: Bar, samples: dict[str, list[float]]) -> Reached:
    """The number of a bar, from medians, and the quartiles of the same number in each round."""
    ours = samples[OURS]
    theirs = samples[bar.against] if bar.against is not None else ours
    number = {
        "ratio": lambda a, b: a / b,
        "speedup": lambda a, b: b / a,
        "over": lambda a, b: a - b,
        "time": lambda a, _: a,
        "memory": lambda a, _: a,
    }[bar.measure]
    value = number(statistics.median(ours), statistics.median(theirs))
    return Reached(bar, value, quartiles([number(a, b) for a, b in zip(ours, theirs, strict=True)]))


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; of one number that number twice."""
    if len(numbers) == 1 or not all(map(math.isfinite, numbers)):
        return min(numbers), max(numbers)
    first, _, third = statistics.quantiles(numbers, n=4, method="inclusive")
    return first, third


@contextmanager
def threads_set(number: int) -> Generator[None]:
    """torch works with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_collection() -> Generator[None]:
    """Python's garbage is collected before, not during the samples."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
