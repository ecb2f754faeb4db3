"""What a scaling changes, and what every scaling says of itself.

    pair k turns  w_k = base^(-2k / dim)  radians a token,   k = 0 .. dim/2 - 1

Formulas are written once, for any dtype: in float64 they are what encodings use; in float32, in the
order of operations below, they are what Hugging Face computes.

Axes: P = dim/2 pairs, L any axes of sequences or tokens. Units: radians per token, tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from whereness.checks import told


class Spectrum(NamedTuple):
    """The plain spectrum: `base` and the width that the exponents are fractions of."""

    base: float
    dim: int

    @property
    def num_pairs(self) -> int:
        return self.dim // 2

    def exponents(self, like: Tensor) -> Tensor:
        """2k / dim, (P,), of the dtype and on the device of `like`."""
        # Counted in integers: some contexts lower the type of a range of floats.
        return torch.arange(0, self.dim, 2, device=like.device).to(like.dtype) / self.dim

    def inverse(self, like: Tensor) -> Tensor:
        """1 / w, (P,): tokens per radian."""
        return self.base ** self.exponents(like)

    def frequencies(self, like: Tensor) -> Tensor:
        """w, (P,)."""
        return 1.0 / self.inverse(like)


@dataclass(frozen=True, repr=False)
class Scaling:
    """Base of all scalings.

    `lengths` (L) are the lengths that sequences will reach; their dtype is that of the result.
    """

    needs_lengths: ClassVar[bool] = False
    """The frequencies, or the amplitude, depend on the length of a sequence."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({told(self, type(self))})"

    def frequencies(self, plain: Spectrum, lengths: Tensor) -> Tensor:
        """Radians per token, (L, P), or (P,) where lengths do not matter.

        Args:
            plain: what to scale.
            lengths: (L) tokens, float64 (float32 gives Hugging Face's rounding).
        """
        raise NotImplementedError

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin of queries and of keys: scores get its square."""
        return 1.0

    def amplitude_at(self, lengths: Tensor) -> Tensor | float:
        """The same for sequences of these lengths, (L) or one number."""
        return self.amplitude

    @property
    def keeps_norms(self) -> bool:
        """The amplitude is 1 for every length."""
        return self.amplitude == 1.0

    @property
    def logit_scale(self) -> float:
        """Factor on 1 / sqrt(head_dim)."""
        return 1.0

    @property
    def reference_length(self) -> int:
        """The length at which `RoPE.frequencies` is told: that of the training."""
        return 1

    @property
    def reach(self) -> float:
        """The longest sequence that it is defined for, tokens."""
        return math.inf

    @property
    def sample_lengths(self) -> tuple[int, ...]:
        """`reference_length`, and others that meet the highest frequencies there are."""
        return (self.reference_length,)

    def require_fit(self, plain: Spectrum) -> None:
        """Raise ValueError where this scaling cannot be applied to `plain`."""
