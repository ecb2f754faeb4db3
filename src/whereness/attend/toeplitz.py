"""Attention with offset-only biases on the CPU in memory of O(S): the bias stays a strip.

Serves ALiBi, T5, an added LearnedRelative and every other `OffsetBias`, alone or beside encodings
that have no bias (RoPE), where positions follow slots: see `whereness.spans`.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from whereness.attend.hankel import Plan, attend
from whereness.attend.numerics import compute_dtype
from whereness.attend.request import Options, Request
from whereness.combined import Combined
from whereness.encoding import At, PositionalEncoding
from whereness.relative.bias import OffsetBias, Strip
from whereness.spans import Span, may_look

PAYS_FROM = 256 * 256
"""Queries times keys from which "auto" comes here."""


def refusal(options: Options, encoding: PositionalEncoding) -> str | None:
    """Why it can never serve such calls; None: it can."""
    if options.return_weights:
        return "has no weights to return: use 'reference'."
    biased = [m for m in encoding.members() if m.overrides("bias")]
    others = [m for m in biased if not isinstance(m, OffsetBias)]
    if not encoding.additive or others:
        name = type(others[0] if others else encoding).__name__
        return f"serves biases of offsets added to logits only, not {name}: use 'auto'."
    if not biased:
        return f"is for biases of offsets, and {type(encoding).__name__} has none: use 'auto'."
    if options.dropout:
        return f"has no dropout, got {options.dropout}: use 'sdpa' or 'auto'."
    return None


def declines(request: Request) -> str | None:
    """Why it cannot serve this call; None: it can."""
    q = request.q
    if torch.compiler.is_compiling():
        return "does not compile: use 'auto'."
    if q.device.type != "cpu":
        return f"runs on the CPU, got {q.device}: use 'auto'."
    if request.options.implementation == "auto" and q.shape[2] * request.num_keys < PAYS_FROM:
        return "does not pay for so few tokens."
    strips = _strips(request.at)
    if not all(may_look(t) for t in (q, request.k, request.v, *(s.values for s in strips or ()))):
        return "needs plain tensors, not those of a function transform or a fake mode: use 'auto'."
    if forward_ad._current_level >= 0:  # noqa: SLF001 (torch has no public name for it)
        return "has no forward-mode derivative: use 'auto'."
    if strips is None or request.at.where.slots is not None:
        return (
            "needs positions that go on by 1 from slot to slot wherever a query sees a key "
            "(pads at the ends only, documents in one piece, integers): use 'auto'."
        )
    return None


def serve(request: Request) -> tuple[Tensor, None]:
    """Output (B, H, S, V)."""
    q, k, v, options = request.q, request.k, request.v, request.options
    strips = _strips(request.at)
    assert strips is not None  # it did not decline
    wide = compute_dtype(q.dtype)
    call = request.call(None)
    strip = torch.stack([s.values.to(wide) for s in strips]).sum(0)
    width = max(q.shape[-1], v.shape[-1])  # the kernel knows one
    q, k, v_wide = (_padded(t.to(wide), width) for t in (q, k, v))
    spans = strips[0].spans
    whole = (Span(None, (0, request.num_queries), (0, request.num_keys), True),)
    masked = spans is None or options.mask is not None
    plan = Plan(
        whole if spans is None else spans,
        options.causal,
        options.window,
        call.scale,
        request.allowed if masked else None,
    )
    out = attend(q, k, v_wide, strip, plan) if q.numel() else torch.zeros_like(q)
    out = out[..., : v.shape[-1]]
    return request.encoding.outputs(out, None, call).to(request.q.dtype), None


def _strips(at: At) -> list[Strip] | None:
    """The strips of all biases; None: one of them is not known as a strip."""
    own = at.data if isinstance(at.encoding, Combined) else (at,)
    found = [each.data for each in own if each.encoding.overrides("bias")]
    return found if all(isinstance(s, Strip) for s in found) else None


def _padded(x: Tensor, width: int) -> Tensor:
    """x with zeros up to `width` channels, and channels side by side in memory."""
    missing = width - x.shape[-1]
    if missing:
        return F.pad(x, (0, missing))
    return x if x.stride(-1) == 1 else x.contiguous()
