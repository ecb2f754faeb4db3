"""What every probe of whole outputs shares: a driver, float64 where it can be, a clean model.

Logic is judged in float64, so that a difference is a fault and not rounding.

Axes: B batch, S tokens.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.drive import Cache, Driver, Refused
from whereness.auditor.driving.restore import in_float64, restored
from whereness.auditor.findings import Finding, Severity
from whereness.auditor.subject import Subject

EXACT = 1e-5
"""Relative change that is a fault in float64. Clean models reach 2e-7, for many keep tables in
float32; the smallest fault that was seen is 4e-3."""
SINGLE = 1e-3
"""The same in float32, whose sums of some hundred products part by 1e-6 to 1e-4."""
LENGTH = 13
"""Tokens of a short run: enough for chunks of 1, 3 and 4 that do not fit."""
SLOW = 0.12
"""Seconds of processor time of a short run from which on a model is slow; an audit makes
some hundred runs."""
MOST_WINDOW = 40
"""The widest attention window that short runs are made to pass."""


@dataclass
class Bench:
    """A model ready to be probed: in eval mode, without gradients, and put back after each run."""

    subject: Subject
    driver: Driver
    check: str
    exact: bool
    """It is in float64."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self.driver.model

    @property
    def tolerance(self) -> float:
        """Relative change from which on it is a fault."""
        return EXACT if self.exact else SINGLE

    @property
    def slow(self) -> bool:
        """Whether a short run takes so long that only the most telling probes are made."""
        shared = self.subject.shared
        if "seconds" not in shared:
            tokens = self.driver.sample(1, 5)
            begin = time.process_time()
            self.run(tokens)
            shared["seconds"] = time.process_time() - begin
        return shared["seconds"] > SLOW

    @property
    def mixes(self) -> bool | None:
        """Whether something that is no attention reads other tokens (convolutions, recurrences).

        Then a mask that lets each token see itself alone has an effect, and yet others are seen.
        None where the model takes no such mask, so that nothing can be told apart.
        """
        key = f"mixes {id(self.driver)}"
        if key not in self.subject.shared:
            self.subject.shared[key] = self._mixes()
        return self.subject.shared[key]

    def _mixes(self) -> bool | None:
        total = 6
        tokens = self.driver.sample(1, total)
        other = tokens.clone()
        other[:, 0] = self.driver.sample(1, total, seed=5)[:, 0]
        alone = torch.eye(total, dtype=torch.bool, device=tokens.device)[None, None]
        try:
            plain = self.run(tokens, mask=alone)
            if not self.differ(plain, self.run(tokens)) or not plain.isfinite().all():
                return None
            return self.differ(self.run(other, mask=alone)[:, 1:], plain[:, 1:])
        except Refused:
            return None

    @property
    def length(self) -> int:
        """Tokens of a run that passes every narrow window and fits the model."""
        window = max([w for w in windows(self.driver) if w <= MOST_WINDOW], default=0)
        wanted = max(LENGTH, 2 * window + 3)
        most = self.driver.max_tokens
        first = self.driver.first or 0
        return wanted if most is None else max(1, min(wanted, most - first))

    @contextlib.contextmanager
    def alone(self) -> Generator[Driver]:
        """The driver; what the runs leave behind in the model is put back.

        Models that draw random numbers even in eval mode draw the same each time.
        """
        with restored(self.model):
            torch.manual_seed(0)
            yield self.driver

    def run(self, tokens: Tensor, **how: Any) -> Tensor:
        """Output of one run on the model as it was at the start."""
        with self.alone() as driver:
            return driver(tokens, **how).output

    @contextlib.contextmanager
    def single(self) -> Generator["Bench"]:
        """The same bench in float32: some mask floors overflow in float64 alone."""
        with restored(self.model):
            self.model.float()
            yield replace(self, exact=False)

    def natural(self, batch: int, length: int) -> Tensor:
        """The ids that number as the model itself does, (B, S)."""
        ids = torch.arange(length, device=self.driver.device) + (self.driver.first or 0)
        return ids.expand(batch, -1).contiguous()

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether two outputs are not the same but for rounding; NaN differs from everything."""
        return not change(a, b) <= self.tolerance

    def compared(self, what: str, where: str = "") -> None:
        """Say that something was compared."""
        self.subject.compared(self.check, what, where=where)

    def not_checked(self, why: str, where: str = "") -> None:
        """Say that something could not be."""
        self.subject.not_checked(self.check, why, where=where)

    def found(
        self,
        kind: str,
        severity: Severity,
        *,
        expected: str,
        measured: str,
        cause: str,
        remedy: str,
        where: str = "",
    ) -> None:
        """Report a finding."""
        self.subject.found(
            Finding(
                check=self.check,
                kind=kind,
                severity=severity,
                expected=expected,
                measured=measured,
                cause=cause,
                remedy=remedy,
                where=where,
            )
        )


def teller(kind: str, usual: Severity) -> Callable[..., None]:
    """What reports findings of one kind: a check's `_found`. `why` is (cause, remedy)."""

    def found(
        bench: Bench,
        measured: str,
        expected: str,
        why: tuple[str, str],
        severity: Severity = usual,
        where: str = "",
    ) -> None:
        bench.found(
            kind,
            severity,
            expected=expected,
            measured=measured,
            cause=why[0],
            remedy=why[1],
            where=where,
        )

    return found


