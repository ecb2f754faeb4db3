"""A `wn.Attention` layer worked out from its weights with the oracle, and small layers to try.

Axes: B batch, S tokens, E = 32 model dim, H = 4 query heads, G = 2 key/value heads, D = 8.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import whereness as wn
from attend.oracle import array, attend, tide, turned, wave

DIM, HEADS, GROUPS, HEAD_DIM = 32, 4, 2, 8


def layer(encoding: Any = None, causal: bool = True, **options: Any) -> wn.Attention:
    """A layer in float64, every parameter at random and the encoding's away from its start."""
    options = {"num_kv_heads": GROUPS, **options}
    torch.manual_seed(0)
    made = wn.Attention(DIM, HEADS, encoding, causal=causal, **options).double().eval()
    with torch.no_grad():
        for parameter in made.encoding.parameters():
            parameter.normal_()
    return made


def stream(length: int, batch: int = 2, seed: int = 1) -> Tensor:
    """Hidden states (B, S, E)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, DIM, generator=generator, dtype=torch.float64)


def projected(linear: torch.nn.Linear, x: Any, head_dim: int) -> np.ndarray:
    """(B, tokens, width) -> (B, heads, tokens, D)."""
    y = array(x) @ array(linear.weight).T
    if linear.bias is not None:
        y = y + array(linear.bias)
    return y.reshape(*y.shape[:2], -1, head_dim).swapaxes(1, 2)


def by_hand(
    one: wn.Attention,
    x: Any,
    context: Any = None,
    *,
    rotary: bool = False,
    positions: Any = None,
    k_positions: Any = None,
    waves: bool = False,
    tides: bool = False,
    joined: tuple[Any, Any] = (0.0, 0.0),
    joins_values: bool = False,
    **options: Any,
) -> np.ndarray:
    """The layer's output. `joined` is added to what W_q and W_k read."""
    context = x if context is None else context
    k_positions = positions if k_positions is None else k_positions
    q = projected(one.q_proj, array(x) + joined[0], one.head_dim)
    k = projected(one.k_proj, array(context) + joined[1], one.head_dim)
    v = projected(one.v_proj, array(context) + (joined[1] if joins_values else 0), one.head_dim)
    if rotary:
        q, k = turned(q, positions), turned(k, k_positions)
    if tides:
        v = v * tide(k_positions)
    bias = wave(one.num_heads, positions, k_positions) if waves else None
    options = {"causal": one.causal, "window": one.window, **options}
    out, _ = attend(q, k, v, bias=bias, **options)
    if tides:
        out = out / tide(positions)
    out = out.swapaxes(1, 2).reshape(*out.shape[:1], out.shape[2], -1)
    y = out @ array(one.out_proj.weight).T
    return y if one.out_proj.bias is None else y + array(one.out_proj.bias)
