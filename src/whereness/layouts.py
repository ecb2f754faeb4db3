"""Orders of axes that callers have, and views in the one that everything inside works in.

bhsd   (B, H, S, D), as SDPA and FlexAttention; the one inside
bshd   (B, S, H, D)
thd    (S, H, D), packed: one row of tokens

Axes: B batch, H heads, S tokens, D head_dim.
"""

from typing import Literal, NamedTuple

from torch import Tensor

Layout = Literal["bhsd", "bshd", "thd"]
LAYOUTS = ("bhsd", "bshd", "thd")


class Axes(NamedTuple):
    """How many axes a layout has, and which hold the heads and the tokens."""

    layout: Layout
    count: int
    heads: int
    tokens: int


AXES = {
    "bhsd": Axes("bhsd", 4, 1, 2),
    "bshd": Axes("bshd", 4, 2, 1),
    "thd": Axes("thd", 3, 1, 0),
}


def heads_first(x: Tensor, layout: Layout) -> Tensor:
    """A view (B, H, S, D) of a tensor in `layout`."""
    if layout == "thd":
        return x.transpose(0, 1)[None]
    return x.transpose(1, 2) if layout == "bshd" else x


def as_given(x: Tensor, layout: Layout) -> Tensor:
    """A view in `layout` of a tensor (B, H, S, D)."""
    if layout == "thd":
        return x[0].transpose(0, 1)
    return x.transpose(1, 2) if layout == "bshd" else x
