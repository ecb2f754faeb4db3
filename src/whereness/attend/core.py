"""One attention call with its doors 4 and 5: picks an implementation and runs it.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whereness.attend.masks import is_plain, may_attend
from whereness.attend.reference import exact_types, reference, repeat_groups
from whereness.attend.sdpa import fused
from whereness.encoding import At, Call, Features, PositionalEncoding

IMPLEMENTATIONS = ("auto", "reference", "sdpa")
PLANNED = ("toeplitz", "flex", "native", "triton")


@dataclass(frozen=True)
class Options:
    """What a caller may choose about one attention call."""

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    scale: float | None = None
    dropout: float = 0.0
    return_weights: bool = False
    implementation: str = "auto"


def attend(
    turned: tuple[Tensor, Tensor, Tensor],
    content: tuple[Tensor, Tensor],
    encoding: PositionalEncoding,
    at: At,
    options: Options,
    features: Features,
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(output (B, H, S, D), weights or None).

    `turned` is (q, k, v) after doors 3 and 5, `content` (q, k) before door 3.
    """
    q, k, v = turned
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    width = content[0].shape[-1]
    scale = options.scale
    if scale is None:
        scale = width**-0.5 * encoding.logit_scale(width)

    chosen = choose(options, encoding)
    plain = is_plain(at.where, options.window, options.mask)
    is_causal = options.causal and queries == keys
    # A mask of S x T is built only where it is needed: not for plain causal or full attention
    # without a bias, nor for a single query that sees all keys.
    maskless = (
        chosen == "sdpa"
        and plain
        and (not options.causal or queries == 1 or (is_causal and at.bias_free))
    )
    allowed: Any = None
    if not maskless:
        allowed = may_attend(
            at.where,
            queries,
            keys,
            causal=options.causal,
            window=options.window,
            mask=options.mask,
            device=q.device,
        )
    content_q, content_k = content
    call = Call(content_q, repeat_groups(content_k, heads), at, scale, allowed, features, project)
    if chosen == "sdpa":
        return fused(q, k, v, encoding, call, options.dropout, is_causal and queries > 1), None
    with exact_types(q.device):
        out, weights = reference(q, k, v, encoding, call, options.dropout)
    return out.to(q.dtype), weights.to(q.dtype) if options.return_weights else None


def choose(options: Options, encoding: PositionalEncoding) -> str:
    """The implementation that serves this call.

    Raises:
        ValueError: the one asked for cannot serve it.
    """
    asked = options.implementation
    if asked == "auto":
        return "sdpa" if encoding.additive and not options.return_weights else "reference"
    if asked == "sdpa" and options.return_weights:
        raise ValueError("implementation='sdpa' has no weights to return: use 'reference'.")
    if asked == "sdpa" and not encoding.additive:
        raise ValueError(
            f"implementation='sdpa' serves additive biases on logits only, not "
            f"{type(encoding).__name__}: use 'reference' or 'auto'."
        )
    return asked
