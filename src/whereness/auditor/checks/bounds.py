"""CHK10: a position without a row is refused, or grown to; never wrapped, clamped or passed over.

The last of some tokens is put at ids around the end of what the model admits. Two ids that give the
same output share a row: what was asked for is not what was looked up.

Axes: B batch, S tokens.
"""

import torch

from whereness.auditor.checks.cache import thresholds
from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench, change, decoded, probed
from whereness.auditor.findings import Severity
from whereness.auditor.subject import Subject

CHECK = "CHK10"
LENGTH = 5
FARTHEST = 1100
"""Tokens of the longest run for models that take no ids."""
SAME = 1e-12
"""Outputs of two ids that looked up one row are equal but for the order of sums."""


def run(subject: Subject) -> None:
    """Look at positions around the end of the table."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    most = driver.max_tokens or _rows(bench)
    if driver.takes == "pixels":
        bench.not_checked("images and sounds have no ids to set")
    elif most is None:
        bench.not_checked("nothing says how many positions there are")
    elif driver.first is None:
        _by_length(bench, most)
    else:
        _by_ids(bench, most)


def _rows(bench: Bench) -> int | None:
    """Rows of this library's own learned tables, which no config names."""
    found = [getattr(m, "num_positions", None) for m in bench.model.modules()]
    rows = [f for f in found if isinstance(f, int)]
    return min(rows, default=None)


def _by_length(bench: Bench, most: int) -> None:
    """As many tokens as are admitted, and one more."""
    driver = bench.driver
    if most + 2 > FARTHEST:
        bench.not_checked(f"{most} tokens are too many to run, and the model takes no ids")
        return
    try:
        bench.run(driver.sample(1, most))
    except Refused as error:
        _too_short(bench, most, f"{most} tokens: {error}")
        return
    bench.compared("bounds")
    try:
        short = bench.run(driver.sample(1, most + 2))
    except Refused:
        return  # said loudly
    if not short.isfinite().all():
        _silent(bench, f"{most + 2} tokens give NaN", "rows beyond the table are read")


def _by_ids(bench: Bench, most: int) -> None:
    driver = bench.driver
    tokens, ids = driver.sample(1, LENGTH), bench.natural(1, LENGTH)
    mask = driver.ones(torch.ones_like(ids))
    start = ids.clone()

    def at(last: int) -> torch.Tensor:
        ids = start.clone()
        ids[:, -1] = last
        return bench.run(tokens, positions=ids, mask=mask)

    try:
        top = at(most - 1)
    except Refused as error:
        _too_short(bench, most, f"id {most - 1}: {error}")
        return
    bench.compared("bounds")
    near = {i: at(i) for i in (most - 2, 0, 1) if 0 <= i < most - 1}
    if all(change(other, top) <= SAME for other in near.values()):
        return  # no id matters: CHK3's
    last = near.get(most - 2)
    if last is not None and change(last, top) <= SAME:
        _too_short(bench, most, f"ids {most - 2} and {most - 1} give the same output")
        return
    known = {most - 1: top, **near}
    for asked in (most, most + 1, 2 * most, -1):
        try:
            got = at(asked)
        except Refused as error:
            if asked == most and not (str(most) in str(error) and str(asked) in str(error)):
                _unsaid(bench, most, str(error))
            continue
        if not got.isfinite().all():
            _silent(bench, f"id {asked} gives NaN", "a row beyond the table is read")
            return
        twin = next((i for i, other in known.items() if change(got, other) <= SAME), None)
        if twin is not None:
            rule = "clamped to the last row" if twin == most - 1 and asked > 0 else "wrapped around"
            if twin == 0 and asked not in (-1, most, 2 * most):
                rule = "passed over without a position"
            # Below 0 is the caller's fault, and Python's indexing counts from the end.
            severity = "error" if asked > 0 else "warning"
            measured = f"id {asked} of {most} gives the output of id {twin}"
            _silent(bench, measured, f"ids are {rule}", severity)
            return
        known[asked] = got
    if bench.driver.caches and not thresholds(bench.driver):  # those are CHK4's
        _crossing(bench, most)


def _crossing(bench: Bench, most: int) -> None:
    """A cache that ends before the bound, and new tokens past it."""
    driver = bench.driver
    tokens = driver.sample(1, 8)
    ids = torch.arange(most - 5, most + 3, device=driver.device)[None]
    mask = driver.ones(torch.ones_like(ids))
    try:
        whole = bench.run(tokens, positions=ids, mask=mask)
        with bench.alone():
            got = decoded(driver, tokens, [4, 4], positions=ids, mask=mask)[0]
    except Refused:
        return
    if bench.differ(got, whole):
        _silent(
            bench,
            f"tokens at {most - 5} to {most + 2} through a cache change {change(got, whole):.1e}",
            "the bound is handled by another rule with a cache",
        )


def _too_short(bench: Bench, most: int, measured: str) -> None:
    bench.found(
        "K12",
        "error",
        expected=f"{most} positions work, for the model says that it has them",
        measured=measured,
        cause="The table has fewer rows than the length that is advertised (a prefix or an offset"
        " takes some, or a scaling was applied to one of the two).",
        remedy="Make the table as long as the admitted length, or admit what it has.",
    )


def _unsaid(bench: Bench, most: int, said: str) -> None:
    bench.found(
        "K12",
        "note",
        expected=f"id {most} is refused with a message that names it and the {most} rows",
        measured=f"it raised {said[:120]}",
        cause="The lookup itself fails; on a GPU that is an assertion that ends the process.",
        remedy="Compare the length with the rows on the host, before the lookup.",
    )


def _silent(bench: Bench, measured: str, rule: str, severity: Severity = "error") -> None:
    bench.found(
        "K12",
        severity,
        expected="an id without a row is refused with both numbers, or the table grows",
        measured=measured,
        cause=f"Out of bounds, {rule}: silently another position.",
        remedy="Check ids against the rows before the lookup and raise.",
    )
