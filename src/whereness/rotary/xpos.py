"""xPos: RoPE whose scores also fall with distance, pair by pair.

    q'_i = R(p_i) q_i zeta^((p_i - c) / S),   k'_j = R(p_j) k_j zeta^(-(p_j - c) / S)
    zeta_k = (2k + gamma R) / ((1 + gamma) R),   pair k of R/2

A score so has the factor zeta_k^((p_i - p_j) / S) on pair k: below 1 for earlier keys, above 1 for
later ones, so it is for causal attention alone. The centre c cancels; it must be one fixed number,
or keys that were cached under another do not fit (others take half of the current length).

Source: Sun et al. 2022, arXiv:2212.10554, section 3; gamma 0.4 and S 512 as in the authors' code.

Axes: B batch, S tokens, P = R/2 pairs. Units: tokens.
"""

import math

import torch
from torch import Tensor

from whereness.checks import constants, require, require_number
from whereness.rotary.base import Side, Table, Turn, Turns
from whereness.rotary.pairing import Pairing
from whereness.rotary.rope import RoPE
from whereness.rotary.scaling.spectrum import Scaling
from whereness.where import Where, filled

_LARGEST_POWER = 80.0  # e^80 times a query of some thousands is still a float32


class XPos(RoPE):
    """Rotary encoding with exponential decay of scores. Causal only.

    Args:
        head_dim, base, pairing, rotary_dim, rotary_side, scaling: as for `wn.RoPE`.
        scale_base: S, tokens over which a score falls by zeta.
        gamma: of zeta; 0.4 makes it rise from 0.29 to nearly 1.
        centre: c, the position whose query and key keep their size. From there sizes grow and
            fall exponentially: positions where float32 cannot hold them, 32 thousand tokens away
            by default, are refused. float16 holds a seventh of that.

    Raises:
        ValueError: as `wn.RoPE`; positions too far from the centre.
    """

    causal_only = True

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
        scaling: Scaling | None = None,
        *,
        scale_base: float = 512.0,
        gamma: float = 0.4,
        centre: float = 0.0,
    ) -> None:
        super().__init__(head_dim, base, pairing, rotary_dim, rotary_side, scaling)
        require_number("scale_base", scale_base, 0.0)
        require_number("gamma", gamma, 0.0)
        require_number("centre", centre, -math.inf)
        self.scale_base, self.gamma, self.centre = float(scale_base), float(gamma), float(centre)
        width = self.rotary_dim
        self._zeta = tuple(
            (2 * k + gamma * width) / ((1 + gamma) * width) for k in range(width // 2)
        )
        if not self._zeta[0] < 1:
            raise ValueError(f"gamma must be small enough for scores to fall, got {gamma!r}.")
        self.norm_preserving = self.unbounded = False

    @property
    def zeta(self) -> Tensor:
        """Factor on a pair's score at distance `scale_base`, (P,), float64 on the CPU."""
        return constants(self._zeta, torch.device("cpu"))

    def tables(self, where: Where) -> Turns:
        plain = super().tables(where)
        # Queries and keys at the same places turn alike and decay against each other.
        keys = plain.keys._replace(of_keys=True)
        return Turns(self._decayed(plain.queries), self._decayed(keys))

    def exactly(self, turned: Turn) -> Table:
        cos, sin = super().exactly(turned)
        factor = self._decay(turned)
        return Table(cos * factor, sin * factor)

    def _decayed(self, turned: Turn) -> Turn:
        cos, sin = self.exactly(turned)
        return turned._replace(cos=cos.float(), sin=sin.float())

    def _decay(self, turned: Turn) -> Tensor:
        """Factor on every pair of every token, (B or 1, S, 1, P), float64."""
        placed, absent = filled(turned.positions)
        distance = (placed.to(torch.float64) - self.centre).masked_fill(absent, 0.0)
        power = (-1.0 if turned.of_keys else 1.0) * distance / self.scale_base
        steepest = max(abs(math.log(zeta)) for zeta in self._zeta)
        require(
            power.abs() * steepest <= _LARGEST_POWER,
            f"Positions must lie within {_LARGEST_POWER * self.scale_base / steepest:.0f} of the "
            f"centre {self.centre:g}, or queries and keys outgrow float32.",
            turned.positions,
        )
        return constants(self._zeta, turned.positions.device) ** power[..., None, None]
