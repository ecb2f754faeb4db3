"""Turning pairs of channels on a GPU: a Triton kernel, one launch for each tensor.

    (u, v) at angle a  ->  (u cos a - v sin a,  u sin a + v cos a)

Formed in float32 (float64 for float64 tensors) and rounded once. One program turns a block of
tokens in a few heads that share a table, so that it reads cos and sin once.

The tests run the kernel in Triton's interpreter and compile it for GPUs; it has not been run on
one, and its block sizes are reasoned, not measured.

Axes: B batch, H heads, S tokens, D head_dim, P pairs. Tensors (B, H, S, D) of any strides; tables
(B or 1, S, H or a divisor of it, P), last axis contiguous.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, no_type_check

import torch
from torch import Tensor

Tables = tuple[Tensor, Tensor]

tl: Any = None
"""triton.language, where the kernel looks for it: `_kernel` imports it with the first call."""
constexpr: Any = "constexpr"
"""Triton goes by this name; tl.constexpr is not there yet when the kernel is defined."""

PAIRS_PER_PROGRAM = 1024  # of one head: with four warps 8 a thread, 16 bytes of a half-precision u
HEADS_PER_PROGRAM = 4
WARP = 32


def rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool,
    outs: Sequence[Tensor],
) -> None:
    """Turn xs (B, H, S, D) into outs, which may be the xs themselves.

    Args:
        tables: cos and sin of each x, float64 for a float64 x, else float32; a group of heads
            shares one.
        start: first channel that turns; 2P channels do, the others pass untouched.
        interleaved: pair k is channels 2k and 2k + 1, otherwise k and k + P.
        transposed: turn by the negative angles, the factor on cos and sin kept.

    Raises:
        ImportError: Triton is not installed.
        ValueError: tensors on the CPU, outside of Triton's interpreter.
    """
    kernel, interpreted = _kernel()
    for x, (cos, sin), out in zip(xs, tables, outs, strict=True):
        if not (x.is_cuda or interpreted):
            raise ValueError(
                f"Triton's kernels need tensors on a GPU, got one on {x.device}: move it there, or "
                "set TRITON_INTERPRET=1 before Triton is imported to try them slowly on the CPU."
            )
        if out.numel():
            with torch.cuda.device_of(x):  # Triton launches on the current device
                _launch(kernel, x, cos, sin, start, interleaved, transposed, out)


def _launch(
    kernel: Any,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    start: int,
    interleaved: bool,
    transposed: bool,
    out: Tensor,
) -> None:
    batch, heads, length, channels = x.shape
    pairs = cos.shape[-1]
    group = heads // cos.shape[2]
    together = math.gcd(group, HEADS_PER_PROGRAM)
    width = _power_of_2(pairs)
    tokens = min(_power_of_2(length), max(1, PAIRS_PER_PROGRAM // width))
    blocks, chunks = -(-length // tokens), heads // together
    kernel[(batch * blocks * chunks,)](
        x, out, cos, sin, length, blocks, chunks, group,
        *x.stride(), *out.stride(), *_table_strides(cos), *_table_strides(sin),
        START=start, P=pairs, D=channels,
        INTERLEAVED=interleaved, TRANSPOSED=transposed,
        COPIES=out is not x and channels > 2 * pairs,
        HEADS=together, TOKENS=tokens, PAIRS=width, CHANNELS=_power_of_2(channels),
        # A warp without pairs of its own would repeat the work of another, also in place.
        num_warps=min(4, max(1, tokens * width // WARP)),
    )  # fmt: skip


def _table_strides(table: Tensor) -> tuple[int, int, int]:
    """Of batch, token and head; 0 where one serves all."""
    assert table.shape[-1] < 2 or table.stride(-1) == 1
    of_row, of_token, of_head, _ = table.stride()
    return (of_row if table.shape[0] > 1 else 0), of_token, of_head


def _power_of_2(number: int) -> int:
    """The smallest power of 2 that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


