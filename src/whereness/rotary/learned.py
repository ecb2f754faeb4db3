"""LeRoPE: RoPE whose frequencies are learned, as factors on a plain or scaled spectrum.

    w'_k = w_k exp(alpha_k),   alpha = 0 at first

Source: Mistral Large 4 2026, its code in Hugging Face's transformers (there on top of YaRN).

Axes: P = rotary_dim/2 pairs. Units: radians per token.
"""

import torch
from torch import Tensor, nn

from whereness.rotary.base import Side
from whereness.rotary.pairing import Pairing
from whereness.rotary.rope import RoPE
from whereness.rotary.scaling.spectrum import Scaling


class LeRoPE(RoPE):
    """Rotary encoding with learned frequencies. Its one parameter, `alpha` (P,), starts at 0.

    Arguments as for `wn.RoPE`. `frequencies` are the present ones.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__(head_dim, base, pairing, rotary_dim, rotary_side, scaling)
        self.alpha = nn.Parameter(torch.empty(self.rotary_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)

    @property
    def frequencies(self) -> Tensor:
        return super().frequencies * self._factors().detach().cpu()

    def frequencies_at(self, length: int) -> Tensor:
        if not self.needs_lengths:
            return self.frequencies
        return super().frequencies_at(length) * self._factors().detach().cpu()

    def derived(self) -> dict[str, Tensor]:
        return {}  # files hold the spectrum before or after the factors

    def _spectrum(self, lengths: Tensor | None, device: torch.device) -> Tensor:
        return super()._spectrum(lengths, device) * self._factors()

    def _factors(self) -> Tensor:
        return self.alpha.double().exp()
