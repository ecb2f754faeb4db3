"""Whether numbers in a file are what a formula gives: frequencies, cos and sin, indices, slopes.

What a config determines need not stand in a file. Where it does, code may load it in place of what
it would compute, so a wrong one is a fault; a right one is verified, and not required.

Tolerances. Frequencies in float32 are off by up to 4.4e-7 in sound models, 3e-6 is allowed. Cos and
sin of an angle formed in float32 are off by half an ulp of the angle, which its factors add to: 2
ulps, and 1e-6, are allowed. Half-precision storage adds half an ulp: 2^-9 in bfloat16, 2^-12 in
float16.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whereness.auditor.findings import Severity
from whereness.frequencies import geometric

if TYPE_CHECKING:
    from whereness.auditor.weights import Weights

RELATIVE = 3e-6
ROUNDINGS = {"BF16": (torch.bfloat16, 2.0**-8), "F16": (torch.float16, 2.0**-10)}
"""Types of half precision and twice the relative step of rounding to them."""
SUBNORMAL = 2.0**-24
"""Step of float16 near 0."""
SLOWEST_FIRST = 2.0**-10
"""What the fastest pair of a stretched spectrum still has: 1024 times the trained length."""
MOST_PLACES = 2**10
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
        return _unfilled("frequencies of the config", "NaN or infinity")
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
    nearest = min(sized, key=lambda each: _off(x, each))
    if _off(x, nearest) <= RELATIVE:
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
                f"the same rounded to {dtype}: up to {_off(x, nearest):.2g} off, so that angles at "
                f"position 1000 are {1000 * float((x - nearest).abs().max()):.2g} rad off",
                "the model was cast as a whole, its frequencies with it, and saved",
            )
    return _other_spectrum(x, nearest)


def _off(x: Tensor, right: Tensor) -> float:
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
    return _unfilled(f"the spectrum of the config ({told})", f"pair {worst}: {float(x[worst]):.6g}")


def _unfilled(expected: str, measured: str) -> Wrong:
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
    if len(x) < 2 or not bool((x > 0).all()) or abs(float(x[0]) - 1) > RELATIVE:
        return None
    base = float(x[1]) ** -len(x)
    if not (math.isfinite(base) and base > 1):
        return None
    # The base is read from one number in float32: its error grows with the number of pairs.
    own = torch.tensor(geometric(base, 2 * len(x), len(x)), dtype=torch.float64)
    return base if _off(x, own) <= RELATIVE * len(x) else None


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
        return _unfilled("cos and sin of the config's angles", "NaN or infinity")
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
        return _unfilled("cos and sin of the config's angles", largest)
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


def position_ids(ids: Tensor, before: int = 0) -> Wrong | None:
    """Judge a table of position ids: 0, 1, 2, ... as integers, or from `before` on."""
    flat = ids.flatten()
    whole = not flat.is_floating_point()
    right = torch.arange(len(flat))
    if before and torch.equal(flat, right.to(flat.dtype) + before):
        right = right + before
    same = (flat.double() == right) if flat.dtype != torch.bool else torch.zeros(len(flat)) > 0
    if bool(same.all()):
        if whole:
            return None
        return Wrong(
            "CHK9",
            "K14",
            "warning",
            "position ids as integers",
            f"the same numbers as {flat.dtype}",
            "the model was cast as a whole, its ids with it; the next cast will merge some",
        )
    wrong = int((~same).int().argmax())
    values = flat.double()
    present = set(values[values == values.round()].tolist())
    missing = [i for i in range(len(flat)) if i not in present]
    steps = values.diff()
    even = len(flat) > 2 and bool((steps - steps.mean()).abs().max() <= 1e-2 * steps.abs().mean())
    measured = f"row {wrong} is {float(values[wrong]):g}"
    if missing:
        some = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        measured += f"; {len(missing)} of {len(flat)} ids are missing: {some}"
    numbering = not whole or even
    return Wrong(
        "CHK9",
        "K14" if numbering else "K07",
        "error",
        f"position ids 0 .. {len(flat) - 1}",
        measured,
        "ids were scaled, cast or merged like weights"
        if numbering
        else "the buffer was never filled, or overwritten",
    )


def slopes(found: Tensor, expected: Tensor) -> Wrong | None:
    """Judge ALiBi's slopes (H,), of either sign."""
    x = found.double().flatten().abs()
    if not bool(x.isfinite().all()):
        return _unfilled("ALiBi's slopes", "NaN or infinity")
    if len(x) != len(expected):
        return Wrong(
            "CHK15",
            "K17",
            "error",
            f"{len(expected)} slopes, one a head",
            f"{len(x)}",
            "other heads",
        )
    off = _off(x, expected.double())
    if off <= RELATIVE:
        return None
    for dtype, step in ROUNDINGS.values():
        if off <= step and torch.equal(x, x.to(dtype).double()):
            return Wrong(
                "CHK8",
                "K06",
                "warning",
                "ALiBi's slopes in float32",
                f"the same rounded to {dtype}, up to {off:.2g} off",
                "the model was cast as a whole, its slopes with it, and saved",
            )
    head = int(((x - expected).abs() / expected).argmax())
    return Wrong(
        "CHK15",
        "K17",
        "error",
        f"head {head}: {float(expected[head]):.6g}, the published recipe",
        f"head {head}: {float(x[head]):.6g}",
        "another recipe for head counts that are no power of two, or another number of heads",
    )


def window_index(found: Tensor) -> Wrong | None:
    """Judge Swin's or BEiT's index of a bias table: (N, N), N the places of a window (and CLS).

    Raises:
        ValueError: no window has so many places.
    """
    count = found.shape[0]
    if found.dim() != 2 or found.shape[1] != count:
        raise ValueError(f"it is no square of places, {tuple(found.shape)}")
    if count > MOST_PLACES:
        raise ValueError(f"a window of {count} places is larger than any model's")
    rights = (
        _window(height, (count - extra) // height, extra)
        for extra in (0, 1)
        for height in range(1, count - extra + 1)
        if (count - extra) % height == 0
    )
    # Of several windows with so many places, the one that it is most like.
    right = min(rights, key=lambda each: int((found != each).sum()), default=found[:0])
    if torch.equal(found.long(), right):
        return None
    row, column = divmod(int((found.long() != right).flatten().int().argmax()), count)
    return Wrong(
        "CHK9",
        "K18",
        "error",
        f"the index of a window: place {row} to place {column} is {int(right[row, column])}",
        f"{float(found[row, column]):g}",
        "rows and columns were exchanged, or the buffer was never filled",
    )


def _window(height: int, width: int, extra: int) -> Tensor:
    """Entry of the bias table for every two places; extra: CLS before them, as BEiT has it."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    y, x = rows.flatten(), columns.flatten()
    index = (y[:, None] - y + height - 1) * (2 * width - 1) + x[:, None] - x + width - 1
    if not extra:
        return index
    entries = (2 * height - 1) * (2 * width - 1)
    whole = torch.full((len(index) + 1, len(index) + 1), entries)
    whole[1:, 0], whole[0, 0], whole[1:, 1:] = entries + 1, entries + 2, index
    return whole


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
        return _unfilled(expected, "NaN or infinity")
    tried = [told, *((o, e) for o in ORDERS for e in EXPONENTS if (o, e) != told)]
    for order, exponent in tried:
        for shift in range(MOST_SHIFTED + 1):
            # A row before position 0 is padding's, and holds what it will.
            kept = [i for i, place in enumerate(places) if place >= shift]
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
