"""Numbers and names of a report as text for people."""

import math
from collections.abc import Sequence

from whereness.auditor.findings import CHECKS, SEVERITIES, LayerFacts, Report
from whereness.auditor.telling.grouping import finding_groups

GEOMETRIC = 1e-4
"""Speeds are told as a base if they follow it to this share; what differs by less than that and yet
is a fault has a finding of its own."""
LONGEST = 2000
"""Characters of a text from a target that are shown."""


def plain(text: object) -> str:
    """`text` on one line, without what would steer a terminal or turn the direction of writing."""
    words = " ".join(str(text)[: LONGEST + 1].split())
    if len(words) > LONGEST:
        words = f"{words[:LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def short_name(check: str) -> str:
    """As in "spectrum", of "CHK1"; an id that is none of ours as it is."""
    return CHECKS.get(check) or plain(check)


def check_name(check: str) -> str:
    """As in "spectrum (CHK1)"."""
    return f"{CHECKS[check]} ({check})" if check in CHECKS else plain(check)


def listed(items: Sequence[str]) -> str:
    """As in "a, b and c"."""
    *before, last = items or [""]
    return f"{', '.join(before)} and {last}" if before else last


def counted(count: int, word: str) -> str:
    """As in "no errors", "1 error", "2,000 errors"."""
    return f"{count:,} {word}{'s' * (count != 1)}" if count else f"no {word}s"


def headline(report: Report) -> str:
    """The verdict in a sentence; what is the same in many layers counts once."""
    if report.verdict == "nothing compared":
        return "Nothing could be compared: it may be right or wrong."
    severities = [group.first.severity for group in finding_groups(report)]
    told = listed([counted(severities.count(s), s) for s in SEVERITIES if s in severities])
    if report.verdict == "clean":
        return f"No fault found in what could be compared{told and '; '}{told}."
    return f"Found {told}."


def reach(report: Report) -> str:
    """How much was compared and how much was not."""
    made = counted(len(report.compared), "comparison").capitalize()
    return f"{made} made, {len(report.not_checked):,} not checked."


def number(value: float) -> str:
    """Four digits: 10,000; 0.0001; 1.25e-07."""
    if math.isfinite(value) and value == round(value) and abs(value) < 1e9:
        return f"{round(value):,}"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.6g}"
    return f"{value:.4g}"


def encoding_measured(facts: LayerFacts) -> str:
    """What was measured of a layer, in a few words."""
    turning = facts.speeds is not None and any(facts.speeds)
    told = [facts.measured or ("rotary" if turning else ""), facts.bias or ""]
    return ", ".join(filter(None, told)) or ("no position" if facts.classified == "none" else "")


def width(facts: LayerFacts) -> str:
    """Channels of a head that turn."""
    return "" if facts.rotary_dim is None else str(facts.rotary_dim)


def base_of(speeds: Sequence[float]) -> tuple[float, float] | None:
    """The base of RoPE's speeds and the factor by which all are slowed; None if they have none."""
    count = len(speeds)
    if count < 2 or not all(speed > 0 and math.isfinite(speed) for speed in speeds):
        return None
    ratio = (speeds[-1] / speeds[0]) ** (1 / (count - 1))
    if not 0 < ratio < 1 or ratio**-count > 1e15:
        return None
    fits = (
        math.isclose(speed, speeds[0] * ratio**i, rel_tol=GEOMETRIC)
        for i, speed in enumerate(speeds)
    )
    return (ratio**-count, 1 / speeds[0]) if all(fits) else None


def speeds_said(speeds: Sequence[float] | None) -> str:
    """As in "base 10,000, slowed 8 times"; else the range in radians a token."""
    if not speeds:
        return ""
    found = base_of(speeds)
    if found is not None:
        base, slowed = found
        told = f"base {number(float(f'{base:.5g}'))}"
        return told if abs(slowed - 1) < GEOMETRIC else f"{told}, {times(slowed)}"
    turning = [abs(speed) for speed in speeds if speed and math.isfinite(speed)]
    unread = sum(not math.isfinite(speed) for speed in speeds)
    low, high = (number(of(turning, default=0.0)) for of in (min, max))
    told = [f"{low} rad/token" if low == high else f"{low} to {high} rad/token"]
    if turning and (still := len(speeds) - len(turning) - unread):
        told.append(f"{still} still")
    return ", ".join([*told, f"{unread} unreadable"] if unread else told)


def times(slowed: float) -> str:
    """As in "slowed 8 times"."""
    if slowed > 1:
        return f"slowed {number(float(f'{slowed:.4g}'))} times"
    return f"{number(float(f'{1 / slowed:.4g}'))} times as fast"


def amplitude_said(facts: LayerFacts) -> str:
    """The amplitude where it is not 1."""
    found = facts.amplitudes
    if not found or all(abs(each - 1) < GEOMETRIC for each in found):
        return ""
    low, high = number(min(found)), number(max(found))
    return f"amplitude {low}" if low == high else f"amplitude {low} to {high}"
