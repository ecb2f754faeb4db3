"""FoPE: each pair turns by a learned mixture of all frequencies that the training completed.

    cos'_k(p) = sum_j C_jk cos(p w_j),   sin'_k(p) = sum_j S_jk sin(p w_j)
    over the frequencies with w_j > 2 pi / L; the other pairs stand still: cos 1, sin 0

C and S are near the identity at first, so that FoPE begins near a HoPE-like RoPE. A pair (u, v)
becomes (u cos' - v sin', u sin' + v cos'), which is no rotation: norms change, and scores depend on
more than the offset.

Source: Hua et al. 2024, arXiv:2412.17739, section 4; that other pairs have sin 0 follows the text
and vLLM (an older copy there had 1).

Axes: G groups of heads with a mixture of their own, P = rotary_dim/2 pairs, F pairs that turn.
"""

import math

import torch
from torch import Tensor, nn

from whereness.checks import constants, require_at_least, require_int, require_number
from whereness.frequencies import geometric
from whereness.rotary.base import Rotary, Side
from whereness.rotary.pairing import Pairing


class FoPE(Rotary):
    """Fourier position embedding. Parameters `cos_mix` and `sin_mix`, (G, F, F).

    Args:
        head_dim, base, pairing, rotary_dim, rotary_side: as for `wn.RoPE`.
        length: L, tokens of the training: slower pairs than 2 pi / L stand still. Or give
            num_frequencies.
        num_frequencies: F, the fastest pairs, instead of length.
        num_kv_heads: G; 1: one mixture for all heads.
        init_factor: gain of the random part (Xavier normal) that is added to the identity.

    Raises:
        ValueError: as `wn.RoPE`; both or neither of length and num_frequencies; none that turns.
    """

    relative = False
    per_head = True

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
        *,
        length: int | None = None,
        num_frequencies: int | None = None,
        num_kv_heads: int = 1,
        init_factor: float = 0.1,
    ) -> None:
        super().__init__(head_dim, pairing, rotary_dim, rotary_side)
        require_number("base", base, 0.0)
        self.base = float(base)
        self._frequencies = geometric(self.base, self.rotary_dim, self.rotary_dim // 2)
        if (length is None) == (num_frequencies is None):
            raise ValueError("Give length or num_frequencies: either says which pairs turn.")
        pairs = self.rotary_dim // 2
        if length is not None:
            length = require_int("length", length, 1)
            num_frequencies = sum(w > 2 * math.pi / length for w in self._frequencies)
            if not num_frequencies:
                raise ValueError(f"length must hold a turn of the fastest pair, got {length}.")
        self.num_frequencies = require_int("num_frequencies", num_frequencies, 1, pairs)
        self.num_kv_heads = require_int("num_kv_heads", num_kv_heads, 1)
        require_at_least("init_factor", init_factor, 0.0)
        self.length, self.init_factor = length, float(init_factor)
        shape = self.num_kv_heads, self.num_frequencies, self.num_frequencies
        self.cos_mix, self.sin_mix = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.norm_preserving = False
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for mix in (self.cos_mix, self.sin_mix):
                for group in mix:
                    nn.init.xavier_normal_(group, gain=self.init_factor)
                mix.add_(torch.eye(self.num_frequencies, device=mix.device))

    @property
    def frequencies(self) -> Tensor:
        """Radians per token, (P,), float64 on the CPU; 0 for the pairs that stand still."""
        turning = torch.arange(self.rotary_dim // 2, device="cpu") < self.num_frequencies
        return constants(self._frequencies, torch.device("cpu")) * turning

    def derived(self) -> dict[str, Tensor]:
        return {}

    def cos_sin(self, positions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        turning = constants(self._frequencies[: self.num_frequencies], positions.device)
        angles = positions[..., None].to(torch.float64) * turning
        still = self.rotary_dim // 2 - self.num_frequencies
        cos, sin = (
            torch.einsum("...sf,gfp->...sgp", wave, mix.double())
            for wave, mix in ((angles.cos(), self.cos_mix), (angles.sin(), self.sin_mix))
        )
        return (
            nn.functional.pad(cos, (0, still), value=1.0),
            nn.functional.pad(sin, (0, still), value=0.0),
        )
