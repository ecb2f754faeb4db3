"""KERPLE: a learned kernel of distance, a logarithm or a power, with two parameters a head.

    log    bias[h, i, j] = -r1[h] ln(1 + r2[h] |k_positions[j] - q_positions[i]|)
    power  bias[h, i, j] = -r1[h] |k_positions[j] - q_positions[i]|^r2[h]

r1 and r2 are at least 0.01, and r2 of the power at most 2.

Source: Chi, Fan, Ramadge & Rudnicky 2022, arXiv:2205.09921, section 4. The bounds and the initial
values, r1 uniform in [0, 2) and r2 in [0, 1) for the logarithm and the other way round for the
power, are those of the authors' code, as is that the bias is added after the scale 1/sqrt(head_dim)
(the paper's equation has it before). The paper is causal; for keys after the query we take |.|.

Units: offsets in tokens, r1 in logits.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from whereness.checks import require_choice, require_device
from whereness.relative.bias import OffsetBias

LEAST = 1e-2
LARGEST_EXPONENT = 2.0


class KERPLE(OffsetBias):
    """A bias that falls with distance, as fast as each head learns. Real positions are allowed.

    A parameter that an optimiser has moved beyond its bounds acts as the bound. It still gets the
    bound's gradient, so that it can come back.

    Args:
        kind: "log" or "power". A power with r2 = 1 is ALiBi with learned slopes.

    >>> kerple = KERPLE(1, "power").requires_grad_(False)
    >>> _ = kerple.r1.fill_(2.0), kerple.r2.fill_(0.5)
    >>> kerple.bias(torch.tensor([9]), torch.tensor([0, 5, 9]))[0, 0].tolist()
    [-6.0, -4.0, -0.0]
    """

    def __init__(self, num_heads: int, kind: Literal["log", "power"] = "log") -> None:
        super().__init__(num_heads)
        require_choice("kind", kind, ("log", "power"))
        self.kind = kind
        self.r1 = nn.Parameter(torch.empty(self.num_heads))
        self.r2 = nn.Parameter(torch.empty(self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        wide, narrow = (self.r1, self.r2) if self.kind == "log" else (self.r2, self.r1)
        nn.init.uniform_(wide, 0.0, 2.0)
        nn.init.uniform_(narrow, 0.0, 1.0)
        with torch.no_grad():
            for parameter in (wide, narrow):
                parameter.clamp_(min=LEAST)

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        require_device("Positions", offset, self.r1.device)
        axes = (-1, *(1,) * offset.dim())
        # In float64 and rounded once, whatever the type of the parameters.
        distance = offset.to(torch.float64).abs()
        r1 = _bounded(self.r1.to(torch.float64), None).view(axes)
        if self.kind == "log":
            r2 = _bounded(self.r2.to(torch.float64), None).view(axes)
            return -r1 * torch.log1p(r2 * distance)
        r2 = _bounded(self.r2.to(torch.float64), LARGEST_EXPONENT).view(axes)
        # The slope of a root at 0 is infinite, and its logarithm too: no gradient passes there.
        at_query = distance == 0
        power = distance.masked_fill(at_query, 1.0).pow(r2)
        return -r1 * power.masked_fill(at_query, 0.0)


def _bounded(x: Tensor, largest: float | None) -> Tensor:
    """x between its bounds; the gradient passes as if it were there."""
    return x + (x.clamp(LEAST, largest) - x).detach()
