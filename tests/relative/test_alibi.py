"""ALiBi against the published recursion, in exact arithmetic.

Axes: H heads, S queries, T keys.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from relative.support import causal, drawn, repeated, softmax

heads = st.integers(1, 70)
positions = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5)


def published_slopes(count: int) -> list[float]:
    """The authors' recursion: a geometric list, and every second entry of the next larger one."""
    power = max(2**n for n in range(9) if 2**n <= count)
    geometric = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    if power == count:
        return geometric
    return geometric + published_slopes(2 * power)[::2][: count - power]


@given(heads)
def test_slopes_are_those_of_the_authors_recursion(count):
    slopes = wn.ALiBi(count).slopes
    assert slopes.dtype == torch.float32 and slopes.device.type == "cpu"
    expected = torch.tensor(published_slopes(count), dtype=torch.float64)
    assert_close(slopes.double(), expected, rtol=2.0**-24, atol=0)


def test_slopes_printed_in_the_paper():
    assert wn.ALiBi(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]
    expected = torch.tensor([2.0 ** (-n / 2) for n in range(1, 17)])
    assert_close(wn.ALiBi(16).slopes, expected, rtol=2.0**-24, atol=0)


@given(count=heads, q_ids=positions, k_ids=positions)
def test_the_bias_is_minus_slope_times_distance_rounded_once(count, q_ids, k_ids):
    found = wn.ALiBi(count).bias(torch.tensor(q_ids), torch.tensor(k_ids))
    assert found.dtype == torch.float32
    assert found.shape == (count, len(q_ids), len(k_ids))
    for h, slope in enumerate(published_slopes(count)):
        for i, q in enumerate(q_ids):
            for j, k in enumerate(k_ids):
                exact = -Fraction(slope) * abs(k - q)
                error = abs(Fraction(found[h, i, j].item()) - exact)
                # 2^-24 of one rounding; the slope and the product are float64
                assert error <= abs(exact) * Fraction(2**29 + 4, 2**53)


@given(q=st.floats(-1e6, 1e6, width=32), k=st.floats(-1e6, 1e6, width=32), wide=st.booleans())
def test_real_positions_are_used_as_they_are(q, k, wide):
    dtype = torch.float64 if wide else torch.float32
    found = wn.ALiBi(12).bias(torch.tensor([q], dtype=dtype), torch.tensor([k], dtype=dtype))
    for h, slope in enumerate(published_slopes(12)):
        exact = -Fraction(slope) * abs(Fraction(k) - Fraction(q))
        error = abs(Fraction(found[h, 0, 0].item()) - exact)
        assert error <= abs(exact) * Fraction(2**29 + 4, 2**53) + Fraction(1, 2**150)


def test_integers_beside_real_positions_keep_all_their_digits():
    """2^24 + 1 has no float32: an offset formed there would be 0."""
    q, k = torch.tensor([2**24 + 1]), torch.tensor([2.0**24])
    for a, b in ((q, k), (k, q)):
        assert wn.ALiBi(8).bias(a, b)[0].tolist() == [[-0.5]]


@given(count=heads, ids=positions, moved=st.integers(-(2**50), 2**50))
def test_it_sees_the_distance_alone_on_both_sides(count, ids, moved):
    ids, alibi = torch.tensor(ids), wn.ALiBi(count)
    bias = alibi.bias(ids, ids)
    assert_close(bias, bias.mT, rtol=0, atol=0)
    assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all() and (bias <= 0).all()
    assert_close(alibi.bias(ids + moved, ids + moved), bias, rtol=0, atol=0)
    assert_close(alibi.bias(-ids, -ids), bias, rtol=0, atol=0)


