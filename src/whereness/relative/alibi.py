"""ALiBi: Attention with Linear Biases.

    bias[h, i, j] = -slope[h] * |k_positions[j] - q_positions[i]|,   slope[h] = 2^(-4 n[h] / P)

P is the largest power of two <= H; n is 2, 4, ..., 2P and then 1, 3, 5, ... up to H entries.

Source: Press, Smith & Lewis 2022, arXiv:2108.12409, section 3, gives the even n. The odd n, for
head counts that are no power of two, stand in the authors' code and not in the text: libraries
disagree there. The paper is causal; for keys after the query we take |.|, so that the nearest key
wins on both sides.

Units: slopes in logits per token.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import constants
from whereness.relative.bias import OffsetBias


class ALiBi(OffsetBias):
    """A fixed bias that falls linearly with distance. No parameters; real positions are allowed.

    >>> ALiBi(8).bias(torch.tensor([5]), torch.tensor([3, 5]))[0].tolist()
    [[-1.0, -0.0]]
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        num_heads = self.num_heads
        power = 1 << (num_heads.bit_length() - 1)
        exponents = [*range(2, 2 * power + 1, 2), *range(1, 2 * power, 2)][:num_heads]
        # Python floats, not a buffer: no cast, meta device or checkpoint can change them.
        self._slopes = tuple(2.0 ** (-4 * n / power) for n in exponents)

    @property
    def slopes(self) -> Tensor:
        """Logits lost per token of distance, (H,), float32 on the CPU."""
        return torch.tensor(self._slopes, dtype=torch.float32, device="cpu")

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        slopes = constants(self._slopes, offset.device)
        distance = offset.abs().to(torch.float64)
        # In float64 and rounded once: the product has more digits than float32 holds.
        return -(slopes.view(-1, *(1,) * offset.dim()) * distance)
