"""Axial RoPE: positions of n axes, each axis turning pairs of its own.

    pair k of axis a turns by (s_a p[a] + o_a) w[a, k],   w[a, k] = base_a^(-2k / D_a)

A pair never mixes two axes: a rotation by x w + y w' could not tell (x, y) apart from other
points with the same sum.

Source: Heo et al. 2024, arXiv:2403.13298, section 3.2 (two axes, base 100); for three axes the
video models (CogVideoX, Wan, HunyuanVideo) split D the same way. Models differ in the order of
the pairs and of their channels. With two axes h and w, and h2 for pair 2 of axis h:

    layout                pairs        spectrum        pairing in
    "blocks"              h0 h1 w0 w1  each axis' own  the whole head
    "heads"               h0 h1 w0 w1  each axis' own  each axis' block of channels
    "alternating"         h0 w0 h1 w1  each axis' own  the whole head
    "shared_blocks"       h0 h2 w1 w3  one, of D       the whole head
    "shared_alternating"  h0 w1 h2 w3  one, of D       the whole head

    pairing half: blocks        DINOv3, the vision towers of Qwen-VL and GLM-V, MiniMax, Cosmos,
                                CogView4; columns first: Step 3
                  heads         Gemma 4 vision; Allegro
                  alternating   columns first: Kimi K2.5 vision
                  shared_...    blocks: Pixtral; alternating: NeoMME
    interleaved:  blocks        RoPE-ViT, Flux, Wan, HunyuanVideo, CogVideoX, Qwen-Image, SAM 2;
                                columns first: Llama 4 vision, Inkling 2
                  alternating   Lumina-Next, LTX-Video

A shared spectrum w[k] = base^(-2k / D) is dealt to the axes in turn: h has pairs 0, 2, ... of it.
"heads" is as if every axis had a head of its own; interleaved it is the same as "blocks".

Axes: n axes of a position, R rotated channels, D_a those of axis a, P = R/2 pairs. Axis 0 is the
first coordinate: rows of wn.positions.grid. Units: coordinates in any unit, frequencies in radians
per unit of s_a p[a] + o_a.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import (
    LARGEST_POSITION,
    constants,
    require_choice,
    require_int,
    require_number,
)
from whereness.frequencies import geometric
from whereness.kernels.tables import cos_sin_of_pairs
from whereness.rotary.base import Rotary, Run, Side
from whereness.rotary.pairing import Pairing

AxialLayout = Literal["blocks", "heads", "alternating", "shared_blocks", "shared_alternating"]


class Order(NamedTuple):
    """Which pairs an axis has, and where their channels are."""

    shared: bool
    """One spectrum of the whole width is dealt to the axes in turn; else each has its own."""
    alternating: bool
    """The axes take turns, pair by pair; else one comes after the other."""
    by_axis: bool
    """`pairing` acts inside the channels of each axis; else in the whole head."""


ORDERS: dict[str, Order] = {
    "blocks": Order(shared=False, alternating=False, by_axis=False),
    "heads": Order(shared=False, alternating=False, by_axis=True),
    "alternating": Order(shared=False, alternating=True, by_axis=False),
    "shared_blocks": Order(shared=True, alternating=False, by_axis=False),
    "shared_alternating": Order(shared=True, alternating=True, by_axis=False),
}


class AxialRoPE(Rotary):
    """Rotary position embedding for positions of n axes, real and negative coordinates allowed.

    Args:
        head_dim: D.
        num_axes: n, any number from 1. With 1, positions are (S,), (B, S) or (..., S, 1); (N, 1)
            is one coordinate for each of N tokens, or for the only token of each of N sequences.
        base: of every axis' spectrum; one for each axis if they differ. With NTK by axis (Cosmos)
            axis a has base * factor_a^(D_a / (D_a - 2)).
        pairing: "half" or "interleaved".
        layout: the order of pairs and channels; see the file.
        axis_dims: channels of each axis, even, adding up to rotary_dim; None: equal.
        axis_order: the axes in the order in which they get their pairs. (1, 0) gives the columns
            of a grid the first ones (Llama 4, Kimi, Step 3); None: as in a position.
        scale: coordinates are multiplied by it, one number or one for each axis: the reference
            grid over the grid (EVA-02), 24 / fps of frames (Cosmos).
        offset: added after that: 1 where a model counts from 1 (Llama 4 vision).
        frequencies: those of each axis, D_a/2 numbers, where they are not geometric (pixel
            frequencies, LTX-Video); they replace `base`.
        rotary_dim: channels that turn; None: all.
        rotary_side: "leading" turns the first channels, "trailing" the last.

    Raises:
        ValueError: widths that are odd or do not add up, options that do not exist.
    """

    takes_grid = True

    def __init__(
        self,
        head_dim: int,
        num_axes: int = 2,
        base: float | Sequence[float] = 10_000.0,
        pairing: Pairing = "half",
        layout: AxialLayout = "blocks",
        axis_dims: Sequence[int] | None = None,
        axis_order: Sequence[int] | None = None,
        scale: float | Sequence[float] = 1.0,
        offset: float | Sequence[float] = 0.0,
        frequencies: Sequence[Sequence[float]] | None = None,
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
    ) -> None:
        super().__init__(head_dim, pairing, rotary_dim, rotary_side)
        self.num_axes = require_int("num_axes", num_axes, 1)
        require_choice("layout", layout, tuple(ORDERS))
        bases = _per_axis("base", base, self.num_axes, 0.0)
        self.base = bases[0] if len(set(bases)) == 1 else bases
        self.layout = layout
        self.axis_dims = self._checked_dims(axis_dims)
        self.axis_order = _checked_order(axis_order, self.num_axes)
        self.scale = _per_axis("scale", scale, self.num_axes, 0.0)
        self.offset = _per_axis("offset", offset, self.num_axes, -math.inf)
        if frequencies is None:
            self._frequencies = self._geometric(bases)
        else:
            self._frequencies = _checked_frequencies(frequencies, self.axis_dims)
        self._check_reach()
        self._set_pairs()

    def _checked_dims(self, axis_dims: Sequence[int] | None) -> tuple[int, ...]:
        width = "head_dim" if self.rotary_dim == self.head_dim else "rotary_dim"
        if axis_dims is None:
            if self.rotary_dim % (2 * self.num_axes):
                raise ValueError(
                    f"{width} must be a multiple of 2 num_axes = {2 * self.num_axes}, got "
                    f"{self.rotary_dim}; or give axis_dims."
                )
            return (self.rotary_dim // self.num_axes,) * self.num_axes
        if not isinstance(axis_dims, (tuple, list)):
            raise TypeError(f"axis_dims must be a tuple of int, got {axis_dims!r}.")
        dims = tuple(require_int("every entry of axis_dims", dim, 2) for dim in axis_dims)
        if len(dims) != self.num_axes or sum(dims) != self.rotary_dim or any(d % 2 for d in dims):
            raise ValueError(
                f"axis_dims must be {self.num_axes} even widths that add up to {width}="
                f"{self.rotary_dim}, got {dims}."
            )
        return dims

    def _geometric(self, bases: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
        if not ORDERS[self.layout].shared:
            each = zip(bases, self.axis_dims, strict=True)
            return tuple(geometric(base, dim, dim // 2) for base, dim in each)
        if len(set(bases)) > 1 or len(set(self.axis_dims)) > 1:
            raise ValueError(
                f"layout {self.layout!r} shares one spectrum among the axes: it needs one base and "
                f"equal axis_dims, got {bases} and {self.axis_dims}."
            )
        whole = geometric(bases[0], self.rotary_dim, self.rotary_dim // 2)
        return tuple(whole[self.axis_order.index(a) :: self.num_axes] for a in range(self.num_axes))

    def _check_reach(self) -> None:
        for spectrum, scale, offset in zip(self._frequencies, self.scale, self.offset, strict=True):
            widest = max(map(abs, spectrum)) * (scale * LARGEST_POSITION + abs(offset))
            if not math.isfinite(widest):
                raise ValueError(
                    "scale, offset and frequencies must give finite angles, got "
                    f"{scale!r}, {offset!r} and {max(map(abs, spectrum))!r}."
                )

    def _set_pairs(self) -> None:
        """Axis and frequency of every pair, and the channels inside which `pairing` acts."""
        order = ORDERS[self.layout]
        pairs = [(a, k) for a in self.axis_order for k in range(self.axis_dims[a] // 2)]
        if order.alternating:
            pairs.sort(key=lambda pair: pair[1])  # stable: in every round the axes keep their order
        self._axis_of_pair = tuple(axis for axis, _ in pairs)
        self._frequency_of_pair = tuple(self._frequencies[axis][k] for axis, k in pairs)
        if order.by_axis:
            pairs = [self.axis_dims[axis] // 2 for axis in self.axis_order]
            firsts = itertools.accumulate(pairs[:-1], initial=0)
            start = self._runs[0].start
            self._runs = tuple(
                Run(start + 2 * first, first, count)
                for first, count in zip(firsts, pairs, strict=True)
            )

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
        return self._coordinates(positions) * constants(self._frequency_of_pair, positions.device)

    def _coordinates(self, positions: Tensor) -> Tensor:
        """What each pair is turned by, (..., S, P), float64."""
        coordinates = positions if self.num_axes > 1 else positions[..., None]
        device = positions.device
        placed = coordinates.to(torch.float64)
        if set(self.scale) != {1.0}:
            placed = placed * constants(self.scale, device)
        if any(self.offset):
            placed = placed + constants(self.offset, device)
        of_pair = torch.tensor(self._axis_of_pair, device=device)
        return placed.index_select(-1, of_pair)

    def rounded(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self._asks(AxialRoPE):
            return super().rounded(positions, lengths)
        high = constants(self._frequency_of_pair, positions.device)
        cos, sin = cos_sin_of_pairs(self._coordinates(positions), high)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)


def _per_axis(name: str, value: object, num_axes: int, above: float) -> tuple[float, ...]:
    """One number for every axis, from one number or a sequence of them."""
    if not isinstance(value, (tuple, list)):
        require_number(name, value, above)
        return (float(value),) * num_axes  # type: ignore[arg-type]
    if len(value) != num_axes:
        raise ValueError(
            f"{name} must be one number or one for each of {num_axes} axes, got {len(value)}."
        )
    for axis, number in enumerate(value):
        require_number(f"{name} of axis {axis}", number, above)
    return tuple(map(float, value))


def _checked_order(order: Sequence[int] | None, num_axes: int) -> tuple[int, ...]:
    if order is None:
        return tuple(range(num_axes))
    if not isinstance(order, (tuple, list)):
        raise TypeError(f"axis_order must be a tuple of int, got {order!r}.")
    axes = tuple(require_int("every entry of axis_order", axis, 0) for axis in order)
    if sorted(axes) != list(range(num_axes)):
        raise ValueError(
            f"axis_order must hold each of the axes 0 to {num_axes - 1} once, got {axes}."
        )
    return axes


def _checked_frequencies(
    frequencies: Sequence[Sequence[float]], dims: tuple[int, ...]
) -> tuple[tuple[float, ...], ...]:
    needed = [d // 2 for d in dims]
    rows = frequencies if isinstance(frequencies, (tuple, list)) else ()
    if any(not isinstance(row, (tuple, list)) for row in rows) or len(rows) != len(dims):
        raise TypeError(
            f"frequencies must be {len(dims)} tuples of numbers, one for each axis, got "
            f"{type(frequencies).__name__}."
        )
    if [len(row) for row in rows] != needed:
        raise ValueError(
            f"frequencies must be {needed} numbers for the axes, got {[len(r) for r in rows]}."
        )
    return tuple(
        _per_axis(f"frequencies of axis {axis}", row, len(row), -math.inf)
        for axis, row in enumerate(rows)
    )
