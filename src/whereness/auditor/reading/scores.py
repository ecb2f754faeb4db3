"""What is added to scores, and whether scores depend on the offset alone.

Axes: B contents, H heads, S queries, T keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MASKED = -5000.0
"""Below this a number is a mask and no bias: masks of -10000 are the mildest in use."""
FLAT = 1e-9
"""A bias whose numbers differ by less is none, in float64."""


@dataclass(frozen=True)
class Bias:
    """What a layer adds to logits: values (H, S, T), NaN where masked. spread: over contents."""

    values: Tensor
    spread: float
    uneven: float = 0.0
    """How far from Toeplitz."""

    @property
    def present(self) -> bool:
        """Whether it tells keys apart."""
        return bool(self.height > FLAT)

    @property
    def height(self) -> Tensor:
        """Largest difference between the keys of a query."""
        high = self.values.nan_to_num(-torch.inf).amax(-1)
        low = self.values.nan_to_num(torch.inf).amin(-1)
        apart = (high - low)[high.isfinite() & low.isfinite()]
        return apart.max() if apart.numel() else torch.tensor(0.0)


def bias_of(logits: Tensor) -> Bias:
    """What was added, of logits (B, H, S, T) under queries of zeros."""
    logits = logits.detach().double()
    open_ = logits > MASKED
    values = torch.where(open_, logits, torch.nan)
    apart = (values - values[:1]).abs().nan_to_num(0.0)
    return Bias(values[0], float(apart.max()), unevenness(logits[:1]))


def unevenness(logits: Tensor) -> float:
    """How far logits (B, H, S, T) of one content are from Toeplitz, relative to their size.

    A number per row changes no weights (the maximum of a row may have been taken off), so rows are
    compared by their differences to the nearest key that both see.
    """
    logits = logits.detach().double()
    open_ = logits > MASKED
    values = torch.where(open_, logits, torch.nan)
    size = values.nan_to_num(0.0).abs().amax().clamp_min(1e-30)
    steps = values[..., 1:] - values[..., :-1]
    worst = torch.zeros(())
    for by in (1, max(1, steps.shape[-2] // 2)):
        apart = (steps[..., by:, by:] - steps[..., :-by, :-by]).abs().nan_to_num(0.0)
        if apart.numel():
            worst = torch.maximum(worst, apart.amax())
    return float(worst / size)


def unevenness_on_grid(logits: Tensor, most_prefix: int = 8) -> float:
    """The same for tokens of a square grid with some tokens before it: both axes count."""
    logits = logits.detach().double()
    slots = logits.shape[-1]
    side = int(slots**0.5)
    prefix = slots - side * side
    if logits.shape[-2] != slots or prefix > most_prefix or side < 2:
        return unevenness(logits)
    grid = logits[..., prefix:, prefix:].unflatten(-1, (side, side)).unflatten(-3, (side, side))
    size = logits.abs().amax().clamp_min(1e-30)
    down = (grid[..., 1:, :, 1:, :] - grid[..., :-1, :, :-1, :]).abs().amax()
    right = (grid[..., 1:, :, 1:] - grid[..., :-1, :, :-1]).abs().amax()
    return float(torch.maximum(down, right) / size)


def levelled(values: Tensor) -> Tensor:
    """values (..., S, T) with every row beside its nearest key: row i less its entry at i + T - S.

    Where that is masked, less its last entry that is not.
    """
    queries, keys = values.shape[-2:]
    at = (torch.arange(queries) + keys - queries).clamp(0, keys - 1)
    own = values.gather(-1, at[:, None].expand(*values.shape[:-1], 1))
    return values - own.nan_to_num(0.0)
