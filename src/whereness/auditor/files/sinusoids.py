"""Whether a table in a file is the sinusoid that the config says, and which one it is if not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whereness.auditor.files.derived import HALF_ULP, PROBED, Form, Wrong, unfilled
from whereness.frequencies import geometric

if TYPE_CHECKING:
    from whereness.auditor.files.weights import Weights

ORDERS = ("interleaved", "sin_cos", "cos_sin")
EXPONENTS = ("dim", "dim-2")
MOST_SHIFTED = 4
"""Rows before position 0 that are tried: fairseq's tables have 2."""


def sinusoid(weights: "Weights", name: str, options: Mapping[str, Any]) -> Wrong | None:
    """Judge a table of sines and cosines by the options of `wn.Sinusoidal`.

    Raises:
        ValueError: it has not two axes.
    """
    held = weights.tensors[name]
    if len(held.table) != 2 or not held.count:
        raise ValueError(f"a table of positions has two axes, this has the shape {held.shape}")
    dim = options["dim"]
    base = float(options.get("base", 10_000.0))
    told = (options.get("order", "interleaved"), options.get("exponent", "dim"))
    expected = f"sines and cosines, order {told[0]}, exponent over {told[1]}, width {dim}"
    if held.table[1] != dim:
        measured = f"rows of {held.table[1]}"
        return Wrong("CHK1", "K24", "error", expected, measured, "the table is another model's")
    places = [p for p in PROBED if p < held.num_rows]
    rows = torch.stack([weights.rows(name, p, 1).flatten() for p in places]).double()
    if not bool(rows.isfinite().all()):
        return unfilled(expected, "NaN or infinity")
    tried = [told, *((o, e) for o in ORDERS for e in EXPONENTS if (o, e) != told)]
    for order, exponent in tried:
        for shift in range(MOST_SHIFTED + 1):
            # A row before position 0 is padding's, and holds what it will; so does an empty one,
            # which is not left out of the count.
            kept = [
                i
                for i, place in enumerate(places)
                if place >= shift and not (place <= MOST_SHIFTED and bool((rows[i] == 0).all()))
            ]
            at = torch.tensor([places[i] - shift for i in kept], dtype=torch.float64)
            if _fits(rows[kept], _waves(at, dim, base, order, exponent), held.dtype):
                if (order, exponent) == told:
                    return None
                measured = f"order {order}, exponent over {exponent}"
                cause = "the two schools of the formula were mixed up"
                return Wrong("CHK1", "K24", "error", expected, measured, cause)
    cause = "the table was trained, is of another base, or was never filled"
    return Wrong("CHK1", "K24", "error", expected, "no sinusoid of that base", cause)


def _fits(rows: Tensor, form: Form, dtype: str) -> bool:
    waves, angle = form
    allowed = 1e-6 + 4 * angle.abs() * 2.0**-24 + HALF_ULP.get(dtype, 0.0)
    return len(rows) > 1 and bool(((rows - waves).abs() <= allowed).all())


def _waves(positions: Tensor, dim: int, base: float, order: str, exponent: str) -> Form:
    speeds = torch.tensor(
        geometric(base, dim if exponent == "dim" else dim - 2, dim // 2), dtype=torch.float64
    )
    angle = positions[:, None] * speeds
    parts = [angle.cos(), angle.sin()] if order == "cos_sin" else [angle.sin(), angle.cos()]
    if order == "interleaved":
        return torch.stack(parts, -1).flatten(1), angle.repeat_interleave(2, 1)
    return torch.cat(parts, 1), torch.cat((angle, angle), 1)
