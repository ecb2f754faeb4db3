"""What all absolute encodings share: a matrix Π, one row a position, that joins X.

    X + Π  or  [X, Π]      at the input, at every layer, or for queries and keys only

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (added at the input); Prince,
Understanding Deep Learning, 2023, section 12.3.1 (every layer; queries and keys, never values).

Axes: B batch, S new tokens, T keys, E model dim, W width of a row, F and V what projections read.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import require, require_choice, require_device, require_floating, require_int
from whereness.encoding import At, PositionalEncoding, Site
from whereness.where import Where, checked_positions, filled

Join = Literal["add", "concat"]


class Rows(NamedTuple):
    """Rows of Π for the new tokens and for the keys that have not been cached."""

    new: Tensor
    keys: Tensor


class AbsoluteEncoding(PositionalEncoding):
    """Base of the encodings that join X: a leaf gives `rows`, this class opens doors 1 and 2.

    Args:
        dim: width of a row. With join="add" it must be the width of the tokens.
        site: "tokens" (the model adds it once, at the input), "every_layer", or "queries_keys"
            (every layer, never the values).
        join: "add", or "concat", which widens what the projections read to E + dim.
    """

    site: Site  # type: ignore[bad-override-mutable-attribute]

    def __init__(self, dim: int, site: Site = "tokens", join: Join = "add") -> None:
        super().__init__()
        self.dim = require_int("dim", dim, 1)
        require_choice("site", site, ("tokens", "every_layer", "queries_keys"))
        require_choice("join", join, ("add", "concat"))
        self.site, self.join = site, join

    def rows(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        """Rows of Π, (..., S, dim), in at least float32; `positions` are checked and placed."""
        raise NotImplementedError

    def forward(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        """Rows of Π: (..., S) or with n axes (..., S, n) -> (..., S, dim).

        float32, or float64 where parameters are. A token without a place gets a row of zeros.

        Raises:
            TypeError: half-precision, bool or complex positions.
            ValueError: positions that the encoding cannot represent.
        """
        rows = self._placed_rows(checked_positions("positions", positions, self.num_axes))
        if self._wide_parameters():
            return rows
        rounded = rows.float()
        if positions.is_floating_point():
            require(rounded.isfinite(), "A position is too large for a row of float32.")
        return rounded

    def width(self, dim: int) -> int:
        return dim + self.dim if self.join == "concat" else dim

    def tables(self, where: Where) -> Rows:
        new = self.where_rows(where, where.positions, last=True)
        if where.k_positions is None or self.site == "tokens":
            return Rows(new, new)
        return Rows(new, self.where_rows(where, where.new_keys, last=False))

    def where_rows(self, where: Where, positions: Tensor, last: bool) -> Tensor:
        """Rows of the new tokens (`last`) or of the new keys of `where`."""
        return self._placed_rows(positions)

    def tokens(self, x: Float[Tensor, "B S E"], at: At) -> Float[Tensor, "B S F"]:
        return self._joined(x, at.data.new) if self.site == "tokens" else x

    def inputs(
        self, x: Float[Tensor, "B S E"], context: Float[Tensor, "B T E"], at: At
    ) -> tuple[Float[Tensor, "B S F"], Float[Tensor, "B T F"], Float[Tensor, "B T V"]]:
        if self.site == "tokens":
            return x, context, context
        x_q = self._joined(x, at.data.new)
        x_k = x_q if context is x else self._joined(context, at.data.keys)
        return x_q, x_k, (x_k if self.site == "every_layer" else context)

    def _placed_rows(self, positions: Tensor) -> Tensor:
        placed, absent = filled(positions, self.num_axes)
        return self.rows(placed).masked_fill(absent[..., None], 0.0)

    def _joined(self, x: Tensor, rows: Tensor) -> Tensor:
        require_floating("x", x)
        if x.dim() != 3 or x.shape[1] != rows.shape[1] or rows.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f"Tokens must be (B, S, E) and fit the positions (B or 1, S) = "
                f"{tuple(rows.shape[:2])}, got {tuple(x.shape)}."
            )
        require_device("Positions", rows, x.device)
        if self.join == "concat":
            return torch.cat([x, rows.to(x.dtype).expand(*x.shape[:-1], -1)], -1)
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"{type(self).__name__} of dim={self.dim} cannot be added to tokens of width "
                f"{x.shape[-1]}: use dim={x.shape[-1]} or join='concat'."
            )
        # One rounding: the sum is formed in the wider type.
        return (x + rows.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    def _wide_parameters(self) -> bool:
        return any(p.dtype == torch.float64 for p in self.parameters())
