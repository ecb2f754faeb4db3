"""What an encoding costs: parameters, prepared tables, and which fast paths it leaves open."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.attend.layer import Attention
from whereness.encoding import At, PositionalEncoding
from whereness.properties.doors import exact_copy, sizes
from whereness.properties.probes import along, where_of


@dataclass(frozen=True)
class Cost:
    """See `cost`."""

    parameters: int
    table_bytes: int
    table_growth: str
    fused: bool


def cost(encoding: PositionalEncoding, length: int) -> Cost:
    """Of the encoding as it was given, not of a float64 copy.

    parameters: numbers that are trained, all layers sharing them
    table_bytes: bytes that `prepare` makes for `length` tokens, once a forward pass
    table_growth: how they grow with length: "none", "O(1)", "O(L)" or "O(L^2)"
    fused: `implementation="sdpa"` serves it, so attention need not keep all logits
    """
    half = table_bytes(encoding, length // 2)
    whole = table_bytes(encoding, length)
    return Cost(
        parameters=sum(p.numel() for p in encoding.parameters()),
        table_bytes=whole,
        table_growth=_growth(whole / half) if half else "none",
        fused=is_fused(encoding),
    )


def table_bytes(encoding: PositionalEncoding, length: int) -> int:
    """Bytes of storage that `prepare` makes for positions 0 .. length - 1."""
    where = where_of(encoding, along(encoding, torch.arange(length)))
    if where.num_axes == 1:
        # As attention builds its default positions.
        where = where.as_regular()
    with torch.no_grad():
        at = encoding.prepare(where)
    owned = {p.untyped_storage().data_ptr() for p in encoding.parameters()}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(at)}
    return sum(size for pointer, size in storages.items() if pointer not in owned)


def is_fused(encoding: PositionalEncoding) -> bool:
    """Fused attention serves the encoding."""
    copy = exact_copy(encoding, torch.float32)
    s = sizes(copy)
    layer = Attention(
        s.dim,
        s.num_heads,
        [m for m in copy.members() if m.site != "tokens"] or None,
        causal=copy.causal_only,
        head_dim=s.head_dim,
        implementation="sdpa",
        owns_encoding=False,
    ).float()
    where = where_of(copy, along(copy, torch.arange(2)))
    try:
        with torch.no_grad():
            layer(torch.ones(1, 2, s.dim, dtype=torch.float32), where=where)
    except ValueError:
        return False
    return True


def _growth(ratio: float) -> str:
    """Of doubling the length."""
    if ratio < 1.5:
        return "O(1)"
    return "O(L)" if ratio < 3 else "O(L^2)"


def _tensors(value: object) -> Iterator[Tensor]:
    """All tensors inside what `prepare` gave, the caller's positions apart."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, At):
        yield from _tensors(value.data)
    elif isinstance(value, dict):
        yield from (t for v in value.values() for t in _tensors(v))
    elif isinstance(value, (list, tuple)):
        yield from (t for v in value for t in _tensors(v))
    elif dataclasses.is_dataclass(value):
        yield from (t for f in dataclasses.fields(value) for t in _tensors(getattr(value, f.name)))
