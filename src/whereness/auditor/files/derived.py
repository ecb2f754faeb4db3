"""Whether rotary numbers in a file are what the config's formula gives: frequencies, cos and sin.

What a config determines need not stand in a file. Where it does, code may load it in place of what
it would compute, so a wrong one is a fault; a right one is verified, and not required.

Tolerances. Frequencies in float32 are off by up to 4.4e-7 in sound models, 3e-6 is allowed. Cos and
sin of an angle formed in float32 are off by half an ulp of the angle, which its factors add to: 2
ulps, and 1e-6, are allowed. Half-precision storage adds half an ulp: 2^-9 in bfloat16, 2^-12 in
float16.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whereness.auditor.findings import Severity
from whereness.frequencies import geometric

if TYPE_CHECKING:
    from whereness.auditor.files.weights import Weights

RELATIVE = 3e-6
ROUNDINGS = {"BF16": (torch.bfloat16, 2.0**-8), "F16": (torch.float16, 2.0**-10)}
"""Types of half precision and twice the relative step of rounding to them."""
SUBNORMAL = 2.0**-24
"""Step of float16 near 0."""
SLOWEST_FIRST = 2.0**-10
"""What the fastest pair of a stretched spectrum still has: 1024 times the trained length."""
HALF_ULP = {"BF16": 2.0**-9, "F16": 2.0**-12}
PROBED = tuple(sorted({0, 1, 2, 3, 5, *(2**k + d for k in range(3, 24) for d in (-1, 0, 1))}))
"""Positions whose rows are read of a table."""


@dataclass(frozen=True)
class Wrong:
    """What a derived tensor has instead of what the formula gives."""

    check: str
    kind: str
    severity: Severity
    expected: str
    measured: str
    cause: str


@dataclass(frozen=True)
class Turns:
    """A rotation that the config gives: frequencies and the factor on cos and sin."""

    frequencies: Tensor
    amplitude: float = 1.0


def frequencies(found: Tensor, expected: Sequence[Turns]) -> Wrong | None:
    """Judge frequencies (P,) against those that any of the layers may have."""
    x = found.double().flatten()
    if not bool(x.isfinite().all()):
        return unfilled("frequencies of the config", "NaN or infinity")
    right = [each.frequencies for each in expected]
    sized = [each for each in right if len(each) == len(x)]
    if not sized:
        counts = ", ".join(str(n) for n in sorted({len(each) for each in right}))
        return Wrong(
            "CHK9",
            "K03",
            "error",
            f"{counts} frequencies, one a pair that turns",
            f"{len(x)} frequencies",
            "the file is of a model with another rotary width",
        )
    nearest = min(sized, key=lambda each: off(x, each))
    if off(x, nearest) <= RELATIVE:
        return None
    for name, (dtype, step) in ROUNDINGS.items():
        near = (
            (x - nearest).abs() <= step * nearest.abs() + (SUBNORMAL if name == "F16" else 0)
        ).all()
        if bool(near) and torch.equal(x, x.to(dtype).double()):
            return Wrong(
                "CHK8",
                "K06",
                "warning",
                "frequencies of the config, in float32",
                f"the same rounded to {dtype}: up to {off(x, nearest):.2g} off, so that angles at "
                f"position 1000 are {1000 * float((x - nearest).abs().max()):.2g} rad off",
                "the model was cast as a whole, its frequencies with it, and saved",
            )
    return _other_spectrum(x, nearest)


def off(x: Tensor, right: Tensor) -> float:
    """Largest relative difference; where nothing turns, the absolute one."""
    size = torch.where(right == 0, torch.ones_like(right), right.abs())
    return float(((x - right).abs() / size).max())


def _other_spectrum(x: Tensor, right: Tensor) -> Wrong:
    worst = int(((x - right).abs() / right.abs().clamp_min(1e-30)).argmax())
    told = f"pair {worst}: {float(right[worst]):.8g} rad a token"
    base = base_of(x)
    if base is not None:
        return Wrong(
            "CHK1",
            "K02",
            "error",
            f"the spectrum of the config ({told})",
            f"the plain spectrum of base {base:.6g} (pair {worst}: {float(x[worst]):.8g})",
            "the base or the scaling was changed in the config and not in the file, or the other "
            "way about",
        )
    steps = x.diff()
    falls = bool((x >= 0).all()) and bool((steps <= 0).all()) and bool((steps < 0).any())
    if falls and SLOWEST_FIRST <= float(x[0]) <= 2:
        return Wrong(
            "CHK1",
            "K02",
            "error",
            f"the spectrum of the config ({told})",
            f"another one (pair {worst}: {float(x[worst]):.8g})",
            "the file's frequencies are scaled otherwise than the config says",
        )
    return unfilled(f"the spectrum of the config ({told})", f"pair {worst}: {float(x[worst]):.6g}")


def unfilled(expected: str, measured: str) -> Wrong:
    """A buffer that holds what no formula gives."""
    return Wrong(
        "CHK9",
        "K07",
        "error",
        expected,
        measured,
        "the buffer was never filled (made on the meta device, or emptied), or overwritten",
    )


def base_of(x: Tensor) -> float | None:
    """The base of a plain geometric spectrum, None if it is none."""
    if len(x) < 2 or not bool((x > 0).all()):
        return None
    base = float(x[1]) ** -len(x)
    if not (math.isfinite(base) and base > 1):
        return None
    # The base is read from one number in float32: its error grows with the number of pairs.
    own = torch.tensor(geometric(base, 2 * len(x), len(x)), dtype=torch.float64)
    return base if off(x, own) <= RELATIVE * len(x) else None


def table(
    weights: "Weights", name: str, expected: Sequence[Turns], parts: Sequence[str]
) -> Wrong | None:
    """Judge a table of cos, sin or both side by side, a row a position.

    Raises:
        ValueError: its rows have another width than any layer's, or its type cannot be read.
    """
    held = weights.tensors[name]
    places = [p for p in PROBED if p < held.num_rows]
    rows = torch.stack([weights.rows(name, p, 1).flatten() for p in places])
    rows = torch.view_as_real(rows).movedim(-1, 1).flatten(1) if rows.is_complex() else rows
    rows = rows.double()
    if not bool(rows.isfinite().all()):
        return unfilled("cos and sin of the config's angles", "NaN or infinity")
    positions = torch.tensor(places, dtype=torch.float64)[:, None]
    exact = [each for turns in expected for each in _forms(positions, turns, parts)]
    if not any(form.shape == rows.shape for form, _ in exact):
        raise ValueError(f"its rows of {rows.shape[1]} numbers are no form of the config's pairs")
    stored = HALF_ULP.get(held.dtype, 0.0)
    excess = _excess(rows, exact, stored)
    if float(excess.max()) <= 0:
        return None
    first = places[int((excess > 0).any(1).to(torch.int8).argmax())]
    measured = f"{float(excess.max()):.2g} more off than {held.dtype} explains, from {first} on"
    for what, forms in _rounded(positions, expected, parts):
        if float(_excess(rows, forms, stored).max()) <= 0:
            right = "cos and sin of exact angles"
            return Wrong("CHK8", "K06", "error", right, measured, f"{what} before the angles")
    if float(rows.abs().max()) > 16:
        largest = f"numbers up to {float(rows.abs().max()):.3g}"
        return unfilled("cos and sin of the config's angles", largest)
    return Wrong(
        "CHK1",
        "K02",
        "error",
        "cos and sin of the config's angles",
        measured,
        "the table is of another base, scaling or amplitude than the config's, or was never filled",
    )


Form = tuple[Tensor, Tensor]
"""Rows of a table, and the angles that they are of."""


def _excess(rows: Tensor, forms: Sequence[Form], stored: float) -> Tensor:
    """How much more the rows are off than rounding explains, for the form that fits best."""
    fitting = [
        (rows - form).abs() - (1e-6 + 4 * angle.abs() * 2.0**-24 + stored)
        for form, angle in forms
        if form.shape == rows.shape
    ]
    return min(fitting, key=lambda each: float(each.max()))


def _forms(positions: Tensor, turns: Turns, parts: Sequence[str]) -> list[Form]:
    """A table's possible rows: one number a pair, or one a channel in either order."""
    angle = positions * turns.frequencies
    one = [turns.amplitude * (angle.cos() if part == "cos" else angle.sin()) for part in parts]
    return list(zip(_spread(one), _spread([angle] * len(one)), strict=True))


def _spread(numbers: list[Tensor]) -> list[Tensor]:
    return [
        torch.cat(numbers, 1),
        torch.cat([each for one in numbers for each in (one, one)], 1),
        torch.cat([one.repeat_interleave(2, 1) for one in numbers], 1),
    ]


def _rounded(
    positions: Tensor, expected: Sequence[Turns], parts: Sequence[str]
) -> Iterator[tuple[str, list[Form]]]:
    """Tables of what was rounded to half precision before the angles."""
    for dtype, _ in ROUNDINGS.values():
        short = positions.to(dtype).double()
        slow = [Turns(each.frequencies.to(dtype).double(), each.amplitude) for each in expected]
        for what, at, turns in (
            (f"frequencies were rounded to {dtype}", positions, slow),
            (f"positions were rounded to {dtype}", short, expected),
            (f"positions and frequencies were rounded to {dtype}", short, slow),
        ):
            yield what, [form for each in turns for form in _forms(at, each, parts)]
