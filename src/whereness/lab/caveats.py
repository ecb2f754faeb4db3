"""What a recommendation does not rest on, and what could lead to another."""

from collections.abc import Iterator
from typing import Any

from whereness.lab.decision import SPEED, Decision, Evidence
from whereness.lab.reasons import not_completed
from whereness.lab.text import HELD_OUT, MIN_WINDOWS
from whereness.lab.words import difference, listed, nats, plural, span, verb

FASTER = 1.25
"""An alternative for the sake of speed trains at least this many times as fast."""
FEW = 30
"""With fewer windows the intervals are too narrow."""


def not_tested(e: Evidence, text: dict[str, Any]) -> Iterator[str]:
    """What the comparison says nothing about."""
    s = e.settings
    yield (
        f"Other models: this one has width {s['width']}, {plural(s['depth'], 'layer')} and "
        f"{plural(s['heads'], 'head')}."
    )
    yield f"Other texts: this one is {text['source']}, {text['bytes']:,} bytes."
    held_out, used = text["bytes"] // HELD_OUT, evaluated(e, text)
    if used + e.lengths[-1] < held_out:
        yield (
            f"The rest of the held-out text: losses are of the first {used:,} of its "
            f"{held_out:,} bytes."
        )
    yield (
        f"Other training: it was {plural(s['steps'], 'step')} of "
        f"{plural(s['batch'], 'sequence')} of {s['train_length']} bytes, with the learning rate "
        f"{s['learning_rate']:g} for every encoding."
    )
    yield f"Texts longer than {e.lengths[-1]} bytes."
    yield "Scalings of rotary encodings for longer texts, such as NTK or YaRN."
    yield "Further training at the longer lengths."
    yield "Decoding token by token: its speed and its memory."
    yield (
        "Other encodings."
        if len(e.entries) == 1
        else (f"Encodings that are not among the {len(e.entries)} of this comparison.")
    )
    if e.names:
        yield from not_completed(e)


def would_change(e: Evidence, decision: Decision, text: dict[str, Any]) -> Iterator[str]:
    """What could lead to another answer."""
    if not decision.use:
        yield "A language model that is completed."
        return
    if len(e.names) == 1:
        yield "Results of other encodings."
        return
    yield from more_seeds(e, decision)
    few = [(num, n) for n in e.lengths if 0 < (num := num_windows(e, text, n)) < FEW]
    if few:
        num, length = few[-1]
        yield (
            f"More evaluated text: from {plural(num, 'window')} of {length} bytes the intervals "
            "come out too narrow."
        )
    tabled = [name for name in e.names if e.cost(name, "parameters")]
    most = f", above all for what has parameters ({listed(tabled)})" if tabled else ""
    yield f"Longer training than {plural(e.settings['steps'], 'step')}{most}."
    longest = e.lengths[-1]
    untrained = [name for name in e.names if e.reads_untrained(name, longest)]
    if untrained:
        yield (
            f"Training at {longest} bytes: it would train what {listed(untrained)} "
            f"{verb(untrained, 'reads', 'read')} untrained there now."
        )
    yield from shorter_texts(e, decision)
    yield from speed(e, decision)


def more_seeds(e: Evidence, decision: Decision) -> Iterator[str]:
    """Ties, and how small the lead is."""
    ties = [n for n in e.names if any(e.ties(x) and e.fits(n, x) for x in e.lengths)]
    if ties:
        yield f"More seeds or more evaluated text: they may tell {listed(ties)} apart."
    leads = [
        (e.above(name, length)["mean"], length, name)
        for length in e.lengths
        if e.best(length) in decision.use
        for name in e.names
        if name not in decision.use and not e.fits(name, length)
    ]
    if leads and e.num_seeds == 1:
        lead, length, name = min(leads)
        yield (
            f"Another seed: the smallest clear lead is {nats(lead)}, over {name} at {length} "
            "bytes, and how far seeds differ is unknown."
        )


def num_windows(e: Evidence, text: dict[str, Any], length: int) -> int:
    """Windows of held-out text, as `language.windows` cuts it."""
    return evaluated(e, text) // length


def evaluated(e: Evidence, text: dict[str, Any]) -> int:
    """Bytes of held-out text in whole windows of the longest length."""
    longest = e.lengths[-1]
    at_most = max(e.settings["evaluated_bytes"], MIN_WINDOWS * longest)
    # The last target is no input.
    return min(text["bytes"] // HELD_OUT - 1, at_most) // longest * longest


def shorter_texts(e: Evidence, decision: Decision) -> Iterator[str]:
    """What to use if longer texts never come."""
    shortest, longest = e.lengths[0], e.lengths[-1]
    if decision.near != decision.far:
        yield f"Texts that are never longer than {decision.until} bytes: {decision.near} will do."
        return
    only = f"Texts that are never longer than {shortest} bytes:"
    more = [name for name in e.fitting([shortest]) if name not in decision.use]
    if more:
        yield f"{only} {listed(more)} cannot be told from the best there."
        return
    rest = [name for name in e.names if name not in decision.use]
    if rest:
        second, last = (min(rest, key=lambda n: e.loss(n, x)) for x in (shortest, longest))
        if second != last:
            above = difference(e.above(second, shortest))
            yield f"{only} the second choice is {second}, {above}, and not {last}."


def speed(e: Evidence, decision: Decision) -> Iterator[str]:
    """The best of what trains much faster."""
    slow = min(decision.use, key=lambda name: e.cost(name, SPEED))
    fast = [
        name
        for name in e.names
        if name not in decision.use and e.cost(name, SPEED) >= FASTER * e.cost(slow, SPEED)
    ]
    if fast:
        name = min(fast, key=lambda n: e.worst(n, e.lengths))
        times = e.cost(name, SPEED) / e.cost(slow, SPEED)
        losses = span(e.above(name, length)["mean"] for length in e.lengths)
        yield (
            f"Speed, if it counts most: {name} trained at {times:.2f} times the speed of {slow}, "
            f"its loss being {losses} above the best."
        )
