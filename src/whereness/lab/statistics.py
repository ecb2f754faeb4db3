"""How far a mean over windows may be off: the circular block bootstrap.

Windows of one text follow each other and their losses are correlated, so that s / sqrt(N) is too
small. A resample joins blocks of l neighbouring windows, drawn with replacement until there are N
windows; the last block is cut. The mean of each resample is one value of the distribution:

    se = its standard deviation,    low, high = its 2.5 % and 97.5 % quantiles

At the longest length l = N^(1/3). At every other length a block has as many bytes as there: what
correlates losses is the text, whose stretches are as long whatever windows it is cut into. N^(1/3)
short windows would be fewer bytes than such a stretch, and the error would come out too small.

Source: Künsch 1989, Annals of Statistics 17, 1217-1241 (moving blocks); Politis & Romano 1992, "A
circular block-resampling procedure for stationary data" (the text is closed to a circle, so that
every window is drawn equally often); Hall, Horowitz & Jing 1995, Biometrika 82, 561-574 (l grows
like N^(1/3) for a variance). The factor 1 before N^(1/3) and one length in bytes for all are ours.

Below about 30 windows of the longest length intervals are too narrow, as all of this kind are. They
tell how far another stretch of the same text may differ; how far another seed may is told by seed.

Axes: N windows in text order, R resamples, K blocks of a resample. Losses are in nats a byte.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 2000
LEVEL = 0.95
SEED = 0

BySeed = Mapping[int, Sequence[float]]
"""Losses of one encoding at one length: for each seed, of all windows."""


def block_lengths(num_windows: Mapping[int, int]) -> dict[int, int]:
    """l, the windows of a block, by the length of a window; `num_windows` is by length, too."""
    longest = max(num_windows)
    num_bytes = max(1, round(num_windows[longest] ** (1 / 3))) * longest
    return {n: min(num_bytes // n, num) for n, num in num_windows.items()}


def bootstrap(values: Sequence[float], block: int) -> Float[Tensor, " R"]:
    """Means of the resamples. The same values give the same means, whatever was drawn before.

    Two series of equal length are resampled alike.

    Args:
        block: l, at most as many as there are values.
    """
    num = len(values)
    num_blocks = math.ceil(num / block)
    series = torch.tensor(values, dtype=torch.float64)
    circle = torch.cat([series, series[: block - 1]])
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.randint(num, (RESAMPLES, num_blocks), generator=generator)
    sums = circle.unfold(0, block, 1).sum(-1)
    cut = num - (num_blocks - 1) * block
    last = circle.unfold(0, cut, 1).sum(-1)
    return (sums[starts[:, :-1]].sum(-1) + last[starts[:, -1]]) / num


def spread(values: Sequence[float], block: int) -> dict[str, float]:
    """mean, se, low and high of the mean of a series, by blocks of so many windows."""
    # Of deviations: equal values have a spread of exactly 0, not of rounding.
    first = values[0]
    deviations = [v - first for v in values]
    means = bootstrap(deviations, block)
    tail = (1 - LEVEL) / 2
    low, high = means.quantile(means.new_tensor([tail, 1 - tail])).tolist()
    return {
        "mean": first + fmean(deviations),
        "se": float(means.std()),
        "low": first + low,
        "high": first + high,
    }


def mean_loss(losses: BySeed, block: int) -> dict[str, Any]:
    """mean, se, low, high of the losses of an encoding, each window averaged over the seeds first.

    `by_seed` has the mean of each seed, its number being a string as JSON has it.
    """
    return {**spread(over_seeds(losses), block), "by_seed": by_seed(losses)}


def paired_difference(losses: BySeed, others: BySeed, block: int) -> dict[str, Any]:
    """mean, low, high and by_seed of `losses` - `others`, window by window and seed by seed.

    Only seeds that both have are compared. If there are none, each is averaged over its own seeds,
    windows are still paired, and `by_seed` is empty.
    """
    common = sorted(losses.keys() & others.keys())
    differences = {s: minus(losses[s], others[s]) for s in common}
    values = over_seeds(differences) if common else minus(over_seeds(losses), over_seeds(others))
    found = spread(values, block)
    return {
        **{key: found[key] for key in ("mean", "low", "high")},
        "by_seed": by_seed(differences),
    }


def over_seeds(losses: BySeed) -> list[float]:
    """The mean over seeds, window by window."""
    return [fmean(window) for window in zip(*losses.values(), strict=True)]


def by_seed(losses: BySeed) -> dict[str, float]:
    """The mean over windows, seed by seed."""
    return {str(seed): fmean(losses[seed]) for seed in sorted(losses)}


def minus(losses: Sequence[float], others: Sequence[float]) -> list[float]:
    """Window by window."""
    return [a - b for a, b in zip(losses, others, strict=True)]
