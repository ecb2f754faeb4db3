"""Why an encoding is recommended: sentences with the numbers of a summary."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from whereness.lab.decision import SPEED, Decision, Evidence
from whereness.lab.settings import BASELINE
from whereness.lab.words import (
    difference,
    doubt,
    listed,
    multiple,
    nats,
    percent,
    verb,
)

GROWS = 0.05
"""Nats that the loss at the longest length may be above the one at the shortest."""
SAME = 0.0005
"""Losses closer than this at every length are told as equal."""
SLOW = 0.9
"""Below this part of another's speed, speed is a cost."""
MOST = 2
"""Ties at a length that are told with numbers; of more, the names."""
REPEATED = 0.01
"""From this part of its windows on, it is told that a text repeats itself."""
MEMORY = 0.1
"""Above this part of a step's memory without encoding, the rest is a cost."""

TASKS = {"language_model": "language model", "order_task": "order task"}


def because(e: Evidence, decision: Decision) -> Iterator[str]:
    """Why: the comparison, and then what it costs."""
    if not decision.use:
        yield from not_completed(e)
        return
    yield from choice(e, decision)
    if len(e.names) == 1:
        yield from alone(e)
    else:
        for length in e.lengths:
            yield from at_length(e, length, decision.use)
    if e.num_seeds == 1:
        yield "There is one seed, so the range over seeds is unknown."
    for name in decision.use:
        yield from price(e, name)
        yield from cautions(e, name)
    yield from fused_alternative(e, decision)


def to_know(e: Evidence, decision: Decision, text: dict[str, Any]) -> Iterator[str]:
    """What explains the numbers of the others, and what the text repeats."""
    if decision.use:
        yield from growth(e)
        yield from surprises(e, decision)
        yield from repeats(e, text)


def choice(e: Evidence, decision: Decision) -> Iterator[str]:
    """Between several, why this one; between two lengths, where they change places."""
    first, *others = decision.everywhere or ("",)
    if others:
        reasons = [reason for other in others if (reason := disadvantage(e, first, other))]
        if reasons:
            yield f"Of these, prefer {first}: {'; '.join(reasons)}."
        else:
            yield f"Nothing else sets them apart: {first} comes first in the list."
    if decision.near is None or decision.far is None:
        return
    yield "No encoding is the best or tied with it at every length."
    longer = [length for length in e.lengths if length > (decision.until or 0)]
    if decision.far not in e.fitting(longer):
        yield (
            f"Nor is any at all lengths above {decision.until} bytes: {decision.far} is at most "
            f"{nats(e.worst(decision.far, longer))} above the best there."
        )
    for before, after in pairwise(e.lengths):
        if (
            e.gap(decision.far, decision.near, before)
            >= 0
            > e.gap(decision.far, decision.near, after)
        ):
            yield (
                f"Between {before} and {after} bytes the loss of {decision.far} falls below that "
                f"of {decision.near}."
            )


def disadvantage(e: Evidence, first: str, other: str) -> str:
    """The first reason to prefer `first` to `other`; empty if there is none."""
    longest = e.lengths[-1]
    if e.reads_untrained(other, longest) and not e.reads_untrained(first, longest):
        return f"{other} reads untrained entries at {longest} bytes"
    few, many = (e.cost(name, "parameters") for name in (first, other))
    if many != few:
        return f"{other} has more parameters ({many:,.0f} against {few:,.0f})"
    fast, slow = (e.cost(name, SPEED) for name in (first, other))
    if slow != fast:
        return f"{other} trains slower ({slow:,.0f} against {fast:,.0f} tokens a second)"
    return ""


def alone(e: Evidence) -> Iterator[str]:
    """The losses of the only encoding."""
    (name,) = e.names
    losses = listed(f"{nats(e.loss(name, length))} at {length} bytes" for length in e.lengths)
    yield f"Its loss in nats a byte is {losses}."


def at_length(e: Evidence, length: int, use: Sequence[str]) -> Iterator[str]:
    """The best, what is tied with it, and the next."""
    best, ties = e.best(length), e.ties(length)
    first = (
        f"At {length} bytes {best} has the lowest loss, {nats(e.loss(best, length))} nats a byte"
    )
    clear = [name for name in e.ranked(length) if not e.fits(name, length)]
    after = f"he next, {clear[0]}, is {difference(e.above(clear[0], length))}." if clear else ""
    if not ties:
        yield f"{first}; t{after}" if clear else f"{first}."
        return
    yield f"{first}."
    told = [name for name in ties if name in use][:MOST] or ties[:1]
    for name in told:
        above = e.above(name, length)
        yield f"{name} cannot be told from it: {difference(above)}; {doubt(above)}."
    rest = [name for name in ties if name not in told]
    if rest:
        yield f"Nor can {listed(rest, 'or')}."
    if clear:
        yield f"T{after}"


