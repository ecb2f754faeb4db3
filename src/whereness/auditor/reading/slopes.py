"""Whether a bias falls as ALiBi's does: slopes, heads, sign, both sides.

Axes: H heads, S queries, T keys. Slopes are logits a token of distance.
"""

from typing import Any

import torch
from torch import Tensor

from whereness.auditor.findings import Finding
from whereness.auditor.reading.comparing import finding_of
from whereness.auditor.reading.scores import levelled
from whereness.auditor.reading.views import LayerView

CHECK = "CHK15"
ALIKE = 1e-5
"""How far a bias may be from the formula, relative to its largest number."""


def of_slopes(view: LayerView, encoding: Any) -> Finding | None:
    """What is wrong with a bias that is to be ALiBi's, if anything."""
    assert view.bias is not None
    slots = torch.arange(view.bias.values.shape[-1])
    return _near(view, encoding, view.bias.values, slots) or _far(view, encoding)


def _far(view: LayerView, encoding: Any) -> Finding | None:
    """The same at the far ids, if it follows ids at all: distances are then beyond bfloat16."""
    if view.far_bias is None:
        return None
    values, ids = view.far_bias.values, torch.tensor(view.far_bias_ids)
    if _near(view, encoding, values, torch.arange(len(ids))) is None:
        return None  # it counts slots
    return _near(view, encoding, values, ids) and _of_few_digits(view)


def _of_few_digits(view: LayerView) -> Finding:
    return finding_of(
        CHECK,
        view,
        "K06",
        expected="keys farther away than 256 tokens lose as much a token as near ones",
        measured="near keys are right, far ones are not",
        cause="distances or their product with the slopes are held in a type of few digits",
        remedy="keep distances in integers, and make the bias in float32",
    )


def _near(view: LayerView, encoding: Any, values: Tensor, at: Tensor) -> Finding | None:
    """Compare values (H, S, T) with the formula at positions (T,)."""
    queries = values.shape[-2]
    want = encoding.bias(at[len(at) - queries :], at).double()
    got, want = levelled(values), levelled(torch.where(values.isnan(), torch.nan, want))
    size = want.nan_to_num(0.0).abs().max()
    off = (got - want).abs().nan_to_num(0.0)
    if float(off.max()) <= ALIKE * float(size):
        return None
    apart = (at[len(at) - queries :, None] - at).abs() <= 256
    if float((off * apart).max()) <= ALIKE * float(size):
        return _of_few_digits(view)
    if _cast(got, want):
        return finding_of(
            CHECK,
            view,
            "K06",
            expected="slopes of float32",
            measured="every slope is the nearest number of bfloat16",
            cause="slopes are a buffer, or were made, in the type of the model",
            remedy="make slopes in float32 each time, or keep them out of casts",
        )
    head = int(off.amax((1, 2)).argmax())
    measured, expected = _slope(got[head]), _slope(want[head])
    kind_of, cause = _of_alibi(got, want, head)
    return finding_of(
        CHECK,
        view,
        "K17",
        expected=f"head {head} loses {expected:.6g} a token of distance",
        measured=f"{measured:.6g}; {kind_of}",
        cause=cause,
        remedy="use the slopes of the ALiBi recipe for this number of heads, in float32, and "
        "-slope |query position - key position|",
    )


def all_alike(values: Tensor) -> float | None:
    """The slope of every head (H, S, T), where all have one and the same; else None."""
    slopes = torch.tensor([_slope(block) for block in values])
    row = values[:, -1]
    at = torch.arange(row.shape[-1], dtype=row.dtype)
    line = row[:, -1:] + slopes[:, None] * (at - at[-1])
    straight = float((row - line).abs().nan_to_num(0.0).max()) <= 1e-4 * float(slopes.abs().max())
    if len(slopes) < 2 or not straight or float(slopes.max() - slopes.min()) > ALIKE:
        return None
    return float(slopes[0]) or None


def _cast(got: Tensor, want: Tensor) -> bool:
    """Whether all slopes are those that are wanted, rounded to bfloat16."""
    slopes = torch.tensor([_slope(g) for g in got]), torch.tensor([_slope(w) for w in want])
    return torch.allclose(slopes[0], slopes[1].bfloat16().float(), rtol=1e-5, atol=1e-9)


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
