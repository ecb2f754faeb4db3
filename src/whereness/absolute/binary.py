"""Binary: the bits of the position, stretched over the channels.

    Π[p, c] = bit b of p,   b = floor(c * num_bits / dim),   least significant bit first
    Gray code: bit b of p xor (p >> 1), so that neighbours differ in one bit

Bounded and unique, but it jumps: from 7 to 8 four bits flip at once.

Source: fleetwood.dev, "You could have designed state of the art positional encoding", 2024;
Gray 1953, US patent 2632058. Units: tokens.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.absolute.base import AbsoluteEncoding, Join
from whereness.checks import require, require_bool, require_int
from whereness.encoding import Site

LARGEST_BITS = 53
"""Positions end at 2^53."""


class Binary(AbsoluteEncoding):
    """The bits of an integer position.

    Args:
        dim: width of a row, at least num_bits.
        num_bits: bits of a position; None: min(dim, 16). Positions run from 0 to 2^num_bits - 1.
        gray: use the Gray code.

    Raises:
        ValueError: dim below num_bits; a position outside the bits.
        TypeError: real positions.

    >>> Binary(4, num_bits=4)(torch.tensor([6])).tolist()
    [[0.0, 1.0, 1.0, 0.0]]
    """

    unbounded = False

    def __init__(
        self,
        dim: int,
        num_bits: int | None = None,
        gray: bool = False,
        *,
        site: Site = "tokens",
        join: Join = "add",
    ) -> None:
        super().__init__(dim, site, join)
        num_bits = min(self.dim, 16) if num_bits is None else require_int("num_bits", num_bits, 1)
        require_bool("gray", gray)
        if num_bits > LARGEST_BITS:
            raise ValueError(f"num_bits must be at most {LARGEST_BITS}, got {num_bits}.")
        if self.dim < num_bits:
            raise ValueError(f"dim must hold every bit: needed at least {num_bits}, got {dim}.")
        self.num_bits, self.gray = num_bits, gray

    def rows(self, positions: Shaped[Tensor, "..."]) -> Float[Tensor, "... W"]:
        if positions.is_floating_point():
            raise TypeError(f"Binary needs integer positions, got {positions.dtype}.")
        last = 2**self.num_bits - 1
        require(
            (positions >= 0) & (positions <= last),
            lambda: (
                f"Binary of {self.num_bits} bits holds positions 0 .. {last}, got "
                f"{int(positions.min())} .. {int(positions.max())}. Give more num_bits."
            ),
        )
        code = positions ^ (positions >> 1) if self.gray else positions
        channels = torch.arange(self.dim, device=positions.device)
        bits = channels * self.num_bits // self.dim
        return ((code[..., None] >> bits) & 1).float()
