"""A plain decoder with every positional convention as a switch: what faults are planted in.

Its formulas are its own: nothing here comes from whereness. Each convention is one small method of
`Decoder` or `Attention`, so that a fault overrides exactly that. `config` says the same in Hugging
Face's keys: what an audit expects.

Axes: B batch, H heads, G key heads, S queries, T keys, D head_dim, P pairs.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from auditor.faults.formulas import alibi_slopes, speeds

SEED, LIVELY = 11, 0.15
VOCABULARY, WIDTH, HEADS, KEY_HEADS, HEAD_DIM = 96, 64, 4, 2, 16


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The conventions of a host. schemes: one a layer.

    "rotary", "alibi", "buckets", "none"; or, for all, what is added to the embeddings: "learned",
    "sinusoidal". numbering: who counts tokens, the "mask" (pads do not count) or the "slot".
    """

    schemes: tuple[str, ...] = ("rotary", "rotary")
    added: str | None = None
    pairing: str = "half"
    rotary_dim: int = HEAD_DIM
    speeds: tuple[float, ...] = ()
    amplitude: float = 1.0
    width: int = WIDTH
    heads: int = HEADS
    key_heads: int = KEY_HEADS
    rows: int = 256
    window: int | None = None
    numbering: str = "mask"
    causal: bool = True
    part: str | None = None
    """Where the layers are: "decoder" in families that have two parts."""


class Output(NamedTuple):
    """What a forward pass gives."""

    logits: Tensor
    past_key_values: "Cache | None"


