"""RoPE: queries and keys are turned by their position, so that scores depend on the offset alone.

    q'_i = R(p_i) q_i,   k'_j = R(p_j) k_j,   q'_i . k'_j = A^2 q_i . R(p_j - p_i) k_j
    R(p) turns pair k by the angle p w_k,   w_k = base^(-2k / rotary_dim), or what a scaling makes
    A is a scaling's amplitude, else 1

Source: Su et al. 2021, arXiv:2104.09864, sections 3.2 to 3.4 (pairing "interleaved"). Pairing
"half" is that of GPT-NeoX and of Llama in Hugging Face; a checkpoint works with one only.

Axes: B batch, S tokens, P = rotary_dim/2 pairs. Units: tokens, radians per token.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import (
    LARGEST_POSITION,
    constants,
    require_choice,
    require_int,
    require_number,
)
from whereness.frequencies import geometric, geometric_low
from whereness.kernels.tables import cos_sin_of_pairs
from whereness.rotary.base import Rotary, Side
from whereness.rotary.pairing import Pairing
from whereness.rotary.scaling.spectrum import Scaling, Spectrum

LEAST_FACTOR = 2.0**-100
"""The square of an amplitude, and one over it, must be well within float32."""


class RoPE(Rotary):
    """Rotary position embedding of one axis.

    Args:
        head_dim: D, width of a query.
        base: 10 000 in the paper; larger bases turn slower.
        pairing: "half" or "interleaved": which two channels form a pair.
        rotary_dim: channels that turn, even; None: all. The spectrum is that of this width.
        rotary_side: "leading" turns the first channels, "trailing" the last.
        scaling: one of `wn.scaling`, for texts longer than those of the training. Where it depends
            on the length of a sequence, `Where(lengths=...)` gives that length; without it, and
            without a cache, it is the last position plus one.
        compat: "huggingface" forms angles, cos and sin in float32 and turns in the dtype of the
            input, bit for bit as Hugging Face's Llama does, errors included: at position 10^6
            about 0.05. None: exact.

    Raises:
        ValueError: an odd or too large width, a scaling that does not fit, options that do not
            exist.

    >>> rope = RoPE(4, pairing="interleaved")
    >>> rope.rotate(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), torch.tensor([1])).round(decimals=4)
    tensor([[[[-1.1426,  1.9221,  2.9599,  4.0298]]]])
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
        scaling: Scaling | None = None,
        compat: Literal["huggingface"] | None = None,
    ) -> None:
        super().__init__(head_dim, pairing, rotary_dim, rotary_side)
        require_number("base", base, 0.0)
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(f"scaling must be one of wn.scaling or None, got {scaling!r}.")
        if compat is not None:
            require_choice("compat", compat, ("huggingface",))
        self.base, self.scaling, self.compat = float(base), scaling, compat
        self.in_own_type = compat is not None
        self._plain = Spectrum(self.base, self.rotary_dim)
        self._frequencies = self._constants()
        # What the floats lack of the exact frequencies; a scaling's are taken as they are.
        self._low = geometric_low(self.base, self.rotary_dim, self.rotary_dim // 2)
        self.needs_lengths = scaling is not None and scaling.needs_lengths
        self.unbounded = scaling is None or math.isinf(scaling.reach)
        self.norm_preserving = scaling is None or scaling.keeps_norms

    @property
    def frequencies(self) -> Tensor:
        """Radians per token, (rotary_dim/2,), highest first, float64 on the CPU.

        Where they depend on the length of a sequence, those at the scaling's original_length.
        """
        return constants(self._frequencies, torch.device("cpu"))

    def frequencies_at(self, length: int) -> Tensor:
        """The frequencies for sequences that reach `length` tokens, float64 on the CPU."""
        length = require_int("length", length, 0, LARGEST_POSITION)
        if self.scaling is None or not self.needs_lengths:
            return self.frequencies
        return self._scaled(self._length(length)).double()

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin, at the scaling's original_length; plain RoPE has 1."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def amplitude_at(self, length: int) -> float:
        """The amplitude for sequences that reach `length` tokens."""
        length = require_int("length", length, 0, LARGEST_POSITION)
        return (
            1.0 if self.scaling is None else float(self.scaling.amplitude_at(self._length(length)))
        )

    def logit_scale(self, head_dim: int) -> float:
        return 1.0 if self.scaling is None else self.scaling.logit_scale

    def angles(
        self, positions: Shaped[Tensor, "..."], lengths: Tensor | None = None
    ) -> Float[Tensor, "... P"]:
        # An elementwise product: a matrix product may be done in TF32.
        return self._coordinates(positions).to(self._dtype) * self._spectrum(
            lengths, positions.device
        )

    def cos_sin(self, positions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        cos, sin = super().cos_sin(positions, lengths)
        amplitude = self._amplitude_of(lengths)
        if isinstance(amplitude, Tensor):
            amplitude = amplitude[..., None, None]
        elif amplitude == 1.0:
            return cos, sin
        return cos * amplitude, sin * amplitude

    def rounded(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.compat is not None or not self._asks(RoPE):
            return super().rounded(positions, lengths)
        high, low = self._spectrum(lengths, positions.device), None
        if self.scaling is None and not self.learned:
            low = constants(self._low, positions.device)
        tables = cos_sin_of_pairs(
            self._coordinates(positions), high, low, self._amplitude_of(lengths)
        )
        return tables[0].unsqueeze(-2), tables[1].unsqueeze(-2)

    def _amplitude_of(self, lengths: Tensor | None) -> Tensor | float:
        """Factor on cos and sin; a tensor (B or 1, S or 1) where it depends on lengths."""
        if self.scaling is None or self.scaling.keeps_norms:
            return 1.0
        if lengths is None:
            return self.amplitude
        return self.scaling.amplitude_at(lengths.to(self._dtype))

    def _coordinates(self, positions: Tensor) -> Tensor:
        """What each pair is turned by: positions (..., S[, n]) -> (..., S, P or 1)."""
        return positions[..., None]

    def _spectrum(self, lengths: Tensor | None, device: torch.device) -> Tensor:
        """(P,), or (B or 1, S or 1, P) where it depends on lengths."""
        if self.scaling is None or lengths is None or not self.needs_lengths:
            return constants(self._frequencies, device).to(self._dtype)
        return self._scaled(lengths.to(self._dtype))

    def _constants(self) -> tuple[float, ...]:
        if self.scaling is None and self.compat is None:
            return geometric(self.base, self.rotary_dim, self.rotary_dim // 2)
        lengths: tuple[int, ...] = (1,)
        if self.scaling is not None:
            self.scaling.require_fit(self._plain)
            lengths = self.scaling.sample_lengths
        tables: list[list[float]] = []
        try:
            tables = [self._scaled(self._length(n)).tolist() for n in lengths]
            finite = all(math.isfinite(w * LARGEST_POSITION) for table in tables for w in table)
        except OverflowError:
            finite = False
        if not finite:
            raise ValueError(
                f"base and scaling must give finite angles, got {self.base!r} and {self.scaling!r}."
            )
        if self.scaling is not None:
            self._check_amplitudes(self.scaling)
        return tuple(tables[0])

    def _scaled(self, lengths: Tensor) -> Tensor:
        if self.scaling is None:
            return self._plain.frequencies(lengths)
        return self.scaling.frequencies(self._plain, lengths)

    def _check_amplitudes(self, scaling: Scaling) -> None:
        try:
            far = float(scaling.amplitude_at(self._length(LARGEST_POSITION)))
            factors = (scaling.amplitude**2, far**2, scaling.logit_scale)
        except OverflowError:
            factors = (math.inf,)
        if not all(LEAST_FACTOR < factor < 1 / LEAST_FACTOR for factor in factors):
            raise ValueError(f"scaling must give an amplitude that float32 holds, got {scaling}.")

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.compat is None else torch.float32

    def _length(self, length: int) -> Tensor:
        return torch.tensor(length, dtype=torch.int64, device="cpu").to(self._dtype)
