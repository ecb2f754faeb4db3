"""Turning pairs of channels on a GPU: a Triton kernel, one launch for each tensor.

    (u, v) at angle a  ->  (u cos a - v sin a,  u sin a + v cos a)

Formed in float32 (float64 for float64 tensors) and rounded once. One program turns a block of
tokens in a few heads that share a table, so that it reads cos and sin once.

The tests run the kernel in Triton's interpreter and compile it for GPUs; it has not been run on
one, and its block sizes are reasoned, not measured. Triton is imported with the first call.

Axes: B batch, H heads, S tokens, D head_dim, P pairs. Tensors (B, H, S, D) of any strides; tables
(B or 1, S, H or a divisor of it, P), last axis contiguous.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

Tables = tuple[Tensor, Tensor]

PAIRS_PER_PROGRAM = 1024  # of one head: with four warps 8 a thread, 16 bytes of a half-precision u
HEADS_PER_PROGRAM = 4
WARP = 32


def rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool,
    outs: Sequence[Tensor] | None = None,
) -> Sequence[Tensor]:
    """Turn xs (B, H, S, D) into outs, which may be the xs themselves, or into new tensors.

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
    outs = [torch.empty_like(x) for x in xs] if outs is None else outs
    for x, (cos, sin), out in zip(xs, tables, outs, strict=True):
        if not (x.is_cuda or interpreted):
            raise ValueError(
                f"Triton's kernels need tensors on a GPU, got one on {x.device}: move it there, or "
                "set TRITON_INTERPRET=1 before Triton is imported to try them slowly on the CPU."
            )
        if out.numel():
            with torch.cuda.device_of(x):  # Triton launches on the current device
                _launch(kernel, x, cos, sin, start, interleaved, transposed, out)
    return outs


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
    try:
        from triton.runtime import JITFunction  # type: ignore[missing-import]
    except ImportError as error:
        raise ImportError(
            "Turning on a GPU needs Triton, which is not installed: install the build of torch for "
            "your GPU, which brings it."
        ) from error
    from whereness.kernels.triton_turn import turn

    return turn, not isinstance(turn, JITFunction)
