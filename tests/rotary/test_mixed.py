"""MixedRoPE against complex numbers, head by head.

Axes: B batch, H query heads, G key heads, S tokens, D head_dim, n axes of a position.
"""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, turned

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def made(head_dim: int, num_heads: int, num_axes: int = 2, **options) -> wn.MixedRoPE:
    torch.manual_seed(0)
    return wn.MixedRoPE(head_dim, num_heads, num_axes, **options)


def exactly(
    rope: wn.MixedRoPE, x: torch.Tensor, positions: np.ndarray, inverse: bool = False
) -> tuple[np.ndarray, np.ndarray, float]:
    """x (B, H, S, D) at positions (B, S, n) or (S, n), head by head."""
    directions = rope.directions.detach().double().numpy()
    exact, size = np.empty(x.shape), np.empty(x.shape)
    heads, widest = x.shape[1], 0.0
    for head in range(heads):
        own = directions[:, head * directions.shape[1] // heads]
        angles = sum(positions[..., axis, None] * own[axis] for axis in range(len(own)))
        widest = max(widest, float(np.abs(positions).max(initial=0)) * np.abs(own).sum(0).max())
        exact[:, head], size[:, head] = turned(
            x[:, head].double().numpy(),
            pairs(rope.pairing, x.shape[-1]),
            -angles if inverse else angles,
        )
    return exact, size, widest


@given(
    num_axes=st.integers(1, 4),
    times=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    pairing=st.sampled_from(["half", "interleaved"]),
    dtype=st.sampled_from(DTYPES),
    own=st.booleans(),
    inverse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_head_turns_along_its_own_directions(
    num_axes, times, heads, pairing, dtype, own, inverse, seed
):
    num_heads, groups = heads
    head_dim = 2 * num_axes * times
    rope = made(head_dim, num_heads, num_axes, pairing=pairing, num_kv_heads=groups)
    rng = np.random.default_rng(seed)
    shape = (2, 3, num_axes) if own else (3, num_axes)
    positions = rng.uniform(-50, 50, shape)
    q = drawn(seed, (2, num_heads, 3, head_dim), dtype)
    k = drawn(seed + 1, (2, groups, 3, head_dim), dtype)
    given_ = torch.from_numpy(positions)
    if not inverse:
        for found, x in zip(rope(q, k, given_), (q, k), strict=True):
            agree(found, *exactly(rope, x, positions))
    for x in (q, k):
        agree(rope.rotate(x, given_, inverse=inverse), *exactly(rope, x, positions, inverse))
        with torch.no_grad():
            found = rope.rotate_(x.clone(), given_, inverse=inverse)
        agree(found, *exactly(rope, x, positions, inverse))


def test_the_layouts_of_tensors_hold_the_same_tokens():
    rope, x = made(8, 4, num_kv_heads=2), drawn(0, (2, 4, 3, 8), torch.float32)
    positions = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (2, 3, 2)))
    expected = rope.rotate(x, positions)
    found = rope.rotate(x.transpose(1, 2), positions, layout="bshd").transpose(1, 2)
    assert_close(found, expected, rtol=0, atol=0)
    found = rope.rotate(x[1].transpose(0, 1), positions[1], layout="thd").transpose(0, 1)
    assert_close(found, expected[1], rtol=0, atol=0)


# The start


