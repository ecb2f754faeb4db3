"""Sinusoidal: sines and cosines of the position at geometric frequencies.

    Π[p, pair k] = (sin(p w_k), cos(p w_k)),   w_k = base^(-2k / dim)   or   base^(-2k / (dim - 2))

Moving a position by o multiplies each pair by a rotation that depends on o alone, so the
offset of two positions can be read from their codes.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5, interleaves and has exponent "dim".
Their released code (tensor2tensor) and fairseq concatenate, "sin_cos", with exponent "dim-2";
diffusion models flip to "cos_sin". A model must be given the order that it was trained with.

Units: positions in tokens (any real number), frequencies in radians per token.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.absolute.base import AbsoluteEncoding, Join
from whereness.checks import constants, require_choice, require_number
from whereness.encoding import Site
from whereness.frequencies import geometric

Order = Literal["interleaved", "sin_cos", "cos_sin"]


class Sinusoidal(AbsoluteEncoding):
    """Fixed sines and cosines. Angles are formed in float64, positions may be real.

    Args:
        dim: width of a row, even; at least 4 for exponent "dim-2".
        base: the longest wavelength is nearly 2 pi base tokens.
        order: "interleaved" (sin, cos, sin, cos, ...), "sin_cos" (all sines first) or "cos_sin".
        exponent: "dim" divides by dim; "dim-2" makes the longest wavelength exactly 2 pi base.

    Raises:
        ValueError: an odd dim, or options that do not exist.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10_000.0,
        order: Order = "interleaved",
        exponent: Literal["dim", "dim-2"] = "dim",
        *,
        site: Site = "tokens",
        join: Join = "add",
    ) -> None:
        super().__init__(dim, site, join)
        dim = self.dim
        require_number("base", base, 0.0)
        require_choice("order", order, ("interleaved", "sin_cos", "cos_sin"))
        require_choice("exponent", exponent, ("dim", "dim-2"))
        if dim % 2:
            raise ValueError(f"dim must be even, one sine and one cosine a frequency; got {dim}.")
        if exponent == "dim-2" and dim < 4:
            raise ValueError(f"exponent='dim-2' needs dim of at least 4, got {dim}.")
        self.base, self.order, self.exponent = float(base), order, exponent
        divisor = dim if exponent == "dim" else dim - 2
        # Python floats, not a buffer: no cast, meta device or checkpoint can change them.
        self._frequencies = geometric(self.base, divisor, dim // 2)

    @property
    def frequencies(self) -> Tensor:
        """Radians per token, (dim/2,), highest first, float64 on the CPU."""
        return torch.tensor(self._frequencies, dtype=torch.float64, device="cpu")

    def rows(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        frequencies = constants(self._frequencies, positions.device)
        angles = positions.to(torch.float64)[..., None] * frequencies
        sines, cosines = angles.sin(), angles.cos()
        if self.order == "interleaved":
            return torch.stack([sines, cosines], -1).flatten(-2)
        halves = [sines, cosines] if self.order == "sin_cos" else [cosines, sines]
        return torch.cat(halves, -1)
