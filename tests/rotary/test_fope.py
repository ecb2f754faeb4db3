"""FoPE against loops over groups, pairs and frequencies.

Axes: B batch, H heads, S tokens, D head_dim, G groups, P pairs, F pairs that turn.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum


def mixed(mix: np.ndarray, waves: np.ndarray) -> list[float]:
    """sum_j M_jk wave_j for every k."""
    count = len(waves)
    return [sum(mix[j, k] * waves[j] for j in range(count)) for k in range(count)]


def expected(
    made: wn.FoPE, x: np.ndarray, positions: list[float], channels: list[tuple[int, int]]
) -> np.ndarray:
    """x (B, H, S, D): a loop over heads and tokens."""
    frequencies = spectrum(made.base, made.rotary_dim)[: made.num_frequencies]
    mixes = [p.detach().double().numpy() for p in (made.cos_mix, made.sin_mix)]
    out, share = x.copy(), x.shape[1] // made.num_kv_heads
    for head in range(x.shape[1]):
        cos_mix, sin_mix = (m[head // share] for m in mixes)
        for token, p in enumerate(positions):
            cos = mixed(cos_mix, np.cos(p * frequencies))
            sin = mixed(sin_mix, np.sin(p * frequencies))
            for (i, j), c, s in zip(channels, cos, sin, strict=False):  # the others stand still
                u, v = x[:, head, token, i], x[:, head, token, j]
                out[:, head, token, i] = u * c - v * s
                out[:, head, token, j] = u * s + v * c
    return out


@settings(max_examples=50)
@given(
    pairing=st.sampled_from(["half", "interleaved"]),
    width=st.sampled_from([2, 6, 10]),
    side=st.sampled_from(["leading", "trailing"]),
    groups=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    data=st.data(),
)
def test_groups_of_heads_have_mixtures_of_their_own(pairing, width, side, groups, dtype, data):
    turning = data.draw(st.integers(1, width // 2))
    made = wn.FoPE(
        11, 100.0, pairing, width, side, num_frequencies=turning, num_kv_heads=groups,
        init_factor=0.7,
    )  # fmt: skip
    positions = [0.0, 3.0, -40.0, 900.5]
    channels = pairs(pairing, width, 0 if side == "leading" else 11 - width)
    where = torch.tensor(positions, dtype=torch.float64)
    q, k = (drawn(i, (2, h, 4, 11), dtype) for i, h in ((0, 8), (1, groups)))
    for x, found in zip((q, k), made(q, k, where), strict=True):
        exact = expected(made, x.double().numpy(), positions, channels)
        assert found.dtype == dtype
        # Mixtures of a handful of waves, each with weights of about 1.
        agree(found, exact, np.full_like(exact, 8 * float(x.abs().max())), max(positions))


@pytest.mark.parametrize(("length", "turning"), [(7, 1), (20, 2), (62, 2), (63, 3), (10**6, 4)])
def test_pairs_that_complete_a_turn_within_the_length_turn(length, turning):
    """Frequencies 1, 10^-0.5, 0.1, 10^-1.5 have wavelengths 6.3, 19.9, 62.8, 198.7."""
    made = wn.FoPE(8, 100.0, length=length)
    assert made.num_frequencies == turning
    assert made.cos_mix.shape == made.sin_mix.shape == (1, turning, turning)
    plain = wn.RoPE(8, 100.0).frequencies
    still = torch.arange(4) >= turning
    assert_close(made.frequencies, plain.masked_fill(still, 0.0), rtol=0, atol=0)
    same = wn.FoPE(8, 100.0, num_frequencies=turning)
    assert_close(made.frequencies, same.frequencies, rtol=0, atol=0)


def test_pairs_that_stand_still_keep_their_content():
    made = wn.FoPE(8, 100.0, num_frequencies=2, init_factor=1.0)
    x = drawn(0, (1, 2, 3, 8), torch.float32)
    found = made.rotate(x, torch.tensor([5, 900, 7]))
    assert_close(found[..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]], rtol=0, atol=0)
    assert (found[..., [0, 1, 4, 5]] != x[..., [0, 1, 4, 5]]).all()


def test_without_a_random_part_it_is_rope_of_the_pairs_that_turn():
    made = wn.FoPE(8, 100.0, length=40, init_factor=0.0)
    x = drawn(0, (1, 2, 5, 8), torch.float64)
    hope = wn.RoPE(8, 100.0, scaling=wn.scaling.HoPE(40))
    assert_close(made.rotate(x).detach(), hope.rotate(x), rtol=1e-14, atol=1e-14)
    assert_close(made.frequencies, hope.frequencies, rtol=0, atol=0)


def test_parameters_begin_near_the_identity():
    made = wn.FoPE(512, num_frequencies=256, num_kv_heads=3, init_factor=0.5)
    for mix in (made.cos_mix, made.sin_mix):
        noise = mix - torch.eye(256)
        assert noise.std().item() == pytest.approx(0.5 * math.sqrt(2 / 512), rel=0.01)
        assert abs(noise.mean().item()) < 0.001
        assert (noise[0] != noise[1]).any()
    before = made.cos_mix.clone()
    made.reset_parameters()
    assert (made.cos_mix != before).any()
    assert (made.cos_mix - torch.eye(256)).std() < 0.04


@pytest.mark.parametrize("groups", [1, 2])
def test_the_inverse_undoes_it(groups):
    made = wn.FoPE(8, 100.0, num_frequencies=3, num_kv_heads=groups, init_factor=0.2)
    x, ids = drawn(0, (2, 4, 5, 8), torch.float64), torch.tensor([0, 1, 40, -7, 900])
    found = made.rotate(x, ids)
    assert not torch.allclose(found.norm(dim=-1), x.norm(dim=-1))
    assert_close(made.rotate(found, ids, inverse=True).detach(), x, rtol=1e-12, atol=1e-12)
    back = made.rotate_keys(made.rotate_keys(x, ids), ids, inverse=True)
    assert_close(back.detach(), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_heads_of_other_layouts_share_by_groups(layout):
    made = wn.FoPE(8, 100.0, num_frequencies=3, num_kv_heads=2, init_factor=0.5)
    x = drawn(0, (1, 4, 5, 8), torch.float64)
    expected_turn = made.rotate(x).transpose(1, 2)
    given_x = x.transpose(1, 2)
    if layout == "thd":
        expected_turn, given_x = expected_turn[0], given_x[0]
    assert_close(made.rotate(given_x, layout=layout), expected_turn, rtol=0, atol=0)


def test_a_token_without_a_place_is_not_turned():
    made = wn.FoPE(8, 100.0, length=40, init_factor=1.0)
    x = drawn(0, (1, 2, 3, 8), torch.float32)
    found = made.rotate(x, torch.tensor([3, wn.NOWHERE, 0]))
    assert_close(found[:, :, 1], x[:, :, 1], rtol=0, atol=0)
    assert (found[:, :, 2, 0] != x[:, :, 2, 0]).all()  # a mixture of cosines is not 1 at 0


def test_gradients_reach_both_mixtures():
    made = wn.FoPE(8, 100.0, num_frequencies=3, num_kv_heads=2).double()
    x = drawn(0, (1, 2, 3, 8), torch.float64)

    def turn(cos_mix: torch.Tensor, sin_mix: torch.Tensor) -> torch.Tensor:
        given = {"cos_mix": cos_mix, "sin_mix": sin_mix}
        return torch.func.functional_call(made, given, (x, x, torch.tensor([1, 4, 9])))[0]

    mixes = (p.detach().clone().requires_grad_() for p in (made.cos_mix, made.sin_mix))
    assert torch.autograd.gradcheck(turn, tuple(mixes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Give length or num_frequencies"),
        ({"length": 40, "num_frequencies": 2}, "Give length or num_frequencies"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 6}, "length must hold a turn of the fastest pair, got 6"),
        ({"num_frequencies": 0}, "num_frequencies must be at least 1, got 0"),
        ({"num_frequencies": 5}, "num_frequencies must be at most 4, got 5"),
        ({"length": 40, "num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"length": 40, "init_factor": -0.1}, "init_factor must be a finite number from 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.FoPE(8, **options)


def test_heads_that_do_not_divide_into_groups_are_refused():
    made = wn.FoPE(8, length=40, num_kv_heads=2)
    with pytest.raises(ValueError, match=r"multiple of the 2 heads that turn differently, got"):
        made.rotate(torch.ones(1, 3, 5, 8))


def test_files_hold_the_mixtures_alone():
    assert list(wn.FoPE(8, length=40).state_dict()) == ["cos_mix", "sin_mix"]
