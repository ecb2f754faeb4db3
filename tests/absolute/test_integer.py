"""Integer: the position in every channel."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn


@given(
    dim=st.integers(1, 5),
    length=st.none() | st.integers(1, 2**31 - 1),
    positions=st.lists(st.integers(-(2**53), 2**53), max_size=4),
)
def test_every_channel_is_the_position_over_the_length(dim, length, positions):
    found = wn.Integer(dim, length)(torch.tensor(positions, dtype=torch.int64))
    assert found.dtype == torch.float32 and found.shape == (len(positions), dim)
    for row, p in zip(found.tolist(), positions, strict=True):
        exact = Fraction(p, length or 1)
        for value in row:  # one rounding to float32; in float64 before it
            assert abs(Fraction(value) - exact) <= abs(exact) * Fraction(2**29 + 2, 2**53)


def test_the_same_position_has_another_code_at_another_length():
    short, long = wn.Integer(3, 10)(torch.tensor([5])), wn.Integer(3, 20)(torch.tensor([5]))
    assert_close(short, torch.full((1, 3), 0.5), rtol=0, atol=0)
    assert_close(long, torch.full((1, 3), 0.25), rtol=0, atol=0)


def test_real_positions_and_tokens_without_a_place():
    found = wn.Integer(2, 4)(torch.tensor([[0.5, float("nan")], [-8.0, 3.0]]))
    expected = torch.tensor([[0.125, 0.0], [-2.0, 0.75]])
    assert_close(found, expected[..., None].expand(2, 2, 2), rtol=0, atol=0)
    found = wn.Integer(1)(torch.tensor([7, wn.NOWHERE]))
    assert_close(found, torch.tensor([[7.0], [0.0]]), rtol=0, atol=0)


def test_rows_are_own_memory():
    rows = wn.Integer(3)(torch.tensor([1, 2]))
    rows[0, 0] = 9
    assert rows.tolist() == [[9, 1, 1], [2, 2, 2]]


def test_what_float32_cannot_hold_is_refused():
    huge = torch.tensor([1e300], dtype=torch.float64)
    with pytest.raises(ValueError, match="position"):
        wn.Integer(2)(huge)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
        ({"dim": 2.0}, TypeError, "dim must be an int, got float"),
        ({"dim": 2, "length": 0}, ValueError, "length must be at least 1, got 0"),
        ({"dim": 2, "length": 2.5}, TypeError, "length must be an int, got float"),
        ({"dim": 2, "length": True}, TypeError, "length must be an int, got bool"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.Integer(**options)


@pytest.mark.parametrize("length", [None, 512])
def test_gradients_reach_real_positions(length):
    positions = torch.tensor([0.5, 3.0], dtype=torch.float64, requires_grad=True)
    wn.Integer(4, length)(positions).sum().backward()
    np.testing.assert_allclose(positions.grad, 4 / (length or 1), rtol=1e-15)
