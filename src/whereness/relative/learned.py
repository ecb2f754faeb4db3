"""Learned relative: one parameter per offset and head, added to or multiplying attention.

    add       logits[h, i, j] + table[c(k - q), h]          (or weights)
    multiply  logits[h, i, j] * table[c(k - q), h]          (or weights)
    c(offset) = clip(offset, -K, K) + K,   K = max_distance

Source: the offset parameter of Shaw et al. 2018, arXiv:1803.02155, section 3, as a scalar: added
as in Raffel et al. 2020, arXiv:1910.10683; multiplied as in Huang et al. 2020, arXiv:2009.13658,
section 3, methods 1 and 2. Prince, Understanding Deep Learning, 2023, section 12.3.1, names adding
and multiplying as the ways. Multiplying starts at 1 and adding at 0, so both start as plain
attention; the papers do not say.

Units: offsets in tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from whereness.checks import require, require_choice, require_device, require_int
from whereness.relative.bias import OffsetBias


class LearnedRelative(OffsetBias):
    """One parameter per offset within max_distance and head. Integer positions only.

    Args:
        max_distance: K, farthest offset with a parameter of its own, on both sides.
        operation: "add", or "multiply": the factor acts on q.k * scale, not on a bias before it.
        on: "logits", or "weights": after softmax, without renormalising.
        beyond: "clip" lets farther offsets share the last parameter, "raise" refuses them.

    Raises:
        ValueError: an offset beyond max_distance with beyond="raise".
        TypeError: real positions.
    """

    def __init__(
        self,
        num_heads: int,
        max_distance: int,
        operation: Literal["add", "multiply"] = "add",
        on: Literal["logits", "weights"] = "logits",
        beyond: Literal["clip", "raise"] = "clip",
    ) -> None:
        super().__init__(num_heads)
        self.max_distance = require_int("max_distance", max_distance, 0)
        require_choice("operation", operation, ("add", "multiply"))
        require_choice("on", on, ("logits", "weights"))
        require_choice("beyond", beyond, ("clip", "raise"))
        self.operation, self.on, self.beyond = operation, on, beyond
        self.unbounded = beyond == "clip"
        self.table = nn.Parameter(torch.empty(2 * self.max_distance + 1, self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.table, self.at_nowhere)

    def bias(
        self, q_positions: Shaped[Tensor, "*#B S"], k_positions: Shaped[Tensor, "*#B T"]
    ) -> Float[Tensor, "*#B H S T"]:
        """What is added, (..., H, S, T).

        Raises:
            ValueError: this instance multiplies: use factor().
        """
        if self.operation == "multiply":
            raise ValueError("This LearnedRelative multiplies: use .factor() instead of .bias().")
        return self._by_positions(q_positions, k_positions)

    def factor(
        self, q_positions: Shaped[Tensor, "*#B S"], k_positions: Shaped[Tensor, "*#B T"]
    ) -> Float[Tensor, "*#B H S T"]:
        """What q.k * scale (or the weights) is multiplied by, (..., H, S, T).

        Raises:
            ValueError: this instance adds: use bias().
        """
        if self.operation == "add":
            raise ValueError("This LearnedRelative adds: use .bias() instead of .factor().")
        return self._by_positions(q_positions, k_positions)

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        if offset.is_floating_point():
            raise TypeError(f"LearnedRelative needs integer positions, got {offset.dtype}.")
        if self.beyond == "raise":
            require(
                offset.abs() <= self.max_distance,
                lambda: (
                    f"LearnedRelative has parameters up to distance {self.max_distance}, got "
                    f"{int(offset.abs().max())}. Give more max_distance, or beyond='clip'."
                ),
            )
        require_device("Positions", offset, self.table.device)
        clipped = offset.clamp(-self.max_distance, self.max_distance)
        return self.table[clipped + self.max_distance].movedim(-1, 0)
