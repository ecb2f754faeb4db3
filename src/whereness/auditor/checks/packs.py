"""CHK6: documents packed into one row give what they give alone, outputs and gradients.

Boundaries and numbering are judged apart: for relative positions only the mask matters, for
absolute ones both. Boundaries are given as the model takes them: numbers of documents, or a mask
(B, 1, S, T); what it cannot be told is not checked.

Axes: B batch, S tokens, T keys.
"""

from typing import Any

import torch
from torch import Tensor

from whereness.auditor.checks.masks import sight
from whereness.auditor.driving.classes import whole_class
from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench, change, probed, windows
from whereness.auditor.findings import Severity
from whereness.auditor.subject import Subject

CHECK = "CHK6"
FIRST, SECOND = 3, 4
"""Tokens of the two documents: together fewer than the narrowest window of the models at hand."""
MOST_WEIGHTS = 20_000_000
"""Weights up to which gradients are compared: they take as much memory as the model, twice."""


def run(subject: Subject) -> None:
    """Look at packed rows."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    if driver.takes == "pixels":
        bench.not_checked("images and sounds are not packed by tokens")
        return
    if any(w < FIRST + SECOND for w in windows(driver)):
        bench.not_checked("windows are narrower than the documents of this probe")
        return
    if driver.positions is not None and driver.first is None:
        bench.not_checked("no explicit ids number as the model itself does")
        return
    _guessed(bench)
    ways = boundaries(bench)
    if not ways:
        bench.not_checked("the model cannot be told where a packed document begins")
    for name, given in ways:
        try:
            _way(bench, name, given)
        except Refused as error:
            bench.not_checked(f"packing by {name}: the model raised {error}")


def boundaries(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    """Ways to say where the second document begins, that mean nothing if there is only one."""
    driver, total = bench.driver, FIRST + SECOND
    tokens = driver.sample(1, total)
    plain = bench.run(tokens)
    document = (torch.arange(total, device=driver.device) >= FIRST).long()[None]
    causal = sight(bench).causal
    open_ = torch.ones(total, total, dtype=torch.bool, device=driver.device)
    open_ = (open_.tril() if causal else open_)[None, None]
    apart = open_ & (document[:, None, :, None] == document[:, None, None, :])
    found = []
    for name, one, two in (
        ("documents", {"segments": torch.zeros_like(document)}, {"segments": document}),
        ("a mask", {"mask": open_}, {"mask": apart}),
    ):
        try:
            same = bench.run(tokens, **one)
        except Refused:
            continue
        if not bench.differ(same, plain):
            found.append((name, two))
    return found


def _way(bench: Bench, name: str, given: dict[str, Any]) -> None:
    driver = bench.driver
    first, second = driver.sample(1, FIRST, seed=1), driver.sample(1, SECOND, seed=2)
    alone = bench.run(second)
    how = dict(given)
    reset = driver.first is not None
    if reset:
        how["positions"] = torch.cat([bench.natural(1, FIRST), bench.natural(1, SECOND)], 1)
    packed = bench.run(torch.cat([first, second], 1), **how)
    other = driver.sample(1, FIRST, seed=3)
    leaked = bench.run(torch.cat([other, second], 1), **how)
    seen = change(leaked[:, FIRST:], packed[:, FIRST:])
    gap = change(packed[:, FIRST:], alone)
    if not seen <= bench.tolerance:
        measured = f"another first document changes the second by {seen:.1e}"
        if name == "a mask" and bench.mixes:  # also behind a mask by which each sees itself alone
            _found(bench, name, measured, _MIXES, "warning")
        else:
            _found(bench, name, measured, _LEAKS)
    elif not gap <= bench.tolerance:
        if not reset and name == "a mask" and whole_class(bench) != "relative":
            bench.not_checked("numbering of packed rows: the model takes no ids")
            return
        cause = _IGNORED if reset else _NOT_RESET
        _found(
            bench,
            name,
            f"the second document changes by {gap:.1e}, whatever stands before it",
            cause,
        )
    else:
        _gradients(bench, name, first, second, how)
    bench.compared(f"packing by {name}")


_LEAKS = (
    "The boundary is ignored: tokens attend into the document before them.",
    "Mask by document in every layer; ids that begin again do not do it.",
)
_MIXES = (
    "No mask reaches what reads other tokens: a convolution, a recurrence, attention off by one.",
    "Do not pack rows by a mask alone here: give the boundaries to those layers as well.",
)
_IGNORED = (
    "The mask is right but the ids are not: they are ignored, or counted from the row's start.",
    "Look tables up by the ids that are given.",
)
_NOT_RESET = (
    "The mask is right but the second document is numbered on from the first.",
    "Begin the numbers again at every boundary.",
)


def _guessed(bench: Bench) -> None:
    """Ids that go on after a gap, or begin late, are no boundary where a mask says "one row"."""
    driver = bench.driver
    if driver.first is None or driver.mask is None:
        return
    total = FIRST + SECOND
    tokens, ids = driver.sample(1, total), bench.natural(1, total)
    mask = torch.ones_like(ids)
    other = torch.cat([driver.sample(1, FIRST, seed=3), tokens[:, FIRST:]], 1)
    gap = ids + (torch.arange(total, device=ids.device) >= FIRST) * 3
    try:
        bench.run(tokens, positions=ids, mask=mask)
    except Refused:
        return
    for name, where in {"ids after a gap": gap, "ids that begin at 5": ids + 5}.items():
        try:
            got, moved = (bench.run(t, positions=where, mask=mask) for t in (tokens, other))
        except Refused as error:
            if driver.max_tokens is None or driver.max_tokens > total + 8:
                _found(bench, name, f"the model raised {error}", _GUESSED)
                return
            continue
        seen = change(moved[:, FIRST:], got[:, FIRST:])
        alone = change(bench.run(other)[:, FIRST:], bench.run(tokens)[:, FIRST:])
        if seen <= bench.tolerance < alone:
            _found(bench, name, "tokens after it no longer see those before", _GUESSED)
            return
    bench.compared("boundaries are not guessed")


_GUESSED = (
    "Where a document begins is guessed from the ids.",
    "Take boundaries as such (numbers of documents, lengths); ids only say where a token is.",
)


def _found(
    bench: Bench,
    name: str,
    measured: str,
    why: tuple[str, str],
    severity: Severity = "error",
) -> None:
    bench.found(
        "K10",
        severity,
        expected="a packed document gives the output that it gives alone",
        measured=f"packed by {name}: {measured}",
        cause=why[0],
        remedy=why[1],
    )


def _gradients(bench: Bench, name: str, first: Tensor, second: Tensor, how: dict[str, Any]) -> None:
    """The sum of the gradients alone is the gradient of the packed row."""
    weights = [p for p in bench.model.parameters() if p.requires_grad]
    if not weights or sum(p.numel() for p in weights) > MOST_WEIGHTS:
        bench.not_checked("gradients of packed rows: no weights that train, or too many")
        return

    def slope(tokens: Tensor, **given: Any) -> list[Tensor]:
        with bench.alone() as driver, torch.enable_grad():
            output = driver(tokens, **given).output
            # Weights of the sum that no norm cancels, the same for a token wherever it stands.
            generator = torch.Generator().manual_seed(0)
            factor = torch.randn(output.shape[-1], generator=generator).to(output)
            found = torch.autograd.grad((output * factor).sin().sum(), weights, allow_unused=True)
        return [
            torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)
        ]

    try:
        packed = slope(torch.cat([first, second], 1), **how)
        apart = [a + b for a, b in zip(slope(first), slope(second), strict=True)]
    except (Refused, RuntimeError) as error:
        bench.not_checked(f"gradients of packed rows: {error}")
        return
    size = max(float(g.abs().max()) for g in apart)
    gap = max(float((a - b).abs().max()) for a, b in zip(packed, apart, strict=True))
    bench.compared("gradients of packed rows")
    if not gap <= bench.tolerance * size:
        _found(
            bench,
            name,
            f"outputs agree, gradients differ by {gap / size:.1e} of the largest",
            (
                "The backward pass uses another mask or other positions than the forward pass.",
                "Derive both from the same ids; check a custom kernel's backward.",
            ),
        )
