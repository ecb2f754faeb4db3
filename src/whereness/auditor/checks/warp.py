"""CHK3: whether ids are honoured, a row at a time, and whether order matters at all.

A uniform shift cannot tell: a model that ignores its ids does not move either. So ids are spread
unevenly, rows get ids of their own, and tokens change places.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import driver_of
from whereness.auditor.driving.restore import in_float64, restored
from whereness.auditor.findings import Finding, Severity
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.views import Observed
from whereness.auditor.subject import Subject
from whereness.interop.config.keys import shown

CHECK = "CHK3"
SAME = 1e-6
"""Outputs nearer than this, relative to their size, are the same."""
TOKENS = 9


def run(subject: Subject) -> None:
    """Warp ids, mix rows and swap tokens."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    for view in observed.layers:
        if view.ids_ignored:
            subject.found(_ignored(view.index, view.where))
    driver = driver_of(subject)
    if isinstance(driver, str):
        return
    for probe in (_warp, _rows, _order):
        try:
            with (in_float64 if observed.exact else restored)(driver.model), torch.no_grad():
                driver.model.eval()
                probe(subject, observed, driver)
        except Refused as error:
            subject.not_checked(CHECK, str(error))


def _feeder(driver: Driver) -> Callable[[Tensor, Tensor], Tensor]:
    def feed(tokens: Tensor, ids: Tensor) -> Tensor:
        ones = torch.ones(ids.shape, dtype=torch.long, device=tokens.device)
        first = driver.first or 0
        return driver(tokens, positions=ids + first, mask=driver.ones(ones)).output

    return feed


def _warp(subject: Subject, observed: Observed, driver: Driver) -> None:
    """Ids that are not evenly spread must change the output."""
    if driver.positions is None or driver.takes == "pixels":
        subject.not_checked(CHECK, "the model takes no positions")
        return
    by_ids = [v for v in observed.layers if not v.crosses and (v.turns or v.tabled)]
    biased = [v for v in observed.layers if v.biased]
    if not by_ids and not biased:
        subject.not_checked(CHECK, "no layer knows of position")
        return
    feed, tokens = _feeder(driver), driver.sample(2, TOKENS)
    even = torch.arange(TOKENS, device=tokens.device).expand(2, -1)
    warped = even + (even > 2) * 2 + (even > 5) * 4
    changed = _apart(feed(tokens, even.clone()), feed(tokens, warped))
    told = any(view.ids_ignored for view in observed.layers)
    if changed <= SAME and not told and (why := _mute(driver)) is not None:
        subject.not_checked(CHECK, why)
        return
    subject.compared(CHECK, "ids")
    if changed > SAME or told:
        return
    subject.found(_ignored(None, driver.positions, "error" if by_ids else "note"))


def _rows(subject: Subject, observed: Observed, driver: Driver) -> None:
    """Every row has ids of its own: together they must give what each gives alone."""
    if driver.positions is None or driver.takes == "pixels":
        return
    feed, tokens = _feeder(driver), driver.sample(3, TOKENS, seed=2)
    even = torch.arange(TOKENS, device=tokens.device)
    ids = torch.stack([even, even + (even > 3) * 3, even + (even > 1) * 5])
    together = feed(tokens, ids)
    alone = torch.cat([feed(tokens[i : i + 1], ids[i : i + 1]) for i in range(3)])
    apart = _apart(together, alone)
    subject.compared(CHECK, "rows")
    if apart > 10 * SAME:
        subject.found(
            Finding(
                check=CHECK,
                kind="K13",
                severity="error",
                where=driver.positions,
                expected="each row of a batch is placed by its own ids",
                measured=f"a row differs by {apart:.2g} of its size from the same row alone",
                cause="the ids of one row are used for all, or the table is put on a wrong axis",
                remedy="index the table by (batch, token) and add the axis of heads after it",
            )
        )


def _order(subject: Subject, observed: Observed, driver: Driver) -> None:
    """Two tokens that change places must change what the others see, where position is known."""
    known = [
        v for v in observed.layers if not v.crosses and v.classified not in ("none", "unknown")
    ]
    if driver.takes != "tokens" or not known:
        return
    tokens = driver.sample(1, TOKENS, seed=4)
    swapped = tokens.clone()
    if int(tokens[0, 1]) == int(tokens[0, 3]):
        return
    swapped[0, 1], swapped[0, 3] = tokens[0, 3], tokens[0, 1]
    before, after = driver(tokens).output, driver(swapped).output
    same = _apart(before[:, -1:], after[:, -1:]) <= SAME * 1e-4
    if same and (why := _mute(driver)) is not None:
        subject.not_checked(CHECK, why)
        return
    subject.compared(CHECK, "order")
    if same:
        subject.found(
            Finding(
                check=CHECK,
                kind="K13",
                severity="error",
                where="",
                expected="swapping two tokens changes what a later token sees",
                measured="nothing changes",
                cause="attention runs over another axis than the tokens'; or positions are fixed",
                remedy="check the order of the axes (batch, heads, tokens, channels)",
            )
        )


def _mute(driver: Driver) -> str | None:
    """Why no token could tell of another one, though all be well; None if nothing forbids it."""
    if driver.takes == "tokens" and driver.vocab == 1:
        return "all tokens are alike: the vocabulary has one"
    for name, weight in driver.model.named_parameters():
        if weight.dim() > 1 and weight.numel() and not weight.any():
            return f"{shown(name)} is zero throughout: what attention reads may not come out"
    return None


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))


def _ignored(layer: int | None, where: str, severity: Severity = "error") -> Finding:
    return Finding(
        check=CHECK,
        kind="K13",
        severity=severity,
        layer=layer,
        where=where,
        expected="positions that are given are used",
        measured="unevenly spread positions act as 0, 1, 2, ...",
        cause="the argument is accepted and never reaches the encoding, which counts slots instead",
        remedy="hand the given positions down to the table or the rotation",
    )