def probed(
    subject: Subject, check: str, look: Callable[[Bench], None], *, exact: bool = True
) -> None:
    """Run `look` on the subject's model, and say what the model refuses.

    In float64, unless that is refused or `exact` is False.
    """
    driver = driver_of(subject)
    if isinstance(driver, str):
        subject.not_checked(check, driver)
        return
    try:
        with contextlib.ExitStack() as stack:
            works = exact and _works_in_float64(subject, driver)
            stack.enter_context((in_float64 if works else restored)(driver.model))
            stack.enter_context(torch.no_grad())
            driver.model.eval()
            look(Bench(subject, driver, check, works))
    except Refused as error:
        subject.not_checked(check, f"the model raised {error}")


def driver_of(subject: Subject) -> Driver | str:
    """The subject's driver, made once; or why there is none."""
    if "driver" not in subject.shared:
        if subject.model is None:
            return "there is no live model"
        try:
            subject.shared["driver"] = Driver(subject.model, subject.inputs)
        except Refused as error:
            subject.shared["driver"] = str(error)
    return subject.shared["driver"]


def _works_in_float64(subject: Subject, driver: Driver) -> bool:
    """Whether the model runs in float64 and gives numbers."""
    if "float64" not in subject.shared:
        subject.shared["float64"] = False
        refusals = (Refused, TypeError, ValueError, RuntimeError, NotImplementedError)
        with (
            contextlib.suppress(*refusals),
            in_float64(driver.model),
            torch.no_grad(),
        ):
            driver.model.eval()
            output = driver(driver.sample(2, 5)).output
            subject.shared["float64"] = bool(output.isfinite().all())
    return subject.shared["float64"]


def change(a: Tensor, b: Tensor) -> float:
    """How far apart two outputs are, relative to how much `b` varies.

    Where it hardly varies, ten roundings of its largest number are no more than the tolerance.
    """
    if a.shape != b.shape:
        return float("inf")
    dtype = b.dtype if b.is_floating_point() else torch.float64  # whole numbers and masks are exact
    rounding = torch.finfo(dtype).eps / (EXACT if dtype == torch.float64 else SINGLE)
    a, b = a.double(), b.double()
    largest = float(b.abs().max())
    spread = float(b.std()) if b.numel() > 1 else largest
    return float((a - b).abs().max()) / max(spread, 10 * rounding * largest, 1e-30)


def decoded(driver: Driver, tokens: Tensor, sizes: list[int], **how: Any) -> tuple[Tensor, Cache]:
    """Output of `tokens` fed through a cache in chunks of these sizes, and the cache.

    positions (B, S) and mask (B, S) in `how` are cut with the tokens.
    """
    found, cache, start = [], None, 0
    for size in sizes:
        end = start + size
        given = dict(how)
        if given.get("positions") is not None:
            given["positions"] = given["positions"][:, start:end]
        if given.get("mask") is not None:
            given["mask"] = given["mask"][:, :end]
        ran = driver(tokens[:, start:end], cache=cache, keep_cache=True, **given)
        found.append(ran.output)
        cache, start = ran.cache, end
    assert cache is not None
    return torch.cat(found, 1), cache


def windows(driver: Driver) -> list[int]:
    """Widths of the attention windows that the config names."""
    config = driver.text_config
    names = ("sliding_window", "attention_chunk_size", "window_size", "local_attention")
    values = [getattr(config, name, None) for name in names]
    values += [getattr(m, "window", None) for m in driver.model.modules()]
    return sorted({v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0})
