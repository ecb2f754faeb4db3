"""CHK15: what is added to the scores: slopes, sign, symmetry, buckets, offsets.

A number that a whole row gets changes no weights, so every row is judged beside its own nearest
key. T5's table is learned: offsets of one bucket must have one number, and the numbers of a table
found in the model must stand where the formula puts them.
"""

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import driver_of
from whereness.auditor.driving.restore import in_float64, restored
from whereness.auditor.findings import Finding
from whereness.auditor.reading.buckets import of_buckets
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.comparing import finding_of
from whereness.auditor.reading.expectation import BIASES, Expectation, expectation_of
from whereness.auditor.reading.slopes import all_alike, of_slopes
from whereness.auditor.reading.stepping import biases_after_cache, misaligned
from whereness.auditor.reading.views import LayerView, Observed
from whereness.auditor.subject import Subject

CHECK = "CHK15"
ALIKE = 1e-5
"""How far a bias may be from the formula, relative to its largest number."""


def run(subject: Subject) -> None:
    """Compare the bias of every layer that is to have one."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    for view in observed.layers:
        if view.crosses or view.odd or not view.biased or view.bias is None:
            continue
        if not view.content_aware:
            _even(subject, view)
            _one_slope(subject, view)
        expected = expectation_of(subject, view)
        if isinstance(expected, str):
            subject.not_checked(CHECK, expected, view.index, view.where)
            continue
        _layer(subject, view, expected)
    _behind_a_cache(subject, observed)


def _one_slope(subject: Subject, view: LayerView) -> None:
    """ALiBi without a config: heads differ in their slopes, that is what they are for."""
    assert view.bias is not None
    slope = all_alike(view.bias.values)
    if slope is not None:
        subject.found(
            finding_of(
                CHECK,
                view,
                "K17",
                "warning",
                expected="every head has a slope of its own",
                measured=f"all {view.bias.values.shape[0]} lose {slope:.6g} a token",
                cause="one slope is used for all heads, or every shard of heads uses the first's",
                remedy="give each head the slope of its number in the whole layer",
            )
        )


def _behind_a_cache(subject: Subject, observed: Observed) -> None:
    """Rows of new tokens behind a cache must have the bias that they have in one run."""
    biased = {v.where: v for v in observed.layers if v.biased and not v.crosses and not v.odd}
    driver = driver_of(subject)
    if not biased or isinstance(driver, str):
        return
    if not driver.caches:
        subject.not_checked(CHECK, "the bias behind a cache: the model keeps none")
        return
    try:
        with (in_float64 if observed.exact else restored)(driver.model), torch.no_grad():
            driver.model.eval()
            found = biases_after_cache(driver)
    except Refused as error:
        subject.not_checked(CHECK, f"the bias behind a cache: {error}")
        return
    for path, (whole, stepped) in found.items():
        view = biased.get(path)
        if view is None or view.content_aware:
            continue
        subject.compared(CHECK, "bias behind a cache", view.index, path)
        off = misaligned(whole, stepped)
        if off > ALIKE:
            subject.found(_misaligned(subject, view, off))


def _misaligned(subject: Subject, view: LayerView, off: float) -> Finding:
    expected = expectation_of(subject, view)
    slopes = not isinstance(expected, str) and expected.of("ALiBi") is not None
    return finding_of(
        CHECK,
        view,
        "K17" if slopes else "K18",
        expected="the last queries have the same bias in one run and behind a cache",
        measured=f"it differs by {off:.2g} of its size",
        cause="with more keys than queries the bias is not moved: it counts from the first key",
        remedy="let query i of S stand at key T - S + i, or give queries their own positions",
    )


def _even(subject: Subject, view: LayerView) -> None:
    """A bias of one row of tokens depends on the offset alone."""
    assert view.bias is not None
    driver = driver_of(subject)
    flat = not isinstance(driver, str) and driver.takes != "pixels"
    if not flat or view.bias.uneven <= ALIKE:
        return
    if is_rounded(view):
        subject.found(_rounded(view))
        return
    subject.found(
        finding_of(
            CHECK,
            view,
            "K18",
            expected="the bias depends on the offset of key and query alone",
            measured=f"it differs by {view.bias.uneven:.2g} of its size along a diagonal",
            cause="rows are not aligned with keys: a wrong shift, or positions of one side",
            remedy="index the table by key position minus query position",
        )
    )


def is_rounded(view: LayerView) -> bool:
    """Whether every number of the bias is one that bfloat16 has, before or after the scale."""
    assert view.bias is not None
    values = view.bias.values[~view.bias.values.isnan()]
    factors = (1.0, view.head_dim**0.5)
    return any(_fits(values * factor) for factor in factors) and not _few_digits(values)


def _fits(values: Tensor) -> bool:
    return bool(((values - values.bfloat16().double()).abs() <= 1e-6 * values.abs()).all())


def _few_digits(values: Tensor) -> bool:
    """Numbers so small that bfloat16 holds them exactly whatever was done."""
    return len(values.unique()) < 64


def _rounded(view: LayerView) -> Finding:
    return finding_of(
        CHECK,
        view,
        "K06",
        expected="the bias falls evenly with distance",
        measured="its numbers are those of bfloat16: distances above 256 share steps",
        cause="slopes times distances were rounded to bfloat16 when the bias was made",
        remedy="make the bias in float32 and add it to scores in float32",
    )


def _layer(subject: Subject, view: LayerView, expected: Expectation) -> None:
    found = expected.of(*BIASES)
    if found is None or view.bias is None:
        return
    spec, encoding = found
    values = view.bias.values
    if spec.get("num_heads") not in (None, values.shape[0]):
        why = f"it has {values.shape[0]} heads, and the config {spec.get('num_heads')}"
        subject.not_checked(CHECK, why, view.index, view.where)
        return
    if is_rounded(view) and spec.kind == "ALiBi" and view.bias.uneven > ALIKE:
        return
    if spec.kind == "ALiBi":
        what = of_slopes(view, encoding)
    elif spec.kind == "T5":
        what = of_buckets(subject, view, encoding)
    else:
        subject.not_checked(CHECK, f"{spec.kind} is learned", view.index, view.where)
        return
    if what is not None:
        subject.found(what)
    subject.compared(CHECK, "bias", view.index, view.where)
