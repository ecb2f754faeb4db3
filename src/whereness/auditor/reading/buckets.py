"""Whether a learned bias stands in T5's buckets.

Offsets of one bucket have one number, neighbours of different buckets different ones; and the
numbers of a table that is found in the model stand where the formula puts them.

Axes: H heads, S queries, T keys, O offsets (key minus query).
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.findings import Finding
from whereness.auditor.reading.comparing import finding_of
from whereness.auditor.reading.views import LayerView
from whereness.auditor.subject import Subject

CHECK = "CHK15"
ALIKE = 1e-5
"""How far numbers of one bucket may be apart, relative to the largest."""


def of_buckets(subject: Subject, view: LayerView, encoding: Any) -> Finding | None:
    """What is wrong with a bias that is to be T5's, if anything."""
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
    return finding_of(
        CHECK,
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
            return finding_of(
                CHECK,
                view,
                "K18",
                expected=f"offset {int(offsets[wrong])} reads row {int(buckets[wrong])}",
                measured=f"it reads row {int(near.indices[wrong])}",
                cause="offsets have the wrong sign, or keys before and after share no convention",
                remedy="bucket key position minus query position",
            )
    return None
