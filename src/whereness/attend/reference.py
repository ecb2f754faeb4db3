"""Attention in plain, obvious steps: what every other implementation must equal.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from whereness.attend.numerics import compute_dtype, exact_types, repeat_groups
from whereness.attend.request import Options, Request
from whereness.encoding import Call, PositionalEncoding


def refusal(options: Options, encoding: PositionalEncoding) -> str | None:
    """It serves everything."""
    return None


def declines(request: Request) -> str | None:
    """It serves everything."""
    return None


def serve(request: Request) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, S, V), and the weights where they are wanted."""
    out, weights = answered(request, request.allowed())
    return out, weights.to(out.dtype) if request.options.return_weights else None


def answered(request: Request, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """(output (B, H, S, V), weights (B, H, S, T)) of a request, the weights not rounded."""
    q, call = request.q, request.call(allowed)
    with exact_types(q.device):
        out, weights = weighed(
            q, request.k, request.v, request.encoding, call, request.options.dropout
        )
    return out.to(q.dtype), weights


def weighed(
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
