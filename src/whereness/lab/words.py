"""Numbers and lists as sentences have them. Losses and differences are in nats a byte."""

from collections.abc import Iterable, Sequence
from typing import Any


def listed(items: Iterable[object], last: str = "and") -> str:
    """a; a and b; a, b and c."""
    *before, final = map(str, items)
    return f"{', '.join(before)} {last} {final}" if before else final


def plural(num: int, word: str) -> str:
    """1 step, 2 steps."""
    return f"{num:,} {word}{'s' * (num != 1)}"


def percent(part: float) -> str:
    """8.8 %, of a part from 0 to 1."""
    return f"{100 * part:.1f} %"


def nats(value: float) -> str:
    """A loss or a difference, with three decimals and no minus before a zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def span(values: Iterable[float]) -> str:
    """The smallest and the largest of some differences."""
    low, high = min(found := list(values)), max(found)
    return nats(low) if nats(low) == nats(high) else f"{nats(low)} to {nats(high)}"


def height(difference: float) -> str:
    """0.037 above; 0.012 below."""
    return f"{nats(abs(difference))} {'below' if round(difference, 3) < 0 else 'above'}"


def difference(above: dict[str, Any]) -> str:
    """A paired difference with its interval and, of several seeds, their range."""
    seeds = above["by_seed"].values()
    by_seed = f", by seed {nats(min(seeds))} to {nats(max(seeds))}" if len(seeds) > 1 else ""
    return f"{height(above['mean'])} ({interval(above)}{by_seed})"


def interval(above: dict[str, Any]) -> str:
    """The interval alone."""
    return f"95 % interval {nats(above['low'])} to {nats(above['high'])}"


def doubt(above: dict[str, Any]) -> str:
    """Why a difference tells nothing; empty if it is told by its being below 0."""
    seeds = above["by_seed"].values()
    reasons = []
    if above["low"] <= 0 <= above["high"]:
        reasons.append("the interval includes 0")
    if seeds and min(seeds) <= 0 < max(seeds):
        reasons.append("the seeds disagree")
    return listed(reasons) if reasons else "it is below in the seeds that both completed"


def multiple(length: int, trained: int) -> str:
    """8 times; 1.5 times."""
    return f"{length / trained:.3g} times"


def verb(subjects: Sequence[str], one: str, many: str) -> str:
    """The verb that fits the number of subjects."""
    return one if len(subjects) == 1 else many
