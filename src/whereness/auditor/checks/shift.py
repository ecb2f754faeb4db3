"""CHK2: whether positions far out are the ones that were asked for.

In the far run every pair is read at powers of two, which all formats hold, and beside them. What
the angles there lack of speed times position is float32's own rounding (below a quarter of
4 (2^-22 angle + 1e-6) in clean models), or rounded, wrapped, clamped or ignored positions. A shift
of all positions alike must not move relative layers, and must move absolute ones.
"""

import math

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import driver_of
from whereness.auditor.driving.restore import in_float64
from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.readout import ROTATION, Turning, exact
from whereness.auditor.reading.views import TOEPLITZ, LayerView, Observed
from whereness.auditor.subject import Subject

CHECK = "CHK2"
SHIFT, MOVED = 7, 1e-4
"""Positions moved by so many may change outputs of relative models by so much: float32 tables do
1e-6."""


def run(subject: Subject) -> None:
    """Judge the far run of every layer, then shift the whole model."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    if not observed.ids:
        subject.not_checked(CHECK, "; ".join(observed.why) or "the model takes no positions")
    driver = driver_of(subject)
    broken, flat = False, not isinstance(driver, str) and driver.takes != "pixels"
    for view in observed.layers:
        found = None if view.crosses else _far(view) or (flat and _uneven(view)) or None
        if found is not None:
            broken = True
            subject.found(found)
        elif view.far is not None and view.turns:
            subject.compared(CHECK, "positions", view.index, view.where)
    if observed.ids and not broken and not isinstance(driver, str):
        _whole(subject, observed, driver)


def _far(view: LayerView) -> Finding | None:
    if any(view.broken):
        return _no_numbers(view)
    if view.far is None:
        return None
    for side in view.far:
        turning = side.turning
        bent = turning.bent
        if bent and float(turning.skew.max()) <= ROTATION:
            return _named(view, turning, turning.positions.index(bent[0]))
    return None


def _no_numbers(view: LayerView) -> Finding:
    near = view.broken[0]
    return Finding(
        check=CHECK,
        kind="K06",
        severity="error",
        layer=view.index,
        where=view.where,
        expected="queries and keys are numbers at every position",
        measured=f"some are NaN or infinite {'near position 0' if near else 'far out'}",
        cause="angles overflow the format that they are formed in (float16 ends at 65504)",
        remedy="form angles in float32 or better, and round only cos and sin",
    )


def _named(view: LayerView, turning: Turning, slot: int) -> Finding:
    position = turning.positions[slot]
    taken = turning.taken(position)
    kind, cause, remedy = _cause(turning, taken, position)
    return Finding(
        check=CHECK,
        kind=kind,
        severity="error",
        layer=view.index,
        where=view.where,
        expected=f"channels are turned by their speed x {position} at position {position}",
        measured=f"by their speed x {taken:.6g} (up to whole turns)",
        cause=cause,
        remedy=remedy,
    )


def _cause(turning: Turning, taken: float, position: int) -> tuple[str, str, str]:
    """Kind, cause and remedy of a position that was taken for another."""
    wrong = [p for p in turning.bent if not exact(p)]
    if turning.warped:
        return (
            "K13",
            "other positions reach the pairs than the ones that were given",
            "hand the positions down unchanged, to queries and keys alike",
        )
    for dtype, name, digits in ((torch.bfloat16, "bfloat16", 8), (torch.float16, "float16", 11)):
        rounded = float(torch.tensor(float(position)).to(dtype))
        first = 2**digits + 1
        if wrong and wrong[0] == first and abs(taken - rounded) < 0.01:
            return (
                "K06",
                f"positions pass through {name}, which cannot hold {first}",
                "keep positions in integers, or float32 at least, until the angles are made",
            )
    if position >= 2**15 and (not wrong or wrong[0] > 2**15):
        return (
            "K06",
            "positions are held in an integer type that wraps around",
            "hold positions in int64",
        )
    return (
        "K06",
        (
            "angles are rounded more than float32 does: positions, frequencies or their product "
            "are held in a smaller format"
        ),
        "form angles in float32 or better, and round only cos and sin",
    )


def _uneven(view: LayerView) -> Finding | None:
    """Scores that do not depend on the offset alone, where nothing else says why."""
    if view.uneven is None or view.uneven <= TOEPLITZ or view.tabled or view.content_aware:
        return None
    if view.best is None or not view.turns or view.biased:
        return None
    q, k = (side.turning for side in view.best)
    if bool(q.shifted.any() or k.shifted.any()) or q.strays() or k.strays():
        return None  # absolute by design, or told by the check of channels
    if bool(q.turns.any()) != bool(k.turns.any()) or _grows(q) or _grows(k):
        return None  # told by the check of spectra
    if max(float(q.skew.max()), float(k.skew.max())) > TOEPLITZ:
        return None
    return Finding(
        check=CHECK,
        kind="K13",
        severity="error",
        layer=view.index,
        where=view.where,
        expected="scores of equal tokens depend on their offset alone",
        measured=f"they differ by {view.uneven:.2g} of their size along a diagonal",
        cause="queries and keys are turned by different positions, or at different speeds",
        remedy="turn queries and keys by one table, each by its own positions",
    )


def _grows(turning: Turning) -> bool:
    return float((turning.growth[..., :2] - 1).abs().max()) > TOEPLITZ or not math.isfinite(
        float(turning.growth.max())
    )


def _whole(subject: Subject, observed: Observed, driver: Driver) -> None:
    """Shift all positions of the model by a few."""
    classes = {view.classified for view in observed.layers if not view.crosses}
    if not classes & {"relative", "absolute"} or classes & {"content-aware", "unknown"}:
        return
    if "absolute" not in classes and not _all_attend(subject, observed):
        subject.not_checked(
            CHECK, "layers without attention may use positions in ways of their own"
        )
        return
    try:
        with in_float64(driver.model), torch.no_grad():
            driver.model.eval()
            moved = _moved(driver)
    except Refused as error:
        subject.not_checked(CHECK, str(error))
        return
    subject.compared(CHECK, "shift")
    if "absolute" not in classes and moved > MOVED:
        subject.found(_shifted(moved))


def _all_attend(subject: Subject, observed: Observed) -> bool:
    """Whether attention was seen in as many layers as the config has."""
    for name, layers in subject.expected.items():
        seen = {view.index for view in observed.layers if view.part == name}
        if layers.counted and len(seen) < len(layers.each):
            return False
    return True


def _moved(driver: Driver) -> float:
    """How much outputs change when all positions move, relative to their size."""
    first = driver.first or 0
    tokens = driver.sample(2, 6)
    ones = driver.ones(torch.ones(2, 6, dtype=torch.long, device=tokens.device))
    at = torch.arange(6, device=tokens.device).expand(2, -1) + first
    before: Tensor = driver(tokens, positions=at.clone(), mask=ones).output
    after: Tensor = driver(tokens, positions=at + SHIFT, mask=ones).output
    return float((after - before).abs().max() / before.abs().max().clamp_min(1e-30))


def _shifted(moved: float) -> Finding:
    return Finding(
        check=CHECK,
        kind="K13",
        severity="error",
        where="",
        expected=f"all layers are relative: positions moved by {SHIFT} change nothing",
        measured=f"outputs change by {moved:.2g} of their size",
        cause="positions reach the output by another way than the offsets of attention",
        remedy="look for code that uses positions beside attention: masks, scales, a table",
    )
