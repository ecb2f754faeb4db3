"""Sandwich against the product of two sinusoidal codes, in mpmath.

Axes: H heads, S queries, T keys.
"""

from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from relative.support import causal, drawn, repeated, softmax

ids_ = st.lists(st.integers(-(2**24), 2**24), min_size=1, max_size=3)
SCHOOLS = list(product(("divide", "multiply"), (0, 1), (True, False)))


def code(position: float, dbar: int, first: int) -> list[mpmath.mpf]:
    """The sinusoidal code as Vaswani et al. wrote it, its first exponent being first * 2 / dbar."""
    angles = [
        mpmath.mpf(position) / mpmath.mpf(10000) ** (mpmath.mpf(2 * k) / dbar)
        for k in range(first, first + dbar // 2)
    ]
    return [f(a) for a in angles for f in (mpmath.sin, mpmath.cos)]


def by_hand(q: float, k: float, heads: int, dbar: int, school: tuple) -> list[mpmath.mpf]:
    """The bias of every head, 40 digits."""
    scale, first, subtract = school
    with mpmath.workdps(40):
        total = mpmath.fdot(code(q, dbar, first), code(k, dbar, first))
        total -= mpmath.mpf(dbar) / 2 if subtract else 0
        factors = [mpmath.mpf(8) * h / heads for h in range(1, heads + 1)]
        return [total / c if scale == "divide" else total * c for c in factors]


def made(heads: int, dbar: int, school: tuple) -> wn.Sandwich:
    scale, first, subtract = school
    return wn.Sandwich(heads, dbar, scale, first, subtract)


@pytest.mark.parametrize("school", SCHOOLS, ids=lambda s: "-".join(map(str, s)))
@given(heads=st.integers(1, 9), half=st.integers(1, 9), q_ids=ids_, k_ids=ids_)
def test_the_bias_is_the_product_of_the_codes_rounded_once(school, heads, half, q_ids, k_ids):
    dbar = 2 * half
    found = made(heads, dbar, school).bias(torch.tensor(q_ids), torch.tensor(k_ids))
    assert found.dtype == torch.float32 and found.shape == (heads, len(q_ids), len(k_ids))
    for (i, q), (j, k) in product(enumerate(q_ids), enumerate(k_ids)):
        for h, exact in enumerate(by_hand(q, k, heads, dbar, school)):
            # An angle of 2^25 radians in float64 is off by 2^-27; there are dbar / 2 of them.
            factor = 8 * (h + 1) / heads
            factor = 1 / factor if school[0] == "divide" else factor
            allowed = 2.0**-24 * abs(exact) + 2.0**-27 * half * factor
            assert abs(found[h, i, j].item() - exact) <= allowed


def test_the_default_is_one_school_of_each():
    assert_close(
        wn.Sandwich(6).bias(torch.arange(9), torch.arange(9)),
        made(6, 128, ("divide", 1, True)).bias(torch.arange(9), torch.arange(9)),
        rtol=0,
        atol=0,
    )


def test_it_is_the_product_of_our_own_sinusoidal_codes():
    rows = wn.Sinusoidal(32)(torch.arange(20)).double()
    bias = made(8, 32, ("divide", 0, False)).bias(torch.arange(20), torch.arange(20))
    assert_close(bias[0].double(), rows @ rows.T, rtol=0, atol=1e-5)  # factor 1; 16 float32 sums


@given(q=st.floats(-1e5, 1e5), k=st.floats(-1e5, 1e5))
def test_real_positions_are_used_as_they_are(q, k):
    school = ("multiply", 1, True)
    found = made(3, 8, school).bias(
        torch.tensor([q], dtype=torch.float64), torch.tensor([k], dtype=torch.float64)
    )
    for h, exact in enumerate(by_hand(q, k, 3, 8, school)):
        assert abs(found[h, 0, 0].item() - exact) <= 2.0**-24 * abs(exact) + 2.0**-30


@given(ids=ids_, moved=st.integers(-(2**50), 2**50))
def test_it_sees_the_distance_alone_on_both_sides(ids, moved):
    ids, sandwich = torch.tensor(ids), wn.Sandwich(4, 16)
    bias = sandwich.bias(ids, ids)
    assert_close(bias, bias.mT, rtol=0, atol=0)
    assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all() and (bias <= 0).all()
    assert_close(sandwich.bias(ids + moved, ids + moved), bias, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("queries", "keys", "is_causal"), [(1, 7, True), (3, 7, True), (7, 7, True), (7, 7, False)]
)
def test_attention_adds_it_after_the_scale(queries, keys, is_causal):
    """From built positions (the strip of offsets) and from given ones."""
    q, k, v = drawn(0, 2, 4, queries, 8), drawn(1, 2, 2, keys, 8), drawn(2, 2, 2, keys, 8)
    school, line = ("divide", 1, True), torch.arange(keys)
    sandwich = made(4, 16, school)
    bias = [
        [[float(b) for b in by_hand(i, j, 4, 16, school)] for j in range(keys)]
        for i in range(keys - queries, keys)
    ]
    bias = np.moveaxis(np.array(bias), -1, 0)
    logits = q.numpy() @ repeated(k, 4).swapaxes(-1, -2) / np.sqrt(8) + bias
    expected = softmax(logits, causal(queries, keys) if is_causal else None) @ repeated(v, 4)
    for where in (None, wn.Where(line[keys - queries :], line)):
        found = wn.attention(q, k, v, sandwich, where=where, causal=is_causal)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)  # a bias in float32


@pytest.mark.parametrize("subtract", [True, False])
def test_a_token_without_a_place_gets_and_gives_no_bias(subtract):
    sandwich, ids = wn.Sandwich(2, 8, subtract_constant=subtract), torch.tensor([3, 8, 1])
    expected = sandwich.bias(ids, ids)
    expected[:, 1] = expected[:, :, 1] = 0
    for marked in (torch.tensor([3, wn.NOWHERE, 1]), torch.tensor([3.0, float("nan"), 1.0])):
        assert_close(sandwich.bias(marked, marked), expected, rtol=0, atol=0)


def test_it_has_no_parameters_and_no_cast_changes_it():
    sandwich, ids = wn.Sandwich(6), torch.tensor([0, 999])
    expected = sandwich.bias(ids, ids)
    assert not list(sandwich.parameters()) and not list(sandwich.buffers())
    assert not sandwich.state_dict() and not sandwich.learned
    for cast in (sandwich.half(), sandwich.bfloat16(), sandwich.double()):
        assert_close(cast.bias(ids, ids), expected, rtol=0, atol=0)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"dbar": 7}, ValueError, "dbar must be even.*got 7"),
        ({"dbar": 0}, ValueError, "dbar must be at least 2, got 0"),
        ({"dbar": 8.0}, TypeError, "dbar must be an int, got float"),
        ({"head_scale": "times"}, ValueError, "head_scale must be one of 'divide', 'multiply'"),
        ({"first_index": 2}, ValueError, "first_index must be at most 1, got 2"),
        ({"first_index": True}, TypeError, "first_index must be an int, got bool"),
        ({"subtract_constant": 1}, TypeError, "subtract_constant must be True or False, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.Sandwich(**{"num_heads": 2, **options})
