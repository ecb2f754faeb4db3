"""Door 5: what is done to the values.

Axes: N offsets, D head_dim.
"""

import torch
from torch import Tensor

from whereness.encoding import Call
from whereness.pictures.drawing import Picture, channels, svg
from whereness.pictures.subject import Subject, probing
from whereness.properties.doors import sizes

TITLE = "What it adds to values"


def numbers(of: Subject) -> Tensor | None:
    """What a query reads of a key 0, 1, ... tokens back, (N, D), all weight being on that key.

    The values are zeros, so only what is added shows; where nothing is, they are ones. None where
    door 5 is shut.
    """
    if 5 not in of.doors:
        return None
    with probing():
        added = _read(of, 0.0)
        return added if bool(added.any()) else _read(of, 1.0)


def _read(of: Subject, value: float) -> Tensor:
    s, where = sizes(of.encoding), of.where()
    content = torch.full((1, s.num_heads, of.length, s.head_dim), value, dtype=torch.float64)
    weights = content.new_zeros(1, s.num_heads, of.length, of.length)
    weights[..., 0] = 1.0  # every query reads the first key: the query at n, n tokens back
    at = of.encoding.prepare(where)
    allowed = torch.ones_like(weights, dtype=torch.bool)
    call = Call(q=content, k=content, at=at, scale=1.0, allowed=allowed, features={})
    out = weights @ of.encoding.values(content, at)
    return of.encoding.outputs(out, weights, call)[0, 0]


def picture(of: Subject, name: str) -> Picture | None:
    """A heat map: tokens back to the right, channel downwards."""
    table = numbers(of)
    if table is None:
        return None

    draw = channels(table, "tokens back", "channel of a head", "value")
    return Picture(
        "values",
        TITLE,
        "What a query reads, besides the content, from a key that lies so many tokens back, in "
        f"each of the {table.shape[1]} channels of a head.",
        svg(draw, f"Values of {of.seen_as} by offset", f"{name}-values"),
    )
