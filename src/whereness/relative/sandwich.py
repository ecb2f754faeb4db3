"""Sandwich: the inner product of two sinusoidal codes, as a bias.

    bias[h, i, j] = (sum_k cos((k_positions[j] - q_positions[i]) w_k) - dbar / 2) / c[h]
    w_k = 10000^(-2k / dbar),   k = 1 .. dbar / 2,   c[h] = 8 h / H,   h = 1 .. H

Source: Chi, Fan, Rudnicky & Ramadge 2023, arXiv:2212.10356, section 5. There are two schools:

    first_index         1: k from 1 to dbar / 2; NeMo.  0: k from 0 to dbar / 2 - 1, as sinusoidal
                        codes have it; the paper's listing as attention-gym gives it.
    head_scale          "divide" by c[h]: both of these.  "multiply" by it: surveys.
    subtract_constant   True: dbar / 2 is subtracted, so that the bias of a token to itself is 0;
                        NeMo and surveys.  False: it is not; the listing.

The constant does not matter to softmax, except beside a token without a place, whose bias is 0.

Units: frequencies in radians per token.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import constants, require_bool, require_choice, require_int
from whereness.frequencies import geometric
from whereness.relative.bias import OffsetBias

BASE = 10_000.0


class Sandwich(OffsetBias):
    """A fixed bias that falls about as a logarithm. No parameters; real positions are allowed.

    Args:
        dbar: width of the codes whose product it is; even, and not bound to the model's width.
        head_scale: "divide" or "multiply" by the head's factor.
        first_index: 0 or 1, of the first frequency.
        subtract_constant: give 0 at offset 0.

    Raises:
        ValueError: an odd dbar.

    >>> Sandwich(8).bias(torch.tensor([10]), torch.tensor([0, 10]))[0].tolist()
    [[-19.340906143188477, 0.0]]
    """

    def __init__(
        self,
        num_heads: int,
        dbar: int = 128,
        head_scale: Literal["divide", "multiply"] = "divide",
        first_index: int = 1,
        subtract_constant: bool = True,
    ) -> None:
        super().__init__(num_heads)
        self.dbar = dbar = require_int("dbar", dbar, 2)
        if dbar % 2:
            raise ValueError(f"dbar must be even, a cosine and a sine a frequency; got {dbar}.")
        require_choice("head_scale", head_scale, ("divide", "multiply"))
        require_bool("subtract_constant", subtract_constant)
        self.head_scale, self.subtract_constant = head_scale, subtract_constant
        self.first_index = first = require_int("first_index", first_index, 0, 1)
        self._frequencies = geometric(BASE, dbar, dbar // 2 + first)[first:]
        factors = [8 * h / self.num_heads for h in range(1, self.num_heads + 1)]
        self._scales = tuple(1 / c if head_scale == "divide" else c for c in factors)

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        scales = constants(self._scales, offset.device)
        offset = offset.to(torch.float64)
        # One cosine at a time: memory does not grow with dbar.
        total = torch.full_like(offset, -self.dbar / 2 if self.subtract_constant else 0.0)
        for frequency in self._frequencies:
            total = total + (offset * frequency).cos()
        # In float64 and rounded once.
        return scales.view(-1, *(1,) * offset.dim()) * total
