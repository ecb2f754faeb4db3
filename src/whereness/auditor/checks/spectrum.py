"""CHK1: how fast every pair of channels turns, and how large cos and sin are, against the config.

Speeds may be off by 3e-6 of themselves and 8e-7 radians over the farthest position: the worst that
float32 tables of clean models were seen to do is a seventh of it.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.comparing import NAMES, Compare, compares
from whereness.auditor.reading.expectation import LEARNED_TURNS, ROTARY, expected_sides
from whereness.auditor.reading.speeds import Known, cause_of
from whereness.auditor.subject import Subject

CHECK = "CHK1"
SIZE = 1e-5
"""How far an amplitude may be off, relative; clean ones stay below 7e-8."""


def run(subject: Subject) -> None:
    """Compare spectrum and amplitude of every layer with the config's."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    for each in compares(subject, observed, CHECK):
        if each.expected.of(*LEARNED_TURNS):
            why = "its frequencies are learned, and the config does not say them"
            subject.not_checked(CHECK, why, each.view.index, each.view.where)
            continue
        _layer(subject, each)


def _layer(subject: Subject, each: Compare) -> None:
    view = each.view
    if _one_sided(subject, each) or any(side.turning.warped for side in each.got):
        return  # the check of shifts tells of positions that are others
    told: set[str] = set()
    compared = False
    for side in (0, 1):
        for head in range(each.heads(side)):
            got, want = each.pairs(side, head)
            if got.keys() != want.keys():
                continue  # another width or pairing, or none: for the checks of channels, layers
            compared = compared or bool(want)
            what = _speeds(subject, each, side, head) or _sizes(each, side, head)
            if what is not None and what.cause not in told:
                told.add(what.cause)
                subject.found(what)
    _scaled(subject, each)
    if compared:
        subject.compared(CHECK, "spectrum", view.index, view.where)


def _one_sided(subject: Subject, each: Compare) -> bool:
    turns = [bool(each.got[side].turning.turns.any()) for side in (0, 1)]
    if turns[0] == turns[1] or not each.expected.turns:
        return False
    still = NAMES[turns.index(False)]
    other = NAMES[turns.index(True)]
    subject.found(
        _finding(
            each,
            "K23",
            expected="queries and keys turn alike",
            measured=f"{other} turn, {still} do not",
            cause=f"the rotation is applied to {other} alone, so scores depend on absolute places",
            remedy=f"turn the {still} by their own positions as well",
        )
    )
    return True


def _speeds(subject: Subject, each: Compare, side: int, head: int) -> Finding | None:
    turning = each.got[side].turning
    got, want = each.pairs(side, head)
    order = sorted(want)
    wrong = [p for p in order if abs(got[p] - want[p]) > turning.tolerance(want[p])]
    if not wrong:
        return None
    measured, expected = [got[p] for p in order], [want[p] for p in order]
    cause = cause_of(measured, expected, _known(subject, each))
    worst = max(wrong, key=lambda p: abs(got[p] - want[p]) / (abs(want[p]) + 1e-12))
    return _finding(
        each,
        cause.kind,
        expected=f"channels {worst[0]} and {worst[1]} turn {want[worst]:.9g} a token",
        measured=f"{got[worst]:.9g} in the {NAMES[side]}; {len(wrong)} of {len(order)} differ",
        cause=cause.cause,
        remedy=cause.remedy,
    )


def _known(subject: Subject, each: Compare) -> Known:
    found = each.expected.of(*ROTARY)
    encoding: Any = None if found is None else found[1]
    plain = None
    if getattr(encoding, "scaling", None) is not None:
        plain = _plain(each, encoding)
    return Known(
        base=getattr(encoding, "base", None),
        rotary_dim=getattr(encoding, "rotary_dim", each.view.head_dim),
        head_dim=each.view.head_dim,
        plain=plain,
        others=_others(subject, each),
        farthest=each.got[0].turning.farthest,
    )


def _plain(each: Compare, encoding: Any) -> list[float] | None:
    """Speeds of the same encoding without its scaling, of the pairs that are compared."""
    import whereness as wn

    rope = wn.RoPE(encoding.head_dim, encoding.base, encoding.pairing, encoding.rotary_dim)
    pairs = each.pairs(0)[1]
    speeds = rope.frequencies.tolist()
    return speeds if len(speeds) == len(pairs) else None


