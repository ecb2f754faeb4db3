"""Position temperature and DroPE against plain Python.

Axes: B batch, H heads, S tokens, D head_dim.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import ROUNDING, drawn

SCHOOLS = ("llama4", "ministral3", "inkling")


def factor(position: float, scale: float, floor: float, school: str) -> float:
    if school == "llama4":
        return 1 + scale * math.log(1 + (position + 1) // floor)
    if school == "ministral3":
        return 1 + scale * math.log(1 + position // floor)
    return 1 + scale * math.log(max((position + 1) / floor, 1))


@given(
    positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=5),
    scale=st.sampled_from([0.1, 0.0, 1.5]),
    floor=st.integers(1, 2**20),
    school=st.sampled_from(SCHOOLS),
)
def test_factors(positions, scale, floor, school):
    positions = [*positions, floor - 2 if floor > 1 else 0, floor - 1, floor, 3 * floor - 1]
    found = wn.Temperature(scale, float(floor), school).factors(torch.tensor(positions))
    assert found.dtype == torch.float64
    expected = [factor(p, scale, floor, school) for p in positions]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)


@given(position=st.floats(0, 1e6), floor=st.floats(0.5, 1e5), school=st.sampled_from(SCHOOLS))
def test_real_positions_and_floors(position, floor, school):
    ids = torch.tensor([position], dtype=torch.float64)
    reached = (position + (school != "ministral3")) / floor
    if abs(reached - round(reached)) < 1e-9:
        return  # at a step
    found = wn.Temperature(0.3, floor, school).factors(ids).item()
    assert found == pytest.approx(factor(position, 0.3, floor, school), rel=1e-13)


@pytest.mark.parametrize("school", SCHOOLS)
def test_it_begins_to_grow_where_the_school_says(school):
    made = wn.Temperature(0.1, 100.0, school)
    first = {"llama4": 99, "ministral3": 100, "inkling": 100}[school]
    found = made.factors(torch.arange(first + 1))
    assert (found[:-1] == 1).all() and found[-1] > 1
    if school != "inkling":
        assert found[-1].item() == pytest.approx(1 + 0.1 * math.log(2))
        assert (made.factors(torch.arange(first, first + 100)) == found[-1]).all()  # in steps


def test_schools_differ_on_both_sides_of_a_step():
    factors = [wn.Temperature(0.1, 100.0, s).factors(torch.tensor([99, 150])) for s in SCHOOLS]
    for a in range(3):
        for b in range(a):
            assert (factors[a] != factors[b]).any()


def test_the_defaults_are_those_of_llama_4():
    made = wn.Temperature()
    assert (made.scale, made.floor, made.school) == (0.1, 8192.0, "llama4")


@pytest.mark.parametrize("school", SCHOOLS)
@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_queries_are_multiplied_and_keys_are_not(school, dtype):
    made = wn.Temperature(0.5, 3.0, school)
    q, k = drawn(0, (2, 4, 5, 6), dtype), drawn(1, (2, 2, 7, 6), dtype)
    ids = torch.tensor([[0, 1, 5, 9, 100], [2, 3, 2, 3, 4]])
    at = made.prepare(wn.Where(ids, torch.arange(7)))
    q_found, k_found = made.queries_keys(q, k, at, {})
    assert k_found is k and q_found.dtype == dtype
    table = np.array([[factor(p, 0.5, 3.0, school) for p in row] for row in ids.tolist()])
    exact = q.double().numpy() * table[:, None, :, None]
    rounding = ROUNDING[dtype] + 2 * ROUNDING[torch.float32 if dtype != torch.float64 else dtype]
    error = np.abs(q_found.double().numpy() - exact)
    assert (error <= rounding * np.abs(exact) + 2.0**-25).all()


def test_a_token_without_a_place_has_factor_1():
    made = wn.Temperature(0.5, 0.5)
    assert made.factors(torch.tensor([0])) > 1.5  # so that it is not taken for position 0
    for ids in (torch.tensor([wn.NOWHERE, 9]), torch.tensor([torch.nan, 9.0])):
        found = made.factors(ids)
        assert found[0] == 1 and found[1] > 1.5


@pytest.mark.parametrize("school", SCHOOLS)
def test_attention_with_it_is_attention_with_larger_queries(school):
    made, rope = wn.Temperature(0.5, 3.0, school), wn.RoPE(8, 100.0)
    q, k, v = (drawn(i, (2, h, 9, 8), torch.float64) for i, h in ((0, 4), (1, 2), (2, 2)))
    table = torch.tensor([factor(p, 0.5, 3.0, school) for p in range(9)], dtype=torch.float64)
    larger = q * table[:, None]
    for with_it, without in ((made, None), ([rope, made], rope), ([made, rope], rope)):
        found = wn.attention(q, k, v, with_it, causal=True)
        expected = wn.attention(larger, k, v, without, causal=True)
        assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(wn.attention(q, k, v, made, causal=True), wn.attention(q, k, v))


def test_positions_before_0_are_refused():
    made = wn.Temperature()
    for ids, message in (
        (torch.tensor([3, -1]), "Temperature needs positions from 0; got -1"),
        (torch.tensor([0.5, -0.5]), "Temperature needs positions from 0; got -0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            made.prepare(ids)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": -0.1}, "scale must be a finite number from 0, got -0.1"),
        ({"scale": math.inf}, "scale must be a finite number from 0, got inf"),
        ({"floor": 0.0}, "floor must be a finite number above 0, got 0.0"),
        ({"school": "llama"}, "'llama4', 'ministral3', 'inkling'; got 'llama'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.Temperature(**options)


# DroPE


@given(factor=st.floats(1, 1e6), c=st.floats(0, 3))
def test_drope_scales_logits_and_knows_no_position(factor, c):
    assert wn.DroPE(factor, c).logit_scale(64) == pytest.approx(1 + c * math.log(factor))
    assert wn.DroPE(factor).c == 0.412


def test_attention_with_drope_is_sharper_attention_without_positions():
    q, k, v = (drawn(i, (1, 2, 6, 8), torch.float64) for i in range(3))
    drope = wn.DroPE(4.0, 0.3)
    scale = (1 + 0.3 * math.log(4)) / math.sqrt(8)
    for where in (None, torch.tensor([5, 1, 900, 3, 3, 0])):
        found = wn.attention(q, k, v, drope, where=where, causal=True)
        expected = wn.attention(q, k, v, scale=scale, causal=True)
        assert_close(found, expected, rtol=1e-13, atol=1e-13)
    plain = wn.attention(q, k, v, causal=True)
    assert_close(wn.attention(q, k, v, wn.DroPE(1.0), causal=True), plain, rtol=0, atol=0)
    assert not torch.allclose(found, plain)


@pytest.mark.parametrize(
    ("factor", "c", "message"),
    [
        (0.5, 0.4, "factor must be a finite number from 1, got 0.5"),
        (math.inf, 0.4, "factor must be a finite number from 1, got inf"),
        (2.0, -0.1, "c must be a finite number from 0, got -0.1"),
    ],
)
def test_drope_refuses_what_makes_no_sense(factor, c, message):
    with pytest.raises(ValueError, match=message):
        wn.DroPE(factor, c)
