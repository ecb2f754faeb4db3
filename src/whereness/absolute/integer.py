"""Integer: the position itself, in every channel.

    Π[p, c] = p,   or   p / length   (normalised)

The first thing anyone tries, kept to show why it fails: raw, the numbers swamp the token
embedding; normalised, the same position gets another code in a text of another length.

Source: fleetwood.dev, "You could have designed state of the art positional encoding", 2024.
Units: tokens.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.absolute.base import AbsoluteEncoding, Join
from whereness.checks import LARGEST_POSITION, require_int
from whereness.encoding import Site


class Integer(AbsoluteEncoding):
    """The position in every channel, raw or divided by `length`. Real positions are allowed.

    Args:
        dim: width of a row.
        length: None for raw numbers; else what they are divided by.

    >>> Integer(2)(torch.tensor([0, 5])).tolist()
    [[0.0, 0.0], [5.0, 5.0]]
    """

    def __init__(
        self,
        dim: int,
        length: int | None = None,
        *,
        site: Site = "tokens",
        join: Join = "add",
    ) -> None:
        super().__init__(dim, site, join)
        self.length = None if length is None else require_int("length", length, 1, LARGEST_POSITION)

    def rows(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        column = positions.to(torch.float64)[..., None]
        if self.length is not None:
            column = column / self.length
        return column.expand(*positions.shape, self.dim)
