"""Attention from its definition, in numpy loops: shares no code with what it judges.

    logits[b,h,i,j] = scale q[b,h,i] . k[b,g,j],   g = h G / H     (then * factor, then + bias)
    out[b,h,i]      = sum_j softmax_j(logits)[j] v[b,g,j]          over the keys that i may see

A query that sees no key gets 0. Slots: the queries are the last S of the T keys.

Also the encodings that the tests put through attention, and how far an output may be off.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import whereness as wn

TINY_STEP = 1e-100  # of complex-step derivatives: no difference is taken, so nothing cancels


def array(x: Any) -> np.ndarray:
    """float64 or bool, from a tensor; an array stays what it is."""
    if not isinstance(x, Tensor):
        return np.asarray(x)
    x = x.detach()
    return (x.double() if x.is_floating_point() else x).numpy()


def may_see(i: int, j: int, queries: int, keys: int, causal: bool, window: int | None) -> bool:
    """By slots alone."""
    behind = i + keys - queries - j
    if causal and behind < 0:
        return False
    return window is None or (behind if causal else abs(behind)) < window


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int | None = None,
    segments: Any = None,
    k_segments: Any = None,
    key_mask: Any = None,
    mask: Any = None,
    scale: float | None = None,
    factor: Any = None,
    bias: Any = None,
    weights_factor: Any = None,
    weights_bias: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(out (B, H, S, D), weights (B, H, S, T)). Complex inputs give complex outputs.

    `factor` and `bias` act on logits, in this order; `weights_factor` and `weights_bias` after
    softmax, on visible keys only. Each broadcasts to (B, H, S, T).
    """
    q, k, v = array(q), array(k), array(v)
    (batch, heads, queries, width), (_, groups, keys, _) = q.shape, k.shape
    scale = 1 / math.sqrt(width) if scale is None else scale
    shape = (batch, heads, queries, keys)

    def full(x: Any, default: float) -> np.ndarray:
        return np.broadcast_to(array(default if x is None else x), shape)

    factor, bias = full(factor, 1.0), full(bias, 0.0)
    weights_factor, weights_bias = full(weights_factor, 1.0), full(weights_bias, 0.0)
    mask = full(mask, True)
    real = np.broadcast_to(array(True if key_mask is None else key_mask), (batch, keys))
    k_segments = segments if k_segments is None else k_segments
    q_doc = np.broadcast_to(array(0 if segments is None else segments), (batch, queries))
    k_doc = np.broadcast_to(array(0 if segments is None else k_segments), (batch, keys))

    kind = np.result_type(q, k, v, bias)
    out, weights = np.zeros((*q.shape[:3], v.shape[3]), kind), np.zeros(shape, kind)
    for b, h, i in np.ndindex(batch, heads, queries):
        g = h * groups // heads
        seen = [
            j
            for j in range(keys)
            if may_see(i, j, queries, keys, causal, window)
            and q_doc[b, i] == k_doc[b, j]
            and real[b, j]
            and mask[b, h, i, j]
        ]
        logits = [
            scale * np.dot(q[b, h, i], k[b, g, j]) * factor[b, h, i, j] + bias[b, h, i, j]
            for j in seen
        ]
        if not seen:
            continue
        top = max(x.real for x in logits)
        powers = [np.exp(x - top) for x in logits]
        for j, p in zip(seen, powers, strict=True):
            weight = p / sum(powers) * weights_factor[b, h, i, j] + weights_bias[b, h, i, j]
            weights[b, h, i, j] = weight
            out[b, h, i] += weight * v[b, g, j]
    return out, weights


def slope(inputs: dict[str, Tensor], along: dict[str, Tensor], **options: Any) -> np.ndarray:
    """Derivative of `attend`'s output when q, k, v move along the given directions."""
    moved = {n: array(x) + 1j * TINY_STEP * array(along[n]) for n, x in inputs.items()}
    return attend(**moved, **options)[0].imag / TINY_STEP


