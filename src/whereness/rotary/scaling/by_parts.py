"""NTK-by-parts, YaRN and Llama 3: fast pairs are kept, slow ones divided, a ramp lies between.

    w'_k = w_k (1 - e_k) / s + w_k e_k,   e_k from 1 (kept) to 0 (divided by s)

    ramp "paper"   e = clip((L / wavelength_k - alpha) / (beta - alpha))       linear in turns
    ramp "code"    e = 1 - clip((k - low) / (high - low))                      linear in k
                   low = floor D(beta_fast), high = ceil D(beta_slow),
                   D(turns) = d ln(L / (2 pi turns)) / (2 ln b)
    Llama3         e = clip((L / wavelength_k - low_freq) / (high_freq - low_freq))

    YaRN           cos and sin times m(1),   m(x) = 0.1 x ln s + 1

Sources: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4 (ramp "paper": equations 17 and
18); ramp "code" is that of the authors' program, and of every library; DeepSeek-V2 2024,
arXiv:2405.04434, and its code (mscale); Llama 3.1 2024, its code (Llama3).

Axes: P pairs. L original length, d rotated width, b base, s factor.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import (
    require_at_least,
    require_bool,
    require_choice,
    require_int,
    require_number,
)
from whereness.rotary.scaling.spectrum import Scaling, Spectrum

_OF_RAMP = {
    "code": ("beta_fast", "beta_slow", "truncate", "clamp", "extrapolation_factor"),
    "paper": ("alpha", "beta"),
}


@dataclass(frozen=True, repr=False)
class NTKByParts(Scaling):
    """Pairs that turn often within original_length are kept, those that do not are divided.

    Args:
        factor: s, at least 1.
        original_length: L, tokens of the training.
        ramp: "code" (all libraries) is linear in the number of the pair, "paper" in its turns.
        beta_fast, beta_slow: turns of the pair at either end of ramp "code"; may be equal.
        alpha, beta: turns at either end of ramp "paper".
        truncate: round the ends of ramp "code" outwards to whole pairs (gpt-oss does not).
        clamp: the last pair that ramp "code" may end at: "dim" is d - 1 (the authors, Hugging
            Face), "pairs" is d/2 - 1 (KerasHub).
        extrapolation_factor: factor on e of ramp "code": 0 divides every pair.
    """

    factor: float
    original_length: int
    _: KW_ONLY
    ramp: Literal["code", "paper"] = "code"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    alpha: float = 1.0
    beta: float = 32.0
    truncate: bool = True
    clamp: Literal["dim", "pairs"] = "dim"
    extrapolation_factor: float = 1.0

    def __post_init__(self) -> None:
        require_at_least("factor", self.factor, 1.0)
        require_int("original_length", self.original_length, 1)
        require_choice("ramp", self.ramp, ("code", "paper"))
        require_choice("clamp", self.clamp, ("dim", "pairs"))
        require_bool("truncate", self.truncate)
        for low, high in (("beta_slow", "beta_fast"), ("alpha", "beta")):
            require_number(low, getattr(self, low), 0.0)
            require_number(high, getattr(self, high), 0.0)
            fewest, most = getattr(self, low), getattr(self, high)
            # Ends that meet are a step: Kimi K2 has beta_fast = beta_slow = 1.
            if fewest > most or (fewest == most and low == "alpha"):
                raise ValueError(f"{high} must be more turns than {low}, got {most} and {fewest}.")
        require_at_least("extrapolation_factor", self.extrapolation_factor, 0.0)
        if self.extrapolation_factor > 1:
            raise ValueError(
                f"extrapolation_factor must be at most 1, got {self.extrapolation_factor}."
            )
        other = "paper" if self.ramp == "code" else "code"
        dead = [n for n in _OF_RAMP[other] if getattr(self, n) != getattr(type(self), n)]
        if dead:
            raise ValueError(
                f"{', '.join(dead)} belong to ramp {other!r} and have no effect on {self.ramp!r}: "
                "leave them or choose that ramp."
            )

    @property
    def reference_length(self) -> int:
        return self.original_length

    def require_fit(self, plain: Spectrum) -> None:
        if self.ramp == "code" and plain.base <= 1:
            raise ValueError(f"This scaling needs a base above 1, got {plain.base}.")

    def pair_of(self, plain: Spectrum, turns: float) -> float:
        """D: the pair, counted in fractions, that completes `turns` within original_length."""
        spread = math.log(self.original_length / (turns * 2 * math.pi))
        return plain.dim * spread / (2 * math.log(plain.base))

    def correction_range(self, plain: Spectrum) -> tuple[float, float]:
        """Pairs at which ramp "code" begins and ends."""
        low, high = self.pair_of(plain, self.beta_fast), self.pair_of(plain, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        last = plain.dim - 1 if self.clamp == "dim" else plain.num_pairs - 1
        return max(low, 0), min(high, last)

    def kept(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        """e, (P,): 1 for a pair that is kept, 0 for one that is divided."""
        if self.ramp == "paper":
            turns = self.original_length * plain.frequencies(lengths) / (2 * math.pi)
            return ((turns - self.alpha) / (self.beta - self.alpha)).clamp(0, 1)
        low, high = self.correction_range(plain)
        # Ends that meet make a step. Where low lies behind the last pair all pairs are fast, and
        # all are kept: a division by the negative high - low would turn the ramp round.
        high = high if high > low else low + 0.001
        pairs = torch.arange(plain.num_pairs, device=lengths.device).to(lengths.dtype)
        return (1 - ((pairs - low) / (high - low)).clamp(0, 1)) * self.extrapolation_factor

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        inverse, kept = plain.inverse(lengths), self.kept(plain, lengths)
        return 1.0 / (self.factor * inverse) * (1 - kept) + 1.0 / inverse * kept


@dataclass(frozen=True, repr=False)
class YaRN(NTKByParts):
    """NTK-by-parts with larger logits, so that attention over more keys stays as sharp.

    YaRN(4.0, original_length=32768) is what Qwen 2.5 has for texts of 131,072 tokens.

    Args:
        factor, original_length, ramp, beta_fast, beta_slow, alpha, beta, truncate, clamp,
            extrapolation_factor: as for `NTKByParts`.
        school: what `mscale` means. "paper": cos and sin times m(mscale or 1). "huggingface":
            m(mscale) / m(mscale_all_dim) where both are given and not 0, else m(1). "deepseek":
            m(mscale or 1) / m(mscale_all_dim or 0) (Megatron; vLLM for DeepSeek). These two put
            m(mscale_all_dim or 0)^2 on the logits; so do DeepSeek's models in Hugging Face, its
            other models do not: give those attention_factor.
        mscale, mscale_all_dim: x of m(x).
        attention_factor: replaces the factor on cos and sin, 1.0 included. None: by `school`.
        placement: "tables" puts that factor on cos and sin; "logits" its square on the logits: the
            same scores of what turns, and larger ones of channels that do not.
    """

    school: Literal["paper", "huggingface", "deepseek"] = "paper"
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    placement: Literal["tables", "logits"] = "tables"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("school", self.school, ("paper", "huggingface", "deepseek"))
        require_choice("placement", self.placement, ("tables", "logits"))
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 0.0)
        if self.attention_factor is not None:
            require_number("attention_factor", self.attention_factor, 0.0)
        if self.school == "paper" and self.mscale_all_dim is not None:
            raise ValueError(
                'School "paper" has no mscale_all_dim: name the school that it comes from, '
                '"huggingface" or "deepseek".'
            )

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def _on_tables(self) -> float:
        if self.attention_factor is not None:
            return float(self.attention_factor)
        one = 1.0 if self.mscale is None else self.mscale
        if self.school == "paper":
            return self._magnitude(one)
        if self.school == "deepseek":
            return self._magnitude(one) / self._magnitude(self.mscale_all_dim or 0.0)
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def amplitude(self) -> float:
        return self._on_tables() if self.placement == "tables" else 1.0

    @property
    def logit_scale(self) -> float:
        scale = self._on_tables() ** 2 if self.placement == "logits" else 1.0
        if self.school != "paper":
            scale *= self._magnitude(self.mscale_all_dim or 0.0) ** 2
        return scale


@dataclass(frozen=True, repr=False)
class Llama3(Scaling):
    """Llama 3.1's scaling: by parts, the parts told by wavelength; no change of the logits.

    Args:
        factor: s, at least 1.
        low_freq_factor: pairs with fewer turns within original_length are divided.
        high_freq_factor: pairs with more turns are kept. The same as low_freq_factor (Llama 4
            Scout): a step, nothing lies between.
        original_length: L, tokens of the training.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        require_at_least("factor", self.factor, 1.0)
        require_number("low_freq_factor", self.low_freq_factor, 0.0)
        require_number("high_freq_factor", self.high_freq_factor, 0.0)
        require_int("original_length", self.original_length, 1)
        if self.low_freq_factor > self.high_freq_factor:
            raise ValueError(
                "high_freq_factor must not be below low_freq_factor, got "
                f"{self.high_freq_factor} and {self.low_freq_factor}."
            )

    @property
    def reference_length(self) -> int:
        return self.original_length

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        frequencies = plain.frequencies(lengths)
        wavelengths = 2 * math.pi / frequencies
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = (self.original_length / wavelengths - low) / ((high - low) or 1.0)
        blended = (1 - smooth) * frequencies / self.factor + smooth * frequencies
        slow = wavelengths > self.original_length / low
        fast = wavelengths < self.original_length / high
        return torch.where(slow, frequencies / self.factor, torch.where(fast, frequencies, blended))
