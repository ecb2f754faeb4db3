"""CHK15: what is added to the scores: slopes, sign, symmetry, buckets, offsets.

A number that a whole row gets changes no weights, so every row is judged beside its own nearest
key. T5's table is learned: offsets of one bucket must have one number, and the numbers of a table
found in the model must stand where the formula puts them.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.capture import observe
from whereness.auditor.expectation import BIASES, Expectation, expectation_of
from whereness.auditor.findings import Finding
from whereness.auditor.probing import driver_of
from whereness.auditor.scores import levelled
from whereness.auditor.subject import Subject
from whereness.auditor.views import LayerView

CHECK = "CHK15"
ALIKE = 1e-5
"""How far a bias may be from the formula, relative to its largest number."""


def run(subject: Subject) -> None:
    """Compare the bias of every layer that is to have one."""
    observed = observe(subject)
    if not observed.layers:
        subject.not_checked(CHECK, "; ".join(observed.why) or "no attention was found")
        return
    for view in observed.layers:
        if view.crosses or view.odd or not view.biased or view.bias is None:
            continue
        if not view.content_aware:
            _even(subject, view)
        expected = expectation_of(subject, view)
        if isinstance(expected, str):
            subject.not_checked(CHECK, expected, view.index, view.where)
            continue
        _layer(subject, view, expected)


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
        _finding(
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
    return _finding(
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
    told = _alibi if spec.kind == "ALiBi" else _t5 if spec.kind == "T5" else None
    if told is None:
        subject.not_checked(CHECK, f"{spec.kind} is learned", view.index, view.where)
        return
    what = told(subject, view, encoding)
    if what is not None:
        subject.found(what)
    subject.compared(CHECK, "bias", view.index, view.where)


# ALiBi --------------------------------------------------------------------------------------------


def _alibi(subject: Subject, view: LayerView, encoding: Any) -> Finding | None:
    assert view.bias is not None
    values = view.bias.values
    queries, keys = values.shape[-2:]
    want = encoding.bias(torch.arange(keys - queries, keys), torch.arange(keys)).double()
    got, want = levelled(values), levelled(torch.where(values.isnan(), torch.nan, want))
    size = want.nan_to_num(0.0).abs().max()
    off = (got - want).abs().nan_to_num(0.0)
    if float(off.max()) <= ALIKE * float(size):
        return None
    head = int(off.amax((1, 2)).argmax())
    measured, expected = _slope(got[head]), _slope(want[head])
    kind_of, cause = _of_alibi(got, want, head)
    return _finding(
        view,
        "K17",
        expected=f"head {head} loses {expected:.6g} a token of distance",
        measured=f"{measured:.6g}; {kind_of}",
        cause=cause,
        remedy="use the slopes of the ALiBi recipe for this number of heads, in float32, and "
        "-slope |query position - key position|",
    )


def _of_alibi(got: Tensor, want: Tensor, head: int) -> tuple[str, str]:
    slopes = torch.tensor([_slope(g) for g in got]), torch.tensor([_slope(w) for w in want])
    if bool((slopes[0] < 0).any()):
        return "farther keys gain", "the sign of the bias is wrong, or offsets are reversed"
    ahead = _slope_ahead(got[head]), _slope_ahead(want[head])
    if ahead[1] is not None and ahead[0] is not None and abs(ahead[0] - ahead[1]) > 1e-4:
        return "keys after the query get another bias", (
            "the bias is not symmetric where both sides are seen"
        )
    if torch.allclose(slopes[0].sort().values, slopes[1].sort().values, rtol=1e-4):
        return "the slopes are right, on other heads", "heads are in another order"
    ratio = slopes[0] / slopes[1]
    if float(ratio.max() - ratio.min()) < 1e-3 * float(ratio.abs().max()):
        return f"all slopes are {float(ratio[0]):.6g} times as large", (
            "the bias is scaled with the scores, or the exponents end at another power than -8"
        )
    return "the slopes follow another recipe", (
        "for a number of heads that is no power of two the recipe is not geometric: the other half "
        "of the slopes is interleaved"
    )


def _slope(block: Tensor) -> float:
    """What a token of distance behind costs, from the last row."""
    row = block[-1]
    seen = ~row[: len(row)].isnan()
    places = seen.nonzero()[:, 0]
    if len(places) < 2:
        return 0.0
    first, last = int(places[0]), int(places[-1])
    return float((row[last] - row[first]) / (last - first))


def _slope_ahead(block: Tensor) -> float | None:
    """What a token of distance ahead costs, from the first row."""
    row = block[0]
    places = (~row.isnan()).nonzero()[:, 0]
    if len(places) < 2:
        return None
    first, last = int(places[0]), int(places[-1])
    return float((row[first] - row[last]) / (last - first))


# T5 -----------------------------------------------------------------------------------------------


def _t5(subject: Subject, view: LayerView, encoding: Any) -> Finding | None:
    assert view.bias is not None
    by_offset, offsets = _by_offset(view.bias.values)
    buckets = encoding.buckets(offsets)
    size = float(by_offset.abs().max())
    for a, b in itertools.pairwise(range(len(offsets))):
        alike = float((by_offset[:, a] - by_offset[:, b]).abs().max()) <= ALIKE * size
        one = bool(buckets[a] == buckets[b])
        if one != alike:
            return _bucket_finding(view, encoding, offsets, by_offset, (a, b), one)
    return _in_table(subject, view, by_offset, buckets, offsets, size)


def _by_offset(values: Tensor) -> tuple[Tensor, Tensor]:
    """(H, O) the bias of every offset (key minus query) that is seen, and the offsets."""
    queries, keys = values.shape[-2:]
    found, offsets = [], []
    for offset in range(1 - queries, keys):
        diagonal = values.diagonal(offset, -2, -1)
        seen = ~diagonal.isnan().any(0)
        if bool(seen.any()):
            found.append(diagonal[:, seen][:, 0])
            offsets.append(offset)
    return torch.stack(found, -1), torch.tensor(offsets)


def _bucket_finding(
    view: LayerView,
    encoding: Any,
    offsets: Tensor,
    by_offset: Tensor,
    at: tuple[int, int],
    one: bool,
) -> Finding:
    a, b = (int(offsets[i]) for i in at)
    other = _other_reading(encoding, offsets, by_offset)
    return _finding(
        view,
        "K18",
        expected=f"offsets {a} and {b} {'share a bucket' if one else 'have buckets of their own'}",
        measured=f"their bias {'differs' if one else 'is the same'}",
        cause=other or "buckets are cut elsewhere: number of buckets, farthest distance, rounding",
        remedy="use the bucket formula of the config (num_buckets, max_distance, both ways in "
        "an encoder only)",
    )


def _other_reading(encoding: Any, offsets: Tensor, by_offset: Tensor) -> str:
    """Whether the measured buckets are those of the other direction, or of mirrored offsets."""
    import whereness as wn

    size = float(by_offset.abs().max())
    steps = (by_offset[:, 1:] - by_offset[:, :-1]).abs().amax(0) > ALIKE * size
    for flag, sign in itertools.product((True, False), (1, -1)):
        if flag == encoding.bidirectional and sign == 1:
            continue
        other = wn.T5(
            encoding.num_heads, encoding.num_buckets, encoding.max_distance, bidirectional=flag
        )
        buckets = other.buckets(sign * offsets)
        if torch.equal(buckets[1:] != buckets[:-1], steps):
            said = "both directions are told apart" if flag else "only keys behind are told apart"
            turned = ", with offsets of the wrong sign" if sign < 0 else ""
            return f"{said}{turned}: the bidirectional flag is that of the other stack"
    return ""


def _in_table(
    subject: Subject,
    view: LayerView,
    by_offset: Tensor,
    buckets: Tensor,
    offsets: Tensor,
    size: float,
) -> Finding | None:
    """Whether the numbers stand where the formula puts them in the model's own table."""
    assert subject.model is not None
    heads, most = by_offset.shape[0], int(buckets.max()) + 1
    tables = [
        p.detach().double()
        for p in subject.model.parameters()
        if p.dim() == 2 and heads in p.shape and max(p.shape) >= most and p.numel() < 1_000_000
    ]
    oriented = [t if t.shape[1] == heads else t.T for t in tables]
    fits = [t for t in oriented if t.shape[1] == heads and t.shape[0] >= most]
    scales = [
        t for t in fits if float((t[buckets].T - by_offset).abs().max()) <= 1e-4 * size + 1e-30
    ]
    if scales or not fits:
        return None
    values = by_offset.T
    for table in fits:
        near = torch.cdist(values, table).min(1)
        if bool((near.values <= 1e-4 * size).all()):  # the numbers are there, in other places
            wrong = int((near.indices != buckets).nonzero()[0, 0])
            return _finding(
                view,
                "K18",
                expected=f"offset {int(offsets[wrong])} reads row {int(buckets[wrong])}",
                measured=f"it reads row {int(near.indices[wrong])}",
                cause="offsets have the wrong sign, or keys before and after share no convention",
                remedy="bucket key position minus query position",
            )
    return None


def _finding(view: LayerView, kind: str, **said: str) -> Finding:
    return Finding(
        check=CHECK,
        kind=kind,
        severity="error",
        layer=view.index,
        where=view.where,
        **said,
    )
