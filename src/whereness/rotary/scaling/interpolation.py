"""Linear, NTK and dynamic NTK: one factor for all pairs, or one change of the base.

    Linear                 w_k / s                                                   Chen 2023
    NTK     bloc97         (b s^(d / (d-2)))^(-2k/d)                                 bloc97 2023
            kexue          w_k s^(-2 (k+1) / d)                                      Su 2023
            mixed          w_k exp(-a (k+1)^m),   a = ln s / (d/2)^m                 Su 2023
    DynamicNTK huggingface b' = b (s n/L - (s-1))^(d / (d-2))                        emozilla 2023
            qwen           b' = b alpha^(d / (d-2)),   alpha = 2^ceil(log2(n/L) + 1) - 1

n is the length of a sequence, not less than L, the length of the training.

Sources: Chen et al. 2023, arXiv:2306.15595, section 3 (Linear); bloc97 and emozilla 2023, posts on
NTK-aware and dynamic scaling, written down in Peng et al. 2023, arXiv:2309.00071, sections 3.1 and
3.3; Su 2023, kexue.fm 9706 (kexue: "NTK-RoPE-fixed", what vLLM calls `ntk`; mixed:
"NTK-RoPE-mixed"); Qwen 2023, the code of Qwen-1 (qwen).

Axes: P pairs, L sequences. d is the rotated width, b the base, s the factor.
"""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whereness.checks import (
    constants,
    require,
    require_at_least,
    require_choice,
    require_int,
    require_number,
)
from whereness.rotary.scaling.spectrum import Scaling, Spectrum


@dataclass(frozen=True, repr=False)
class Linear(Scaling):
    """Position interpolation: every frequency is divided by `factor`.

    Args:
        factor: s, above 0. Or several, rising: each sequence takes the first whose reach,
            factor times original_length, holds it; a longer sequence is refused.
        original_length: L, tokens of the training; needed with several factors, and only then.
    """

    factor: float | tuple[float, ...]
    original_length: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factor, (tuple, list)):
            require_number("factor", self.factor, 0.0)
            if self.original_length is not None:
                raise ValueError("original_length has no effect with a single factor: leave it.")
            return
        factors = tuple(self.factor)
        for factor in factors:
            require_number("every factor", factor, 0.0)
        if not factors or any(a >= b for a, b in itertools.pairwise(factors)):
            raise ValueError(f"Several factors must rise, got {factors}.")
        if self.original_length is None:
            raise ValueError("Several factors need original_length: it says how far each reaches.")
        require_int("original_length", self.original_length, 1)
        object.__setattr__(self, "factor", factors)

    @property
    def needs_lengths(self) -> bool:  # type: ignore[override]
        return isinstance(self.factor, tuple)

    @property
    def reference_length(self) -> int:
        return self.original_length or 1

    @property
    def sample_lengths(self) -> tuple[int, ...]:
        return self.reference_length, 0  # of several factors the smallest

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        frequencies = plain.frequencies(lengths)
        if not isinstance(self.factor, tuple):
            return frequencies / self.factor
        factors = constants(self.factor, lengths.device)
        reach = factors * (self.original_length or 1)
        require(
            lengths <= reach[-1],
            f"Sequences must fit the largest factor's reach, {self.reach:g} tokens.",
            lengths,
        )
        first = torch.searchsorted(reach, lengths.double()).clamp(max=len(self.factor) - 1)
        return frequencies / factors[first].to(lengths.dtype)[..., None]

    @property
    def reach(self) -> float:
        if isinstance(self.factor, tuple):
            return self.factor[-1] * (self.original_length or 1)
        return math.inf


