"""What one event of a run tells: heads, scale, a table at the input, turning by slots.

Axes: B rows, H heads, S slots, T keys, D channels, F features.
"""

import torch
from torch import Tensor

from whereness.auditor.reading.scores import MASKED
from whereness.auditor.reading.views import Side, Table
from whereness.auditor.reading.watch import Event, Sum


def heads_of(x: Tensor, rows: int) -> Tensor | None:
    """(..., S, D) with rows in front of the heads, or together with them: (B, H, S, D)."""
    lead = list(x.shape[:-2])
    for axis, size in enumerate(lead):
        if size == rows:
            return x.movedim(axis, 0).reshape(rows, -1, *x.shape[-2:])
    for axis, size in enumerate(lead):
        if size % rows == 0:
            x = x.movedim(axis, 0)
            return x.reshape(rows, -1, *x.shape[-2:])
    return None


def has_pads(x: Tensor) -> bool:
    """Whether some slots of x (B, H, S, D) are zero and others are not."""
    sizes = x.square().sum((0, 1, 3))
    return bool((sizes < 1e-20 * sizes.max()).any())


def first_slot(out: Tensor, rows: int, slots: set[int]) -> Tensor | None:
    """(B, F): what a module gave at slot 0."""
    shape = list(out.shape)
    if out.dim() < 2:
        return None
    if rows not in shape:
        if shape[0] % rows or shape[0] // rows not in slots:
            return None
        out = out.reshape(rows, shape[0] // rows, *shape[1:])
        shape = list(out.shape)
    out = out.movedim(shape.index(rows), 0)
    for axis in range(1, out.dim()):
        if out.shape[axis] in slots:
            return out.select(axis, 0).reshape(rows, -1).clone()
    return None


def scale_of(event: Event) -> float | None:
    """What the product of queries and keys was multiplied with; None where it is not one number.

    Read off differences of neighbouring keys, which masks and row maxima leave alone.
    """
    q, k = event.product.q.double(), event.product.k.double()
    if q.shape[-3:-2] != k.shape[-3:-2]:
        return None
    raw, logits = q @ k.mT, event.logits.detach().double()
    if raw.shape != logits.shape:
        return None
    open_ = logits > MASKED
    both = open_[..., 1:] & open_[..., :-1]
    x = (raw[..., 1:] - raw[..., :-1])[both]
    y = (logits[..., 1:] - logits[..., :-1])[both]
    size = float(x.square().sum())
    if size < 1e-12 * float(raw.square().sum()):
        return None
    scale = float((x * y).sum()) / size
    return scale if float((y - scale * x).norm()) <= 1e-6 * float(y.norm()) else None


def table_of(added: Sum, slots: int, attention: list[str]) -> Table | None:
    """What was added, if it is a row a slot and not within attention."""
    if any(
        added.module == path or added.module.startswith(path + ".") for path in attention if path
    ):
        return None
    x = added.added.detach()
    if (
        added.content.dim() < 3
        or x.dim() not in (2, 3)
        or (x.shape[-1] != added.content.shape[-1] and not added.joined)
    ):
        return None
    rows = x if x.dim() == 2 else x[0] if x.shape[1] != 1 else x[:, 0]
    if (
        x.dim() == 3 and min(x.shape[:2]) > 1
    ):  # content whose origin was lost differs from row to row
        axis = 0 if x.shape[1] in added.content.shape[:2] and rows.shape == x.shape[1:] else 1
        if float((x - x.select(axis, 0).unsqueeze(axis)).abs().max()) > 1e-6 * float(x.abs().max()):
            return None
    if rows.shape[0] not in added.content.shape[:2] or rows.shape[0] < 3:
        return None
    rows = rows.double()
    if float((rows - rows[:1]).abs().max()) <= 1e-9:
        return None
    return Table(added.module, rows.clone(), added.joined)


def by_slots(side: Side) -> bool:
    """Whether channels turned evenly from slot to slot, whatever positions were given."""
    angles, turns = side.turning.angles, side.turning.turns
    fast = turns & (angles[..., 1].abs() > 1e-2)
    if not bool(fast.any()):
        return False
    slots = torch.arange(angles.shape[-1], dtype=angles.dtype)
    off = angles - angles[..., 1:2] * slots
    off = (off - 2 * torch.pi * (off / (2 * torch.pi)).round()).abs()[fast]
    return bool((off <= 1e-4 + 1e-5 * slots).all())
