"""The bias of a layer as curves for the report: a line a head, over the offset of key and query.

Axes: H heads, S queries, T keys, the queries being the last S of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.auditor.reading.expectation import Expectation
from whereness.auditor.reading.scores import levelled
from whereness.auditor.reading.views import LayerView

EVERY, STEP = 32, 8
"""Offsets up to EVERY are all kept, farther ones one in STEP: a picture shows no more."""
LINEAR = 1e-5
"""How far a bias may be from a line, of its largest number, to be told as a slope."""
FORMULAS = ("ALiBi", "Sandwich")
"""Biases that the config says in full; others have learned numbers."""


@dataclass(frozen=True)
class Curves:
    """What is added to the logits at `offsets`, ascending; NaN where no query sees that key."""

    offsets: tuple[int, ...]
    measured: tuple[tuple[float, ...], ...]
    expected: tuple[tuple[float, ...], ...] | None


def curves_of(view: LayerView, expected: Expectation | str) -> Curves | None:
    """The curves of a layer; None where it has no bias, or one that content or places change.

    None too where the rows that are read see nothing, as those of padded blocks.

    A number that a whole row gets changes no weights, so every row starts at its nearest key.
    """
    if view.bias is None or not view.biased or view.content_aware or view.crosses:
        return None
    values = view.bias.values
    queries, keys = values.shape[-2:]
    offsets, rows, columns = _places(queries, keys)
    got = levelled(values)[:, rows, columns]
    if bool(got.isnan().all(1).any()):
        return None
    seen = ~got.isnan().all(0)
    kept = tuple(offsets[seen].tolist())
    return Curves(kept, _lines(got[:, seen]), _expected(values, expected, rows, columns, seen))


def _places(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets, and a row and a column where each stands: the last row, then on along the first."""
    first = keys - queries  # position of query 0
    behind, ahead = torch.arange(1 - keys, 1), torch.arange(1, queries)
    offsets = torch.cat((behind, ahead))
    rows = torch.cat((torch.full_like(behind, queries - 1), torch.zeros_like(ahead)))
    columns = offsets + first + rows
    kept = (offsets.abs() <= EVERY) | (offsets % STEP == 0)
    return offsets[kept], rows[kept], columns[kept]


def _expected(
    values: Tensor, expected: Expectation | str, rows: Tensor, columns: Tensor, seen: Tensor
) -> tuple[tuple[float, ...], ...] | None:
    found = None if isinstance(expected, str) else expected.of(*FORMULAS)
    if found is None:
        return None
    queries, keys = values.shape[-2:]
    want = found[1].bias(torch.arange(keys - queries, keys), torch.arange(keys))
    if want is None or want.shape != values.shape:
        return None
    want = levelled(torch.where(values.isnan(), torch.nan, want.double()))
    return _lines(want[:, rows, columns][:, seen])


def _lines(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(line) for line in values.tolist())


def told(curves: Curves) -> str:
    """The bias in a few words: what a token of distance costs, or how far it reaches."""
    heads = f"bias of {len(curves.measured)} head{'s' * (len(curves.measured) != 1)}"
    steps = [_step(curves.offsets, line) for line in curves.measured]
    if None not in steps:
        found = [step for step in steps if step is not None]
        return f"{heads}, {_range(min(found), max(found))} a token of distance"
    values = [value for line in curves.measured for value in line if not math.isnan(value)]
    return f"{heads}, {_range(min(values), max(values))} beside the nearest key"


def _step(offsets: tuple[int, ...], line: tuple[float, ...]) -> float | None:
    """What each token of distance adds, the same on both sides; None where that differs."""
    both = zip(offsets, line, strict=True)
    known = [(abs(n), value) for n, value in both if not math.isnan(value)]
    far, at = max(known)
    step = at / far if far else 0.0
    size = abs(at) or 1.0
    return step if all(abs(value - step * n) <= LINEAR * size for n, value in known) else None


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