@dataclass(frozen=True, repr=False)
class NTK(Scaling):
    """NTK-aware scaling: the lowest frequency is divided by `factor`, the highest nearly kept.

    Args:
        factor: s, above 0.
        school: "bloc97" raises the base, so that pair 0 stays as it is (HunYuan's `alpha`; what
            most papers mean); "kexue" (vLLM's `ntk`) shifts the exponent by one pair, so that pair
            0 turns slower, too; "mixed" (vLLM's `mixed_b`) spreads the change by a power of k.
        mixed_b: m of school "mixed", and only there. 1 is "kexue"; Su proposed 0.625.
    """

    factor: float
    school: Literal["bloc97", "kexue", "mixed"] = "bloc97"
    mixed_b: float | None = None

    def __post_init__(self) -> None:
        require_number("factor", self.factor, 0.0)
        require_choice("school", self.school, ("bloc97", "kexue", "mixed"))
        if (self.school == "mixed") != (self.mixed_b is not None):
            raise ValueError(
                'mixed_b is the exponent of school "mixed": give both or neither; got '
                f"school={self.school!r}, mixed_b={self.mixed_b!r}."
            )
        if self.mixed_b is not None:
            require_number("mixed_b", self.mixed_b, 0.0)

    def require_fit(self, plain: Spectrum) -> None:
        if self.school == "bloc97":
            require_two_pairs(plain)

    def equivalent_base(self, plain: Spectrum) -> float:
        """The base whose plain spectrum this is. Only school "bloc97" has one."""
        if self.school != "bloc97":
            raise ValueError(f"School {self.school!r} has no base that gives its spectrum.")
        self.require_fit(plain)
        return plain.base * self.factor ** (plain.dim / (plain.dim - 2))

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        if self.school == "bloc97":
            return Spectrum(self.equivalent_base(plain), plain.dim).frequencies(lengths)
        pairs = plain.num_pairs
        number = torch.arange(1, pairs + 1, device=lengths.device).to(lengths.dtype)
        power = 1.0 if self.mixed_b is None else self.mixed_b
        slope = math.log(self.factor) / pairs**power
        return plain.frequencies(lengths) / (slope * number**power).exp()


@dataclass(frozen=True, repr=False)
class DynamicNTK(Scaling):
    """NTK scaling by the length that each sequence reaches; up to original_length nothing changes.

    Keys and queries of a sequence must use one table, so the final length must be known before the
    first token is cached: `Where(lengths=...)`.

    Args:
        factor: s of school "huggingface", at least 1; None for "qwen", which has none.
        original_length: L, tokens. Hugging Face takes max_position_embeddings.
        school: "huggingface" or "qwen".
    """

    needs_lengths: ClassVar[bool] = True

    factor: float | None
    original_length: int
    school: Literal["huggingface", "qwen"] = "huggingface"

    def __post_init__(self) -> None:
        require_choice("school", self.school, ("huggingface", "qwen"))
        require_int("original_length", self.original_length, 1)
        if self.school == "qwen":
            if self.factor is not None:
                raise ValueError(f'School "qwen" has no factor: give None, got {self.factor!r}.')
            return
        # Below 1 the base would turn negative for a long sequence.
        require_at_least("factor", self.factor, 1.0)

    @property
    def reference_length(self) -> int:
        return self.original_length

    def require_fit(self, plain: Spectrum) -> None:
        require_two_pairs(plain)

    def bases(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        """The base for each sequence, (L)."""
        longer = lengths.clamp(min=self.original_length)
        if self.factor is None:
            alpha = 2.0 ** ((longer / self.original_length).log2() + 1).ceil() - 1
        else:
            alpha = self.factor * longer / self.original_length - (self.factor - 1)
        return plain.base * alpha ** (plain.dim / (plain.dim - 2))

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        return 1.0 / (self.bases(plain, lengths)[..., None] ** plain.exponents(lengths))


def require_two_pairs(plain: Spectrum) -> None:
    """A change of the base leaves pair 0 as it is: with one pair there is nothing to scale."""
    if plain.dim < 4:
        raise ValueError(f"NTK scaling needs at least 4 rotated channels, got {plain.dim}.")
