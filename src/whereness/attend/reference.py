"""Attention in plain, obvious steps: what every other implementation must equal.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from whereness.encoding import Call, PositionalEncoding


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32: half types are computed in float32 and rounded once."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact_types(device: torch.device) -> AbstractContextManager:
    """A context without autocast, in which float32 means float32."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def repeat_groups(x: Float[Tensor, "B G T D"], num_heads: int) -> Float[Tensor, "B H T D"]:
    """(B, G, T, D) -> (B, H, T, D): each key/value head serves H/G query heads in a row."""
    groups = x.shape[1]
    return x if groups == num_heads else x.repeat_interleave(num_heads // groups, dim=1)


def reference(
    q: Float[Tensor, "B H S D"],
    k: Float[Tensor, "B G T D"],
    v: Float[Tensor, "B G T V"],
    encoding: PositionalEncoding,
    call: Call,
    dropout: float,
) -> tuple[Float[Tensor, "B H S V"], Float[Tensor, "B H S T"]]:
    """(output (B, H, S, D), weights (B, H, S, T)), in float32 or float64.

    q and k are door 3's output, `call` holds the content before it. A query that sees no key gets
    an output of 0. The weights are those before dropout.
    """
    dtype = compute_dtype(q.dtype)
    q, k, v = q.to(dtype), repeat_groups(k, q.shape[1]).to(dtype), repeat_groups(v, q.shape[1])

    logits = (q @ k.transpose(-1, -2)) * call.scale
    logits = encoding.scores(logits, call)
    masked = logits.masked_fill(~call.allowed, float("-inf"))
    sees_any = call.allowed.any(-1, keepdim=True)
    weights = masked.masked_fill(~sees_any, 0.0).softmax(-1).masked_fill(~call.allowed, 0.0)
    weights = encoding.weights(weights, logits, call).masked_fill(~call.allowed, 0.0)
    dropped = F.dropout(weights, dropout) if dropout else weights
    out = encoding.outputs(dropped @ v.to(dropped.dtype), dropped, call)
    return out, weights
