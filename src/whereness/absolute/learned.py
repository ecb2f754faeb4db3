"""Learned absolute: a table with one trained row a position.

    Π[p] = table[num_prefix + first_row + p],   rows drawn from N(0, 0.02^2)

Source: Gehring et al. 2017, arXiv:1705.03122; Devlin et al. 2018, arXiv:1810.04805; for grids
Dosovitskiy et al. 2020, arXiv:2010.11929. The initial spread is that of BERT's and GPT-2's code.
Tables of fairseq descent (BART, OPT) begin at row 2, those of RoBERTa at pad_id + 1: `first_row`.

Axes: P rows, W width of a row. A grid's rows are in row-major order, after the prefix rows.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from whereness.absolute.base import AbsoluteEncoding, Join
from whereness.checks import require, require_bool, require_choice, require_device, require_int
from whereness.encoding import Site
from whereness.where import Where, is_nowhere

INITIAL_SPREAD = 0.02


class LearnedAbsolute(AbsoluteEncoding):
    """A trained row for each position 0 .. num_positions - 1, or for each cell of a grid.

    The i-th real token without a place (CLS, registers) takes prefix row i, as long as there are
    prefix rows; pads, told by `key_mask`, do not count. Beyond the table it raises: there is no
    row to give.

    Args:
        dim: width of a row.
        num_positions: usable positions, or a tuple of grid sizes; then positions have that many
            axes, the first being that of the first size.
        num_prefix: rows for tokens without a place, before the rest.
        first_row: unused rows before position 0, as BART (2) and RoBERTa (pad_id + 1) have them.

    Raises:
        ValueError: sizes below 1, or a position outside the table.
        TypeError: real positions.
    """

    unbounded = False

    def __init__(
        self,
        dim: int,
        num_positions: int | Sequence[int],
        num_prefix: int = 0,
        first_row: int = 0,
        *,
        site: Site = "tokens",
        join: Join = "add",
    ) -> None:
        super().__init__(dim, site, join)
        self.grid = _checked_grid(num_positions)
        self.num_prefix = require_int("num_prefix", num_prefix, 0)
        self.first_row = require_int("first_row", first_row, 0)
        self.num_axes = len(self.grid)
        self.table = nn.Parameter(torch.empty(self._before() + self.num_positions, self.dim))
        self.reset_parameters()

    @property
    def num_positions(self) -> int:
        """Usable positions: the product of the grid's sizes."""
        return math.prod(self.grid)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=INITIAL_SPREAD)

    def derived(self) -> dict[str, Tensor]:
        if self.num_axes > 1:
            return {}
        return {"position_ids": torch.arange(self.num_positions, device="cpu")}

    def rows(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        if positions.is_floating_point():
            raise TypeError(f"LearnedAbsolute needs integer positions, got {positions.dtype}.")
        require_device("Positions", positions, self.table.device)
        cells = positions if self.num_axes > 1 else positions[..., None]
        sizes = torch.tensor(self.grid, device=positions.device)
        require(
            (cells >= 0) & (cells < sizes),
            lambda: (
                f"LearnedAbsolute has rows for positions below {self._shown_grid()}, got "
                f"{_extremes(cells)}. "
                "Build a longer table, or use .extended() or .resized()."
            ),
        )
        index = cells[..., 0]
        for axis in range(1, self.num_axes):
            index = index * self.grid[axis] + cells[..., axis]
        return self._gather(index + self._before())

    def forward(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        """Rows of Π, (..., S, dim); see the class for tokens without a place."""
        rows = super().forward(positions)
        return self._with_prefix(rows, is_nowhere(positions.long(), self.num_axes))

    def where_rows(self, where: Where, positions: Tensor, last: bool) -> Tensor:
        rows = self._placed_rows(positions)
        if not self.num_prefix:
            return rows
        # Rank among all keys: a decoding step does not take the first prefix row again.
        own_keys = where.k_positions is None
        among = where.keys if where.cached or not last else where.positions
        placeless = is_nowhere(among, self.num_axes)
        if where.key_mask is not None and (own_keys or where.cached or not last):
            placeless = placeless & where.key_mask
        return self._with_prefix(rows, placeless)

    def resized(
        self,
        grid: int | Sequence[int],
        mode: Literal["auto", "nearest"] = "auto",
        antialias: bool = False,
    ) -> "LearnedAbsolute":
        """A new module whose position rows are interpolated to `grid`; prefix rows are copied.

        The ends of the table map to the ends (corners not aligned, as in PyTorch and Hugging
        Face). The interpolation is linear in 1-D, bicubic in 2-D, trilinear in 3-D, in float32.
        Nothing is drawn at random.

        Args:
            antialias: filter when shrinking, as timm does; 2-D only.

        Raises:
            ValueError: another number of axes, or more than 3.
        """
        grid = _checked_grid(grid)
        require_choice("mode", mode, ("auto", "nearest"))
        require_bool("antialias", antialias)
        if len(grid) != self.num_axes or len(grid) > 3:
            raise ValueError(
                f"The new grid must have the table's {self.num_axes} axes (at most 3), got {grid}."
            )
        if antialias and (len(grid) != 2 or mode == "nearest"):
            raise ValueError("antialias is for tables of 2 axes, and not for mode='nearest'.")
        new = self._like(grid)
        with torch.no_grad():
            cells = self.table[self._before() :]
            if grid != self.grid:
                wide = torch.promote_types(cells.dtype, torch.float32)
                image = cells.reshape(1, *self.grid, self.dim).movedim(-1, 1).to(wide)
                chosen = ("linear", "bicubic", "trilinear")[len(grid) - 1]
                smooth = {"align_corners": False} if mode == "auto" else {}
                image = F.interpolate(
                    image,
                    size=grid,
                    mode=chosen if mode == "auto" else "nearest",
                    antialias=antialias,
                    **smooth,
                )
                cells = image.movedim(1, -1).reshape(-1, self.dim)
            new.table[: self._before()] = self.table[: self._before()]
            new.table[self._before() :] = cells.to(self.table.dtype)
        return new

    def extended(
        self,
        num_positions: int,
        fill: Literal["fresh", "repeat"] = "fresh",
        *,
        generator: torch.Generator | None = None,
    ) -> "LearnedAbsolute":
        """A new, longer 1-D module: trained rows are kept, the new ones are untrained.

        Args:
            fill: "fresh" draws the new rows as at the start; "repeat" copies the trained rows over
                and over (Longformer: Beltagy et al. 2020, arXiv:2004.05150, section 5).
            generator: what fresh rows are drawn from, on its own device; None: torch's global
                generator of the table's device. Nothing else is drawn.

        Raises:
            ValueError: a grid, fewer positions than now, a generator with nothing to draw.
        """
        num_positions = require_int("num_positions", num_positions, 1)
        require_choice("fill", fill, ("fresh", "repeat"))
        if self.num_axes > 1:
            raise ValueError("extended() is for tables of 1 axis; use resized() for a grid.")
        if num_positions < self.num_positions:
            raise ValueError(
                f"extended() cannot shorten: the table has {self.num_positions} positions, got "
                f"{num_positions}."
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(
                f"generator must be a torch.Generator or None, got {type(generator).__name__}."
            )
        if generator is not None and fill == "repeat":
            raise ValueError(
                "generator is for fill='fresh', got fill='repeat', which draws nothing."
            )
        new = self._like((num_positions,))
        with torch.no_grad():
            if fill == "fresh":
                device = self.table.device if generator is None else generator.device
                count = len(new.table) - len(self.table)
                added = torch.empty(count, self.dim, dtype=torch.float32, device=device)
                nn.init.normal_(added, std=INITIAL_SPREAD, generator=generator)
                new.table[len(self.table) :] = added.to(self.table.device)
            else:
                trained = self.table[self._before() :]
                times = -(-num_positions // self.num_positions)
                new.table[self._before() :] = trained.repeat(times, 1)[:num_positions]
            new.table[: len(self.table)] = self.table
        return new

    def _like(self, grid: tuple[int, ...]) -> "LearnedAbsolute":
        """The same settings on another grid, the table without values."""
        with torch.device("meta"):  # nothing is drawn there
            new = LearnedAbsolute(
                self.dim, grid, self.num_prefix, self.first_row, site=self.site, join=self.join
            )
        new = new.to(dtype=self.table.dtype).to_empty(device=self.table.device)
        new.table.requires_grad_(self.table.requires_grad)
        return new.train(self.training)

    def _before(self) -> int:
        return self.num_prefix + self.first_row

    def _shown_grid(self) -> str:
        return str(self.grid[0]) if self.num_axes == 1 else str(self.grid)

    def _gather(self, index: Tensor) -> Tensor:
        rows = F.embedding(index, self.table)
        return rows if rows.dtype == torch.float64 else rows.float()

    def _with_prefix(self, rows: Tensor, placeless: Tensor) -> Tensor:
        """Give the i-th token without a place prefix row i.

        `placeless` may cover more keys, of which `rows` are the last.
        """
        if not self.num_prefix:
            return rows
        rank = placeless.long().cumsum(-1) - 1
        takes = placeless & (rank < self.num_prefix)
        first = takes.shape[-1] - rows.shape[-2]
        rank, takes = rank[..., first:], takes[..., first:]
        prefix = self._gather(rank.clamp(0, self.num_prefix - 1))
        return torch.where(takes[..., None], prefix, rows)


def _extremes(cells: Tensor) -> str:
    flat = cells.flatten(0, -2)
    return f"{flat.amin(0).tolist()} .. {flat.amax(0).tolist()}"


def _checked_grid(sizes: int | Sequence[int]) -> tuple[int, ...]:
    grid = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if not grid:
        raise ValueError("num_positions needs at least one size.")
    return tuple(require_int("num_positions", size, 1) for size in grid)
