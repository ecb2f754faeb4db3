"""A Llama-type decoder run from the weights of a file, a layer at a time, with any encoding.

    x = embed[tokens]
    each layer:  x += W_o attention(rope(W_q n(x)), rope(W_k n(x)), W_v n(x));   n: RMS norm
                 x += W_down (silu(W_gate n(x)) * W_up n(x))
    loss = -log softmax(W_out n(x))[next token]

Source: Touvron et al. 2023, arXiv:2302.13971; norms of queries and keys as in Qwen 3. Several runs
share each layer's weights, which are read, used and let go: never more than one matrix is held. The
logits are never whole: the softmax over the vocabulary is summed up block by block.

Axes: B windows, S tokens, E width, H query heads, G key heads, D channels of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whereness.attend.functional import attention
from whereness.auditor.files.projections import GGUF
from whereness.auditor.files.weights import Weights
from whereness.interop.config.parts import Part
from whereness.interop.config.reader import Layers
from whereness.interop.config.specs import Layer, build_layer
from whereness.interop.strict_json import shown
from whereness.interop.weights.projections import Given, head_counts

RUNNABLE = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "smollm3"}
    | {f"{GGUF}{arch}" for arch in ("llama", "mistral3", "qwen2", "qwen3", "smollm3")}
)
"""Families whose layers are exactly those above."""
HUGGING_FACE = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "out": "lm_head.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
LLAMA_CPP = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "out": "output.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "o": "blk.{}.attn_output",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
}
NEEDED = ("attention_norm", "mlp_norm"), ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Run:
    """Windows of tokens (B, S), and what each layer does with their positions."""

    tokens: Tensor
    layers: Sequence[Layer]


@dataclass(frozen=True)
class Decoder:
    """A model in a file, which is read as it runs."""

    weights: Weights
    names: dict[str, str]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    epsilon: float
    windows: tuple[int | None, ...]

    @property
    def parameters(self) -> int:
        """Numbers that a token is multiplied with."""
        return sum(
            held.count for name, held in self.weights.tensors.items() if len(held.shape) == 2
        )

    @property
    def vocabulary(self) -> int:
        """Tokens that it knows."""
        return self.weights.tensors[self.names["embed"]].num_rows

    def losses(self, runs: Sequence[Run]) -> list[Tensor]:
        """Nats of every token but the first of a window, (B, S - 1) a run.

        Raises:
            ValueError: weights that do not fit together, or that are no numbers.
        """
        try:
            with torch.inference_mode():
                streams = [self._embedded(run.tokens) for run in runs]
                for i in range(self.num_layers):
                    streams = self._layer(i, streams, [run.layers[i] for run in runs])
                norm = self._vector(self.names["norm"])
                ends = [self._normed(x, norm)[:, :-1] for x in streams]
                return self._judged(ends, [run.tokens[:, 1:] for run in runs])
        except RuntimeError as error:
            raise ValueError(f"its weights do not fit together: {str(error)[:200]}") from None

    def _embedded(self, tokens: Tensor) -> Tensor:
        ids, where = tokens.unique(return_inverse=True)
        if int(ids[-1]) >= self.vocabulary:
            raise ValueError(
                f"the tokenizer gives token {int(ids[-1])}, the weights have {self.vocabulary}"
            )
        name = self.names["embed"]
        rows = [self.weights.rows(name, int(i), 1).float() for i in ids]
        return torch.cat(rows)[where]

    def _layer(self, i: int, streams: list[Tensor], layers: list[Layer]) -> list[Tensor]:
        norm = self._vector(self.names["attention_norm"].format(i))
        normed = [self._normed(x, norm) for x in streams]
        q, k, v = (self._projected(part, i, normed) for part in ("q", "k", "v"))
        mixed = [
            self._attended(i, layer, *each) for layer, *each in zip(layers, q, k, v, strict=True)
        ]
        out = self._projected("o", i, mixed)
        streams = [x + y for x, y in zip(streams, out, strict=True)]
        norm = self._vector(self.names["mlp_norm"].format(i))
        normed = [self._normed(x, norm) for x in streams]
        gate, up = (self._projected(part, i, normed) for part in ("gate", "up"))
        hidden = [F.silu(a) * b for a, b in zip(gate, up, strict=True)]
        out = self._projected("down", i, hidden)
        return [x + y for x, y in zip(streams, out, strict=True)]

    def _attended(self, i: int, layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = (
            x.unflatten(-1, (count, -1)).transpose(1, 2)
            for x, count in zip((q, k, v), counts, strict=True)
        )
        q, k = self._head_norm("q_norm", i, q), self._head_norm("k_norm", i, k)
        window = self.windows[i] if i < len(self.windows) else None
        mixed = attention(q, k, v, build_layer(layer), causal=True, window=window)
        return mixed.transpose(1, 2).flatten(2)

    def _head_norm(self, part: str, i: int, x: Tensor) -> Tensor:
        name = self.names[part].format(i)
        return self._normed(x, self._vector(name)) if name in self.weights else x

    def _projected(self, part: str, i: int, inputs: list[Tensor]) -> list[Tensor]:
        name = self.names[part].format(i)
        weight = self.weights.tensor(f"{name}.weight").float()
        bias = f"{name}.bias"
        added = self._vector(bias) if bias in self.weights else None
        return [F.linear(x, weight, added) for x in inputs]

    def _vector(self, name: str) -> Tensor:
        return self.weights.tensor(name).float()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.epsilon)

    def _judged(self, ends: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
        name = self.names["out"] if self.names["out"] in self.weights else self.names["embed"]
        total = [torch.full(each.shape, -torch.inf) for each in targets]
        said = [torch.zeros(each.shape) for each in targets]
        first = 0
        for block in self.weights.blocks(name):
            for at, (x, wanted) in enumerate(zip(ends, targets, strict=True)):
                logits = F.linear(x, block.float())
                total[at] = torch.logaddexp(total[at], logits.logsumexp(-1))
                inside = (wanted >= first) & (wanted < first + len(block))
                own = logits.gather(-1, (wanted - first).clamp(0, len(block) - 1)[..., None])
                said[at] = torch.where(inside, own[..., 0], said[at])
            first += len(block)
        return [a - b for a, b in zip(total, said, strict=True)]


def decoder_of(layers: Layers, weights: Weights) -> Decoder:
    """The decoder that a part of a config and weights make.

    Raises:
        ValueError: another kind of model, or tensors that are missing.
    """
    part = layers.part
    if part.model_type not in RUNNABLE or part.name:
        raise ValueError(f"{shown(part.model_type)} is not run here: only Llama-type decoders are")
    if not layers.counted:
        raise ValueError("the config does not say how many layers there are")
    activation = part.reading.given.get("hidden_act")
    if activation not in (None, "silu"):
        raise ValueError(f"its hidden_act is {shown(activation)}: only silu is run here")
    names = LLAMA_CPP if weights.format == "gguf" else HUGGING_FACE
    vectors, matrices = NEEDED
    needed = [names["embed"], names["norm"]]
    for i in range(len(layers.each)):
        needed += [names[each].format(i) for each in vectors]
        needed += [f"{names[each].format(i)}.weight" for each in matrices]
    missing = next((name for name in needed if name not in weights), None)
    if missing is not None:
        raise ValueError(f"it has no tensor {shown(missing)}, as a Llama-type decoder has")
    heads, kv_heads = head_counts(part.reading.given, Given())
    windows = tuple(
        sight.tokens if sight is not None and sight.kind == "window" else None
        for sight in layers.sights
    )
    return Decoder(
        weights, names, len(layers.each), heads, kv_heads, _epsilon(part, weights), windows
    )


def _epsilon(part: Part, weights: Weights) -> float:
    if weights.format == "gguf":
        arch = part.model_type.removeprefix(GGUF)
        found: Any = weights.metadata.get(f"{arch}.attention.layer_norm_rms_epsilon")
    else:
        found = part.reading.given.get("rms_norm_eps", 1e-6)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < 1:
        raise ValueError(f"the epsilon of its norms must be a number, got {shown(found)}")
    return float(found)
