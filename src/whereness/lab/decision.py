"""Which encoding to use, from a summary: the rule, without the words.

At each length the best has the lowest mean loss. Another is tied with it if the interval of their
paired difference reaches down to 0, or if in some seed it is not above the best.

    fits at all lengths (best or tied): one     use it
    fits at all lengths: several                use any of them; one is preferred
    none fits at all lengths                    one for shorter lengths, one for longer ones

The shorter lengths are as many, from the shortest, as some encoding fits at; it is used there. The
one for longer ones fits at all of them or, if there is none, at some of them, with the smallest
largest difference to the best.

Preferred is what reads only trained entries at the longest length, then has fewer parameters, then
trains faster.

The rule is ours. It is no test of several hypotheses at once: of many encodings that are equally
good, some will be told apart by chance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SPEED = "train_tokens_per_second"


class Evidence:
    """A summary, asked by encoding and length. Only encodings with a language model are asked."""

    def __init__(self, summary: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = summary["settings"]
        self.entries: dict[str, dict[str, Any]] = summary["encodings"]
        self.lengths: list[int] = self.settings["lengths"]
        self.names = [name for name, entry in self.entries.items() if "language_model" in entry]

    def loss(self, name: str, length: int) -> float:
        """Mean loss, nats a byte."""
        return self.entries[name]["language_model"]["loss"][str(length)]["mean"]

    def gap(self, name: str, other: str, length: int) -> float:
        """How much higher the mean loss of `name` is than that of `other`."""
        return self.loss(name, length) - self.loss(other, length)

    def above(self, name: str, length: int) -> dict[str, Any]:
        """The paired difference to the best at this length: mean, low, high, by_seed."""
        return self.entries[name]["language_model"]["above_best"][str(length)]

    def worst(self, name: str, lengths: Iterable[int]) -> float:
        """The largest mean difference to the best."""
        return max(self.above(name, length)["mean"] for length in lengths)

    def best(self, length: int) -> str:
        """The encoding with the lowest mean loss, the first one if there are several."""
        return min(self.names, key=lambda name: self.loss(name, length))

    def ties(self, length: int) -> list[str]:
        """What is not told from the best, the lowest loss first."""
        best = self.best(length)
        return [n for n in self.ranked(length) if n != best and self.fits(n, length)]

    def fits(self, name: str, length: int) -> bool:
        """The best, or tied with it: the interval reaches down to 0, or the seeds disagree.

        The best needs no rule of its own: its difference to itself is 0.
        """
        above = self.above(name, length)
        return above["low"] <= 0 or any(seed <= 0 for seed in above["by_seed"].values())

    def fitting(self, lengths: Iterable[int]) -> list[str]:
        """What fits at all of the lengths."""
        return [name for name in self.names if all(self.fits(name, n) for n in lengths)]

    def ranked(self, length: int) -> list[str]:
        """All, the lowest loss first."""
        return sorted(self.names, key=lambda name: self.loss(name, length))

    def reads_untrained(self, name: str, length: int) -> bool:
        """Some entries that are read at this length were never trained."""
        limit = self.limit(name)
        return limit is not None and length > limit

    def limit(self, name: str) -> int | None:
        """The longest length whose entries were all trained; None if that holds everywhere."""
        return self.entries[name]["language_model"].get("untrained_beyond")

    def has(self, name: str, measured: str) -> bool:
        """A measured property that is True or False."""
        return self.entries[name]["properties"][measured]

    @property
    def num_seeds(self) -> int:
        """Completed seeds, of the encoding with the most."""
        return max(self.entries[name]["language_model"]["seeds"] for name in self.names)

    def cost(self, name: str, key: str) -> float:
        """One of the entry's costs."""
        return self.entries[name]["cost"][key]

    def merit(self, name: str) -> tuple[bool, float, float]:
        """Smaller is preferred among encodings that fit."""
        return (
            self.reads_untrained(name, self.lengths[-1]),
            self.cost(name, "parameters"),
            -self.cost(name, SPEED),
        )


@dataclass(frozen=True)
class Decision:
    """What to use.

    Args:
        everywhere: fit at all lengths, the preferred first; empty if none does.
        near, far: without such, what to use at shorter and at longer lengths; may be equal.
        until: the longest of the shorter lengths.
    """

    everywhere: tuple[str, ...] = ()
    near: str | None = None
    far: str | None = None
    until: int | None = None

    @property
    def use(self) -> list[str]:
        """All that is recommended, each once."""
        split = [name for name in (self.near, self.far) if name is not None]
        return list(dict.fromkeys((*self.everywhere, *split)))


def decide(evidence: Evidence) -> Decision:
    """The rule of this file. Without encodings it recommends nothing."""
    if not evidence.names:
        return Decision()
    everywhere = evidence.fitting(evidence.lengths)
    if everywhere:
        return Decision(everywhere=tuple(sorted(everywhere, key=evidence.merit)))
    count = next(n for n in range(1, len(evidence.lengths)) if not prefix_fits(evidence, n + 1))
    shorter, longer = evidence.lengths[:count], evidence.lengths[count:]
    far = for_longer(evidence, longer)
    near = far if far in evidence.fitting(shorter) else preferred(evidence, shorter)
    return Decision(near=near, far=far, until=shorter[-1])


def prefix_fits(evidence: Evidence, count: int) -> bool:
    """Whether some encoding fits at all of the shortest `count` lengths."""
    return bool(evidence.fitting(evidence.lengths[:count]))


def for_longer(evidence: Evidence, lengths: Sequence[int]) -> str:
    """What to use at several lengths of which no encoding need fit all."""
    if evidence.fitting(lengths):
        return preferred(evidence, lengths)
    fit_some = [n for n in evidence.names if any(evidence.fits(n, length) for length in lengths)]
    return min(fit_some, key=lambda name: evidence.worst(name, lengths))


def preferred(evidence: Evidence, lengths: Iterable[int]) -> str:
    """Of what fits at all of the lengths, what is preferred."""
    return min(evidence.fitting(lengths), key=evidence.merit)
