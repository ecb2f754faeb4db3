"""Sinusoidal against mpmath and numpy, written from the formula.

Axes: S positions, W width of a row.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn

ORDERS = ("interleaved", "sin_cos", "cos_sin")
LAST = 2**24 - 1


def columns(order: str, dim: int) -> list[tuple[int, int]]:
    """(column of the sine, column of the cosine) of every frequency."""
    half = dim // 2
    if order == "interleaved":
        return [(2 * k, 2 * k + 1) for k in range(half)]
    if order == "sin_cos":
        return [(k, half + k) for k in range(half)]
    return [(half + k, k) for k in range(half)]


def exact_rows(positions: list, dim: int, base: float, order: str, exponent: str) -> np.ndarray:
    """From the formula at 40 digits."""
    rows = np.zeros((len(positions), dim))
    divisor = dim if exponent == "dim" else dim - 2
    with mpmath.workdps(40):
        for k, (sine, cosine) in enumerate(columns(order, dim)):
            w = mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / divisor)
            for i, p in enumerate(positions):
                rows[i, sine] = float(mpmath.sin(mpmath.mpf(p) * w))
                rows[i, cosine] = float(mpmath.cos(mpmath.mpf(p) * w))
    return rows


@st.composite
def sinusoidal_settings(draw: st.DrawFn) -> dict:
    exponent = draw(st.sampled_from(["dim", "dim-2"]))
    return {
        "dim": 2 * draw(st.integers(1 if exponent == "dim" else 2, 8)),
        "base": draw(st.sampled_from([10_000.0, 100.0, 1.0, 2.0, 1e6, 7.5])),
        "order": draw(st.sampled_from(ORDERS)),
        "exponent": exponent,
    }


@settings(max_examples=60)
@given(options=sinusoidal_settings(), positions=st.lists(st.integers(-LAST, LAST), max_size=3))
def test_rows_are_within_one_float32_rounding_of_the_formula(options, positions):
    positions = [*positions, 0, LAST]
    found = wn.Sinusoidal(**options)(torch.tensor(positions))
    assert found.dtype == torch.float32
    expected = exact_rows(positions, **options)
    # 2^-25 from float32, the rest from angles of up to 2^24 in float64
    np.testing.assert_allclose(found.double(), expected, rtol=0, atol=2.0**-25 + 2.0**-27)


@settings(max_examples=60)
@given(
    options=sinusoidal_settings(),
    positions=st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=3),
    wide=st.booleans(),
)
def test_real_positions_are_used_as_they_are(options, positions, wide):
    given_positions = torch.tensor(positions, dtype=torch.float64 if wide else torch.float32)
    found = wn.Sinusoidal(**options)(given_positions)
    assert found.dtype == torch.float32
    expected = exact_rows(given_positions.tolist(), **options)
    np.testing.assert_allclose(found.double(), expected, rtol=0, atol=2.0**-25 + 2.0**-30)


@pytest.mark.parametrize("exponent", ["dim", "dim-2"])
def test_the_orders_hold_the_same_numbers(exponent):
    positions = torch.tensor([0, 1, 77, 5000])
    rows = {o: wn.Sinusoidal(12, 50.0, o, exponent)(positions) for o in ORDERS}
    for order in ORDERS:
        for sine_cosine in (0, 1):
            here, there = (
                [pair[sine_cosine] for pair in columns(o, 12)] for o in (order, "interleaved")
            )
            moved = rows[order][:, here]
            assert_close(moved, rows["interleaved"][:, there], rtol=0, atol=0)
    assert not torch.equal(rows["sin_cos"], rows["cos_sin"])
    assert not torch.equal(rows["sin_cos"], rows["interleaved"])


def test_the_published_options_are_the_default():
    made = wn.Sinusoidal(8)
    assert (made.base, made.order, made.exponent, made.site, made.join) == (
        10_000.0,
        "interleaved",
        "dim",
        "tokens",
        "add",
    )


@pytest.mark.parametrize(
    ("exponent", "longest"), [("dim", 10_000.0 ** (1 - 2 / 64)), ("dim-2", 10_000.0)]
)
def test_wavelengths_run_from_two_pi_to_the_longest(exponent, longest):
    frequencies = wn.Sinusoidal(64, exponent=exponent).frequencies
    assert frequencies.dtype == torch.float64 and frequencies.shape == (32,)
    assert frequencies[0] == 1.0
    assert 1 / frequencies[-1].item() == pytest.approx(longest, rel=2.0**-50)
    steps = frequencies[1:] / frequencies[:-1]
    assert_close(steps, steps[:1].expand(31), rtol=2.0**-48, atol=0)


def test_frequencies_outlive_casts_and_the_meta_device():
    expected = wn.Sinusoidal(8).frequencies
    with torch.device("meta"):
        born = wn.Sinusoidal(8)
        assert_close(born.frequencies, expected, rtol=0, atol=0)
    for made in (born, born.half(), born.to_empty(device="cpu").bfloat16()):
        assert_close(made.frequencies, expected, rtol=0, atol=0)
        rows = made(torch.tensor([1000]))
        assert_close(rows, wn.Sinusoidal(8)(torch.tensor([1000])), rtol=0, atol=0)
    assert not list(born.state_dict())


@given(options=sinusoidal_settings(), offset=st.integers(-5000, 5000))
def test_one_matrix_moves_every_row_by_the_offset(options, offset):
    made = wn.Sinusoidal(**options)
    shift = np.zeros((options["dim"],) * 2)
    divisor = options["dim"] - (0 if options["exponent"] == "dim" else 2)
    for k, (sine, cosine) in enumerate(columns(options["order"], options["dim"])):
        angle = offset * options["base"] ** (-2 * k / divisor)
        # sin(a + b) and cos(a + b), from sin a and cos a
        shift[sine, [sine, cosine]] = math.cos(angle), math.sin(angle)
        shift[cosine, [sine, cosine]] = -math.sin(angle), math.cos(angle)
    positions = torch.arange(-6, 6) * 101
    before, after = (made.rows(positions + n).numpy() for n in (0, offset))
    np.testing.assert_allclose(before @ shift.T, after, rtol=0, atol=1e4 * 2.0**-50)


@given(options=sinusoidal_settings(), a=st.integers(-5000, 5000), b=st.integers(-5000, 5000))
def test_dot_products_depend_on_the_offset_alone(options, a, b):
    row_a, row_b = wn.Sinusoidal(**options).rows(torch.tensor([a, b]))
    divisor = options["dim"] - (0 if options["exponent"] == "dim" else 2)
    frequencies = options["base"] ** (-2 * np.arange(options["dim"] // 2) / divisor)
    expected = np.cos((b - a) * frequencies).sum()
    assert (row_a @ row_b).item() == pytest.approx(expected, abs=1e4 * 2.0**-49)


def test_tokens_without_a_place_get_zeros():
    made, line = wn.Sinusoidal(6), torch.tensor([[4, 0, 9], [1, 1, 2]])
    absent = torch.tensor([[False, True, False], [True, False, True]])
    expected = made(line).masked_fill(absent[..., None], 0.0)
    marked = line.masked_fill(absent, wn.NOWHERE)
    assert_close(made(marked), expected, rtol=0, atol=0)
    marked = line.double().masked_fill(absent, float("nan"))
    assert_close(made(marked), expected, rtol=0, atol=0)


def test_positions_may_have_any_leading_axes():
    made, positions = wn.Sinusoidal(4), torch.arange(24).view(2, 3, 4)
    assert_close(made(positions), made(positions.flatten()).view(2, 3, 4, 4), rtol=0, atol=0)
    assert made(positions[:, :0]).shape == (2, 0, 4, 4)


def test_gradients_reach_real_positions():
    positions = torch.tensor([0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(wn.Sinusoidal(6, 20.0, "cos_sin", "dim-2").rows, (positions,))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 5}, "dim must be even.*5"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"dim": 2, "exponent": "dim-2"}, "dim of at least 4, got 2"),
        ({"dim": 4, "base": 0}, "base must be.*0"),
        ({"dim": 4, "order": "cos_first"}, "'interleaved', 'sin_cos', 'cos_sin'; got 'cos_first'"),
        ({"dim": 4, "exponent": "d"}, "'dim', 'dim-2'; got 'd'"),
        ({"dim": 4, "site": "keys"}, "'tokens', 'every_layer', 'queries_keys'; got 'keys'"),
        ({"dim": 4, "join": "mul"}, "'add', 'concat'; got 'mul'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.Sinusoidal(**options)
