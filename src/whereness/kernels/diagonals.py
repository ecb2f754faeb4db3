"""The middle of attention's backward pass over one tile, with a bias by offset.

    weights = exp(scores * scale + bias - logsumexp)
    d_logits = weights * (d_weights - delta)
    sums[n] += the sum of d_logits along diagonal n

Queries are in reverse order, so that row i of the bias is bias[i : i + K], and a diagonal is what
i + j numbers. The compiled kernel does all in one pass; without it plain torch gives the same.

Axes: N heads, R queries, K keys.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from whereness.kernels.compiled import NATIVE


def form_(
    scores: Float[Tensor, "N R K"],
    d_weights: Float[Tensor, "N R K"],
    bias: Float[Tensor, "N R+K-1"],
    logsumexp: Float[Tensor, "N R"],
    delta: Float[Tensor, "N R"],
    scale: float,
    sums: Float[Tensor, "N R+K-1"],
) -> None:
    """Turn scores into weights and d_weights into d_logits, in place, and add to sums.

    float32 or float64, all of one type. scores and d_weights have no gaps.
    """
    if NATIVE is None:
        _in_torch(scores, d_weights, bias, logsumexp, delta, scale, sums)
    else:
        _native(scores, d_weights, bias, logsumexp, delta, scale, sums)


def _native(
    scores: Tensor,
    d_weights: Tensor,
    bias: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    scale: float,
    sums: Tensor,
) -> None:
    form = NATIVE.form_double if scores.dtype == torch.float64 else NATIVE.form_float
    logsumexp, delta = logsumexp.contiguous(), delta.contiguous()
    form(
        scores.data_ptr(),
        d_weights.data_ptr(),
        bias.data_ptr(),
        bias.stride(0),
        sums.data_ptr(),
        sums.stride(0),
        logsumexp.data_ptr(),
        delta.data_ptr(),
        *scores.shape,
        scale,
    )


def _in_torch(
    scores: Tensor,
    d_weights: Tensor,
    bias: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    scale: float,
    sums: Tensor,
) -> None:
    heads, rows, keys = scores.shape
    unfolded = bias.as_strided(scores.shape, (bias.stride(0), 1, 1))
    scores.mul_(scale).add_(unfolded).sub_(logsumexp[..., None]).exp_()
    d_weights.sub_(delta[..., None]).mul_(scores)
    # Every row one place further right than the one above: diagonals become columns.
    width = rows + keys - 1
    skewed = scores.new_zeros(heads, rows, width)
    skewed.as_strided(scores.shape, (rows * width, width + 1, 1)).copy_(d_weights)
    sums += skewed.sum(1)