def budget(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: np.ndarray,
    out: np.ndarray,
    scale: float,
    dtype: torch.dtype,
    bias: float = 0.0,
    rounded_weights: bool = False,
) -> np.ndarray:
    """How far off each output may be: float32 (or float64) arithmetic, then one rounding.

    u is half a unit in the last place of the type that is computed in. A logit is off by
    u (D + 5) scale |q| . |k| (D products, their sum, the scale, the largest taken off) and by
    5 u |bias|; that is the relative error of a power, twice that of a weight. exp, the sum of T
    powers, the quotient and the sum of T products add (2 T + 12) u. Then the result is rounded to
    `dtype`. Fused kernels also round powers, which are at most 1, to a half `dtype`.
    """
    q, k, v = array(q), array(k), array(v)
    queries_a_key = q.shape[1] // k.shape[1]
    k, v = np.repeat(abs(k), queries_a_key, 1), np.repeat(abs(v), queries_a_key, 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u, last = torch.finfo(wide).eps / 2, torch.finfo(dtype)
    met = scale * (abs(q) @ k.swapaxes(-1, -2)).max(-1, keepdims=True)
    relative = 2 * u * ((q.shape[-1] + 5) * met + 5 * bias) + (2 * k.shape[2] + 12) * u
    read = weights @ v
    allowed = relative * read
    if dtype != wide:
        smallest = last.tiny * last.eps / 2  # what is below the normal numbers
        allowed = allowed + last.eps / 2 * abs(out) + smallest
        if rounded_weights:
            allowed = allowed + last.eps / 2 * read + smallest * v.sum(2, keepdims=True)
    return allowed


# Encodings whose effect is written down twice, here in torch and below in numpy


class Wave(wn.PositionalEncoding):
    """A bias (or factor) that no shift of positions leaves alone, other in every head."""

    def __init__(
        self,
        num_heads: int,
        operation: str = "add",
        on: str = "logits",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.num_heads, self.operation, self.on, self.dtype = num_heads, operation, on, dtype

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        head = torch.arange(self.num_heads, dtype=torch.float64)[:, None, None]
        q, k = q_positions.double()[..., None, :, None], k_positions.double()[..., None, None, :]
        return torch.sin(head + 0.7 * q - 0.3 * k).to(self.dtype)


def wave(num_heads: int, q_positions: Any, k_positions: Any) -> np.ndarray:
    """`Wave.bias`, (B or 1, H, S, T)."""
    q, k = np.atleast_2d(array(q_positions)), np.atleast_2d(array(k_positions))
    batch = max(len(q), len(k))
    q, k = np.broadcast_to(q, (batch, q.shape[1])), np.broadcast_to(k, (batch, k.shape[1]))
    found = np.zeros((batch, num_heads, q.shape[1], k.shape[1]))
    for b, h, i, j in np.ndindex(found.shape):
        found[b, h, i, j] = math.sin(h + 0.7 * q[b, i] - 0.3 * k[b, j])
    return found


def waving(encoding: Wave, q_positions: Any, k_positions: Any) -> dict[str, np.ndarray]:
    """What `attend` must be given to do what `encoding` does."""
    name = "factor" if encoding.operation == "multiply" else "bias"
    name = name if encoding.on == "logits" else f"weights_{name}"
    return {name: wave(encoding.num_heads, q_positions, k_positions)}


class Tide(wn.PositionalEncoding):
    """Door 5: values grow with the position of their key, outputs shrink with that of the query."""

    def tables(self, where: wn.Where) -> tuple[Tensor, Tensor]:
        return tuple(
            1 + 0.1 * p.double()[:, None, :, None] for p in (where.positions, where.new_keys)
        )

    def values(self, v: Tensor, at: wn.At) -> Tensor:
        return v * at.data[1]

    def data_of_rows(self, at: wn.At, rows: slice, keys: int | None) -> tuple[Tensor, Tensor]:
        return at.data[0][:, :, rows], at.data[1]

    def outputs(self, out: Tensor, weights: Tensor | None, call: wn.Call) -> Tensor:
        return out / call.at.data[0]


def tide(positions: Any) -> np.ndarray:
    """The factor on each token's values, (B or 1, 1, tokens, 1)."""
    return 1 + 0.1 * np.atleast_2d(array(positions))[:, None, :, None]


def turned(x: Any, positions: Any, base: float = 10_000.0) -> np.ndarray:
    """x (B, H, S, D) turned as RoPE turns it: pair (c, c + D/2) is a complex number."""
    x = array(x)
    half = x.shape[-1] // 2
    positions = np.broadcast_to(np.atleast_2d(array(positions)), (x.shape[0], x.shape[2]))
    found = np.empty_like(x)
    for b, h, i, c in np.ndindex(*x.shape[:3], half):
        angle = positions[b, i] * base ** (-c / half)
        z = complex(x[b, h, i, c], x[b, h, i, c + half])
        z *= complex(math.cos(angle), math.sin(angle))
        found[b, h, i, c], found[b, h, i, c + half] = z.real, z.imag
    return found


# Inputs


def heads(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded normal numbers of (B, heads, tokens, D)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def qkv(
    batch: int = 2,
    num_heads: int = 4,
    groups: int = 2,
    queries: int = 6,
    keys: int | None = None,
    dim: int = 8,
    **to: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, H, S, D) and k, v (B, G, T, D)."""
    keys = queries if keys is None else keys
    sizes = ((num_heads, queries), (groups, keys), (groups, keys))
    q, k, v = (heads(batch, n, t, dim, seed=s, **to) for s, (n, t) in enumerate(sizes))
    return q, k, v


def near(found: Tensor, expected: Any, tolerance: float = 1e-10) -> None:
    """Raise unless the two agree. 1e-10 is far above float64's rounding, far below any fault."""
    expected = torch.as_tensor(array(expected))
    torch.testing.assert_close(found.detach(), expected, rtol=tolerance, atol=tolerance)


def differ(a: Any, b: Any, by: float = 1e-3) -> None:
    """Raise unless a and b are clearly apart: a test before it could have failed."""
    assert np.abs(array(a) - array(b)).max() > by
