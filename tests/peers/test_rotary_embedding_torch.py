"""Against rotary-embedding-torch: interleaved pairs, and axes of a grid.

Axes: B batch, H heads, S tokens, D head_dim.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import angle_error, decay_and_error, drawn, explained, pair_sizes, spread

pytestmark = pytest.mark.more


@pytest.mark.parametrize("theta", [10_000, 500_000])
@pytest.mark.parametrize(("length", "start"), [(12, 0), (12, 700), (900, 0)])
def test_pairs_are_neighbours(theta, length, start):
    from rotary_embedding_torch import RotaryEmbedding

    theirs = RotaryEmbedding(32, theta=theta)
    x, ids = drawn(0, 2, 3, length, 48), np.arange(start, start + length)
    expected = theirs.rotate_queries_or_keys(x, offset=start)
    rope = wn.RoPE(48, float(theta), "interleaved", rotary_dim=32)
    found = rope.rotate(x, torch.from_numpy(ids))
    assert_close(found[..., 32:], expected[..., 32:], rtol=0, atol=0)
    size = spread(pair_sizes(x, "interleaved", 32), "interleaved")
    error = spread(angle_error(ids, theta, 32), "interleaved")
    explained(found[..., :32], expected[..., :32], error, size)


def test_tokens_before_heads():
    from rotary_embedding_torch import RotaryEmbedding

    theirs = RotaryEmbedding(16, seq_before_head_dim=True)
    x = drawn(0, 2, 12, 3, 16)
    expected = theirs.rotate_queries_or_keys(x)
    found = wn.RoPE(16, pairing="interleaved").rotate(x, layout="bshd")
    assert_close(found, expected, rtol=0, atol=12 * 16 * 2.0**-24)


def test_a_query_after_cached_keys():
    from rotary_embedding_torch import RotaryEmbedding

    q, k = drawn(0, 1, 2, 1, 16), drawn(1, 1, 2, 9, 16)
    expected = RotaryEmbedding(16).rotate_queries_with_cached_keys(q, k)
    where = wn.Where(torch.tensor([8]), torch.arange(9))
    found = wn.RoPE(16, pairing="interleaved")(q, k, where)
    for mine, other in zip(found, expected, strict=True):
        assert_close(mine, other, rtol=0, atol=9 * 16 * 2.0**-24)


@pytest.mark.parametrize("sizes", [(5, 7), (3, 4, 2)])
def test_axes_of_a_grid(sizes):
    """They turn n * dim channels: axis a has block a, with the spectrum of `dim`."""
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    width, axes = 16, len(sizes)
    freqs = RotaryEmbedding(width).get_axial_freqs(*sizes)
    cells = int(np.prod(sizes))
    x = drawn(0, 2, 3, cells, axes * width)
    expected = apply_rotary_emb(freqs.flatten(0, axes - 1), x)
    positions = wn.positions.grid(*sizes)
    for layout in ("blocks", "heads"):
        rope = wn.AxialRoPE(axes * width, axes, pairing="interleaved", layout=layout)
        found = rope.rotate(x, positions)
        for axis in range(axes):
            block = slice(axis * width, (axis + 1) * width)
            size = spread(pair_sizes(x[..., block], "interleaved", width), "interleaved")
            error = angle_error(positions[:, axis].numpy(), 10_000.0, width)
            explained(found[..., block], expected[..., block], spread(error, "interleaved"), size)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("start", [0, 4])
def test_a_part_of_a_head_anywhere_in_it(width, start):
    """Leading and trailing parts are rotary_side; one in the middle is theirs alone."""
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    x = drawn(0, 2, 3, 30, 20)
    freqs = RotaryEmbedding(width)(torch.arange(30.0))
    for start_index, side, first in ((start, "leading", start), (20 - width, "trailing", 0)):
        expected = apply_rotary_emb(freqs, x, start_index=start_index)
        rope = wn.RoPE(20 - first, pairing="interleaved", rotary_dim=width, rotary_side=side)
        found = torch.cat([x[..., :first], rope.rotate(x[..., first:])], -1)
        assert_close(found, expected, rtol=0, atol=30 * 16 * 2.0**-24)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_positions_divided_by_a_factor(factor):
    from rotary_embedding_torch import RotaryEmbedding

    x, ids = drawn(0, 1, 2, 40, 32), np.arange(40)
    expected = RotaryEmbedding(32, interpolate_factor=factor).rotate_queries_or_keys(x)
    rope = wn.RoPE(32, pairing="interleaved", scaling=wn.scaling.Linear(factor))
    size = spread(pair_sizes(x, "interleaved", 32), "interleaved")
    error = spread(angle_error(ids, 10_000, 32), "interleaved")
    explained(rope.rotate(x), expected, error, size)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_a_larger_base(factor):
    """Their theta_rescale_factor is NTK of the school of bloc97."""
    from rotary_embedding_torch import RotaryEmbedding

    x, ids = drawn(0, 1, 2, 40, 32), np.arange(40)
    expected = RotaryEmbedding(32, theta_rescale_factor=factor).rotate_queries_or_keys(x)
    rope = wn.RoPE(32, pairing="interleaved", scaling=wn.scaling.NTK(factor))
    size = spread(pair_sizes(x, "interleaved", 32), "interleaved")
    error = spread(angle_error(ids, 10_000, 32), "interleaved")
    explained(rope.rotate(x), expected, error, size)


@pytest.mark.parametrize("length", [9, 700])
def test_xpos_about_the_middle_of_the_text(length):
    """Their centre is half of the length of the call, ours is a constant of the module."""
    from rotary_embedding_torch import RotaryEmbedding

    q, k, ids = drawn(0, 1, 2, length, 32), drawn(1, 1, 2, length, 32), np.arange(length)
    expected = RotaryEmbedding(32, use_xpos=True).rotate_queries_and_keys(q, k)
    found = wn.XPos(32, pairing="interleaved", centre=length // 2)(q, k)
    for x, mine, other, sign in zip((q, k), found, expected, (1, -1), strict=True):
        decay, error = decay_and_error(ids, length // 2, 32)
        size = pair_sizes(x, "interleaved", 32) * decay**sign
        error = spread(angle_error(ids, 10_000, 32) + error, "interleaved")
        explained(mine, other, error, spread(size, "interleaved"))


def test_xpos_of_a_step_differs_by_the_distance_of_their_two_centres():
    """Ours is the last row of the full pass; docs/findings tells of theirs."""
    from rotary_embedding_torch import RotaryEmbedding

    length, width = 600, 32
    q, k = drawn(0, 1, 2, length, width), drawn(1, 1, 2, length, width)
    xpos = wn.XPos(width, pairing="interleaved", centre=length // 2)
    q_ours, k_ours = xpos(
        q[..., -1:, :], k, wn.Where(torch.tensor([length - 1]), torch.arange(length))
    )
    assert_close(q_ours, xpos(q, k)[0][..., -1:, :], rtol=0, atol=0)
    peer = RotaryEmbedding(width, use_xpos=True)
    q_theirs, k_theirs = peer.rotate_queries_with_cached_keys(q[..., -1:, :], k)
    np.testing.assert_allclose(k_theirs, k_ours, rtol=1e-4, atol=1e-4)
    factor, _ = decay_and_error(np.array([length // 2 - 1 // 2]), 0.0, width)
    factor = spread(factor, "interleaved")
    np.testing.assert_allclose(q_theirs, q_ours.numpy() * factor, rtol=1e-4, atol=1e-4)
    assert (factor < 0.7).any()
