"""Maps of positions for training: members of a combination that open no door and only move.

    wn.Transformer(..., encoding=[wn.maps.SHAPE(500), wn.Sinusoidal(512)])

    Randomized   p -> the p-th of n sorted draws from 0 .. max_position-1
    SHAPE        p -> p + k,   k from 0 .. max_shift
    CAPE         p -> (p + shift + jitter_p) * scale
    Abacus       p -> p + k where p > 0

A map moves the positions of the whole model, once a forward pass, before anything is prepared; in
eval mode it changes nothing. Draws come from the `generator` that the model's forward is given,
else from torch's. A cache refuses positions that moved.

Axes: B batch, S new tokens, T keys, n axes of a position.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whereness.checks import require, require_bool, require_int, require_number
from whereness.encoding import PositionalEncoding
from whereness.positions import randomized
from whereness.where import NOWHERE, Where, filled, is_nowhere, moved_by

Draws = torch.Generator | None


class PositionMap(PositionalEncoding):
    """Base of the maps: a leaf gives `moved`, what training sees."""

    reads = "nothing"
    relative = True

    def move(self, where: Where, generator: Draws = None) -> Where:
        return self.moved(where, generator) if self.training else where

    def moved(self, where: Where, generator: Draws) -> Where:
        """`where` in training mode."""
        raise NotImplementedError


class Randomized(PositionMap):
    """Sorted draws take the place of 0, 1, 2, ...: one draw for the batch.

    Position p becomes the p-th smallest of as many different numbers as there are tokens. Documents
    of a packed row share the draw. For random positions at test time, as the source has them, give
    `wn.positions.randomized` as positions.

    Source: Ruoss et al. 2023, arXiv:2305.16843, section 3.

    Args:
        max_position: positions are drawn below it.

    >>> Randomized(3).moved(Where(torch.tensor([0, 1, 2])), None).positions
    tensor([[0, 1, 2]])
    """

    def __init__(self, max_position: int) -> None:
        super().__init__()
        self.max_position = require_int("max_position", max_position, 1)

    def moved(self, where: Where, generator: Draws) -> Where:
        number = max(where.num_queries, where.num_keys)
        drawn = randomized(number, self.max_position, generator, where.positions.device)

        def draw(positions: Tensor) -> Tensor:
            if positions.is_floating_point():
                raise TypeError(f"Randomized maps integer positions, got {positions.dtype}.")
            placed, _ = filled(positions)
            require(
                (placed >= 0) & (placed < number),
                f"Randomized maps positions of 0 .. {number - 1}, one for each token.",
                placed,
            )
            return drawn[placed].masked_fill(is_nowhere(positions), NOWHERE)

        return _mapped(where, draw)

    def extra_repr(self) -> str:
        return f"max_position={self.max_position}"


class SHAPE(PositionMap):
    """Every sequence starts at a random position: absolute positions lose their meaning.

    Source: Kiyono et al. 2021, arXiv:2109.05644, section 3.

    Args:
        max_shift: shifts are drawn from 0 .. max_shift, one a sequence.

    >>> SHAPE(0).moved(Where(torch.tensor([4, 5])), None).positions
    tensor([[4, 5]])
    """

    draws_per_sequence = True

    def __init__(self, max_shift: int) -> None:
        super().__init__()
        self.max_shift = require_int("max_shift", max_shift, 0)

    def moved(self, where: Where, generator: Draws) -> Where:
        positions = where.positions
        once = (positions.shape[0], *[1] * (positions.dim() - 1))
        shift = _integers(self.max_shift, once, where, generator)
        found = _mapped(where, lambda p: moved_by(p, shift))
        return found.as_regular() if where.regular else found

    def extra_repr(self) -> str:
        return f"max_shift={self.max_shift}"


class CAPE(PositionMap):
    """Continuous augmentation: shift and scale a sequence, jitter its tokens. Real positions.

    Source: Likhomanenko et al. 2021, arXiv:2106.03143, section 3. Its text recipe is a shift of 5,
    a jitter of 1 and a scale of 1.03; for sound positions are seconds and `step` the time between
    two frames.

    Args:
        max_global_shift: one shift a sequence and axis, from -max .. max.
        max_local_shift: one jitter a token and axis, from -max/2 .. max/2 steps. Up to 1 the order
            of the tokens stays as it is.
        max_scale: one factor a sequence, from 1/max .. max, its logarithm uniform.
        centred: first take off the mean position of the sequence. A model sees this in eval mode,
            too: it is no augmentation.
        step: distance of two neighbours.

    >>> CAPE(0.0, 0.0, 1.0).moved(Where(torch.tensor([0, 1])), None).positions
    tensor([[0., 1.]], dtype=torch.float64)
    """

    draws_per_sequence = True

    def __init__(
        self,
        max_global_shift: float,
        max_local_shift: float = 0.0,
        max_scale: float = 1.0,
        *,
        centred: bool = False,
        step: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("max_global_shift", max_global_shift, 0.0),
            ("max_local_shift", max_local_shift, 0.0),
            ("max_scale", max_scale, 1.0),
        ):
            require_number(name, value, -math.inf)
            if value < least:
                raise ValueError(f"{name} must be at least {least:g}, got {value!r}.")
        require_number("step", step, 0.0)
        require_bool("centred", centred)
        self.max_global_shift = float(max_global_shift)
        self.max_local_shift, self.max_scale = float(max_local_shift), float(max_scale)
        self.centred, self.step = centred, float(step)

    def move(self, where: Where, generator: Draws = None) -> Where:
        if self.centred:
            self._check_one_stream(where)
            where = _mapped(where, _centred)
        return super().move(where, generator)

    def moved(self, where: Where, generator: Draws) -> Where:
        if self.max_local_shift:
            self._check_one_stream(where)
        positions = where.positions
        once = (positions.shape[0], *[1] * (positions.dim() - 1))
        once_an_axis = (*once[:-1], where.num_axes) if where.num_axes > 1 else once
        shift = self.max_global_shift * _uniform(once_an_axis, where, generator)
        jitter = _uniform(positions.shape, where, generator) if self.max_local_shift else 0.0
        jitter = jitter * (self.max_local_shift * self.step / 2)
        scale = (math.log(self.max_scale) * _uniform(once, where, generator)).exp()
        return _mapped(where, lambda p: (_real(p) + shift + jitter) * scale)

    def _check_one_stream(self, where: Where) -> None:
        if where.k_positions is not None:
            raise ValueError(
                "CAPE's jitter and mean are those of one stream of tokens: with k_positions it "
                "cannot tell which query and which key are the same token. Use max_local_shift=0 "
                "and centred=False."
            )

    def extra_repr(self) -> str:
        return (
            f"{self.max_global_shift}, {self.max_local_shift}, {self.max_scale}, "
            f"centred={self.centred}, step={self.step}"
        )


class Abacus(PositionMap):
    """Digits start at a random place of their numbers, so that longer numbers are nothing new.

    For positions of `wn.positions.abacus`: the digits' positions all move by one draw for the
    batch, the 0 of other tokens stays.

    Source: McLeish et al. 2024, arXiv:2405.17399, section 3.

    Args:
        max_shift: the shift is drawn from 0 .. max_shift.

    >>> Abacus(0).moved(Where(torch.tensor([0, 1, 2])), None).positions
    tensor([[0, 1, 2]])
    """

    def __init__(self, max_shift: int) -> None:
        super().__init__()
        self.max_shift = require_int("max_shift", max_shift, 0)

    def moved(self, where: Where, generator: Draws) -> Where:
        shift = _integers(self.max_shift, (), where, generator)
        return _mapped(where, lambda p: p + shift * (p > 0))

    def extra_repr(self) -> str:
        return f"max_shift={self.max_shift}"


def _mapped(where: Where, change: Callable[[Tensor], Tensor]) -> Where:
    """`where` with positions, and those of keys if it has any, changed."""
    keys = where.k_positions
    return replace(
        where,
        positions=change(where.positions),
        k_positions=None if keys is None else change(keys),
    )


def _real(positions: Tensor) -> Tensor:
    """float64, NaN where there is no place."""
    return positions.double().masked_fill(is_nowhere(positions), torch.nan)


def _centred(positions: Tensor) -> Tensor:
    """Less the mean of each sequence, on each axis."""
    real = _real(positions)
    return real - real.nanmean(1, keepdim=True)


def _integers(most: int, shape: tuple[int, ...], where: Where, generator: Draws) -> Tensor:
    """Draws from 0 .. most."""
    drawn = torch.randint(most + 1, shape, **_drawn_with(where, generator))
    return drawn.to(where.positions.device)


def _uniform(shape: tuple[int, ...], where: Where, generator: Draws) -> Tensor:
    """float64 draws from -1 .. 1."""
    drawn = torch.rand(shape, dtype=torch.float64, **_drawn_with(where, generator))
    return 2 * drawn.to(where.positions.device) - 1


def _drawn_with(where: Where, generator: Draws) -> dict[str, Any]:
    """A generator draws on its own device. None is not passed: torch.compile then needs sizes."""
    if generator is None:
        return {"device": where.positions.device}
    return {"generator": generator, "device": generator.device}
