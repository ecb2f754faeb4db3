"""Axial RoPE: positions of n axes, each axis turning pairs of its own.

    pair k of axis a turns by p[a] w[a, k],   w[a, k] = base^(-2k / D_a),   sum of D_a = D

A pair never mixes two axes: a rotation by x w + y w' could not tell (x, y) apart from other
points with the same sum.

Source: Heo et al. 2024, arXiv:2403.13298, section 3.2 (two axes, base 100); for three axes the
video models (CogVideoX, Wan, HunyuanVideo) split D the same way.

layout "blocks": the first D_0/2 pairs are axis 0's, the next D_1/2 axis 1's, and so on; `pairing`
says where a pair's two channels lie in the whole head, as in DINOv3 and Qwen's vision towers.
layout "heads": the head is cut into blocks of D_a channels, and `pairing` acts inside each, as if
every axis had a head of its own. With pairing "interleaved" the two are the same.

Axes: n axes of a position, D head_dim. Axis 0 is the first coordinate: rows of wn.positions.grid.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import constants, require_choice, require_int, require_number
from whereness.frequencies import geometric
from whereness.rotary.base import Layout, Rotary, Turn
from whereness.rotary.pairing import Pairing


class AxialRoPE(Rotary):
    """Rotary position embedding for positions of n axes, real coordinates allowed.

    Args:
        head_dim: D; without `axis_dims` a multiple of 2 num_axes.
        num_axes: n, any number from 1. With 1, positions are (S,), (B, S) or (..., S, 1); (N, 1)
            is one coordinate for each of N tokens, or for the only token of each of N sequences.
        base: of every axis' spectrum.
        pairing: "half" or "interleaved".
        layout: "blocks" or "heads"; see the file.
        axis_dims: channels of each axis, even, adding up to head_dim; None: equal.

    Raises:
        ValueError: widths that are odd or do not add up, options that do not exist.
    """

    takes_grid = True

    def __init__(
        self,
        head_dim: int,
        num_axes: int = 2,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        layout: Literal["blocks", "heads"] = "blocks",
        axis_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(head_dim, pairing, None, "leading")
        self.num_axes = require_int("num_axes", num_axes, 1)
        require_number("base", base, 0.0)
        require_choice("layout", layout, ("blocks", "heads"))
        self.base, self.layout = float(base), layout
        self.axis_dims = self._checked_dims(axis_dims)
        self._frequencies = tuple(geometric(self.base, d, d // 2) for d in self.axis_dims)

    def _checked_dims(self, axis_dims: Sequence[int] | None) -> tuple[int, ...]:
        if axis_dims is None:
            if self.head_dim % (2 * self.num_axes):
                raise ValueError(
                    f"head_dim must be a multiple of 2 num_axes = {2 * self.num_axes}, got "
                    f"{self.head_dim}; or give axis_dims."
                )
            return (self.head_dim // self.num_axes,) * self.num_axes
        if not isinstance(axis_dims, (tuple, list)):
            raise TypeError(f"axis_dims must be a tuple of int, got {axis_dims!r}.")
        dims = tuple(require_int("every entry of axis_dims", dim, 2) for dim in axis_dims)
        if len(dims) != self.num_axes or sum(dims) != self.head_dim or any(d % 2 for d in dims):
            raise ValueError(
                f"axis_dims must be {self.num_axes} even widths that add up to head_dim="
                f"{self.head_dim}, got {dims}."
            )
        return dims

    @property
    def frequencies(self) -> Tensor | tuple[Tensor, ...]:
        """Radians per unit, float64 on the CPU: (num_axes, pairs), a tuple where widths differ."""
        each = tuple(torch.tensor(f, dtype=torch.float64, device="cpu") for f in self._frequencies)
        return torch.stack(each) if len(set(self.axis_dims)) == 1 else each

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin: 1."""
        return 1.0

    def angles(
        self, positions: Shaped[Tensor, "..."], lengths: Tensor | None = None
    ) -> Float[Tensor, "... P"]:
        coordinates = positions if self.num_axes > 1 else positions[..., None]
        angles = []
        for axis, frequencies in enumerate(self._frequencies):
            own = constants(frequencies, positions.device)
            angles.append(coordinates[..., axis, None].to(torch.float64) * own)
        return torch.cat(angles, -1)

    def _turned_part(self, part: Tensor, turned: Turn, layout: Layout, inverse: bool) -> Tensor:
        if self.layout == "blocks":
            return super()._turned_part(part, turned, layout, inverse)
        blocks = part.split(self.axis_dims, -1)
        pairs = [d // 2 for d in self.axis_dims]
        cos, sin = (t.split(pairs, -1) for t in turned)
        turned_blocks = [
            super(AxialRoPE, self)._turned_part(block, Turn(c, s), layout, inverse)
            for block, c, s in zip(blocks, cos, sin, strict=True)
        ]
        return torch.cat(turned_blocks, -1)