def price(e: Evidence, name: str) -> Iterator[str]:
    """What an encoding costs, in training and in attention."""
    if name == BASELINE:
        yield f"{name} is the model without encoding."
    fastest = max(e.names, key=lambda n: e.cost(n, SPEED))
    against = BASELINE if BASELINE in e.names else fastest
    if name != against:
        ratio = e.cost(name, SPEED) / e.cost(against, SPEED)
        costs = "costs speed" if ratio < SLOW else "costs little speed"
        yield f"{name} {costs}: it trained at {ratio:.2f} times the speed of {against}."
    extra = e.cost(name, "extra_memory_bytes")
    without = e.cost(name, "step_memory_bytes") - extra
    if extra > MEMORY * without:
        times = f", {(extra + without) / without:.1f} times as much" if without else ""
        yield (
            f"A training step with {name} keeps {extra / 1e6:.1f} MB more than one without "
            f"encoding{times}."
        )
    if e.has(name, "content_aware"):
        yield f"What {name} adds depends on the tokens, not on positions alone."
    if not e.has(name, "fused"):
        yield (
            f"Fused attention cannot serve {name}: the attention weights must be formed, so "
            "memory grows with the square of the length."
        )


def cautions(e: Evidence, name: str) -> Iterator[str]:
    """What speaks against an encoding that is recommended."""
    entry = e.entries[name]
    if e.reads_untrained(name, e.lengths[-1]):
        yield (
            f"Beyond {e.limit(name)} bytes {name} reads entries that were never trained: do not "
            "trust its losses there."
        )
    order = entry.get("order_task")
    if order is None:
        yield f"The order task was not completed with {name}."
    elif not order["solved"]:
        yield f"{name} did not solve the order task: its accuracy is {order['accuracy']:.2f}."
    for failure in entry.get("failed", []):
        yield (
            f"{name} failed in seed {failure['seed']} of the {TASKS[failure['task']]}: "
            f"{failure['reason']}."
        )


def fused_alternative(e: Evidence, decision: Decision) -> Iterator[str]:
    """If fused attention serves nothing that is recommended: the best that it serves."""
    served = [name for name in e.names if e.has(name, "fused")]
    if not served or any(name in served for name in decision.use):
        return
    for name, group in groupby(e.lengths, lambda n: min(served, key=lambda s: e.loss(s, n))):
        lengths = list(group)
        shown = listed(difference(e.above(name, length)) for length in lengths)
        yield (
            f"The best that fused attention can serve at {listed(lengths)} bytes is {name}: "
            f"{shown}."
        )


def growth(e: Evidence) -> Iterator[str]:
    """Which encodings keep their loss at the longest length."""
    shortest, longest = e.lengths[0], e.lengths[-1]
    if longest == shortest:
        return
    keep = [n for n in e.names if e.loss(n, longest) - e.loss(n, shortest) <= GROWS]
    times = multiple(longest, e.settings["train_length"])
    where = f"At {longest} bytes, {times} the training length,"
    if keep:
        own = verb(keep, "is at most {} above its own", "are at most {} above their own")
        yield f"{where} {listed(keep)} {own.format(GROWS)} loss at {shortest}."
    else:
        yield f"{where} every encoding is more than {GROWS} above its own loss at {shortest}."


def surprises(e: Evidence, decision: Decision) -> Iterator[str]:
    """What explains the numbers of encodings that are not recommended."""
    others = [name for name in e.names if name not in decision.use]
    untrained = [name for name in others if e.reads_untrained(name, e.lengths[-1])]
    for limit in dict.fromkeys(e.limit(name) for name in untrained):
        names = [name for name in untrained if e.limit(name) == limit]
        yield (
            f"Beyond {limit} bytes {listed(names)} {verb(names, 'reads', 'read')} entries that "
            "were never trained."
        )
    unsolved = [
        f"{name} (accuracy {order['accuracy']:.2f})"
        for name in others
        if (order := e.entries[name].get("order_task")) and not order["solved"]
    ]
    if unsolved:
        yield f"The order task was not solved by {listed(unsolved)}."
    if BASELINE in e.names:
        same = [n for n in e.names if n != BASELINE and equal(e, n, BASELINE)]
        if same:
            yield (
                f"{listed(same)} {verb(same, 'has', 'have')} the same losses as {BASELINE}, the "
                "model without encoding."
            )


def repeats(e: Evidence, text: dict[str, Any]) -> Iterator[str]:
    """How much of the held-out text was seen in training."""
    if text["repeated"] >= REPEATED:
        yield (
            f"{percent(text['repeated'])} of the held-out windows of {e.lengths[0]} bytes stand "
            "word for word in the training part: long training would reward remembering them."
        )


def equal(e: Evidence, name: str, other: str) -> bool:
    """Their losses are the same at every length."""
    return all(abs(e.gap(name, other, length)) < SAME for length in e.lengths)


def not_completed(e: Evidence) -> Iterator[str]:
    """Encodings without a language model, with the first reason; and seeds that failed."""
    for name, entry in e.entries.items():
        reasons = [f["reason"] for f in entry.get("failed", []) if f["task"] == "language_model"]
        if name not in e.names:
            why = f": {reasons[0]}" if reasons else ""
            yield f"No language model with {name} was completed{why}."
        elif reasons:
            yield f"Some seeds of the language model with {name} failed: {reasons[0]}."
