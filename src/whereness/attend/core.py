"""One attention call with its doors 4 and 5: picks an implementation and runs it.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from torch import Tensor

from whereness.attend import blocks, flex, reference, sdpa, toeplitz
from whereness.attend.request import Options, Request
from whereness.encoding import At, Features, PositionalEncoding

SERVERS = {
    "toeplitz": toeplitz,
    "sdpa": sdpa,
    "blocks": blocks,
    "reference": reference,
    "flex": flex,
}
"""What `implementation` may name, the first that serves a call being the one of "auto". Each has

refusal(options, encoding) -> str | None     why it cannot serve such calls at all, known before
                                             the call's tensors are; None: it can
declines(request) -> str | None              why it cannot serve this very call, or None
serve(request) -> (output (B, H, S, V), weights (B, H, S, T) or None)
"""
OF_DOOR_3 = ("native", "triton")
"""Kernels that turn queries and keys, which rotary encodings choose by the device."""
IMPLEMENTATIONS = ("auto", *sorted(SERVERS))

_automatic = tuple(SERVERS)
"""What "auto" tries, in this order."""


@contextmanager
def plainly() -> Generator[None]:
    """Let "auto" be the plain steps inside: for who follows tensors through a model."""
    global _automatic  # noqa: PLW0603 (calls lie deep within models: nothing to pass it by)
    before, _automatic = _automatic, ("reference",)
    try:
        yield
    finally:
        _automatic = before


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
    scale = options.scale
    if scale is None:
        width = content[0].shape[-1]
        scale = width**-0.5 * encoding.logit_scale(width)
    request = Request(*turned, content, encoding, at, options, scale, features, project)
    return SERVERS[choose(request)].serve(request)


def check_choice(options: Options, encoding: PositionalEncoding) -> None:
    """Raise where the implementation asked for can never serve this encoding and these options."""
    if options.implementation == "auto":
        return
    reason = SERVERS[options.implementation].refusal(options, encoding)
    if reason is not None:
        raise ValueError(_refused(options, reason))


def choose(request: Request) -> str:
    """The implementation that serves this call.

    Raises:
        ValueError: the one asked for cannot serve it.
    """
    options, encoding = request.options, request.encoding
    check_choice(options, encoding)
    if options.implementation != "auto":
        reason = SERVERS[options.implementation].declines(request)
        if reason is not None:
            raise ValueError(_refused(options, reason))
        return options.implementation
    return next(
        name
        for name in _automatic
        if SERVERS[name].refusal(options, encoding) is None
        and SERVERS[name].declines(request) is None
    )


def _refused(options: Options, reason: str) -> str:
    return f"implementation={options.implementation!r} {reason}"
