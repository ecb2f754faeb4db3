"""CHK19: the output depends on the input alone, not on earlier calls.

Short, long, short again; the same shape at another offset; eval, train, eval; the same call twice.
Runs before the others: long inputs and large ids are what hides it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.checks.cache import thresholds
from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import Bench, change, probed
from whereness.auditor.subject import Subject

CHECK = "CHK19"
SHORT, LONG, FARTHEST = 6, 48, 512
SHIFT = 5
ALIKE = 1e-9
"""Two runs of the same call in float64: only threads that add in another order differ."""


def run(subject: Subject) -> None:
    """Look for a memory of past calls."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    tokens = driver.sample(2, SHORT)
    fresh = bench.run(tokens)
    with bench.alone():
        driver(tokens)
        again = _seeded(driver, tokens)
    if _moved(bench, again, fresh, "the same call twice", "the first call"):
        return
    if driver.takes != "pixels":
        _after_long(bench, tokens, fresh)
        _offsets(bench, tokens)
        _keys(bench, tokens)
    _modes(bench, tokens, fresh)
    bench.compared("state")


def _seeded(driver: Driver, tokens: Tensor, **how: Any) -> Tensor:
    """A run with the random numbers of the first one: some models draw in eval mode, too."""
    torch.manual_seed(0)
    return driver(tokens, **how).output


def _moved(bench: Bench, got: Tensor, fresh: Tensor, how: str, after: str) -> bool:
    gap = change(got, fresh)
    if gap <= (ALIKE if bench.exact else bench.tolerance):
        return False
    bench.found(
        "K05",
        "error",
        expected="the output that the same input gave before",
        measured=f"{how}: the output changes by {gap:.1e}",
        cause=f"A table or counter that {after} changed is kept and used for other inputs.",
        remedy="Make tables from the settings and the input alone, and key what is kept by both.",
    )
    return True


def lengths(driver: Driver) -> list[int]:
    """Long inputs: past every length at which tables change or grow, as far as that is cheap."""
    most = driver.max_tokens
    wanted = [LONG, *(t + 3 for t in [*thresholds(driver), most or 0])]
    return sorted({w for w in wanted if SHORT < w <= FARTHEST})


def _after_long(bench: Bench, tokens: Tensor, fresh: Tensor) -> None:
    """What a longer input leaves behind."""
    for length in lengths(bench.driver):
        with bench.alone() as driver:
            try:
                driver(driver.sample(1, length))
            except Refused:
                continue  # longer than it can: bounds are CHK10's
            if _moved(
                bench, _seeded(driver, tokens), fresh, f"after {length} tokens", "a long input"
            ):
                return


def _offsets(bench: Bench, tokens: Tensor) -> None:
    """The same shape at other positions, before and after."""
    driver = bench.driver
    if driver.first is None:
        return
    ids = bench.natural(2, SHORT)
    mask = driver.ones(torch.ones_like(ids))
    # The shifts alone do nothing to relative positions; the stretched ones do.
    stretched = (ids - ids[:, :1]) * 2 + ids[:, :1]
    for moved in (ids + SHIFT, stretched):
        alone = bench.run(tokens, positions=moved, mask=mask)
        with bench.alone():
            first = _seeded(driver, tokens, positions=ids, mask=mask)
            after = _seeded(driver, tokens, positions=moved, mask=mask)
            third = _seeded(driver, tokens, positions=ids, mask=mask)
        gap = max(change(after, alone), change(third, first))
        if not gap <= (ALIKE if bench.exact else bench.tolerance):
            bench.found(
                "K08",
                "error",
                expected="ids of the same shape and other values give their own output",
                measured=f"after a call at other offsets the output changes by {gap:.1e}",
                cause="A table is kept by shape or length alone, without its offset.",
                remedy="Key what is kept by its ids, or keep nothing.",
            )
            return


def _keys(bench: Bench, tokens: Tensor) -> None:
    """A forward pass that adds to what the model saves."""
    before = set(bench.model.state_dict())
    with bench.alone() as driver:
        driver(tokens)
        after = set(bench.model.state_dict())
    if after != before:
        bench.found(
            "K07",
            "error",
            expected="a forward pass leaves the keys of the state_dict as they are",
            measured=f"keys that come or go: {', '.join(sorted(after ^ before)[:4])}",
            cause="A table is registered, as persistent, when it is first used.",
            remedy="Register tables in the constructor, non-persistent.",
        )


def _modes(bench: Bench, tokens: Tensor, fresh: Tensor) -> None:
    """A training step in between; running statistics of batches may change by right."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
    if any(isinstance(m, kinds) for m in bench.model.modules()):
        bench.not_checked("eval, train, eval: the model keeps statistics of its batches")
        return
    with bench.alone() as driver:
        try:
            bench.model.train()
            driver(driver.sample(2, SHORT + 3))
        except Refused as error:
            bench.not_checked(f"eval, train, eval: in training the model raised {error}")
            return
        bench.model.eval()
        _moved(bench, _seeded(driver, tokens), fresh, "eval, train, eval", "training mode")
