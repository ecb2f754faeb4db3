"""LongRoPE: a divisor of its own for every pair, found by search, one set for long sequences.

    w'_k = 1 / (lambda_k base^(2k/d)),   lambda = short_factor where n <= L, else long_factor
    cos and sin times sqrt(1 + ln s / ln L) where s > 1

Source: Ding et al. 2024, arXiv:2402.13753, section 3; Phi-3's code (two sets, the amplitude).

Axes: P pairs, N sequences. n length of a sequence, L original length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whereness.checks import constants, require_int, require_number
from whereness.rotary.scaling.spectrum import Scaling, Spectrum


@dataclass(frozen=True, repr=False)
class LongRoPE(Scaling):
    """Two sets of divisors; the length that a sequence will reach picks one for all its tokens.

    Give `Where(lengths=...)` when decoding: keys and queries of a sequence must use one set.

    Args:
        short_factor, long_factor: lambda, one number a pair.
        original_length: L, tokens of the training.
        factor: s of the amplitude: the length that the model is sold for over original_length.
            None: amplitude 1, unless one of the following is given.
        attention_factor: the amplitude itself.
        short_mscale, long_mscale: the amplitude for either set (vLLM's keys).
    """

    needs_lengths: ClassVar[bool] = True

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_length: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)) or not given:
                raise TypeError(f"{name} must be a list of numbers, one a pair, got {given!r}.")
            for number in given:
                require_number(f"every entry of {name}", number, 0.0)
            object.__setattr__(self, name, tuple(float(number) for number in given))
        if len(self.short_factor) != len(self.long_factor):
            raise ValueError(
                "short_factor and long_factor must be equally long, got "
                f"{len(self.short_factor)} and {len(self.long_factor)} numbers."
            )
        require_int("original_length", self.original_length, 2)
        for name in ("factor", "attention_factor", "short_mscale", "long_mscale"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), 0.0)
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise ValueError("short_mscale and long_mscale go together: give both or neither.")
        if self.short_mscale is not None and self.attention_factor is not None:
            raise ValueError("Give attention_factor or short_mscale and long_mscale, not both.")

    @property
    def reference_length(self) -> int:
        return self.original_length

    @property
    def sample_lengths(self) -> tuple[int, ...]:
        return self.original_length, self.original_length + 1

    def require_fit(self, plain: Spectrum) -> None:
        if len(self.short_factor) != plain.num_pairs:
            raise ValueError(
                f"short_factor and long_factor must have one number for each of the "
                f"{plain.num_pairs} pairs, got {len(self.short_factor)}."
            )

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        short, long = (
            constants(given, lengths.device).to(lengths.dtype)
            for given in (self.short_factor, self.long_factor)
        )
        is_long = (lengths > self.original_length)[..., None]
        return 1.0 / (torch.where(is_long, long, short) * plain.inverse(lengths))

    @property
    def amplitude(self) -> float:
        """For a sequence of original_length."""
        if self.short_mscale is not None:
            return float(self.short_mscale)
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.factor is None or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    @property
    def keeps_norms(self) -> bool:
        return self.amplitude == 1.0 and self.long_mscale in (None, 1.0)

    def amplitude_at(self, lengths: Tensor) -> Tensor | float:
        if self.short_mscale is None or self.long_mscale is None:
            return self.amplitude
        short, long = constants((self.short_mscale, self.long_mscale), lengths.device)
        return torch.where(lengths > self.original_length, long, short).to(lengths.dtype)
