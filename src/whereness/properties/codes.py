"""Measures of codes P, (N, m): one row a position (or, for scores, an offset).

Source: the properties are those of fleetwood.dev, "You could have designed state of the art
positional encoding", 2024; the numbers that stand for them here are ours.

All are computed in the dtype of P, which `measure` makes float64.
"""

import torch
from torch import Tensor

SAME = 1e-9
"""Distance of two codes, over the largest distance, up to which they count as equal."""
NOISE = 1e-12
"""Share of a size that is rounding of float64 sums."""
CUT_OFF = 1e-10
"""Singular values below this share of the largest are dropped in least squares."""


def distances(codes: Tensor) -> Tensor:
    """Euclidean distances of all pairs of rows, (N (N - 1) / 2,)."""
    return torch.nn.functional.pdist(codes)


def min_distance(codes: Tensor) -> float:
    """Smallest Euclidean distance of two rows: 0 if two positions share a code."""
    return float(distances(codes).min())


def uniqueness(codes: Tensor) -> float:
    """Smallest over mean distance of two rows.

    0 if two positions share a code, 1 if all codes are equally far apart.
    """
    between = distances(codes)
    mean = float(between.mean())
    return float(between.min()) / mean if mean > 0 else 0.0


def first_repeat(codes: Tensor) -> int | None:
    """Smallest position whose code another position before it has; None if all codes differ."""
    between = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    same = (between <= SAME * between.max().clamp(min=1e-30)).tril(-1)
    repeats = same.any(-1).nonzero()
    return int(repeats[0]) if len(repeats) else None


def lipschitz(codes: Tensor) -> float:
    """Largest step between neighbours, max_p |P_{p+1} - P_p|."""
    return float((codes[1:] - codes[:-1]).norm(dim=-1).max())


def max_abs(codes: Tensor) -> float:
    """Largest absolute entry."""
    return float(codes.abs().max())


def norm_growth(codes: Tensor) -> float | None:
    """Least-squares slope of ln |P_p| on ln p, p = 1 .. N-1; rows of zeros are left out.

    0 for codes of constant size, 1 for codes that grow like the position.
    """
    p = torch.arange(len(codes), dtype=codes.dtype)
    norms = codes.norm(dim=-1)
    kept = (p > 0) & (norms > 0)
    if int(kept.sum()) < 2:
        return None
    x, y = p[kept].log(), norms[kept].log()
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / x.square().sum())


def content_ratio(codes: Tensor) -> float | None:
    """Variance of token embeddings, taken as 1, over the mean square of the codes.

    Below about 0.01 position drowns content.
    """
    power = float(codes.square().mean())
    return 1.0 / power if power > 0 else None


def linear_relation(codes: Tensor, shift: int) -> float | None:
    """How far P_{p+shift} is from being one affine map of P_p, for all p inside the table.

        |P[k:] - (P[:-k] A + b)| / |P[k:] - mean|,   k = shift, Frobenius norms

    A and b by least squares, singular values below 1e-10 of the largest dropped. 0: a model can
    move from any position to the one `shift` further with one matrix.
    """
    if len(codes) - shift < 2:
        return None
    ahead = codes[shift:]
    before = torch.cat([codes[:-shift], codes.new_ones(len(ahead), 1)], -1)
    total = float((ahead - ahead.mean(0)).norm())
    if total <= NOISE * float(ahead.norm()):
        return 0.0  # all the same: b alone is the map
    return float((before @ _least_squares(before, ahead) - ahead).norm()) / total


def rigid_shift(codes: Tensor, shift: int) -> float | None:
    """Largest change of a distance of two codes when both move by `shift`, over the mean distance.

    0 if the affine map of `linear_relation` is orthogonal: a move turns codes and does not stretch
    them.
    """
    if len(codes) - shift < 2:
        return None
    before, ahead = distances(codes[:-shift]), distances(codes[shift:])
    mean = float(before.mean())
    return float((ahead - before).abs().max()) / mean if mean > 0 else 0.0


def process_r2(codes: Tensor) -> float | None:
    """Whether the codes are steps of a simple process that goes on past the positions seen.

    R² of P_p = a P_{p-1} + b P_{p-2} + c, fitted for each channel on the first half of the
    positions and judged on the second half. 1 for sines (each has such a recurrence) and for
    straight lines.
    """
    half = len(codes) // 2
    if half < 5:
        return None
    channels = codes.T
    target = channels[:, 2:]
    known = torch.stack([channels[:, 1:-1], channels[:, :-2], torch.ones_like(target)], -1)
    train = half - 2
    solution = _least_squares(known[:, :train], target[:, :train, None])
    error = (known[:, train:] @ solution)[..., 0] - target[:, train:]
    return _r2(error, target[:, train:])


def position_decoding(codes: Tensor) -> float | None:
    """R² of reading the position from its code with one linear map.

    Judged on every third position, fitted on the others (on every second one, a bit would be new).
    """
    if len(codes) < 9:
        return None
    p = torch.arange(len(codes), dtype=codes.dtype)[:, None]
    judged = p[:, 0] % 3 == 2
    known = torch.cat([codes, codes.new_ones(len(codes), 1)], -1)
    solution = _least_squares(known[~judged], p[~judged])
    return _r2((known[judged] @ solution - p[judged]).T, p[judged].T)


def difference(short: Tensor, long: Tensor) -> float:
    """Largest difference of the rows that both tables have.

    Dependence on length if `short` and `long` are the codes in a short and in a long text: 0 if a
    position has one code everywhere.
    """
    rows = min(len(short), len(long))
    return float((short[:rows] - long[:rows]).abs().max())


def unseen(codes: Tensor, trained: int, only_above: bool) -> float | None:
    """Share of the later entries outside the range that their channel has in the first rows.

    The first rows are 0 .. trained-1. With `only_above` only values above the range count.
    """
    if len(codes) <= trained:
        return None
    low, high = codes[:trained].amin(0), codes[:trained].amax(0)
    margin = 1e-9 * torch.maximum(low.abs(), high.abs()).clamp(min=1e-30)
    later = codes[trained:]
    outside = later > high + margin
    if not only_above:
        outside = outside | (later < low - margin)
    return float(outside.double().mean())


def _least_squares(known: Tensor, target: Tensor) -> Tensor:
    return torch.linalg.lstsq(known, target, rcond=CUT_OFF, driver="gelsd").solution


def _r2(error: Tensor, target: Tensor) -> float | None:
    """1 - squared error / variance, both (channels, rows); None for a target that is constant."""
    total = float((target - target.mean(-1, keepdim=True)).norm())
    if total <= NOISE * float(target.norm()):
        return None
    return 1.0 - (float(error.norm()) / total) ** 2
