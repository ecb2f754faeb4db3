"""Binary against Python's own way to write a number in bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn


def bits(number: int, count: int) -> list[int]:
    """Least significant first."""
    return [int(b) for b in reversed(f"{number:b}".zfill(count))]


def gray(number: int, count: int) -> list[int]:
    """A bit of the Gray code says whether the bit and the one above it differ."""
    plain = [*bits(number, count), 0]
    return [int(plain[i] != plain[i + 1]) for i in range(count)]


@given(st.data())
def test_rows_are_the_bits_stretched_over_the_channels(data):
    num_bits = data.draw(st.integers(1, 53), "num_bits")
    dim = data.draw(st.integers(num_bits, 70), "dim")
    code = data.draw(st.sampled_from([bits, gray]), "code")
    last = 2**num_bits - 1
    positions = [0, last, *data.draw(st.lists(st.integers(0, last), max_size=5), "positions")]
    found = wn.Binary(dim, num_bits, gray=code is gray)(torch.tensor(positions))
    assert found.dtype == torch.float32
    expected = [[code(p, num_bits)[c * num_bits // dim] for c in range(dim)] for p in positions]
    assert found.tolist() == expected


@given(dim=st.integers(1, 20))
def test_the_default_is_up_to_16_bits_least_significant_first(dim):
    made = wn.Binary(dim)
    assert made.num_bits == min(dim, 16) and made.gray is False
    assert made(torch.tensor([1]))[0, 0] == 1
    assert made(torch.tensor([2 ** (made.num_bits - 1)]))[0, -1] == 1


@pytest.mark.parametrize("is_gray", [False, True])
def test_every_position_has_a_code_of_its_own(is_gray):
    rows = wn.Binary(9, 6, is_gray)(torch.arange(64))
    assert len(rows.unique(dim=0)) == 64
    assert rows.unique().tolist() == [0, 1]


def test_gray_neighbours_differ_in_one_bit_and_plain_ones_do_not():
    steps = wn.Binary(6, 6, gray=True)(torch.arange(64)).diff(dim=0).abs().sum(-1)
    assert (steps == 1).all()
    plain = wn.Binary(6, 6)(torch.tensor([7, 8])).diff(dim=0).abs().sum()
    assert plain == 4


def test_a_channel_more_than_bits_repeats_the_first_ones():
    """floor(c * num_bits / dim): 3 bits over 7 channels are 0 0 0 1 1 2 2."""
    rows = wn.Binary(7, 3)(torch.tensor([1, 2, 4]))
    assert rows.tolist() == [[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]]


def test_tokens_without_a_place_get_zeros_and_are_no_positions_out_of_range():
    found = wn.Binary(3, 3)(torch.tensor([[5, wn.NOWHERE], [wn.NOWHERE, 7]]))
    assert found.tolist() == [[[1, 0, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]]]


@given(num_bits=st.integers(1, 52), over=st.integers(0, 3), below=st.integers(1, 3))
def test_positions_outside_the_bits_are_refused(num_bits, over, below):
    made, limit = wn.Binary(62, num_bits), 2**num_bits
    message = f"{num_bits} bits holds.* {limit - 1}, got.*{limit + over}"
    with pytest.raises(ValueError, match=message):
        made(torch.tensor([0, limit + over]))
    with pytest.raises(ValueError, match=f"got -{below} "):
        made(torch.tensor([-below]))
    made(torch.tensor([0, limit - 1]))


@pytest.mark.parametrize("num_bits", [53, 54, 62])
def test_all_the_bits_that_it_takes_can_be_used(num_bits):
    """Positions end at 2^53: more bits than that are refused, and not only the positions."""
    try:
        made = wn.Binary(62, num_bits)
    except ValueError:
        assert num_bits > 53
    else:
        assert made(torch.tensor([2**num_bits - 1])).tolist() == [[1.0] * 62]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_positions_are_refused(dtype):
    with pytest.raises(TypeError, match=f"integer positions, got {dtype}"):
        wn.Binary(4)(torch.tensor([1.0], dtype=dtype))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 3, "num_bits": 4}, ValueError, "needed at least 4, got 3"),
        ({"dim": 80, "num_bits": 63}, ValueError, r"at most \d+, got 63"),
        ({"dim": 4, "num_bits": 0}, ValueError, "num_bits must be at least 1, got 0"),
        ({"dim": 4, "num_bits": 2.0}, TypeError, "num_bits must be an int, got float"),
        ({"dim": 4, "gray": 1}, TypeError, "gray must be True or False, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.Binary(**options)


def test_integers_of_any_width_are_the_same_positions():
    made = wn.Binary(8, 8)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        found = made(torch.tensor([0, 200], dtype=dtype))
        assert_close(found, made(torch.tensor([0, 200])), rtol=0, atol=0)
