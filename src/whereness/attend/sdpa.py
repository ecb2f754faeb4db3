"""Fused attention through torch's scaled_dot_product_attention (SDPA).

Serves every encoding whose door 4 is a bias added to logits and whose door 5 needs no weights.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from whereness.attend.numerics import compute_dtype, exact_types
from whereness.attend.request import Options, Request
from whereness.encoding import Call, PositionalEncoding


def refusal(options: Options, encoding: PositionalEncoding) -> str | None:
    """Why it can never serve such calls; None: it can."""
    if options.return_weights:
        return "has no weights to return: use 'reference'."
    if not encoding.additive:
        return (
            f"serves additive biases on logits only, not {type(encoding).__name__}: use "
            "'reference' or 'auto'."
        )
    return None


def declines(request: Request) -> str | None:
    """It serves every call that it does not refuse."""
    return None


def serve(request: Request) -> tuple[Tensor, None]:
    """Output (B, H, S, V)."""
    options = request.options
    causal = options.causal and request.num_queries > 1
    square = request.num_queries == request.num_keys
    # A mask of S x T is built only where it is needed: not for plain causal or full attention
    # without a bias, nor for a single query that sees all keys.
    of_sdpa = causal and square and request.plain and request.at.bias_free
    call = request.call(None if request.sees_all or of_sdpa else request.allowed())
    out = fused(request.q, request.k, request.v, request.encoding, call, options.dropout, of_sdpa)
    return out, None


def fused(
    q: Float[Tensor, "B H S D"],
    k: Float[Tensor, "B G T D"],
    v: Float[Tensor, "B G T V"],
    encoding: PositionalEncoding,
    call: Call,
    dropout: float,
    is_causal: bool,
) -> Float[Tensor, "B H S V"]:
    """Output (B, H, S, D). q and k are door 3's output.

    `call.allowed` holds the whole mask; None stands for the plain causal one when `is_causal`,
    else for no mask.
    """
    dtype, allowed, bias = q.dtype, call.allowed, call.at.bias()
    # Under compile with sizes that vary these may be symbolic, which torch does not take, and
    # bool() leaves them so.
    plain = True if is_causal else False  # noqa: SIM210
    grouped = True if k.shape[1] != q.shape[1] else False  # noqa: SIM210
    options = {"dropout_p": dropout, "scale": call.scale, "enable_gqa": grouped}
    if bias is None and allowed is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=plain, **options)
        return encoding.outputs(out, None, call)

    mask, sees_any = None, None
    if allowed is not None:
        sees_any = allowed.any(-1, keepdim=True)
        # A row of only -inf is NaN in some of SDPA's kernels: let it see all, then zero it.
        mask = allowed | ~sees_any
    if bias is not None:
        # Rounding a bias of hundreds of logits to bfloat16 would move it by whole logits.
        wide = compute_dtype(dtype)
        q, k, v, bias = q.to(wide), k.to(wide), v.to(wide), bias.to(wide)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if bias is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    else:
        with exact_types(q.device):  # autocast would round the bias after all
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    if sees_any is not None:
        out = out.masked_fill(~sees_any, 0.0)
    return encoding.outputs(out, None, call).to(dtype)
