"""The words of a benchmark: a row, its contestants, its bars.

A row is one comparison: our code and others on the same inputs. It is made when its turn comes, so
that peers are imported and tensors drawn only then. Times are in seconds, memory in bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

OURS = "whereness"


class AbsentError(Exception):
    """A contestant cannot be had here; the message says what is missing."""


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one contestant.

    Args:
        error: largest difference from the oracle, and `tolerance` what its dtype explains.
        passed: None where there was nothing to compare, and `note` says why.
    """

    passed: bool | None
    error: float | None = None
    tolerance: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Contestant:
    """One way to do what a row measures.

    Args:
        run: one execution; its time is the sample.
        gate: compares what it gives with an oracle.
        sample: gives the sample itself where that is not the time of `run`: memory.
        note: what a reader must know of it.
    """

    name: str
    run: Callable[[], object]
    gate: Callable[[], Verdict]
    sample: Callable[[], float] | None = None
    note: str = ""


Measure = Literal["ratio", "speedup", "time", "over", "memory"]


@dataclass(frozen=True)
class Bar:
    """A number of a row, and what it must reach.

    Args:
        measure: of medians. "ratio": ours / theirs; "speedup": theirs / ours; "time" and "memory":
            ours; "over": ours - theirs.
        limit: at most, but at least for "speedup"; None: the number is only reported.
        against: their name; None: no one else is needed.
    """

    measure: Measure
    limit: float | None = None
    against: str | None = None

    def reached(self, value: float) -> bool | None:
        """Whether `value` is good enough; None where no limit is set."""
        if self.limit is None:
            return None
        return value >= self.limit if self.measure == "speedup" else value <= self.limit


@dataclass(frozen=True)
class Scale:
    """Sizes of a run: those of the bars, or small ones to see whether a row works."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        """The size that this run has."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        name: group/what/how; the command finds rows by it or by a beginning.
        what: a phrase for the table.
        make: the contestants, ours first.
        repeats: samples of each; None: as many as fit a few seconds.
        threads: of torch; None: those of the run.
    """

    name: str
    what: str
    bars: tuple[Bar, ...]
    make: Callable[[Scale], Sequence[Contestant]]
    repeats: int | None = None
    threads: int | None = None
