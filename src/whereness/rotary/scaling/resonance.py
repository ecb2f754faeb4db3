"""Resonance RoPE: wavelengths become whole tokens, so that a turn ends on a token.

    w'_k = 2 pi / round(2 pi / w_k)

A pair whose wavelength lies within the training length then meets no angle later that it has not
met before. Composable: w is what another scaling gives.

Source: Wang et al. 2024, arXiv:2403.00071, section 4. The authors' code rounds every wavelength,
the text those up to the training length ("pre-critical"); both are here.

Axes: P pairs.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import require_choice, require_int
from whereness.rotary.scaling.spectrum import Scaling, Spectrum


@dataclass(frozen=True, repr=False)
class Resonance(Scaling):
    """Wavelengths rounded to whole tokens, after another scaling or none.

    Args:
        scaling: what to round; None: the plain spectrum.
        scope: "all" wavelengths, or the "pre_critical" ones, up to original_length.
        original_length: tokens of the training, for scope "pre_critical" and only there.
    """

    scaling: Scaling | None = None
    scope: Literal["all", "pre_critical"] = "all"
    original_length: int | None = None

    def __post_init__(self) -> None:
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be one of wn.scaling or None, got {self.scaling!r}.")
        require_choice("scope", self.scope, ("all", "pre_critical"))
        if (self.scope == "pre_critical") != (self.original_length is not None):
            raise ValueError(
                'original_length belongs to scope "pre_critical": give both or neither; got '
                f"scope={self.scope!r}, original_length={self.original_length!r}."
            )
        if self.original_length is not None:
            require_int("original_length", self.original_length, 1)

    @property
    def needs_lengths(self) -> bool:  # type: ignore[override]
        return self.scaling is not None and self.scaling.needs_lengths

    @property
    def reference_length(self) -> int:
        if self.scaling is not None:
            return self.scaling.reference_length
        return self.original_length or 1

    @property
    def reach(self) -> float:
        return math.inf if self.scaling is None else self.scaling.reach

    @property
    def sample_lengths(self) -> tuple[int, ...]:
        return (self.reference_length,) if self.scaling is None else self.scaling.sample_lengths

    def require_fit(self, plain: Spectrum) -> None:
        if self.scaling is not None:
            self.scaling.require_fit(plain)
        if plain.base < 1:
            raise ValueError(f"Resonance needs a base of at least 1, got {plain.base}.")

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        if self.scaling is None:
            given = plain.frequencies(lengths)
        else:
            given = self.scaling.frequencies(plain, lengths)
        wavelengths = 2 * math.pi / given  # infinite where a pair stands still: rounds to itself
        rounded = 2 * math.pi / wavelengths.round()
        if self.original_length is None:
            return rounded
        return torch.where(wavelengths <= self.original_length, rounded, given)

    @property
    def amplitude(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.amplitude

    @property
    def keeps_norms(self) -> bool:
        return self.scaling is None or self.scaling.keeps_norms

    def amplitude_at(self, lengths: Tensor) -> Tensor | float:
        return 1.0 if self.scaling is None else self.scaling.amplitude_at(lengths)

    @property
    def logit_scale(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.logit_scale
