"""CHK12: which channels turn, with which partner, and whether that is a rotation.

A pair that is no rotation changes the length of a vector; clean ones keep it to 2e-7.
"""

from typing import Any

from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.comparing import NAMES, Compare, Pairs, compares
from whereness.auditor.reading.readout import ROTATION
from whereness.auditor.reading.views import LayerView, pairing_of
from whereness.auditor.subject import Subject

CHECK = "CHK12"


def run(subject: Subject) -> None:
    """Read pairs, width and norm of every layer, and compare them with the config's."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    broken = set()
    for view in observed.layers:
        found = _no_rotation(view)
        if found is not None:
            broken.add(id(view))
            subject.found(found)
    for each in compares(subject, observed, CHECK):
        added = any(bool(side.turning.shifted.any()) for side in each.got)
        if id(each.view) in broken or added:
            continue
        if each.expected.turns and each.view.turns:
            _layer(subject, each)


def _no_rotation(view: LayerView) -> Finding | None:
    """Channels that change by position and are no rotation in pairs: no config is needed."""
    if view.best is None or view.crosses:
        return None
    for name, side in zip(NAMES, view.best, strict=True):
        turning = side.turning
        if bool(turning.shifted.any()):
            continue
        for head in range(turning.partner.shape[0]):
            strays = turning.strays(head)
            skew = float(turning.skew[head].max())
            if not strays and skew <= ROTATION:
                continue
            if len(strays) == turning.partner.shape[1]:
                return _mixed(view, name, head)
            told = (
                f"channels {_few(strays)} have no partner"
                if strays
                else (f"a pair's cosines and sines differ by {skew:.2g}")
            )
            return Finding(
                check=CHECK,
                kind="K01",
                severity="error",
                layer=view.index,
                where=view.where,
                expected="channels turn in pairs, each pair by one angle, so lengths are kept",
                measured=f"head {head} of the {name}: {told}",
                cause="the table of cos and sin is laid out for one pairing and the rotation step "
                "pairs channels another way",
                remedy="make table and rotation use one pairing, the one that the weights have",
            )
    return None


def _mixed(view: LayerView, name: str, head: int) -> Finding:
    """Every channel depends on all others: something turned before the projections, or noise."""
    return Finding(
        check=CHECK,
        kind="K01",
        severity="warning",
        layer=view.index,
        where=view.where,
        expected="position acts on queries and keys, in pairs of channels",
        measured=f"head {head} of the {name}: every channel mixes with many others by position",
        cause="what is projected to queries and keys was turned before the projection",
        remedy="turn after the projections, unless the model was trained so",
    )


def _layer(subject: Subject, each: Compare) -> None:
    view, told = each.view, False
    for side in (0, 1):
        for head in range(each.heads(side)):
            got, want = each.pairs(side, head)
            if not told and got and want and got.keys() != want.keys():
                if not each.known_basis(side):
                    why = "its channels could not be followed back to the weights"
                    subject.not_checked(CHECK, why, view.index, view.where)
                    return
                told = True
                subject.found(_mismatch(each, side, head, got, want))
            if not told and not got and want and view.turns:
                told = _still(subject, each, side, head)
    subject.compared(CHECK, "width", view.index, view.where)


def _still(subject: Subject, each: Compare, side: int, head: int) -> bool:
    """A head that does not turn where others of its side do."""
    if not bool(each.got[side].turning.turns.any()):
        return False  # all of a side: the check of spectra
    subject.found(
        Finding(
            check=CHECK,
            kind="K03",
            severity="error",
            layer=each.view.index,
            where=each.view.where,
            expected="every head turns",
            measured=f"head {head} of the {NAMES[side]} does not",
            cause="the rotation is applied before heads are split, or to some heads only",
            remedy="split heads first, and turn each by the same table",
        )
    )
    return True


def _mismatch(each: Compare, side: int, head: int, got: Pairs, want: Pairs) -> Finding:
    mine, theirs = _channels(got), _channels(want)
    same = mine == theirs
    axis = _lost_axis(each, got, want)
    if axis is not None:
        kind, cause = (
            "K15",
            (f"the pairs of axis {axis} do not turn: its ids are constant, or not handed down"),
        )
        remedy = "give every axis its own ids; a text token has the same number on all"
    elif same:
        kind, cause = (
            "K01",
            (
                "weights of one pairing are run by code of the other: they were converted without "
                "permuting q and k, or permuted twice"
            ),
        )
        remedy = (
            "permute the rows of the q and k projections (whereness convert), or switch pairing"
        )
    elif len(mine) == len(theirs):
        kind, cause = "K03", "the channels that turn stand at another place of the head"
        remedy = "turn the channels that the config's family turns (leading or trailing)"
    else:
        kind, cause = (
            "K03",
            ("another part of the head turns: the partial factor is not read, or read twice"),
        )
        remedy = "turn as many channels as the config says"
    return Finding(
        check=CHECK,
        kind=kind,
        severity="error",
        layer=each.view.index,
        where=each.view.where,
        expected=f"{len(theirs)} channels turn ({_spans(theirs)}), pairing {pairing_of(want)}",
        measured=f"head {head} of the {NAMES[side]}: {len(mine)} ({_spans(mine)}), pairing "
        f"{pairing_of(got)}",
        cause=cause,
        remedy=remedy,
    )


def _lost_axis(each: Compare, got: Pairs, want: Pairs) -> int | None:
    """The axis whose pairs, and no others, do not turn."""
    found = each.expected.of("MultimodalRoPE")
    if found is None or not got.keys() < want.keys():
        return None
    encoding: Any = found[1]
    of_pair: tuple[int, ...] = encoding.axis_of_pair
    order = sorted(want)
    if len(order) != len(of_pair):
        return None
    lost = {of_pair[i] for i, p in enumerate(order) if p not in got}
    left = {of_pair[i] for i, p in enumerate(order) if p in got}
    return min(lost) if len(lost) == 1 and not lost & left else None


def _channels(pairs: Pairs) -> set[int]:
    return {channel for pair in pairs for channel in pair}


def _spans(channels: set[int]) -> str:
    from whereness.interop.config.reader import numbers

    return numbers(sorted(channels)) if channels else "none"


def _few(channels: list[int]) -> str:
    told = ", ".join(map(str, channels[:6]))
    return told + (", ..." if len(channels) > 6 else "")
