"""Whether a model answers the same however its tokens lie in memory, and whether it sees order.

Measured in float64 on a small stack of attention layers with random projections and residual
connections, which holds the encoding at whichever doors it uses. All values are the largest
difference over the largest output.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.attend.cache import KVCache
from whereness.attend.layer import Attention
from whereness.encoding import PositionalEncoding, as_encoding
from whereness.properties.doors import sizes, with_tokens
from whereness.properties.probes import axes_of, usable_length, where_of
from whereness.where import NOWHERE, Where

NUM_TOKENS = 12
DEPTH = 2
SENTENCE = (0, 1, 2, 3, 4, 2)
"""<start> the dog chased another dog: words 2 and 5 are the same."""


class Stack:
    """Layers with residual connections, and door 1 before them.

    No norms: they would hide the size of what an encoding adds.
    """

    def __init__(self, encoding: PositionalEncoding, causal: bool, depth: int = DEPTH) -> None:
        s = sizes(encoding)
        self.encoding, self.dim, self.causal = encoding, s.dim, causal
        rest = [m for m in encoding.members() if m.site != "tokens"]
        inner = as_encoding(rest or None)
        self.layers = [
            Attention(
                s.dim, s.num_heads, inner, causal=causal, head_dim=s.head_dim, owns_encoding=False
            ).double()
            for _ in range(depth)
        ]
        for layer in self.layers:
            for weight in layer.requires_grad_(False).parameters():
                torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def __call__(
        self, x: Tensor, where: Where, caches: Sequence[KVCache | None] | None = None
    ) -> Tensor:
        """x (B, S, E) -> (B, S, E)."""
        x = with_tokens(self.encoding, x, where)
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x = x + layer(x, where=where, cache=cache)
        return x


def padding(encoding: PositionalEncoding) -> float:
    """Change of the real tokens' outputs when pads stand before and after them."""
    positions = token_positions(encoding)
    n = len(positions)
    stack = Stack(encoding, encoding.causal_only)
    x = _tokens(stack.dim, n)
    alone = stack(x, where_of(encoding, positions, n))
    worst = 0.0
    for before, after in ((3, 0), (0, 3), (2, 1)):
        pads = [_tokens(stack.dim, m) for m in (before, after)]
        nowhere = [positions.new_full((m, *positions.shape[1:]), NOWHERE) for m in (before, after)]
        padded = torch.cat([nowhere[0], positions, nowhere[1]])
        real = torch.zeros(len(padded), dtype=torch.bool)
        real[before : before + n] = True
        where = where_of(encoding, padded, n, key_mask=real)
        out = stack(torch.cat([pads[0], x, pads[1]], 1), where)
        worst = max(worst, _change(out[:, before : before + n], alone))
    return worst


def packing(encoding: PositionalEncoding) -> float:
    """Change of outputs when two texts share one row, told apart by `segments`."""
    positions = token_positions(encoding)
    n = len(positions)
    short = positions[: max(1, n - 4)]
    stack = Stack(encoding, encoding.causal_only)
    x, y = _tokens(stack.dim, n), _tokens(stack.dim, len(short))
    segments = torch.tensor([0] * n + [1] * len(short))
    both = where_of(encoding, torch.cat([positions, short]), n, segments=segments)
    packed = stack(torch.cat([x, y], 1), both)
    first = stack(x, where_of(encoding, positions, n))
    second = stack(y, where_of(encoding, short, n))
    return max(_change(packed[:, :n], first), _change(packed[:, n:], second))


def decoding(encoding: PositionalEncoding) -> float:
    """Change of outputs when tokens come through a cache, some at once and then one by one."""
    positions = token_positions(encoding)
    n = len(positions)
    stack = Stack(encoding, causal=True)
    x = _tokens(stack.dim, n)
    full = stack(x, where_of(encoding, positions, n))
    caches = [KVCache() for _ in stack.layers]
    cuts = [0, *range(max(1, n // 2), n + 1)]
    steps = [
        stack(x[:, a:b], where_of(encoding, positions[a:b], n), caches)
        for a, b in itertools.pairwise(cuts)
    ]
    return _change(torch.cat(steps, 1), full)


def permutation_sensitivity(encoding: PositionalEncoding, causal: bool | None = None) -> float:
    """|f(permuted x) - permuted f(x)| for one layer: 0 if the model sees a set without order.

    An encoding for causal attention only is judged by its last token, which a causal layer without
    positions gives the same output whatever the order of the tokens before it.

    Args:
        causal: True compares all tokens under a causal mask, which alone tells some order.
    """
    positions = token_positions(encoding)
    n = len(positions)
    stack = Stack(encoding, bool(causal) or encoding.causal_only, depth=1)
    x, where = _tokens(stack.dim, n), where_of(encoding, positions, n)
    if encoding.causal_only and causal is None:
        order = torch.cat([torch.arange(n - 1).flip(0), torch.tensor([n - 1])])
        return _change(stack(x[:, order], where)[:, -1:], stack(x, where)[:, -1:])
    order = torch.arange(n).roll(n // 3).flip(0)
    return _change(stack(x[:, order], where), stack(x, where)[:, order])


def same_word(encoding: PositionalEncoding) -> float | None:
    """Difference of the outputs of two equal words in one sentence, over the largest output.

    Of one layer that is not causal: 0 if the model cannot know which dog chased. None for encodings
    for causal attention only, where the mask tells the words apart.
    """
    if encoding.causal_only:
        return None
    positions = token_positions(encoding)[: len(SENTENCE)]
    if len(positions) < len(SENTENCE):
        return None
    stack = Stack(encoding, causal=False, depth=1)
    words = _tokens(stack.dim, len(set(SENTENCE)))
    out = stack(words[:, list(SENTENCE)], where_of(encoding, positions))
    return float((out[:, 2] - out[:, 5]).abs().max() / out.abs().max())


def token_positions(encoding: PositionalEncoding, count: int = NUM_TOKENS) -> Tensor:
    """Positions of about `count` tokens, all different: 0, 1, ... or the cells of a grid."""
    n = axes_of(encoding)
    if n == 1:
        return torch.arange(usable_length(encoding, count))
    side = max(2, round(count ** (1 / n)))
    sides = [usable_length(encoding, side, axis) for axis in range(n)]
    return torch.cartesian_prod(*(torch.arange(s) for s in sides))


def _tokens(dim: int, length: int) -> Tensor:
    return torch.randn(1, length, dim, dtype=torch.float64)


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())
