"""What the rows of a table of positions tell without any text: which were never trained.

Neighbours in a trained table look alike (a median cosine of 0.84 in MiniLM's), rows as they were
drawn do not: their cosines are 0 with a standard deviation of 1 / sqrt(E). Rows count as still
"as initialised" if

    a tenth of the table's cosines of neighbours is above 8 / sqrt(E): else nothing can be told,
    at least `SHORTEST` rows in a row have no neighbour above 4 / sqrt(E), and
    their sizes are as equal as those of drawn rows: within 6 standard deviations, 1 / sqrt(2 E).

That `SHORTEST` - 1 cosines of like rows all fall to half of that by chance is out of the question;
a table without order (a permuted one) fails the first condition.

Axes: N rows, E channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.auditor.files.weights import Weights

SHORTEST = 4
ALIKE, APART, SPREAD = 8.0, 4.0, 6.0
QUANTILE = 0.9
NEAR = 1e-3
"""Relative distance of near-duplicates. Neighbours in trained tables are 0.1 apart and more."""
OUTLIER = 20.0
"""Times the median size. Row 0 of BERT-like tables has 5 times."""
MOST_COMPARED = 2**12
"""Rows that are compared with all others; in longer tables with the next one."""
AT_ONCE = 2**8

Runs = list[tuple[int, int]]
"""First and last of consecutive rows."""


@dataclass(frozen=True)
class Rows:
    """What was found in a table. alike: the cosine that a tenth of neighbours are above."""

    broken: int | None
    zeros: Runs
    drawn: Runs
    alike: float
    told: bool
    copies: list[tuple[int, int]]
    outliers: list[tuple[int, float]]


def read(weights: Weights, name: str) -> Tensor:
    """A table in float32.

    Raises:
        ValueError: it has not two axes.
    """
    held = weights.tensors[name]
    if len(held.table) != 2 or not held.count:
        raise ValueError(f"a table of positions has two axes, this has the shape {held.shape}")
    return weights.rows(name).float()


def rows_of(table: Tensor) -> Rows:
    """Judge a table (N, E)."""
    finite = table.isfinite().all(1)
    if not bool(finite.all()):
        return Rows(int((~finite).int().argmax()), [], [], 0.0, False, [], [])
    sizes = torch.linalg.vector_norm(table, dim=1, dtype=torch.float64)
    empty = sizes == 0
    cosines = _neighbours(table, sizes)
    inside = ~empty[1:] & ~empty[:-1]
    alike = float(cosines[inside].quantile(QUANTILE)) if bool(inside.any()) else 0.0
    told = alike > ALIKE / table.shape[1] ** 0.5
    median = float(sizes[~empty].median()) if not bool(empty.all()) else 0.0
    large = [(int(i), float(sizes[i]) / median) for i in (sizes > OUTLIER * median).nonzero()[:, 0]]
    return Rows(
        None,
        runs(empty),
        _drawn(cosines, sizes, table.shape[1]) if told else [],
        alike,
        told,
        _copies(table, sizes),
        large if median else [],
    )


def runs(flags: Tensor) -> Runs:
    """Consecutive rows for which `flags` holds."""
    found: Runs = []
    for i in flags.nonzero()[:, 0].tolist():
        if found and found[-1][1] == i - 1:
            found[-1] = (found[-1][0], i)
        else:
            found.append((i, i))
    return found


def _neighbours(table: Tensor, sizes: Tensor) -> Tensor:
    """Cosines of every row and the next, (N - 1,); 0 where one is empty."""
    found = [torch.zeros(0, dtype=torch.float64)]
    for i in range(0, len(table) - 1, AT_ONCE):
        part = table[i : i + AT_ONCE + 1].double()
        found.append((part[1:] * part[:-1]).sum(1))
    scale = (sizes[1:] * sizes[:-1]).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.cat(found) / scale


def _drawn(cosines: Tensor, sizes: Tensor, width: int) -> Runs:
    apart = cosines.abs() < APART / width**0.5
    candidates = [(a, b + 1) for a, b in runs(apart) if b + 2 - a >= SHORTEST]
    found = []
    for a, b in candidates:
        # The rows at both ends may be trained ones beside drawn ones.
        inner = sizes[a + 1 : b]
        off = (sizes[a : b + 1] / inner.median() - 1).abs() < SPREAD / (2 * width) ** 0.5
        equal = [(a + x, a + y) for x, y in runs(off) if y - x + 1 >= SHORTEST]
        found += equal
    return [each for each in found if bool((sizes[each[0] : each[1] + 1] > 0).all())]


def _copies(table: Tensor, sizes: Tensor) -> list[tuple[int, int]]:
    """Rows that nearly equal an earlier one, and which; rows of zeros aside."""
    count = len(table)
    found = []
    for i in range(1, count, AT_ONCE):
        rows = table[i : i + AT_ONCE]
        if count <= MOST_COMPARED:
            near, which = _nearest(table, sizes, i, len(rows))
        else:
            near = (rows - table[i - 1 : i - 1 + len(rows)]).norm(dim=1)
            which = torch.arange(i - 1, i - 1 + len(rows))
        own = sizes[i : i + len(rows)]
        same = (near <= NEAR * own) & (own > 0)
        found += [(i + int(k), int(which[k])) for k in same.nonzero()[:, 0]]
    return found


def _nearest(table: Tensor, sizes: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Distances of rows from the nearest of all before them, and which it is.

    From products in float64: their error is far below `NEAR`.
    """
    rows, own = table[first : first + count].double(), sizes[first : first + count].square()
    best = torch.full((count,), torch.inf, dtype=torch.float64)
    which = torch.zeros(count, dtype=torch.int64)
    for i in range(0, first + count, AT_ONCE):
        before = slice(i, min(i + AT_ONCE, first + count))
        squares = own[:, None] + sizes[before].square() - 2 * rows @ table[before].double().T
        later = torch.arange(first, first + count)[:, None] <= torch.arange(
            before.start, before.stop
        )
        squares[later] = torch.inf
        least, at = squares.min(1)
        which = torch.where(least < best, at + i, which)
        best = torch.minimum(best, least)
    return best.clamp_min(0).sqrt(), which