def test_without_a_turn_of_the_cross_it_is_axial_rope():
    """Of base 10 and half the width an axis, as the paper has it."""
    rope = made(16, 2)
    rope.directions.data = rope.along(torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    x, positions = drawn(0, (1, 2, 6, 16), torch.float64), wn.positions.grid(2, 3)
    expected = wn.AxialRoPE(16, 2, 10.0).rotate(x, positions)
    assert_close(rope.rotate(x, positions), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("num_axes", [1, 2, 3, 4])
def test_the_start_is_a_cross_turned_at_random(num_axes):
    rope = made(24, 400, num_axes)
    groups = 12 // num_axes
    by_group = rope.directions.detach().double().unflatten(-1, (num_axes, groups))  # n, G, i, t
    lengths = 10.0 ** (-np.arange(groups) / groups)
    found = by_group.norm(dim=0)
    assert_close(found, torch.from_numpy(lengths).expand_as(found), rtol=1e-6, atol=0)
    cross = (by_group / by_group.norm(dim=0))[..., 0].permute(1, 2, 0)  # G, i, n
    unit = torch.eye(num_axes, dtype=torch.float64).expand(400, -1, -1)
    assert_close(cross @ cross.mT, unit, rtol=0, atol=1e-6)
    assert_close(torch.linalg.det(cross), unit[:, 0, 0], rtol=0, atol=1e-6)
    along = by_group / by_group.norm(dim=0)
    assert_close(along, along[..., :1].expand_as(along), rtol=0, atol=1e-6)
    if num_axes > 1:  # all directions of space alike: mean 0, and 1/n of the square an axis
        assert cross.mean(0).abs().max() < 0.2
        assert_close(
            cross.square().mean(0), torch.full((num_axes,) * 2, 1 / num_axes).double(),
            rtol=0, atol=0.1,
        )  # fmt: skip


def test_a_generator_draws_the_start():
    one, two = made(8, 4), made(8, 4)
    assert torch.equal(one.directions, two.directions)
    two.reset_parameters(torch.Generator().manual_seed(5))
    assert not torch.equal(one.directions, two.directions)
    state = torch.random.get_rng_state()
    one.reset_parameters(torch.Generator().manual_seed(5))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.directions, two.directions)
    assert one.directions.dtype == torch.float32


def test_frequencies_are_sizes_along_each_axis():
    rope = made(8, 3)
    assert_close(rope.frequencies, rope.directions.detach().double().abs(), rtol=0, atol=0)
    assert rope.amplitude == 1.0


# Angles, gradients, heads


def test_angles_are_float64_of_float32_directions():
    rope = made(8, 2)
    positions = torch.tensor([[2**24 - 1, 3], [70_001, 2**23 + 1]])
    turns = rope.exactly(rope.prepare(positions).data.queries)
    assert turns.cos.shape == (1, 2, 2, 4) and turns.cos.dtype == torch.float64
    with mpmath.workdps(50):
        for token, head, pair in np.ndindex(2, 2, 4):
            angle = sum(
                mpmath.mpf(int(positions[token, axis]))
                * mpmath.mpf(rope.directions[axis, head, pair].item())
                for axis in range(2)
            )
            assert abs(turns.cos[0, token, head, pair].item() - mpmath.cos(angle)) < 2.0**-24
            assert abs(turns.sin[0, token, head, pair].item() - mpmath.sin(angle)) < 2.0**-24


def test_directions_learn():
    """d/dw of (u cos wp - v sin wp) is -p times the other channel."""
    rope = made(4, 2).double()
    positions = torch.tensor([[3.0, -2.0], [0.5, 1.0]], dtype=torch.float64)
    x = drawn(0, (1, 2, 2, 4), torch.float64)
    weight = drawn(1, (1, 2, 2, 4), torch.float64)
    (rope.rotate(x, positions) * weight).sum().backward()
    y = rope.rotate(x, positions).detach()
    quarter = torch.cat([-y[..., 2:], y[..., :2]], -1)  # every pair turned by 90 degrees
    of_pair = (quarter * weight).unflatten(-1, (2, 2)).sum(-2)  # (1, H, S, P)
    expected = torch.einsum("hsp,sn->nhp", of_pair[0], positions)
    assert_close(rope.directions.grad, expected, rtol=1e-12, atol=1e-12)


def test_scores_depend_on_offsets_alone_along_diagonals_too():
    rope = made(12, 2, 3)
    q, k = (drawn(i, (1, 2, 5, 12), torch.float64) for i in (0, 1))
    positions = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (5, 3)))
    scores = [
        a @ b.mT
        for a, b in (rope(q, k, positions), rope(q, k, positions + torch.tensor([9, -4, 100])))
    ]
    assert_close(*scores, rtol=0, atol=1e-10)


