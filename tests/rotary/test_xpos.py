"""xPos against complex numbers: every pair is turned and made larger or smaller.

Axes: B batch, H heads, S tokens, D head_dim, R rotary_dim, P pairs.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum, turned


def zetas(width: int, gamma: float) -> list[float]:
    return [(k + gamma * width / 2) / ((1 + gamma) * width / 2) for k in range(width // 2)]


def expected(
    x: torch.Tensor, positions: np.ndarray, sign: int, given: dict
) -> tuple[np.ndarray, np.ndarray, float]:
    """(exact, size of each pair, widest angle and exponent), x (..., S, D) at positions (S,)."""
    width, head_dim = given["rotary_dim"], given["head_dim"]
    start = 0 if given["rotary_side"] == "leading" else head_dim - width
    channels = pairs(given["pairing"], width, start)
    angles = positions[:, None] * spectrum(given["base"], width)
    out, size = turned(x.double().numpy(), channels, angles)
    powers = sign * (positions - given["centre"]) / given["scale_base"]
    for zeta, pair in zip(zetas(width, given["gamma"]), channels, strict=True):
        for channel in pair:
            out[..., channel] *= zeta**powers
            size[..., channel] *= zeta**powers
    return out, size, float(max(np.abs(angles).max(initial=0), np.abs(powers).max(initial=0) * 8))


@st.composite
def options(draw: st.DrawFn) -> dict:
    head_dim = draw(st.integers(2, 12))
    return {
        "head_dim": head_dim,
        "base": draw(st.sampled_from([100.0, 10_000.0, 1e6])),
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "rotary_dim": 2 * draw(st.integers(1, head_dim // 2)),
        "rotary_side": draw(st.sampled_from(["leading", "trailing"])),
        "scale_base": draw(st.sampled_from([512.0, 64.0, 33.5])),
        "gamma": draw(st.sampled_from([0.4, 0.1, 2.0])),
        "centre": draw(st.sampled_from([0.0, 100.0, -20.5])),
    }


@given(
    given=options(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    real=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_queries_and_keys_are_turned_and_scaled_as_complex_numbers(given, dtype, real, seed):
    rng = np.random.default_rng(seed)
    positions = rng.uniform(-300, 300, 4) if real else rng.integers(-300, 300, 4)
    q, k = (drawn(seed + i, (2, h, 4, given["head_dim"]), dtype) for i, h in ((0, 4), (1, 2)))
    xpos, ids = wn.XPos(**given), torch.from_numpy(positions)
    if dtype == torch.float16:  # it holds less: near the centre only
        ids = ids / 20 + given["centre"]
        positions = ids.numpy()
    q_found, k_found = xpos(q, k, ids)
    assert (q_found.dtype, k_found.dtype) == (dtype, dtype)
    agree(q_found, *expected(q, positions, 1, given))
    agree(k_found, *expected(k, positions, -1, given))
    assert_close(xpos.rotate(q, ids), q_found, rtol=0, atol=0)
    assert_close(xpos.rotate_keys(k, ids), k_found, rtol=0, atol=0)
    assert_close(xpos.rotate_(q.clone(), ids), q_found, rtol=0, atol=0)


@given(given=options())
def test_zeta(given):
    found = wn.XPos(**given).zeta
    assert found.dtype == torch.float64
    exact = torch.tensor(zetas(given["rotary_dim"], given["gamma"]), dtype=torch.float64)
    assert_close(found, exact, rtol=1e-15, atol=0)


@given(given=options(), shift=st.integers(-200, 200), seed=st.integers(0, 10**6))
def test_scores_fall_with_distance_wherever_the_tokens_and_the_centre_are(given, shift, seed):
    q, k = (drawn(seed + i, (1, 1, 5, given["head_dim"]), torch.float64) for i in (0, 1))
    q_ids, k_ids = torch.tensor([0, 3, 10, 11, 200]), torch.tensor([0, 1, 10, -60, 150])
    found = []
    for centre in (given["centre"], 77.0):
        for moved in (0, shift):
            xpos = wn.XPos(**{**given, "centre": centre})
            a, b = xpos(q, k, wn.Where(q_ids + moved, k_ids + moved))
            found.append(a @ b.mT)
    for other in found[1:]:
        assert_close(other, found[0], rtol=1e-11, atol=1e-11 * float(found[0].abs().max()))
    # One pair and one distance: cos(distance w) zeta^(distance / S), nothing else.
    one = torch.zeros(1, 1, 1, given["head_dim"], dtype=torch.float64)
    start = 0 if given["rotary_side"] == "leading" else given["head_dim"] - given["rotary_dim"]
    for k_pair, (i, _) in enumerate(pairs(given["pairing"], given["rotary_dim"], start)):
        x = one.clone()
        x[..., i] = 1.0
        a, b = wn.XPos(**given)(x, x, wn.Where(torch.tensor([90]), torch.tensor([70])))
        zeta = zetas(given["rotary_dim"], given["gamma"])[k_pair]
        w = spectrum(given["base"], given["rotary_dim"])[k_pair]
        score = math.cos(20 * w) * zeta ** (20 / given["scale_base"])
        assert (a * b).sum().item() == pytest.approx(score, rel=1e-12, abs=1e-13)


@given(given=options(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_the_inverse_undoes_turn_and_size(given, dtype):
    xpos, x = wn.XPos(**given), drawn(3, (2, 2, 3, given["head_dim"]), dtype)
    ids = torch.tensor([4, -90, 250])
    rounding = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    for rotate in (xpos.rotate, xpos.rotate_keys):
        back = rotate(rotate(x, ids), ids, inverse=True)
        assert_close(back, x, rtol=0, atol=16 * rounding * float(x.abs().max()))
    assert not torch.allclose(xpos.rotate(x, ids), xpos.rotate_keys(x, ids))


def test_a_token_without_a_place_keeps_its_size():
    xpos, x = wn.XPos(8, centre=50.0), drawn(0, (1, 2, 2, 8), torch.float32)
    for ids in (torch.tensor([wn.NOWHERE, 3]), torch.tensor([torch.nan, 3.0])):
        for found in xpos(x, x, ids):
            assert_close(found[:, :, 0], x[:, :, 0], rtol=0, atol=0)
            assert (found[:, :, 1] != x[:, :, 1]).all()


def test_scalings_and_amplitude_go_with_it():
    yarn = wn.scaling.YaRN(4.0, 64)
    xpos, rope = wn.XPos(8, scaling=yarn), wn.RoPE(8, scaling=yarn)
    assert_close(xpos.frequencies, rope.frequencies, rtol=0, atol=0)
    x, ids = drawn(0, (1, 1, 3, 8), torch.float64), torch.tensor([0, 40, 90])
    powers = ids[:, None] / 512.0 * xpos.zeta.log()
    factor = torch.cat([powers.exp()] * 2, -1)
    assert_close(xpos.rotate(x, ids), rope.rotate(x, ids) * factor, rtol=1e-14, atol=1e-14)
    assert_close(xpos.rotate_keys(x, ids), rope.rotate(x, ids) / factor, rtol=1e-14, atol=1e-14)


def test_the_defaults_are_those_of_the_paper():
    xpos = wn.XPos(64)
    assert (xpos.scale_base, xpos.gamma, xpos.centre) == (512.0, 0.4, 0.0)
    assert xpos.zeta[0].item() == pytest.approx(0.4 / 1.4)


def test_it_is_for_causal_attention_alone():
    assert wn.XPos(8).causal_only and wn.XPos(8).relative and not wn.XPos(8).norm_preserving
    with pytest.raises(ValueError, match="causal"):
        wn.Attention(32, 4, wn.XPos(8), causal=False)


def test_positions_that_float32_cannot_hold_are_refused():
    xpos, x = wn.XPos(8), torch.ones(1, 1, 1, 8)
    reach = 80 * 512 / math.log(3.5)
    for far in (int(reach) - 1, 1 - int(reach)):
        for found in xpos(x, x, torch.tensor([far])):
            assert found.isfinite().all() and (found != 0).all()
    for far in (int(reach) + 1, -int(reach) - 1, 2**53, -(2**53)):
        with pytest.raises(ValueError, match=f"within {reach:.0f} of the centre 0, .*got {far}"):
            xpos(x, x, torch.tensor([far]))
    with pytest.raises(ValueError, match="of the centre 1e"):
        wn.XPos(8, centre=1e6)(x, x, torch.tensor([0]))
    assert wn.XPos(8, centre=1e6).rotate(x, torch.tensor([10**6 + 3])).isfinite().all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale_base": 0.0}, "scale_base must be a finite number above 0, got 0.0"),
        ({"gamma": 0.0}, "gamma must be a finite number above 0, got 0.0"),
        ({"gamma": 1e17}, r"gamma must be small enough for scores to fall, got 1e\+17"),
        ({"gamma": 1e308}, r"gamma must be small enough for scores to fall, got 1e\+308"),
        ({"centre": math.inf}, "centre must be a finite number"),
        ({"centre": math.nan}, "centre must be a finite number"),
        ({"rotary_dim": 3}, "rotary_dim must be even"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        wn.XPos(8, **given)
