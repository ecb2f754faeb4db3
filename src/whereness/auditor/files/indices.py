"""Whether ids, slopes and indices in a file are what their formula gives."""

import math

import torch
from torch import Tensor

from whereness.auditor.files.derived import RELATIVE, ROUNDINGS, Wrong, off, unfilled

MOST_PLACES = 2**10
"""Of a window: 32 x 32."""


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
        return unfilled("ALiBi's slopes", "NaN or infinity")
    if len(x) != len(expected):
        return Wrong(
            "CHK15",
            "K17",
            "error",
            f"{len(expected)} slopes, one a head",
            f"{len(x)}",
            "other heads",
        )
    worst = off(x, expected.double())
    if worst <= RELATIVE:
        return None
    for dtype, step in ROUNDINGS.values():
        if worst <= step and torch.equal(x, x.to(dtype).double()):
            return Wrong(
                "CHK8",
                "K06",
                "warning",
                "ALiBi's slopes in float32",
                f"the same rounded to {dtype}, up to {worst:.2g} off",
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
    if found.dim() == 1 and math.isqrt(len(found)) ** 2 == len(found):
        found = found.reshape(math.isqrt(len(found)), -1)  # as Swin's code flattens it
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