@given(count=st.integers(1, 12), length=st.integers(1, 9), batch=st.integers(1, 3))
def test_decoding_gives_the_last_row(count, length, batch):
    ids = torch.arange(length) + torch.arange(batch)[:, None] * 5
    alibi = wn.ALiBi(count)
    full = alibi.bias(ids, ids)
    assert full.shape == (batch, count, length, length)
    assert_close(alibi.bias(ids[:, -1:], ids), full[:, :, -1:], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("queries", "keys", "is_causal"), [(1, 7, True), (3, 7, True), (7, 7, True), (7, 7, False)]
)
def test_built_positions_give_what_given_ones_give(queries, keys, is_causal):
    """The strip of offsets that attention uses where it counts positions itself."""
    q, k, v = drawn(0, 2, 4, queries, 8), drawn(1, 2, 2, keys, 8), drawn(2, 2, 2, keys, 8)
    alibi = wn.ALiBi(4)
    built = wn.attention(q, k, v, alibi, causal=is_causal)
    line = torch.arange(keys)
    given_ones = wn.Where(line[keys - queries :], line)
    assert_close(wn.attention(q, k, v, alibi, where=given_ones, causal=is_causal), built)
    distance = np.abs(np.arange(keys) - np.arange(keys - queries, keys)[:, None])
    slopes = np.array(published_slopes(4))[:, None, None]
    logits = q.numpy() @ repeated(k, 4).swapaxes(-1, -2) / np.sqrt(8) - slopes * distance
    allowed = causal(queries, keys) if is_causal else None
    expected = softmax(logits, allowed) @ repeated(v, 4)
    np.testing.assert_allclose(built, expected, rtol=1e-6, atol=1e-7)  # a bias in float32


def test_no_queries_give_no_output():
    q, k = torch.ones(1, 2, 0, 4), torch.ones(1, 2, 3, 4)
    assert wn.attention(q, k, k, wn.ALiBi(2), causal=True).shape == (1, 2, 0, 4)


@pytest.mark.parametrize("real", [False, True])
def test_a_token_without_a_place_gets_and_gives_no_bias(real):
    ids = torch.tensor([3, 8, 1])
    marked = ids.double() if real else ids.clone()
    marked[1] = float("nan") if real else wn.NOWHERE
    expected = wn.ALiBi(3).bias(ids, ids)
    expected[:, 1] = expected[:, :, 1] = 0
    assert_close(wn.ALiBi(3).bias(marked, marked), expected, rtol=0, atol=0)


def test_it_has_no_parameters_and_no_cast_changes_it():
    alibi, ids = wn.ALiBi(6), torch.tensor([0, 999])
    expected = alibi.bias(ids, ids)
    assert not list(alibi.parameters()) and not list(alibi.buffers())
    assert not alibi.state_dict() and not alibi.learned
    for cast in (alibi.half(), alibi.bfloat16(), alibi.double()):
        assert_close(cast.bias(ids, ids), expected, rtol=0, atol=0)
    with torch.device("meta"):
        born = wn.ALiBi(6)
    assert_close(born.to_empty(device="cpu").bias(ids, ids), expected, rtol=0, atol=0)


def test_offsets_beyond_64_bits_do_not_wrap():
    """Refused or right, never the distance modulo 2^64."""
    far = 2**63 - 1
    for q, k in ((-far, far), (far, -far), (-(2**62) - 5, 2**62)):
        try:
            bias = wn.ALiBi(8).bias(torch.tensor([q]), torch.tensor([k]))
        except ValueError:
            continue
        assert bias[0, 0, 0].item() == pytest.approx(-abs(k - q) / 2, rel=2.0**-23)


def test_a_bias_that_float32_cannot_hold_is_refused():
    q, k = (torch.tensor([p], dtype=torch.float64) for p in (1e300, 0.0))
    with pytest.raises(ValueError, match="position"):
        wn.ALiBi(8).bias(q, k)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_head_counts_that_make_no_sense_are_refused(count, error):
    with pytest.raises(error, match=f"num_heads must be.*{count}"):
        wn.ALiBi(count)


@pytest.mark.untyped
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64])
def test_positions_of_these_types_are_refused(dtype):
    ids = torch.arange(3)
    with pytest.raises(TypeError, match=f"k_positions must hold.*{dtype}"):
        wn.ALiBi(2).bias(ids, ids.to(dtype))
    with pytest.raises(TypeError, match=f"q_positions must hold.*{dtype}"):
        wn.ALiBi(2).bias(ids.to(dtype), ids)


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["alibi", "t5", "relative", "factor", "shaw"])
def test_batches_that_do_not_fit_are_refused(name):
    q_ids, k_ids = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64)
    call = {
        "alibi": wn.ALiBi(2).bias,
        "t5": wn.T5(2).bias,
        "relative": wn.LearnedRelative(2, 3).bias,
        "factor": wn.LearnedRelative(2, 3, "multiply").factor,
        "shaw": wn.Shaw(4, 3).index,
    }[name]
    with pytest.raises(ValueError, match="2.*3"):
        call(q_ids, k_ids)
    assert call(q_ids, k_ids[:1]).shape[0] == 2
    assert call(q_ids[0], k_ids).shape[0] == 3
