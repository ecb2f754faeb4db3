"""Scalings that make slow pairs stand still: they carry content and no position.

    Proportional   w_k = base^(-2k/d) / s  for k < floor(p d / 2),  0 beyond
    HoPE           w_k = 0  where  2 pi / w_k > L

Neither is partial rotation, whose spectrum spans the rotated width alone.

Sources: Barbero et al. 2024, arXiv:2410.06205, section 6 (p-RoPE; "proportional" in Gemma 4);
Chen et al. 2024, arXiv:2410.21216 (HoPE: high-frequency rotary encoding).

Axes: P pairs. d rotated width, L original length.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.checks import require_at_least, require_int, require_number
from whereness.rotary.scaling.spectrum import Scaling, Spectrum


@dataclass(frozen=True, repr=False)
class Proportional(Scaling):
    """The fastest share of the pairs turns, with the frequencies of the whole width (p-RoPE).

    Args:
        fraction: p, from 0 (no pair turns) to 1 (all do).
        factor: s, divides the frequencies.
    """

    fraction: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_at_least("fraction", self.fraction, 0.0)
        if self.fraction > 1:
            raise ValueError(f"fraction must be at most 1, got {self.fraction}.")
        require_number("factor", self.factor, 0.0)

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        turning = int(self.fraction * plain.dim // 2)
        pairs = torch.arange(plain.num_pairs, device=lengths.device)
        return plain.frequencies(lengths) * (pairs < turning) / self.factor


@dataclass(frozen=True, repr=False)
class HoPE(Scaling):
    """Pairs that complete no turn within original_length stand still.

    Args:
        original_length: L, tokens of the training.
    """

    original_length: int

    def __post_init__(self) -> None:
        require_int("original_length", self.original_length, 1)

    @property
    def reference_length(self) -> int:
        return self.original_length

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        frequencies = plain.frequencies(lengths)
        return frequencies * (2 * math.pi / frequencies <= self.original_length)
