"""Whether an encoding extends to positions of several axes, and how it does on a grid.

Source: fleetwood.dev, "You could have designed state of the art positional encoding", 2024 (the
property); Heo et al. 2024, arXiv:2403.13298 (directions on a grid).
"""

import inspect
from typing import Any

import torch

from whereness.absolute.learned import LearnedAbsolute
from whereness.encoding import PositionalEncoding
from whereness.positions import grid
from whereness.properties import codes, scores
from whereness.properties.doors import exact_copy, sizes
from whereness.properties.probes import (
    Content,
    contents,
    identical_scores,
    position_codes,
    usable_length,
    where_of,
)
from whereness.rotary.axial import AxialRoPE
from whereness.rotary.rope import RoPE

TRIED = (1, 2, 3, 4)
DISTINCT = 1e-6
"""Uniqueness above which all codes count as different."""
MOST_CELLS = 64


def extends_to(encoding: PositionalEncoding) -> dict[int, bool] | None:
    """For n = 1 .. 4: the family has a member for positions of n axes, measured by making it.

    It must have the same width and give the cells of a grid of side 3 different codes. None for
    an encoding without positions.
    """
    if encoding.reads != "positions":
        return None
    return {n: _works(with_axes(encoding, n), n) for n in TRIED}


def with_axes(encoding: PositionalEncoding, num_axes: int) -> PositionalEncoding | None:
    """The member of the encoding's family for positions of `num_axes` axes, None if it has none."""
    if num_axes == encoding.num_axes:
        return encoding
    if isinstance(encoding, LearnedAbsolute):
        return LearnedAbsolute(encoding.dim, (3,) * num_axes, site=encoding.site)
    if isinstance(encoding, (RoPE, AxialRoPE)):
        return _axial(encoding, num_axes)
    return _rebuilt(encoding, num_axes)


def grid_measures(encoding: PositionalEncoding, content: Content) -> dict[str, float] | None:
    """On the cells of a grid, for an encoding of 2 axes or more; None for one axis.

    uniqueness: smallest over mean distance of the codes of two cells
    translation_invariance: as on a line, the displacement being a vector
    separability: share of the variance of scores that is no sum of one function an axis
    anisotropy: how much scores at equal distance depend on the direction
    """
    n = encoding.num_axes
    if n < 2:
        return None
    most = int(MOST_CELLS ** (1 / n) + 1e-9)
    sides = [usable_length(encoding, most, axis) for axis in range(n)]
    if min(sides) < 3:
        return None
    cells = grid(*sides)
    where = where_of(encoding, cells)
    rows = position_codes(encoding, where)
    s = identical_scores(encoding, where, contents(content, sizes(encoding).dim)).mean(0)
    seen = torch.ones(len(cells), len(cells), dtype=torch.bool)
    found = {} if rows is None else {"uniqueness": codes.uniqueness(rows)}
    return {
        **found,
        "translation_invariance": max(
            scores.translation_invariance(head, seen, cells) for head in s
        ),
        "separability": max(scores.separability(head, cells) for head in s),
        "anisotropy": max(scores.anisotropy(head, cells) for head in s),
    }


def _works(encoding: PositionalEncoding | None, num_axes: int) -> bool:
    if encoding is None:
        return False
    if num_axes == 1:
        return True
    copy = exact_copy(encoding)
    sides = [usable_length(copy, 3, axis) for axis in range(num_axes)]
    rows = position_codes(copy, where_of(copy, grid(*sides)))
    return rows is not None and codes.uniqueness(rows) > DISTINCT


def _axial(encoding: RoPE | AxialRoPE, num_axes: int) -> AxialRoPE | None:
    """Pairs shared out as evenly as they go; None if there are fewer pairs than axes."""
    pairs = encoding.rotary_dim // 2
    if pairs < num_axes:
        return None
    each, more = divmod(pairs, num_axes)
    dims = [2 * (each + (axis < more)) for axis in range(num_axes)]
    base = max(encoding.base) if isinstance(encoding.base, tuple) else encoding.base
    return AxialRoPE(encoding.rotary_dim, num_axes, base, encoding.pairing, axis_dims=dims)


def _rebuilt(encoding: PositionalEncoding, num_axes: int) -> PositionalEncoding | None:
    """For families whose constructor takes `num_axes` and keeps its arguments by their names."""
    parameters = inspect.signature(type(encoding)).parameters
    if "num_axes" not in parameters:
        return None
    options: dict[str, Any] = {n: getattr(encoding, n) for n in parameters if hasattr(encoding, n)}
    try:
        return type(encoding)(**{**options, "num_axes": num_axes})
    except (ValueError, TypeError):
        return None
