"""Fused attention through torch's scaled_dot_product_attention (SDPA).

Serves every encoding whose door 4 is a bias added to logits and whose door 5 needs no weights.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from whereness.attend.reference import compute_dtype, exact_types
from whereness.encoding import Call, PositionalEncoding


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
    options = {"dropout_p": dropout, "scale": call.scale, "enable_gqa": k.shape[1] != q.shape[1]}
    if bias is None and allowed is None:
        # Under compile with lengths that vary it may be symbolic, which torch does not take, and
        # bool() leaves it so.
        plain = True if is_causal else False  # noqa: SIM210
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
