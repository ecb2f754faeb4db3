"""A layer beside what its config expects of it: what the rotary checks have in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whereness.auditor.findings import Finding, Severity
from whereness.auditor.reading.expectation import (
    ROTARY,
    Expectation,
    expectation_of,
    expected_sides,
)
from whereness.auditor.reading.readout import Turning
from whereness.auditor.reading.views import LayerView, Observed, Side
from whereness.auditor.subject import Subject

Pairs = dict[tuple[int, int], float]
NAMES = ("queries", "keys")


@dataclass(frozen=True)
class Compare:
    """One layer: measured and expected queries and keys, by the same read-out."""

    view: LayerView
    expected: Expectation
    run: str
    """"far" or "near"."""
    got: tuple[Side, Side]
    want: tuple[Side, Side]

    def faint(self, speed: float) -> bool:
        """Whether a pair turns too little, as far as was looked, to tell that it turns."""
        return abs(speed) * self.got[0].turning.farthest < 1e-4

    def pairs(self, side: int, head: int = 0) -> tuple[Pairs, Pairs]:
        """Measured and expected pairs of a head, without those too faint to be told."""
        got, want = self.got[side].pairs(head), self.want[side].pairs(0)
        return (
            {p: s for p, s in got.items() if not self.faint(want.get(p, s))},
            {p: s for p, s in want.items() if not self.faint(s)},
        )

    def heads(self, side: int) -> int:
        """Heads of queries or keys."""
        return self.got[side].turning.partner.shape[0]

    def known_basis(self, side: int) -> bool:
        """Whether all channels were found in what the projections gave."""
        return bool(self.got[side].basis.found.all())


def compares(subject: Subject, observed: Observed, check: str) -> Iterator[Compare]:
    """Layers that can be compared with an expectation; the others are told as not checked."""
    for view in observed.layers:
        if view.crosses or not subject.wants(view.index):
            continue
        found = compare(subject, view)
        if isinstance(found, str):
            subject.not_checked(check, found, view.index, view.where)
        else:
            yield found


def compare(subject: Subject, view: LayerView) -> Compare | str:
    """One layer beside its expectation, or why there is no comparison."""
    if view.odd:
        return view.odd
    expected = expectation_of(subject, view)
    if isinstance(expected, str):
        return expected
    if is_picture(subject) and any(each.num_axes > 1 for each in expected.encodings):
        return "positions of several axes are for the check of grids"
    reason = "the layer could not be read"
    for run, got in (("far", view.far), ("near", view.near)):
        if got is None:
            continue
        width = width_of(expected, view)
        sides = [expected_sides(subject, expected, s.turning.positions, width) for s in got]
        q, k = sides
        if not isinstance(q, str) and not isinstance(k, str):
            return Compare(view, expected, run, got, (q[0], k[1]))
        reason = q if isinstance(q, str) else str(k)
    return reason


def is_picture(subject: Subject) -> bool:
    """Whether the model reads pixels, and numbers their patches itself."""
    driver = subject.shared.get("driver")
    return getattr(driver, "takes", None) == "pixels"


def width_of(expected: Expectation, view: LayerView) -> int:
    """The width of a head that the config expects, that of the layer where it does not say."""
    rotary = expected.of(*ROTARY)
    width = None if rotary is None else rotary[0].get("head_dim")
    return view.head_dim if width is None else width


def turned(turning: Turning) -> bool:
    """Whether anything turns in any head."""
    return bool(turning.turns.any())


def finding_of(
    check: str, view: LayerView, kind: str, severity: Severity = "error", **said: Any
) -> Finding:
    """A finding about a layer."""
    return Finding(
        check=check, kind=kind, severity=severity, layer=view.index, where=view.where, **said
    )