def _others(subject: Subject, each: Compare) -> dict[str, Sequence[float]]:
    """Spectra that other layers of the part are to have."""
    found: dict[str, Sequence[float]] = {}
    built = subject.shared.get("built", {})
    positions = each.got[0].turning.positions
    pairs = sorted(each.pairs(0)[1])
    for layer, expected in built.items():
        if isinstance(expected, str) or layer == each.expected.layer or not expected.turns:
            continue
        sides = expected_sides(subject, expected, positions, each.want[0].width)
        if not isinstance(sides, str):
            theirs = sides[0].pairs(0)
            if all(p in theirs for p in pairs):
                found[f"layers of another type, {expected}"] = [theirs[p] for p in pairs]
    return found


def _sizes(each: Compare, side: int, head: int) -> Finding | None:
    """Amplitude at position 0, and growth from there."""
    got, want = each.got[side], each.want[side]
    growth = got.turning.growth[head], want.turning.growth[0]
    if growth[0].shape != growth[1].shape or _by_slots(each, growth[0]):
        return None
    off = (growth[0] - growth[1]).abs() / growth[1].abs().clamp_min(1e-30)
    if float(off.max()) > SIZE:
        channel, slot = divmod(int(off.argmax()), off.shape[-1])
        at = got.turning.positions[slot]
        return _finding(
            each,
            "K04",
            expected=f"channel {channel} is {float(growth[1][channel, slot]):.7g} times as large "
            f"at position {at} as at 0",
            measured=f"{float(growth[0][channel, slot]):.7g} times in the {NAMES[side]}",
            cause="cos and sin have a factor that changes with position",
            remedy="use one amplitude for all positions, the config's",
        )
    return _amplitude(each, side, head)


def _scaled(subject: Subject, each: Compare) -> None:
    """The factor on scores, of the scalings that have one beside 1/sqrt(D) (DeepSeek's YaRN)."""
    width, scale = each.view.head_dim, each.view.scale
    factor = math.prod(encoding.logit_scale(width) for encoding in each.expected.encodings)
    if scale is None or abs(factor - 1) < SIZE:
        return
    measured = scale * width**0.5
    if abs(measured - factor) <= SIZE * factor:
        return
    subject.found(
        _finding(
            each,
            "K04",
            expected=f"scores are scaled by {factor:.7g} / sqrt({width})",
            measured=f"by {measured:.7g} / sqrt({width})",
            cause="the factor of the scores (mscale squared) was left out, or applied to cos and "
            "sin as well",
            remedy="multiply the softmax scale by the factor that the rope settings imply, once",
        )
    )


def _by_slots(each: Compare, growth: Tensor) -> bool:
    """A temperature that counts slots whatever the ids say: nothing grows in the far run."""
    return (
        each.run == "far"
        and each.expected.of("Temperature") is not None
        and float((growth - 1).abs().max()) <= SIZE
    )


def _amplitude(each: Compare, side: int, head: int) -> Finding | None:
    """cos and sin at position 0, where nothing turns: keys, and queries beside their own rest."""
    got, want = each.got[side], each.want[side]
    if not bool(got.basis.found[head].all()):
        return None
    ratio = got.basis.ratio[head]
    order = got.basis.order[head]
    turns = want.turning.turns[0][order]
    if not bool(turns.any()):
        return None
    wanted = float(want.basis.ratio[0][want.turning.turns[0]].median())
    measured = float(ratio[turns].median())
    if side == 0 or not bool((~turns).all()):
        rest = ratio[~turns]
        if rest.numel():
            measured = measured / float(rest.median())
        elif side == 0:
            return None  # a factor on queries may be the scale of the scores
    if abs(measured - wanted) <= SIZE * abs(wanted):
        return None
    return _finding(
        each,
        "K04",
        expected=f"cos and sin have the amplitude {wanted:.7g}",
        measured=f"{measured:.7g} in the {NAMES[side]}",
        cause="the attention factor of the rope settings was left out, doubled or applied twice",
        remedy="multiply cos and sin by the config's attention factor, once",
    )


def _finding(each: Compare, kind: str, **said: str) -> Finding:
    return Finding(
        check=CHECK,
        kind=kind,
        severity="error",
        layer=each.view.index,
        where=each.view.where,
        **said,
    )
