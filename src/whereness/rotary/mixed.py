"""RoPE-Mixed: every pair turns by all coordinates of a position, along a learned direction.

    pair k of head h turns by   sum_a p[a] directions[a, h, k]

Scores depend on the offset of two positions alone, as for one axis; unlike axial RoPE a pair may
look along a diagonal. A head starts as axial RoPE turned at random: its pairs fall into n groups of
P/n, group i points along the i-th axis of a random cross, pair t of it with length
base^(-t n / P).

Source: Heo et al. 2024, arXiv:2403.13298, section 3.3 (two axes, base 10, pairing "interleaved";
directions belong to one layer, so give a model a factory). Their first coordinate is x, the column
of a grid; ours is whatever positions have first. More axes are ours, as Mochi has three, and so are
grouped keys: query heads that share a key share its directions.

Axes: n axes of a position, G key heads, P = D/2 pairs. Units: radians per unit of position.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from whereness.checks import constants, require_int, require_number
from whereness.encoding import At, Features
from whereness.frequencies import geometric
from whereness.rotary.base import Rotary
from whereness.rotary.pairing import Pairing


class MixedRoPE(Rotary):
    """Rotary position embedding with learned directions in the space of positions.

    Args:
        head_dim: D, a multiple of 2 num_axes.
        num_heads: H, query heads.
        num_axes: n. With 1, positions are as for AxialRoPE.
        base: ratio of the longest to the shortest wavelength at the start, nearly.
        pairing: "half" or "interleaved".
        num_kv_heads: G; None: H. The query heads of a group share the directions of its key.

    Raises:
        ValueError: widths or heads that do not fit.
    """

    takes_grid = True
    per_head = True

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_axes: int = 2,
        base: float = 10.0,
        pairing: Pairing = "half",
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__(head_dim, pairing, None, "leading")
        self.num_axes = require_int("num_axes", num_axes, 1)
        self.num_heads = require_int("num_heads", num_heads, 1)
        groups = num_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads = require_int("num_kv_heads", groups, 1)
        require_number("base", base, 0.0)
        self.base = float(base)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                "num_heads must be a multiple of num_kv_heads, got "
                f"{self.num_heads} and {self.num_kv_heads}."
            )
        if self.head_dim % (2 * self.num_axes):
            raise ValueError(
                f"head_dim must be a multiple of 2 num_axes = {2 * self.num_axes}, got "
                f"{self.head_dim}."
            )
        pairs = self.head_dim // 2
        self._lengths = geometric(self.base, self.head_dim // self.num_axes, pairs // self.num_axes)
        if max(self._lengths) > torch.finfo(torch.float32).max:
            raise ValueError(f"base must be large enough for float32 directions, got {base!r}.")
        self.directions = nn.Parameter(torch.empty(self.num_axes, self.num_kv_heads, pairs))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Directions as axial RoPE has them, every head's turned at random.

        Drawn on the CPU, so a seed gives the same on every device.
        """
        shape = (self.num_kv_heads, self.num_axes, self.num_axes)
        drawn = torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator)
        with torch.no_grad():
            self.directions.copy_(self.along(_rotations(drawn)))

    def along(self, crosses: Float[Tensor, "G n n"]) -> Float[Tensor, "n G P"]:
        """Directions along the axes crosses[g, i] (unit vectors) of every head, float64."""
        lengths = constants(self._lengths, crosses.device)
        of_group = crosses[..., None, :] * lengths[:, None]  # (G, n groups, P/n, n axes)
        return of_group.flatten(1, 2).movedim(-1, 0)

    @property
    def frequencies(self) -> Tensor:
        """Size of the radians per unit along each axis, (n, G, P), float64 on the CPU."""
        return self.directions.detach().abs().to("cpu", torch.float64)

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin: 1."""
        return 1.0

    def derived(self) -> dict[str, Tensor]:
        return {}  # the directions are parameters

    def angles(
        self, positions: Shaped[Tensor, "..."], lengths: Tensor | None = None
    ) -> Float[Tensor, "... G P"]:
        coordinates = positions if self.num_axes > 1 else positions[..., None]
        coordinates = coordinates.to(torch.float64)[..., None, None]
        directions = self.directions.to(torch.float64)
        angles = coordinates[..., 0, :, :] * directions[0]
        for axis in range(1, self.num_axes):  # elementwise: a matrix product may be done in TF32
            angles = angles + coordinates[..., axis, :, :] * directions[axis]
        return angles

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        if k.shape[1] % self.num_kv_heads:
            raise ValueError(
                f"MixedRoPE was built for {self.num_kv_heads} key heads, got {k.shape[1]}: query "
                f"heads that share a key share directions. Give num_kv_heads={k.shape[1]}."
            )
        return super().queries_keys(q, k, at, features)


def _rotations(normal: Float[Tensor, "G n n"]) -> Float[Tensor, "G n n"]:
    """Rotations of space, uniform if the numbers are normal."""
    q, r = torch.linalg.qr(normal)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    q[:, 0] *= torch.linalg.det(q)[:, None]  # a reflection becomes a rotation
    return q
