"""Steps 10 to 12: turn instead of add.

    a . b = |a| |b| cos(angle)     adding a code changes lengths and angle, turning only the angle
    R(p) q . R(r) k = q . R(r - p) k                    the score knows the offset alone
    R(p) turns pair c by p w_c;  n axes: each axis turns pairs of its own by its own coordinate

Source: Su et al. 2021, arXiv:2104.09864, sections 3.2 to 3.4; for two axes Heo et al. 2024,
arXiv:2403.13298, section 3.2; the derivation: fleetwood.dev, "You could have designed state of the
art positional encoding", 2024. M_k of step 7, in (sin, cos) order, is the transpose of R(k); the
article writes both and does not say so.

Axes: D width, n axes of a position. Angles in radians.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whereness.absolute.sinusoidal import Sinusoidal
from whereness.positions import grid
from whereness.properties.scores import anisotropy
from whereness.rotary.axial import AxialRoPE
from whereness.rotary.rope import RoPE, Rotary
from whereness.story.codes import shift_of
from whereness.story.offsets import START
from whereness.story.parts import (
    FIVE_WORDS,
    ZERO,
    Numbers,
    attended,
    drawn,
    embedded,
    gap,
    must_be_zero,
)

DIM = 64


def turned(rope: Rotary, x: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
    """Rows of x (N, D), or one row for all, turned by the positions (N,) or (N, n)."""
    rows = x.expand(len(positions), -1)
    return rope.rotate(rows[None, None], positions, inverse=inverse)[0, 0]


@dataclass(frozen=True, eq=False, kw_only=True)
class AddedOrTurned(Numbers):
    """Step 10. Lengths relative to the word's own, one entry a position."""

    positions: tuple[int, ...]
    token: Tensor
    added: Tensor
    turned: Tensor
    transpose_gap: float
    """Largest entry of R(3) - M_3^T, M_3 fitted to sinusoidal codes."""


