"""Measures of scores S, (N, N): query i, key j, all tokens the same.

`seen` (N, N) says which pairs count: all of them, or those of a causal mask.

Source: translation invariance, monotonicity and symmetry are the properties of Wang et al. 2021,
On Position Embeddings in BERT; the numbers are ours. S is in logits, offsets in tokens.
"""

import math

import torch
from torch import Tensor

TIE = 1e-9
"""Differences up to this count as ties."""


def translation_invariance(scores: Tensor, seen: Tensor, positions: Tensor | None = None) -> float:
    """Share of the variance of S that the displacement of key and query does not explain.

        sum_k sum_{(i,j) of displacement k} (S_ij - mean_k)² / sum_ij (S_ij - mean)²

    0: only the displacement counts; 1: it says nothing. A constant S has 0.

    Args:
        positions: (N,) or (N, n) of the tokens; None: 0 .. N-1.
    """
    values = scores[seen]
    total = (values - values.mean()).square().sum()
    if float(total) <= (1e-12 * max(1.0, float(values.abs().max()))) ** 2 * len(values):
        return 0.0
    group = _displacements(len(scores), positions)[seen]
    return float(_within(values, group) / total)


def monotonicity(scores: Tensor, seen: Tensor, within: int = 32) -> float | None:
    """Share of steps away from the query that do not raise the score, S(n + 1) <= S(n).

    For n = 0 .. within-1, every query, both directions, inside the table; ties count.
    """
    good = steps = 0
    length = len(scores)
    for n in range(min(within, length - 1)):
        for direction in (-1, 1):
            i = torch.arange(length)
            j = i + direction * n
            further = j + direction
            kept = (further >= 0) & (further < length)
            i, j, further = i[kept], j[kept], further[kept]
            kept = seen[i, j] & seen[i, further]
            i, j, further = i[kept], j[kept], further[kept]
            good += int((scores[i, further] <= scores[i, j] + TIE).sum())
            steps += len(i)
    return good / steps if steps else None


def profile(scores: Tensor) -> Tensor:
    """Mean score of the key n tokens back, n = 0 .. N-1: (N,)."""
    length = len(scores)
    return torch.stack([scores.diagonal(-n).mean() for n in range(length)])


def first_increase(scores: Tensor) -> int | None:
    """Smallest n for which the key n + 1 tokens back scores higher than the one n tokens back."""
    back = profile(scores)
    rises = (back[1:] > back[:-1] + TIE).nonzero()
    return int(rises[0]) if len(rises) else None


def symmetry(scores: Tensor) -> float:
    """|S - S^T| / |S|, Frobenius norms; reported, not judged.

    0: a key counts the same n tokens ahead and n back, so scores of identical tokens do not tell
    the direction.
    """
    total = float(scores.norm())
    return float((scores - scores.T).norm()) / total if total > 0 else 0.0


def distance_correlation(scores: Tensor, seen: Tensor, within: int = 32) -> float | None:
    """Spearman's rank correlation of |i - j| and S for distances up to `within`.

    -1 if every farther key scores lower. None for a constant S.
    """
    i = torch.arange(len(scores))
    distance = (i[:, None] - i).abs()
    kept = seen & (distance <= within)
    x, y = _ranks(distance[kept].double()), _ranks((scores[kept].double() / TIE).round())
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm())
    return float((x * y).sum()) / size if size > 0 else None


def separability(scores: Tensor, positions: Tensor) -> float:
    """Share of the variance of S over displacements that is no sum of functions of one axis.

    On a full grid. 0 if S(dx, dy) = f(dx) + g(dy): each axis acts on its own.

    Args:
        positions: (N, n), all cells of a grid.
    """
    table = _by_displacement(scores, positions)
    axes = range(table.dim())
    mean = table.mean()
    main = sum((table.mean([b for b in axes if b != a], keepdim=True) - mean) for a in axes)
    total = float((table - mean).square().sum())
    return float((table - mean - main).square().sum()) / total if total > 0 else 0.0


def anisotropy(scores: Tensor, positions: Tensor) -> float:
    """How much the direction counts on a grid at equal distance.

    Spread of S among displacements of the same length, over its spread among all displacements. 0:
    only the distance counts.
    """
    table = _by_displacement(scores, positions)
    steps = [torch.arange(s) - s // 2 for s in table.shape]
    squared = torch.stack(torch.meshgrid(*steps, indexing="ij")).square().sum(0)
    values = table.flatten()
    total = (values - values.mean()).square().sum()
    if float(total) == 0:
        return 0.0
    return float((_within(values, squared.flatten()) / total).sqrt())


def entropy_slope(weights: Tensor, lengths: tuple[int, int]) -> float:
    """How attention thins out as the text grows, from weights (H, N, N) of a causal pass.

    Slope of the entropy of the last query's weights on ln(length), between two lengths, mean over
    heads. 1: spread over all keys; 0: as focused in a long text as in a short one.
    """
    short, long = (_entropy(weights[:, n - 1, :n]).mean() for n in lengths)
    return float(long - short) / math.log(lengths[1] / lengths[0])


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights.clamp(min=0)).sum(-1)


def _displacements(length: int, positions: Tensor | None) -> Tensor:
    """A number for every displacement, (N, N)."""
    p = torch.arange(length) if positions is None else positions
    p = p[:, None] if p.dim() == 1 else p
    apart = p[None] - p[:, None]
    group = torch.zeros(length, length, dtype=torch.int64)
    for axis in range(p.shape[-1]):
        span = 2 * int(apart[..., axis].abs().max()) + 1
        group = group * span + apart[..., axis]
    return group


def _within(values: Tensor, group: Tensor) -> Tensor:
    """Sum of squared differences to the mean of the own group."""
    index = group.unique(return_inverse=True)[1]
    count = index.bincount()
    means = values.new_zeros(len(count)).index_add(0, index, values) / count
    return (values - means[index]).square().sum()


def _by_displacement(scores: Tensor, positions: Tensor) -> Tensor:
    """Mean score at every displacement of a full grid: (2 m_1 - 1, ..., 2 m_n - 1)."""
    apart = positions[None] - positions[:, None]
    reach = positions.amax(0) - positions.amin(0)
    shape = [2 * int(r) + 1 for r in reach]
    index = torch.zeros(apart.shape[:2], dtype=torch.int64)
    for axis, size in enumerate(shape):
        index = index * size + apart[..., axis] + size // 2
    index = index.flatten()
    count = index.bincount(minlength=torch.Size(shape).numel())
    sums = scores.new_zeros(len(count)).index_add(0, index, scores.flatten())
    return (sums / count).reshape(shape)


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0; ties share their mean rank."""
    _, index, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0) - 1
    return (last - (count - 1) / 2)[index].double()