@cache
def _kernel() -> tuple[Any, bool]:
    """The kernel, and whether Triton interprets it instead of compiling."""
    global tl  # noqa: PLW0603 (Triton looks names up in the module of the kernel)
    try:
        import triton  # type: ignore[missing-import]
        import triton.language as tl  # type: ignore[missing-import]
    except ImportError as error:
        raise ImportError(
            "Rotary kernels on a GPU need Triton, which is not installed: install the torch build "
            "of your GPU, which brings it."
        ) from error
    # Lengths change from call to call: no kernel of its own for those that 16 divides, or for 1.
    lengths = ["length", "blocks", "chunks", "group"]
    made = triton.jit(_turn, do_not_specialize=lengths)
    return made, not isinstance(made, triton.runtime.JITFunction)


@no_type_check
def _turn(
    x_at, out_at, cos_at, sin_at, length, blocks, chunks, group,
    x_row, x_head, x_token, x_channel, out_row, out_head, out_token, out_channel,
    cos_row, cos_token, cos_head, sin_row, sin_token, sin_head,
    START: constexpr, P: constexpr, D: constexpr,
    INTERLEAVED: constexpr, TRANSPOSED: constexpr, COPIES: constexpr,
    HEADS: constexpr, TOKENS: constexpr, PAIRS: constexpr, CHANNELS: constexpr,
):  # fmt: skip
    """Turn TOKENS tokens of HEADS heads: Triton's language, compiled by `_kernel`.

    x_at and its like are addresses, x_row and its like strides (in elements) of the batch and of
    the other axes. PAIRS and CHANNELS are P and D up to powers of 2, as Triton wants its blocks.
    """
    # int64: a tensor may hold more than 2^31 elements, and an offset is up to all of them.
    program = tl.program_id(0).to(tl.int64)
    first_head = program % chunks * HEADS  # fastest: neighbours find their tables in the cache
    row = program // chunks // blocks
    token = program // chunks % blocks * TOKENS + tl.arange(0, TOKENS).to(tl.int64)[:, None]
    pair = tl.arange(0, PAIRS).to(tl.int64)[None, :]
    exists = (token < length) & (pair < P)

    table = first_head // group
    cos_at += row * cos_row + table * cos_head + token * cos_token + pair
    sin_at += row * sin_row + table * sin_head + token * sin_token + pair
    cos = tl.load(cos_at, mask=exists, other=0.0)
    sin = tl.load(sin_at, mask=exists, other=0.0)
    if TRANSPOSED:
        sin = -sin

    x_at += row * x_row + first_head * x_head + token * x_token
    out_at += row * out_row + first_head * out_head + token * out_token
    for _ in tl.static_range(HEADS):
        if INTERLEAVED:
            # Whole runs of channels: every second one would waste half of each read.
            channel = tl.arange(0, 2 * PAIRS).to(tl.int64)[None, :]
            turns = (token < length) & (channel < 2 * P)
            run = tl.load(x_at + (START + channel) * x_channel, mask=turns, other=0.0)
            u, v = tl.split(tl.reshape(run.to(cos.dtype), (TOKENS, PAIRS, 2)))
            both = tl.join(u * cos - v * sin, u * sin + v * cos)
            turned = tl.reshape(both, (TOKENS, 2 * PAIRS)).to(out_at.dtype.element_ty)
            tl.store(out_at + (START + channel) * out_channel, turned, mask=turns)
        else:
            u_at, v_at = START + pair, START + P + pair
            u = tl.load(x_at + u_at * x_channel, mask=exists, other=0.0).to(cos.dtype)
            v = tl.load(x_at + v_at * x_channel, mask=exists, other=0.0).to(cos.dtype)
            turned_u = (u * cos - v * sin).to(out_at.dtype.element_ty)
            turned_v = (u * sin + v * cos).to(out_at.dtype.element_ty)
            tl.store(out_at + u_at * out_channel, turned_u, mask=exists)
            tl.store(out_at + v_at * out_channel, turned_v, mask=exists)
        if COPIES:
            channel = tl.arange(0, CHANNELS).to(tl.int64)[None, :]
            beside = (channel < START) | ((channel >= START + 2 * P) & (channel < D))
            beside &= token < length
            passing = tl.load(x_at + channel * x_channel, mask=beside)
            tl.store(out_at + channel * out_channel, passing, mask=beside)
        x_at += x_head
        out_at += out_head
