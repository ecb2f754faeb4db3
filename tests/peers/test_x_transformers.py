"""Against x-transformers: ALiBi, T5, sinusoids, a learned table and rotary.

Axes: B batch, H heads, S queries, T keys, D head_dim.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import angle_error, decay_and_error, drawn, explained, pair_sizes, spread

pytestmark = pytest.mark.more


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 40])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (1, 7), (3, 7)])
def test_alibi_with_any_number_of_heads(num_heads, queries, keys):
    from x_transformers.x_transformers import AlibiPositionalBias

    theirs = AlibiPositionalBias(num_heads)(queries, keys)
    line = torch.arange(keys)
    ours = wn.ALiBi(num_heads).bias(line[keys - queries :], line)
    assert_close(ours, theirs, rtol=2.0**-22, atol=0)


def test_alibi_at_positions_of_ones_own():
    from x_transformers.x_transformers import AlibiPositionalBias

    q_ids, k_ids = torch.tensor([[4, 0], [7, 7]]), torch.tensor([[1, 30, 2], [0, 1, 2]])
    theirs = AlibiPositionalBias(12).forward_custom_pos(q_ids, k_ids)
    assert_close(wn.ALiBi(12).bias(q_ids, k_ids), theirs, rtol=2.0**-22, atol=0)


def test_heads_that_alibi_leaves_alone():
    """They may give ALiBi to the first heads only, with the slopes of that number."""
    from x_transformers.x_transformers import AlibiPositionalBias

    theirs = AlibiPositionalBias(4, total_heads=6)(5, 5)
    line = torch.arange(5)
    assert_close(wn.ALiBi(4).bias(line, line), theirs[:4], rtol=2.0**-22, atol=0)
    assert (theirs[4:] == 0).all()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("sizes", [(32, 128), (64, 256), (20, 160)], ids=str)
def test_t5_buckets_and_bias(both, sizes):
    from x_transformers.x_transformers import RelativePositionBias

    offsets = torch.arange(-2000, 2001)
    theirs = RelativePositionBias._relative_position_bucket(offsets, not both, *sizes)
    ours = wn.T5(4, *sizes, both)
    assert_close(ours.buckets(offsets), theirs, rtol=0, atol=0)
    # They multiply the table by a scale of their own.
    peer = RelativePositionBias(3.0, not both, *sizes, heads=4)
    with torch.no_grad():
        ours.table.copy_(peer.relative_attention_bias.weight * 3.0)
    assert_close(ours.bias(torch.arange(2, 9), torch.arange(9)), peer(7, 9), rtol=0, atol=0)


@pytest.mark.parametrize("length", [20, 2000])
@pytest.mark.parametrize("theta", [10_000, 500])
def test_sinusoids_times_a_learned_scale(length, theta):
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    theirs = ScaledSinusoidalEmbedding(32, theta)
    assert theirs.scale.item() == pytest.approx(32**-0.5)
    ids = np.arange(length)
    error = angle_error(ids, theta, 32)
    ours = wn.Sinusoidal(32, float(theta), order="sin_cos")(torch.from_numpy(ids))
    scale = theirs.scale.detach()
    explained(ours * scale, theirs(torch.zeros(1, length, 32)), np.tile(error, 2), 32**-0.5)


def test_a_learned_table_times_a_fixed_scale():
    from x_transformers.x_transformers import AbsolutePositionalEmbedding

    theirs, ours = AbsolutePositionalEmbedding(16, 10), wn.LearnedAbsolute(16, 10)
    with torch.no_grad():
        ours.table.copy_(theirs.emb.weight)
    expected = theirs(torch.zeros(1, 7, 16))
    assert_close(ours(torch.arange(7)) * 16**-0.5, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("base", "length"), [(10_000, 300), (100, 20)])
def test_rotary_turns_the_first_neighbours(base, length):
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    freqs, _ = RotaryEmbedding(16, base=base).forward_from_seq_len(length)
    x, ids = drawn(0, 2, 3, length, 24), np.arange(length)
    expected = apply_rotary_pos_emb(x, freqs)
    found = wn.RoPE(24, float(base), "interleaved", rotary_dim=16).rotate(x)
    assert_close(found[..., 16:], expected[..., 16:], rtol=0, atol=0)
    size = spread(pair_sizes(x, "interleaved", 16), "interleaved")
    error = spread(angle_error(ids, base, 16), "interleaved")
    explained(found[..., :16], expected[..., :16], error, size)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_rotary_at_positions_of_ones_own(width):
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    ids = torch.tensor([[0, 3, 4, 900], [7, 7, 0, 1]])
    freqs, _ = RotaryEmbedding(width)(ids)
    x = drawn(0, 2, 3, 4, 24)
    expected = apply_rotary_pos_emb(x, freqs)
    found = wn.RoPE(24, pairing="interleaved", rotary_dim=width).rotate(x, ids)
    size = spread(pair_sizes(x, "interleaved", width), "interleaved")
    error = spread(angle_error(ids.flatten().numpy(), 10_000, width), "interleaved")
    explained(found[..., :width], expected[..., :width], error.reshape(2, 1, 4, width), size)


def test_rotary_with_positions_divided_and_with_a_larger_base():
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    x, ids = drawn(0, 1, 2, 40, 32), np.arange(40)
    size = spread(pair_sizes(x, "interleaved", 32), "interleaved")
    error = spread(angle_error(ids, 10_000, 32), "interleaved")
    for options, scaling in (
        ({"interpolation_factor": 4.0}, wn.scaling.Linear(4.0)),
        ({"base_rescale_factor": 4.0}, wn.scaling.NTK(4.0)),
    ):
        freqs, _ = RotaryEmbedding(32, **options).forward_from_seq_len(40)
        rope = wn.RoPE(32, pairing="interleaved", scaling=scaling)
        explained(rope.rotate(x), apply_rotary_pos_emb(x, freqs), error, size)


@pytest.mark.parametrize("length", [9, 700])
def test_xpos_about_half_of_the_largest_position(length):
    """Their centre moves with the text (docs/findings/x-transformers-xpos-centre.md)."""
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    q, k, ids = drawn(0, 1, 2, length, 48), drawn(1, 1, 2, length, 48), np.arange(length)
    freqs, scale = RotaryEmbedding(32, use_xpos=True).forward_from_seq_len(length)
    expected = [apply_rotary_pos_emb(q, freqs, scale), apply_rotary_pos_emb(k, freqs, 1 / scale)]
    xpos = wn.XPos(48, pairing="interleaved", rotary_dim=32, centre=length // 2)
    for x, mine, other, sign in zip((q, k), xpos(q, k), expected, (1, -1), strict=True):
        decay, error = decay_and_error(ids, length // 2, 32)
        size = pair_sizes(x, "interleaved", 32) * decay**sign
        error = spread(angle_error(ids, 10_000, 32) + error, "interleaved")
        explained(mine[..., :32], other[..., :32], error, spread(size, "interleaved"))
        assert_close(mine[..., 32:], x[..., 32:], rtol=0, atol=0)
