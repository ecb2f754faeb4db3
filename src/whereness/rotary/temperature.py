"""Position temperature: queries grow with their position, so that attention stays sharp far out.

    llama4      1 + scale ln(1 + floor((p + 1) / floor))
    ministral3  1 + scale ln(1 + floor(p / floor))
    inkling     1 + scale ln(max((p + 1) / floor, 1))

With more keys a softmax spreads; a larger query makes up for it. It turns nothing and is no
positional encoding by itself: a layer has it beside RoPE (Ministral 3) or alone (Llama 4, on the
layers without rotation).

    DroPE       1 + c ln s on all logits, the same at every position

Sources: Llama 4 2025, Ministral 3 2025 and Inkling 2026, their code in Hugging Face's transformers;
Gelberg et al. 2025, DroPE (dropping RoPE after training), its recalibration.

Axes: B batch, S tokens. Units: tokens.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import require, require_at_least, require_choice, require_number
from whereness.encoding import At, Features, NoPE, PositionalEncoding
from whereness.where import Where, filled

School = Literal["llama4", "ministral3", "inkling"]


class Temperature(PositionalEncoding):
    """A factor on each query by its position. Keys stay as they are, so caches do.

    Args:
        scale: how much the factor grows (Llama 4: attn_scale; Ministral 3: llama_4_scaling_beta;
            Inkling: alpha).
        floor: tokens up to which it is 1 (Llama 4: floor_scale; Ministral 3:
            original_max_position_embeddings).
        school: the formula.

    Raises:
        ValueError: negative positions.
    """

    norm_preserving = False

    def __init__(
        self, scale: float = 0.1, floor: float = 8192.0, school: School = "llama4"
    ) -> None:
        super().__init__()
        require_at_least("scale", scale, 0.0)
        require_number("floor", floor, 0.0)
        require_choice("school", school, ("llama4", "ministral3", "inkling"))
        self.scale, self.floor, self.school = float(scale), float(floor), school

    def factors(self, positions: Tensor) -> Tensor:
        """The factor at each position, float64; 1 for a token without a place."""
        placed, absent = filled(positions)
        require(placed >= 0, "Temperature needs positions from 0.", positions)
        reached = placed.to(torch.float64)
        if self.school != "ministral3":
            reached = reached + 1
        reached = reached / self.floor
        growth = reached.clamp(min=1) if self.school == "inkling" else 1 + reached.floor()
        return (1 + self.scale * growth.log()).masked_fill(absent, 1.0)

    def tables(self, where: Where) -> Tensor:
        return self.factors(where.positions)

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        factors = at.data[:, None, :, None].to(wide)
        return (q.to(wide) * factors).to(q.dtype), k


class DroPE(NoPE):
    """No position, and sharper logits: what a model has after its RoPE was dropped.

    Args:
        factor: s, how much longer texts are than those of the training, at least 1.
        c: 0.412 for a model trained so from the start.
    """

    def __init__(self, factor: float, c: float = 0.412) -> None:
        super().__init__()
        require_at_least("factor", factor, 1.0)
        require_at_least("c", c, 0.0)
        self.factor, self.c = float(factor), float(c)

    def logit_scale(self, head_dim: int) -> float:
        return 1 + self.c * math.log(self.factor)