def added_or_turned(positions: Sequence[int] = (0, 1, 10, 100, 1000)) -> AddedOrTurned:
    """The length of a word with a code added, and turned."""
    word = embedded(("dog",), DIM)
    every = torch.arange(max(positions) + 1)
    sinusoidal, rope = Sinusoidal(DIM), RoPE(DIM, pairing="interleaved")
    added = (word + sinusoidal.rows(every)).norm(dim=-1) / word.norm()
    lengths = turned(rope, word, every).norm(dim=-1) / word.norm()
    small = RoPE(8, pairing="interleaved")
    rotation = _matrix(small, 3)
    shift = shift_of(Sinusoidal(8).rows(torch.arange(4096)), 3)
    shown = list(positions)
    return AddedOrTurned(
        positions=tuple(positions),
        token=word[0],
        added=added[shown],
        turned=lengths[shown],
        transpose_gap=gap(rotation, shift.T),
        measured=(
            must_be_zero("norm_preservation", "RoPE, turned", gap(lengths, torch.ones(1))),
            must_be_zero("norm_preservation", "Sinusoidal, added", gap(added, torch.ones(1))),
        ),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class RotatedScores(Numbers):
    """Step 11."""

    offsets: tuple[int, ...]
    starts: tuple[int, ...]
    q: Tensor
    k: Tensor
    scores: Tensor
    """q at the start, k an offset further: (starts, offsets)."""
    flat: Tensor
    """Scores of q = k = (1, ..., 1), one an offset."""
    ways: dict[str, Tensor]
    """Scores at offsets -20 .. 20: turned as usual, the other way, and the other way with the two
    channels of every pair exchanged."""
    mirror_gap: float
    """The other way, the score at an offset is that at the opposite offset."""
    swap_gap: float
    """With the channels exchanged as well, it is that at the same offset."""
    fragment_change: float
    """The fragment of step 9 with RoPE: largest change of any weight."""
    grid: "GridScores"
    """RoPE on the cells of a grid, numbered row by row."""


def rotated_scores(
    offsets: Sequence[int] = (0, 1, 10, 100, 1000), starts: Sequence[int] = (0, 1000, 100_000)
) -> RotatedScores:
    """Turn q and k: their score depends on the offset alone, wherever they stand."""
    rope, (q, k), near = RoPE(DIM), drawn(2, DIM), tuple(range(-20, 21))
    ones = torch.ones(DIM, dtype=torch.float64)
    scores = torch.stack([_scores(rope, q, k, s, offsets) for s in starts])
    usual = _scores(rope, q, k, 50, near)
    other = _scores(rope, q, k, 50, near, inverse=True)
    half = DIM // 2
    exchanged = _scores(rope, q.roll(half), k.roll(half), 50, near, inverse=True)
    fragment = embedded(FIVE_WORDS, DIM)
    weights = [attended(fragment, rope, torch.arange(5) + s).weights for s in (0, START)]
    cells = scores_on_grid(RoPE(DIM), (8, 8), torch.arange(64))
    composed = gap(_matrix(rope, 700).T @ _matrix(rope, 1000), _matrix(rope, 300))
    length = turned(rope, q, torch.tensor([max(starts)])).norm() / q.norm()
    return RotatedScores(
        offsets=tuple(offsets),
        starts=tuple(starts),
        q=q,
        k=k,
        scores=scores,
        flat=_scores(rope, ones, ones, 0, offsets),
        ways={"usual": usual, "other": other, "other, exchanged": exchanged},
        mirror_gap=gap(other, usual.flip(0)),
        swap_gap=gap(exchanged, usual),
        fragment_change=gap(weights[0], weights[1]),
        grid=cells,
        measured=(
            must_be_zero("norm_preservation", "RoPE", abs(length.item() - 1)),
            must_be_zero("exact_relativity", "RoPE", composed),
            must_be_zero("relative", "RoPE", gap(scores, scores[:1])),
            must_be_zero("extends_to", "RoPE, cells numbered", cells.confused),
        ),
    )


def _scores(
    rope: RoPE, q: Tensor, k: Tensor, start: int, offsets: Sequence[int], *, inverse: bool = False
) -> Tensor:
    """q at `start` against k at start + offset, one score an offset."""
    keys = turned(rope, k, start + torch.tensor(offsets), inverse=inverse)
    return keys @ turned(rope, q, torch.tensor([start]), inverse=inverse)[0]


def _matrix(rope: RoPE, position: int) -> Tensor:
    """R(p), (D, D)."""
    units = torch.eye(rope.rotary_dim, dtype=torch.float64)
    return turned(rope, units, torch.full((len(units),), position)).T


class GridScores(NamedTuple):
    """One query and one key on all cells of a grid."""

    sizes: tuple[int, ...]
    q: Tensor
    k: Tensor
    steps: Tensor
    """Every displacement from one cell to another, (K, n)."""
    scores: Tensor
    """Its score, (K,)."""
    told_apart: int
    """How many different scores they have."""
    spread: float
    """Largest difference between the scores of one displacement, from all cells it can start at."""

    @property
    def confused(self) -> int:
        """Displacements beyond the number of scores."""
        return len(self.steps) - self.told_apart


def scores_on_grid(rope: Rotary, sizes: Sequence[int], positions: Tensor) -> GridScores:
    """Scores of a random q and k on every two cells, given the position of each cell."""
    q, k = drawn(2, rope.rotary_dim, seed=3)
    scores = (turned(rope, q, positions) @ turned(rope, k, positions).T).flatten()
    cells = grid(*sizes)
    between = (cells[None] - cells[:, None]).flatten(0, 1)
    steps, which = torch.unique(between, dim=0, return_inverse=True)
    empty = torch.zeros(len(steps), dtype=torch.float64)
    low, high = (
        empty.scatter_reduce(0, which, scores, reduce, include_self=False)
        for reduce in ("amin", "amax")
    )
    apart = int((low.sort().values.diff() > ZERO).sum()) + 1
    return GridScores(tuple(sizes), q, k, steps, low, apart, (high - low).max().item())


@dataclass(frozen=True, eq=False, kw_only=True)
class MoreAxes(Numbers):
    """Step 12."""

    plane: GridScores
    space: GridScores
    directions: tuple[tuple[int, int], ...]
    """Displacements of equal length."""
    by_direction: Tensor
    """Scores of q = k = (1, ..., 1) at each of them."""


def more_axes() -> MoreAxes:
    """The same on a plane and in space: each axis turns pairs of its own."""
    plane = scores_on_grid(AxialRoPE(16, 2), (8, 8), grid(8, 8))
    space = scores_on_grid(AxialRoPE(24, 3), (4, 4, 4), grid(4, 4, 4))
    directions = ((5, 0), (4, 3), (3, 4), (0, 5))
    ones = torch.ones(16, dtype=torch.float64)
    rope, cells = AxialRoPE(16, 2), grid(8, 8)
    by_direction = turned(rope, ones, torch.tensor(directions)) @ ones
    alike = turned(rope, ones, cells)
    return MoreAxes(
        plane=plane,
        space=space,
        directions=directions,
        by_direction=by_direction,
        measured=(
            must_be_zero("extends_to", "AxialRoPE, 2 axes", plane.confused),
            must_be_zero("extends_to", "AxialRoPE, 3 axes", space.confused),
            must_be_zero("relative", "AxialRoPE, 2 axes", plane.spread),
            must_be_zero("relative", "AxialRoPE, 3 axes", space.spread),
            must_be_zero("anisotropy", "AxialRoPE, 2 axes", anisotropy(alike @ alike.T, cells)),
        ),
    )