def test_query_heads_of_a_group_share_directions():
    rope = made(8, 4, num_kv_heads=2)
    torch.manual_seed(1)
    layer = wn.Attention(32, 4, rope, 2).double().eval()
    where = wn.Where(wn.positions.grid(2, 3), num_axes=2)
    x = drawn(0, (1, 6, 32), torch.float64)
    q = layer.q_proj(x).unflatten(-1, (4, 8)).transpose(1, 2)
    k, v = (p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (layer.k_proj, layer.v_proj))
    out = []
    for head in range(4):
        turned_q, turned_k = (
            torch.from_numpy(exactly(one, t, wn.positions.grid(2, 3).numpy())[0])
            for one, t in (
                (_one_head(rope, head // 2), q[:, head : head + 1].detach()),
                (_one_head(rope, head // 2), k[:, head // 2 : head // 2 + 1].detach()),
            )
        )
        weights = (turned_q @ turned_k.mT / 8**0.5).softmax(-1)
        out.append(weights @ v[:, head // 2 : head // 2 + 1])
    expected = layer.out_proj(torch.cat(out, 1).transpose(1, 2).flatten(2))
    assert_close(layer(x, where=where), expected, rtol=1e-12, atol=1e-12)


def _one_head(rope: wn.MixedRoPE, group: int) -> wn.MixedRoPE:
    single = made(rope.head_dim, 1)
    single.directions.data = rope.directions.data[:, group : group + 1]
    return single


def test_fewer_key_heads_than_directions_are_refused():
    rope = made(8, 4)
    layer = wn.Attention(32, 4, rope, 2)
    where = wn.Where(wn.positions.grid(2, 3), num_axes=2)
    with pytest.raises(ValueError, match="built for 4 key heads, got 2.*num_kv_heads=2"):
        layer(drawn(0, (1, 6, 32), torch.float32), where=where)
    q, k = drawn(0, (1, 4, 6, 8), torch.float32), drawn(1, (1, 2, 6, 8), torch.float32)
    with pytest.raises(ValueError, match="k must have a multiple of the 4 heads"):
        rope(q, k, wn.positions.grid(2, 3))
    with pytest.raises(ValueError, match="num_heads=4, attention has 2"):
        wn.Attention(16, 2, rope)


@pytest.mark.parametrize("real", [False, True])
def test_a_token_without_a_place_is_not_turned(real):
    rope, x = made(8, 2), drawn(0, (1, 2, 3, 8), torch.float32)
    positions = torch.tensor([[1, 2], [4, 5], [7, 8]])
    positions = positions.double() if real else positions
    expected = rope.rotate(x, positions)
    positions[1, 1] = torch.nan if real else wn.NOWHERE
    found = rope.rotate(x, positions)
    assert_close(found[:, :, 1], x[:, :, 1], rtol=0, atol=0)
    assert_close(found[:, :, [0, 2]], expected[:, :, [0, 2]], rtol=0, atol=0)
    found[:, :, 0].sum().backward()
    assert rope.directions.grad.isfinite().all()


@pytest.mark.untyped
def test_it_compiles():
    rope = made(8, 4, num_kv_heads=2)
    torch._dynamo.reset()
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (4, 7):
        q = drawn(0, (1, 4, length, 8), torch.float32)
        k = drawn(1, (1, 2, length, 8), torch.float32)
        positions = torch.arange(2 * length).view(length, 2)
        for found, expected in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 10}, "multiple of 2 num_axes = 4, got 10"),
        ({"head_dim": 8, "num_axes": 3}, "multiple of 2 num_axes = 6, got 8"),
        ({"head_dim": 8, "num_kv_heads": 3}, "multiple of num_kv_heads, got 4 and 3"),
        ({"head_dim": 8, "num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"head_dim": 8, "base": 0.0}, "base must be a finite number above 0, got 0.0"),
        ({"head_dim": 8, "base": 1e-300}, "large enough for float32 directions, got 1e-300"),
        ({"head_dim": 8, "pairing": "both"}, "'half', 'interleaved'; got 'both'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.MixedRoPE(num_heads=4, **options)
