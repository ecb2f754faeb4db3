"""Small models that attend in as many ways as code does: what the capture must see alike.

Nothing here comes from whereness. Axes: B batch, S tokens, H = 4 heads, G key heads, D = 8.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, HEAD_DIM = 50, 32, 4, 8
Turn = Callable[[Tensor, Tensor], Tensor]
"""(x (B, H, S, D), positions (B, S)) -> x."""


def speeds(base: float = 1e4, width: int = HEAD_DIM) -> Tensor:
    """Radians a token of every pair."""
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)


def turned(
    x: Tensor,
    positions: Tensor,
    *,
    rates: Tensor | None = None,
    pairing: str = "half",
    start: int = 0,
    amplitude: float = 1.0,
) -> Tensor:
    """x with the pairs of its channels from `start` on turned by positions times rates."""
    rates = speeds() if rates is None else rates
    angles = (positions[:, None, :, None].double() * rates).to(
        torch.promote_types(x.dtype, torch.float32)
    )
    cos, sin, pairs = angles.cos() * amplitude, angles.sin() * amplitude, len(rates)
    part = x[..., start : start + 2 * pairs]
    half = pairing == "half"
    u, v = part.chunk(2, -1) if half else (part[..., ::2], part[..., 1::2])
    both = u * cos - v * sin, u * sin + v * cos
    made = torch.cat(both, -1) if half else torch.stack(both, -1).flatten(-2)
    return torch.cat([x[..., :start], made.to(x.dtype), x[..., start + 2 * pairs :]], -1)


def attend_matmul(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / HEAD_DIM**0.5 + bias
    return scores.softmax(-1) @ v


def attend_bmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    rows, heads, slots, _ = q.shape
    q, k, v = (t.reshape(rows * heads, -1, HEAD_DIM) for t in (q, k, v))
    scores = torch.bmm(q / HEAD_DIM**0.5, k.transpose(1, 2)).view(rows, heads, slots, -1) + bias
    weights = F.softmax(scores, dim=-1).view(rows * heads, slots, -1)
    return torch.bmm(weights, v).view(rows, heads, slots, HEAD_DIM)


def attend_baddbmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    rows, heads, slots, _ = q.shape
    added = bias.expand(rows, heads, slots, slots).reshape(rows * heads, slots, slots)
    q, k = (t.reshape(rows * heads, -1, HEAD_DIM) for t in (q, k))
    scores = added.baddbmm(q, k.mT, beta=1.0, alpha=HEAD_DIM**-0.5)
    return scores.view(rows, heads, slots, slots).softmax(-1) @ v


def attend_einsum(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * HEAD_DIM**-0.5 + bias
    return torch.einsum("...ij,...jd->...id", scores.softmax(-1), v)


def attend_fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attend_capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = 20 * torch.tanh(q @ k.mT / 20) + bias
    scores = scores - scores.amax(-1, keepdim=True)
    return scores.softmax(-1) @ v


def attend_with_sink(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.mT * HEAD_DIM**-0.5 + bias
    sink = torch.ones(1, q.shape[1], 1, 1, dtype=q.dtype).expand(len(q), -1, q.shape[2], -1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


ATTENDS: dict[str, Callable] = {
    "matmul": attend_matmul,
    "bmm": attend_bmm,
    "baddbmm": attend_baddbmm,
    "einsum": attend_einsum,
    "sdpa": attend_fused,
    "capped": attend_capped,
    "sink": attend_with_sink,
}


@dataclass(frozen=True)
class Ways:
    """How a model attends, and how it knows where its tokens are."""

    attend: str = "matmul"
    turn: Turn | None = turned
    turn_keys: Turn | None = None
    projections: str = "three"
    """"three", "fused" (a head's q, k and v side by side), "grouped" (2 key heads), "latent"."""
    causal: bool = True
    slope: float = 0.0
    sequence_first: bool = False
    normed: bool = False
    layers: int = 2
    takes_ids: bool = True


class Attention(nn.Module):
    """One layer, with its projections inside."""

    def __init__(self, ways: Ways) -> None:
        super().__init__()
        self.ways = ways
        key_heads = 2 if ways.projections == "grouped" else HEADS
        if ways.projections == "fused":
            self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD_DIM)
        else:
            self.q = nn.Linear(WIDTH, HEADS * HEAD_DIM)
            self.kv = nn.Linear(WIDTH, 2 * key_heads * HEAD_DIM)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.ways.sequence_first:
            x = x.transpose(0, 1)
        q, k, v = self.projected(x)
        if self.ways.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.ways.turn is not None:
            q = self.ways.turn(q, positions)
            k = (self.ways.turn_keys or self.ways.turn)(k, positions)
        k, v = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (k, v))
        mixed = ATTENDS[self.ways.attend](q, k, v, self.bias(x.shape[1], x.dtype))
        made = self.out(mixed.transpose(1, 2).flatten(2))
        return made.transpose(0, 1) if self.ways.sequence_first else made

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.ways.projections == "fused":
            both = self.qkv(x).unflatten(-1, (HEADS, 3, HEAD_DIM)).permute(3, 0, 2, 1, 4)
            return both[0], both[1], both[2]
        q = self.q(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, -1, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def bias(self, slots: int, dtype: torch.dtype) -> Tensor:
        at = torch.arange(slots)
        behind = (at[:, None] - at[None, :]).to(dtype)
        slopes = self.ways.slope * 2.0 ** -torch.arange(1, HEADS + 1).to(dtype)
        bias = -slopes[:, None, None] * behind.abs()
        if self.ways.causal:
            bias = bias.masked_fill(behind < 0, torch.finfo(dtype).min)
        return bias[None]


class Model(nn.Module):
    """Embeddings and layers of attention."""

    def __init__(self, ways: Ways) -> None:
        super().__init__()
        self.ways = ways
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Attention(ways) for _ in range(ways.layers))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
            for block in self.blocks:
                block.q_norm.weight.add_(1.0)
                block.k_norm.weight.add_(1.0)
        self.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        slots = torch.arange(input_ids.shape[1])[None].expand(input_ids.shape)
        positions = position_ids if position_ids is not None and self.ways.takes_ids else slots
        x = self.embed(input_ids)
        if self.ways.sequence_first:
            x = x.transpose(0, 1)
        for block in self.blocks:
            x = x + block(x, positions)
        return x.transpose(0, 1) if self.ways.sequence_first else x
