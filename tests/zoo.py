"""Five encodings that exist to prove the doors: each is what one later file would be.

DeBERTa asks the layer for its own projections, CoPE counts with the logits, FoX and PaTH read
hidden states (PaTH rewrites old keys and looks back over three tokens), PoPE widens q and k.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim, E model dim.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whereness import NOWHERE, PositionalEncoding, Where
from whereness.encoding import At, Call, Features
from whereness.where import offsets


class DeBERTa(PositionalEncoding):
    """Disentangled attention with shared projections (`share_att_key`): He et al. 2020,
    arXiv:2006.03654, section 3.1. The table goes through the layer's own W_q and W_k."""

    relative = True
    reads_keys = True
    content_aware = True

    def __init__(
        self,
        dim: int,
        max_relative_positions: int,
        position_buckets: int | None = None,
        p2c: str = "code",
        terms: tuple[str, ...] = ("c2c", "c2p", "p2c"),
    ) -> None:
        super().__init__()
        self.dim = dim
        self.max_relative_positions, self.position_buckets = (
            max_relative_positions,
            position_buckets,
        )
        self.reach = position_buckets or max_relative_positions
        self.p2c, self.terms = p2c, terms
        self.table = nn.Parameter(torch.empty(2 * self.reach, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def logit_scale(self, head_dim: int) -> float:
        return len(self.terms) ** -0.5

    def buckets(self, query_minus_key: Tensor) -> Tensor:
        """Signed bucket of r = query - key: r near by, logarithmic beyond half the buckets."""
        if self.position_buckets is None:
            return query_minus_key
        middle = self.position_buckets // 2
        distance = query_minus_key.abs().clamp(min=1).double()
        span = math.log((self.max_relative_positions - 1) / middle)
        far = ((distance / middle).log() / span * (middle - 1)).ceil() + middle
        far = far.long() * query_minus_key.sign()
        return torch.where(query_minus_key.abs() <= middle, query_minus_key, far)

    def index(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """(row of the table for c2p, both tokens placed), (..., S, T)."""
        offset, placed = offsets(q_positions, k_positions)
        return (self.buckets(-offset) + self.reach).clamp(0, 2 * self.reach - 1), placed

    def tables(self, where: Where) -> tuple[Tensor, Tensor, Tensor]:
        index, placed = self.index(where.positions, where.keys)
        mirrored = self.index(where.keys, where.positions)[0].transpose(-1, -2)
        return index, (index if self.p2c == "code" else mirrored), placed

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        if call.project is None:
            raise ValueError("Shared projections need a wn.Attention layer.")
        c2p_index, p2c_index, placed = call.at.data
        q_rows, k_rows = call.project(self.table)
        extra = torch.zeros_like(logits)
        if "c2p" in self.terms:
            met = call.q @ k_rows.transpose(-1, -2)  # (B, H, S, rows)
            extra = extra + met.gather(-1, c2p_index[:, None].expand(logits.shape))
        if "p2c" in self.terms:
            met = q_rows @ call.k.transpose(-1, -2)  # (B, H, rows, T)
            extra = extra + met.gather(-2, p2c_index[:, None].expand(logits.shape))
        return logits + extra * placed[:, None] * call.scale


class CoPE(PositionalEncoding):
    """Contextual position encoding: positions are counts of gates. Golovneva et al. 2024,
    arXiv:2405.18719, section 4."""

    causal_only = True
    reads = "order"
    relative = True
    content_aware = True

    def __init__(self, head_dim: int, num_positions: int, position_term: str = "divided") -> None:
        super().__init__()
        self.head_dim, self.position_term = head_dim, position_term
        self.table = nn.Parameter(torch.zeros(num_positions, head_dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def counts(self, gates: Tensor) -> Tensor:
        """Positions (..., T): the sum of gates j .. i for a query at the last slot, clamped."""
        return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.table) - 1)

    @staticmethod
    def interpolated(position_logits: Tensor, positions: Tensor) -> Tensor:
        """position_logits (..., P) read at real positions (..., T), linearly."""
        low, high = positions.floor(), positions.ceil()
        part = positions - low
        at = position_logits.gather
        return at(-1, low.long()) * (1 - part) + at(-1, high.long()) * part

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        positions = self.counts(torch.sigmoid(logits) * call.allowed)
        term = self.interpolated(call.q @ self.table.T, positions)
        return logits + (term * call.scale if self.position_term == "divided" else term)


class FoX(PositionalEncoding):
    """Forgetting attention: every token scales what came before it. Lin et al. 2025,
    arXiv:2503.02130."""

    causal_only = True
    reads = "order"
    relative = True
    content_aware = True

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.dim, self.num_heads = dim, num_heads
        self.gate = nn.Linear(dim, num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.gate.reset_parameters()
        nn.init.constant_(self.gate.bias, 5.0)

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        log_forget = F.logsigmoid(self.gate(x))
        pads = at.where.new_pads()
        return {"log_f": log_forget if pads is None else log_forget.masked_fill(pads[..., None], 0)}

    @staticmethod
    def decay(log_forget: Tensor) -> Tensor:
        """(..., T) -> (..., T, T): sum of log gates j+1 .. i; meaningful for j <= i."""
        total = log_forget.cumsum(-1)
        return total[..., :, None] - total[..., None, :]

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        decay = self.decay(call.features["log_f"].transpose(1, 2))
        return logits + decay[..., decay.shape[-2] - logits.shape[-2] :, :]


def causal_conv(x: Tensor, weight: Tensor, where: Where) -> Tensor:
    """Convolve x (B, T, C) over the last W real tokens of the same document; weight (C, W).

    The window counts tokens, not slots, so pads between them change nothing.
    """
    batch, length, channels = x.shape
    real = torch.ones(1, length, dtype=torch.bool) if where.key_mask is None else where.key_mask
    real = real.expand(batch, length)
    documents = where.key_segments
    if documents is None:
        documents = torch.zeros(1, length, dtype=torch.int64)
    documents = documents.expand(batch, length)
    rank = real.long().cumsum(1) - 1
    slot_of_rank = torch.argsort((~real).long(), dim=1, stable=True)
    out = torch.zeros_like(x)
    width = weight.shape[-1]
    for back in range(width):
        slot = slot_of_rank.gather(1, (rank - back).clamp(min=0))
        seen = (rank >= back) & (documents.gather(1, slot) == documents)
        moved = x.gather(1, slot[..., None].expand(-1, -1, channels))
        out = out + moved * seen[..., None] * weight[:, width - 1 - back]
    return out


class PaTH(PositionalEncoding):
    """Products of Householder-like maps between key and query: Yang et al. 2025,
    arXiv:2505.16381. Old keys change with every token; it reads them raw, at door 4."""

    causal_only = True
    reads = "order"
    relative = True
    content_aware = True
    reads_keys = True

    def __init__(self, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.dim, self.num_heads, self.head_dim = dim, num_heads, head_dim
        self.directions = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.conv = nn.Parameter(torch.empty(num_heads * head_dim, 3))
        self.strength = nn.Linear(dim, num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.directions.reset_parameters()
        self.strength.reset_parameters()
        nn.init.uniform_(self.conv, -0.5, 0.5)

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        raw, beta = self.directions(x), 2 * torch.sigmoid(self.strength(x))
        pads = at.where.new_pads()
        if pads is not None:
            beta = beta.masked_fill(pads[..., None], 0)  # H_t is the identity at a pad
        all_raw = raw if past is None else torch.cat([past["raw"], raw], 1)
        mixed = causal_conv(all_raw, self.conv, at.where)[:, all_raw.shape[1] - x.shape[1] :]
        w = F.normalize(mixed.unflatten(-1, (self.num_heads, self.head_dim)), dim=-1)
        return {"raw": raw, "w": w, "beta": beta}

    @staticmethod
    def path_scores(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
        """q_i H_i ... H_{j+1} k_j, unscaled, for the last S of T tokens: (B, H, S, T)."""
        queries, keys = q.shape[2], k.shape[2]
        rows = []
        for t in range(keys):
            step = w[:, :, t : t + 1]
            moved = k - beta[:, :, t, None, None] * (k @ step.transpose(-1, -2)) * step
            k = torch.cat([moved[:, :, :t], k[:, :, t:]], 2)
            if t >= keys - queries:
                rows.append(q[:, :, t - keys + queries, None] @ k.transpose(-1, -2))
        return torch.cat(rows, 2)

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        w, beta = (call.features[n].transpose(1, 2) for n in ("w", "beta"))
        path = self.path_scores(call.q, call.k, w, beta)
        # What door 3 and other members put into the logits stays: only the plain product goes.
        return logits + (path - call.q @ call.k.transpose(-1, -2)) * call.scale


class PoPE(PositionalEncoding):
    """Polar coordinates: magnitudes from content, angles from position. Gopalakrishnan et al.
    2025, arXiv:2509.10534. q and k leave door 3 twice as wide."""

    relative = True
    norm_preserving = False

    def __init__(self, head_dim: int, num_kv_heads: int = 1, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base
        self.delta = nn.Parameter(torch.zeros(num_kv_heads, 1, head_dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.delta)

    @property
    def frequencies(self) -> Tensor:
        exponents = [-k / self.head_dim for k in range(self.head_dim)]
        return torch.tensor([self.base**e for e in exponents], dtype=torch.float64, device="cpu")

    def tables(self, where: Where) -> tuple[Tensor, Tensor]:
        return self._angles(where.positions), self._angles(where.new_keys)

    def _angles(self, positions: Tensor) -> Tensor:
        placed = positions.masked_fill(positions == NOWHERE, 0)
        return placed[:, None, :, None].double() * self.frequencies.to(positions.device)

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        return self._polar(q, at.data[0]), self._polar(k, at.data[1] + self.delta)

    @staticmethod
    def _polar(x: Tensor, angles: Tensor) -> Tensor:
        size = F.softplus(x)
        return torch.cat([size * angles.cos(), size * angles.sin()], -1).to(x.dtype)
