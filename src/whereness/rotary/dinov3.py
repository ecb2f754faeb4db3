"""DINOv3's axial RoPE: centres of patches as parts of the image, jittered in training.

    c = 2 (i + 1/2) / N - 1                 centre of patch i of N, in [-1, 1]
    pair j of axis a turns by 2 pi c[a] / base^(2j / D_a)
    in training   c <- (c + shift_a) jitter_a rescale

N is the number of patches along the axis ("separate"), or the largest ("max") or smallest ("min")
of all axes, which keeps the shape of patches.

Source: Simeoni et al. 2025, arXiv:2508.10104, section 3 (two axes, base 100, pairing "half",
layout "blocks"). The factors are log-uniform; one draw a call, for all tokens, as the authors'
code has it. Real grids, any number of axes and a generator are ours.

Axes: n axes of a position, D_a channels of axis a. Units: half of the image's side; a base is a
ratio of periods, the shortest being that half.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from whereness.checks import require_at_least, require_choice, require_int, require_number
from whereness.frequencies import geometric
from whereness.rotary.axial import AxialRoPE
from whereness.rotary.pairing import Pairing
from whereness.where import Where

Normalise = Literal["separate", "max", "min"]
DENOMINATORS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "separate": lambda sizes: sizes,
    "max": lambda sizes: (max(sizes),) * len(sizes),
    "min": lambda sizes: (min(sizes),) * len(sizes),
}
"""What the index of a patch is divided by on each axis."""


class DINOv3RoPE(AxialRoPE):
    """Axial RoPE of coordinates in the image. `coordinates(height, width)` makes its positions.

    Args:
        head_dim: D, a multiple of 2 num_axes.
        normalise: what a patch's index is divided by: "separate", "max" or "min"; see the file.
        shift: largest shift of an axis in training, in units of half a side; None: none.
        jitter: largest factor on an axis in training, at least 1; None: none.
        rescale: largest factor on all axes together in training, at least 1; None: none.

    Raises:
        ValueError: widths that do not fit, options that do not exist.
        TypeError: integer positions. They would count patches, and be read as whole images.
    """

    def __init__(
        self,
        head_dim: int,
        num_axes: int = 2,
        base: float = 100.0,
        pairing: Pairing = "half",
        normalise: Normalise = "separate",
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
    ) -> None:
        require_number("base", base, 0.0)
        require_choice("normalise", normalise, tuple(DENOMINATORS))
        super().__init__(head_dim, num_axes, base, pairing)
        self.normalise = normalise
        self.shift = _checked("shift", shift, 0.0)
        self.jitter = _checked("jitter", jitter, 1.0)
        self.rescale = _checked("rescale", rescale, 1.0)

    def _geometric(self, bases: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
        each = (geometric(b, d, d // 2) for b, d in zip(bases, self.axis_dims, strict=True))
        return tuple(tuple(2 * math.pi * w for w in spectrum) for spectrum in each)

    @property
    def periods(self) -> Tensor:
        """Of every pair, (num_axes, pairs), float64 on the CPU."""
        frequencies = self.frequencies
        assert isinstance(frequencies, Tensor)  # widths are equal
        return 2 * math.pi / frequencies

    def coordinates(
        self, *sizes: int, prefix: int = 0, device: torch.device | str | None = None
    ) -> Float[Tensor, "N n"]:
        """Centres of the patches of a grid, row-major, float64: (prefix + product of sizes, n).

        `prefix` tokens without a place (CLS, registers) come first, as NaN.
        """
        if len(sizes) != self.num_axes:
            raise ValueError(f"coordinates needs {self.num_axes} sizes, got {len(sizes)}.")
        sizes = tuple(require_int(f"size {a} of the grid", n, 1) for a, n in enumerate(sizes))
        prefix = require_int("prefix", prefix, 0)
        lines = [
            2 * (torch.arange(n, dtype=torch.float64, device=device) + 0.5) / whole - 1
            for n, whole in zip(sizes, DENOMINATORS[self.normalise](sizes), strict=True)
        ]
        cells = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, -2)
        return torch.cat([cells.new_full((prefix, len(sizes)), torch.nan), cells])

    def move(self, where: Where, generator: torch.Generator | None = None) -> Where:
        """Shift, stretch and rescale all coordinates of a training pass by one random draw.

        Queries and keys move together, so scores keep depending on offsets.
        """
        if not self.training or {self.shift, self.jitter, self.rescale} == {None}:
            return where
        device, axes = where.positions.device, self.num_axes

        def drawn(largest: float | None, count: int) -> Tensor:
            """Uniform in [-largest, largest]; 0 for None."""
            made = torch.zeros(count, dtype=torch.float64, device=device)
            return (
                made if largest is None else made.uniform_(-largest, largest, generator=generator)
            )

        shift = drawn(self.shift, axes)
        factor = drawn(_log(self.jitter), axes).exp() * drawn(_log(self.rescale), 1).exp()

        def moved(positions: Tensor | None) -> Tensor | None:
            if positions is None:
                return None
            coordinates = _real(positions)
            return (coordinates + shift) * factor

        return replace(
            where, positions=moved(where.positions), k_positions=moved(where.k_positions)
        )

    def _coordinates(self, positions: Tensor) -> Tensor:
        return super()._coordinates(_real(positions))


def _checked(name: str, value: float | None, minimum: float) -> float | None:
    if value is None:
        return None
    require_at_least(name, value, minimum)
    return float(value)


def _log(factor: float | None) -> float | None:
    return None if factor is None else math.log(factor)


def _real(positions: Tensor) -> Tensor:
    if not positions.is_floating_point():
        raise TypeError(
            f"DINOv3RoPE reads coordinates in [-1, 1], got {positions.dtype}: "
            "rope.coordinates(height, width) gives those of a grid of patches."
        )
    return positions