class Cache(NamedTuple):
    """Keys (not yet rotated) and values of every layer, and the position of every slot."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    positions: Tensor

    def get_seq_length(self) -> int:
        """How many tokens were fed."""
        return self.positions.shape[1]


class Attention(nn.Module):
    """One layer of attention; `scheme` says how it knows where tokens are."""

    def __init__(self, rules: Rules, scheme: str) -> None:
        super().__init__()
        self.rules, self.scheme = rules, scheme
        inner = rules.heads * HEAD_DIM
        self.q_proj = nn.Linear(rules.width, inner, bias=False)
        self.k_proj = nn.Linear(rules.width, rules.key_heads * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(rules.width, rules.key_heads * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(inner, rules.width, bias=False)
        if scheme == "buckets":
            self.relative_attention_bias = nn.Embedding(32, rules.heads)

    def forward(
        self, x: Tensor, positions: Tensor, visible: Tensor, cache: tuple | None, earlier: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (self.split(step(x)) for step in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        kept, keys_at = (k, v), torch.cat([earlier, positions], 1)
        if self.scheme == "rotary":
            length = keys_at.max(1).values + 1
            q, k = self.rotate(q, positions, length), self.rotate(k, keys_at, length)
        k, v = (t.repeat_interleave(self.rules.heads // t.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * self.scale()
        scores = self.biased(scores, positions, keys_at)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        mixed = scores.softmax(-1) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), kept

    def split(self, x: Tensor) -> Tensor:
        """(B, S, H·D) -> (B, H, S, D)."""
        return x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)

    def scale(self) -> float:
        """Of the scores, before softmax."""
        return 1.0 if self.scheme == "buckets" else HEAD_DIM**-0.5

    def speeds(self, length: Tensor, dtype: torch.dtype) -> Tensor:
        """Radians a token of every pair, (P,); a fault may let them depend on the length."""
        return torch.tensor(self.rules.speeds, dtype=dtype, device=length.device)

    def angles(self, positions: Tensor, length: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, S) -> (B, 1, S, P)."""
        return positions[:, None, :, None].to(dtype) * self.speeds(length, dtype)

    def table(self, positions: Tensor, length: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin with their amplitude, in float32 at least."""
        angles = self.angles(positions, length, torch.promote_types(dtype, torch.float32))
        return angles.cos() * self.rules.amplitude, angles.sin() * self.rules.amplitude

    def rotate(self, x: Tensor, positions: Tensor, length: Tensor) -> Tensor:
        """Turns the first rotary_dim channels of every head; `length` tokens there are in all."""
        cos, sin = self.table(positions, length, x.dtype)
        turned, rest = x[..., : self.rules.rotary_dim], x[..., self.rules.rotary_dim :]
        u, v = self.pairs(turned)
        return torch.cat([self.joined(u * cos - v * sin, u * sin + v * cos).to(x.dtype), rest], -1)

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """First and second channel of every pair."""
        return (
            tuple(x.chunk(2, -1)) if self.rules.pairing == "half" else (x[..., ::2], x[..., 1::2])
        )

    def joined(self, u: Tensor, v: Tensor) -> Tensor:
        """Puts them back where they were."""
        if self.rules.pairing == "half":
            return torch.cat([u, v], -1)
        return torch.stack([u, v], -1).flatten(-2)

    def biased(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Adds what distance adds to the scores."""
        if self.scheme not in {"alibi", "buckets"}:
            return scores
        behind = queries[:, None, :, None] - keys[:, None, None, :]
        bias = self.falling(behind) if self.scheme == "alibi" else self.looked_up(behind)
        return scores + bias.to(scores.dtype)

    def slopes(self) -> Tensor:
        """ALiBi: how much a head dislikes a step, (H,)."""
        return torch.tensor(alibi_slopes(self.rules.heads))

    def falling(self, behind: Tensor) -> Tensor:
        """ALiBi: (B, 1, S, T) query - key -> (B, H, S, T)."""
        return -self.slopes().to(behind.device)[:, None, None] * behind

    def looked_up(self, behind: Tensor) -> Tensor:
        """T5: a number for every bucket of distances and head."""
        return self.relative_attention_bias(self.buckets(behind))[:, 0].permute(0, 3, 1, 2)

    def buckets(self, behind: Tensor) -> Tensor:
        """Of a decoder: 16 exact distances, then 16 that widen up to 128."""
        behind = behind.clamp(min=0)
        far = 16 + (behind.clamp(min=1) / 16).log() / math.log(128 / 16) * 16
        return torch.where(behind < 16, behind, far.long().clamp(max=31))


class Block(nn.Module):
    """Attention and a network, each behind a norm."""

    def __init__(self, rules: Rules, scheme: str) -> None:
        super().__init__()
        self.self_attn = Attention(rules, scheme)
        self.mlp = nn.Sequential(nn.Linear(rules.width, 96), nn.GELU(), nn.Linear(96, rules.width))

    def forward(self, x: Tensor, *where: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, kept = self.self_attn(F.layer_norm(x, x.shape[-1:]), *where)
        x = x + mixed
        return x + self.mlp(F.layer_norm(x, x.shape[-1:])), kept


class Decoder(nn.Module):
    """The host. Takes what transformers' models take."""

    def __init__(self, config: dict[str, Any], rules: Rules) -> None:
        super().__init__()
        self.config, self.rules = config, rules
        self.embed_tokens = nn.Embedding(VOCABULARY, rules.width)
        if rules.added == "learned":
            self.wpe = nn.Embedding(rules.rows, rules.width)
        home = self if rules.part is None else nn.Module()
        home.layers = nn.ModuleList(Block(rules, scheme) for scheme in rules.schemes)
        if rules.part is not None:
            self.add_module(rules.part, home)
        self.lm_head = nn.Linear(rules.width, VOCABULARY, bias=False)
        draws = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(std=LIVELY, generator=draws)
        self.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        given = position_ids is not None
        positions = position_ids if given else self.number(input_ids, attention_mask, past)
        positions = positions.expand(input_ids.shape)
        earlier = positions[:, :0] if past_key_values is None else past_key_values.positions
        visible = self.visible(attention_mask, input_ids.shape[1], past)
        x, kept = self.embedded(input_ids, positions), []
        for index, block in enumerate(self.blocks()):
            cache = None if past_key_values is None else past_key_values.layers[index]
            x, keys = block(x, positions, visible, cache, earlier)
            kept.append(keys)
        made = Cache(tuple(kept), torch.cat([earlier, positions], 1)) if use_cache else None
        return Output(self.lm_head(F.layer_norm(x, x.shape[-1:])), made)

    def blocks(self) -> nn.ModuleList:
        """The layers, wherever their part is."""
        return (self if self.rules.part is None else getattr(self, self.rules.part)).layers

    def number(self, input_ids: Tensor, mask: Tensor | None, past: int) -> Tensor:
        """Positions of tokens that came without: the running count, pads not counted."""
        tokens = input_ids.shape[1]
        if self.rules.numbering == "mask" and mask is not None and mask.dim() == 2:
            return (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens:]
        return torch.arange(past, past + tokens, device=input_ids.device)[None]

    def visible(self, mask: Tensor | None, queries: int, past: int) -> Tensor:
        """(B or 1, 1, S, T): what each query may see; the last query stands at the last key."""
        if mask is not None and mask.dim() == 4:
            return mask.bool()
        behind = self.behind(queries, past)
        seen = behind >= 0 if self.rules.causal else torch.ones_like(behind, dtype=torch.bool)
        if self.rules.window is not None:
            seen = seen & (behind < self.rules.window)
        seen = seen[None, None]
        if mask is None:
            return seen
        # A pad sees itself, so that its row is not empty; nobody else sees it.
        return seen & mask[:, None, None, :].bool() | (behind == 0)

    def behind(self, queries: int, past: int) -> Tensor:
        """(S, T): how many slots a key lies behind a query."""
        slots = torch.arange(past + queries, device=self.embed_tokens.weight.device)
        return slots[past:, None] - slots[None, :]

    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Tokens, and where they are if that is added."""
        x = self.embed_tokens(input_ids)
        if self.rules.added == "learned":
            return x + self.wpe(positions)
        if self.rules.added == "sinusoidal":
            wide = torch.promote_types(x.dtype, torch.float32)
            return x + self.sinusoids(positions, wide).to(x.dtype)
        return x

    def sinusoids(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, S, E): all sines, then all cosines."""
        made = torch.tensor(self.sinusoid_speeds(), dtype=dtype, device=positions.device)
        angles = positions[..., None].to(dtype) * made
        return torch.cat([angles.sin(), angles.cos()], -1)

    def sinusoid_speeds(self) -> tuple[float, ...]:
        """Radians a token of every sine."""
        return speeds(1e4, self.rules.width)
