"""The program that `triton_rotary` launches, in Triton's language: importing it needs Triton.

Axes: D channels of a head, P pairs.
"""
# ruff: noqa: ANN001, ANN201 (arguments are what Triton makes of tensors and numbers)

import triton  # type: ignore[missing-import]
import triton.language as tl  # type: ignore[missing-import]


# Lengths change from call to call: no kernel of its own for those that 16 divides, or for 1.
@triton.jit(do_not_specialize=["length", "blocks", "chunks", "group"])
def turn(
    x_at, out_at, cos_at, sin_at, length, blocks, chunks, group,
    x_row, x_head, x_token, x_channel, out_row, out_head, out_token, out_channel,
    cos_row, cos_token, cos_head, sin_row, sin_token, sin_head,
    START: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr, COPIES: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Turn TOKENS tokens of HEADS heads.

    x_at and its like are addresses, x_row and its like strides (in elements) of the batch and of
    the other axes. PAIRS and CHANNELS are P and D up to powers of 2, as Triton wants its blocks.
    """
    # int64: a tensor may hold more than 2^31 elements, and an offset is up to all of them.
    program = tl.program_id(0).to(tl.int64)
    first_head = program % chunks * HEADS  # fastest: neighbours find their tables in the cache
    row = program // chunks // blocks
    token = program // chunks % blocks * TOKENS + tl.arange(0, TOKENS)[:, None]
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
