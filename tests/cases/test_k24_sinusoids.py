"""K24: geometric frequencies, one a pair of sine and cosine; every choice has a name."""

import pytest
import torch

import whereness as wn
from cases.support import bitwise, case, differ, equal

ORDERS = ("interleaved", "sin_cos", "cos_sin")


def split(rows: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(sines, cosines) of rows, (..., dim/2) each."""
    if order == "interleaved":
        return rows[..., 0::2], rows[..., 1::2]
    first, second = rows.chunk(2, -1)
    return (first, second) if order == "sin_cos" else (second, first)


@case("P223")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dim", "base"), [(8, 10_000.0), (6, 1000.0), (512, 10_000.0), (64, 2.0)])
def test_frequencies_fall_geometrically(dim, base, order):
    made = wn.Sinusoidal(dim, base, order)
    expected = torch.tensor([1 / base ** (2 * k / dim) for k in range(dim // 2)]).double()
    torch.testing.assert_close(made.frequencies, expected, rtol=1e-6, atol=0)
    ratios = made.frequencies[1:] / made.frequencies[:-1]
    equal(ratios, ratios[:1].expand_as(ratios), 1e-12)
    # Read from the rows: the angle of position 1 is the frequency.
    sines, cosines = split(made(torch.tensor([1])), order)
    equal(torch.atan2(sines[0], cosines[0]).double(), expected, 1e-6)


@case("P223")
def test_frequencies_of_eight_channels():
    made = wn.Sinusoidal(8)
    equal(made.frequencies, torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64), 1e-15)


@case("P225")
@pytest.mark.parametrize("exponent", ["dim", "dim-2"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_sine_and_its_cosine_share_one_frequency(order, exponent):
    made = wn.Sinusoidal(16, order=order, exponent=exponent)
    positions = torch.tensor([1, 3, 17, 4095])
    sines, cosines = split(made(positions).double(), order)
    equal(sines.square() + cosines.square(), torch.ones(4, 8, dtype=torch.float64), 1e-6)
    angles = positions[:, None] * made.frequencies
    equal(sines, angles.sin(), 1e-6)
    equal(cosines, angles.cos(), 1e-6)
    assert len(made.frequencies.unique()) == 8


@case("P228")
def test_both_exponents_have_a_name():
    by_dim, shifted = (wn.Sinusoidal(8, exponent=e).frequencies for e in ("dim", "dim-2"))
    equal(by_dim, torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64), 1e-15)
    expected = torch.tensor([1, 0.046416, 0.002154, 0.0001], dtype=torch.float64)
    torch.testing.assert_close(shifted, expected, rtol=0, atol=5e-7)
    # half - 1 steps to the base, exactly.
    assert shifted[-1].item() == pytest.approx(1 / 10_000.0, rel=1e-14)


def permutation(order: str, dim: int) -> torch.Tensor:
    """Channel of the interleaved row that each channel of `order` holds."""
    sines, cosines = torch.arange(0, dim, 2), torch.arange(1, dim, 2)
    return {
        "interleaved": torch.arange(dim),
        "sin_cos": torch.cat([sines, cosines]),
        "cos_sin": torch.cat([cosines, sines]),
    }[order]


@case("P229")
@pytest.mark.parametrize("exponent", ["dim", "dim-2"])
@pytest.mark.parametrize("order", ORDERS)
def test_orders_are_permutations_that_a_permuted_weight_undoes(order, exponent):
    dim, positions = 12, torch.tensor([0, 1, 7, 1000])
    plain = wn.Sinusoidal(dim, exponent=exponent)(positions)
    other = wn.Sinusoidal(dim, order=order, exponent=exponent)(positions)
    index = permutation(order, dim)
    bitwise(other, plain[:, index])
    weight = torch.randn(5, dim, dtype=torch.float64)
    equal(other.double() @ weight[:, index].T, plain.double() @ weight.T, 1e-12)
    if order != "interleaved":
        differ(other.double() @ weight.T, plain.double() @ weight.T)


@case("P228", "P229")
@pytest.mark.untyped
def test_a_choice_without_a_name_is_refused():
    with pytest.raises(ValueError, match="'interleaved', 'sin_cos', 'cos_sin'; got 'flipped'"):
        wn.Sinusoidal(8, order="flipped")
    with pytest.raises(ValueError, match="'dim', 'dim-2'; got 'half'"):
        wn.Sinusoidal(8, exponent="half")


def likeness(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a, b, dim=-1).item()


@case("P231")
def test_the_unit_of_real_inputs_is_the_callers_and_shows():
    made = wn.Sinusoidal(128)
    ends = torch.tensor([0.0, 1.0])
    unscaled, scaled = made(ends), made(ends * 1000)
    assert likeness(*unscaled) == pytest.approx(0.97, abs=0.005)
    assert likeness(*scaled) == pytest.approx(0.16, abs=0.005)


@case("P231")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_times_are_resolved_and_not_rounded(dtype):
    made, times = wn.Sinusoidal(128), torch.linspace(0, 1, 1001, dtype=dtype)
    rows = made(times * 1000)
    assert rows.dtype == torch.float32
    assert len(rows.unique(dim=0)) == 1001
    # Between two integers lies another row, not one of theirs.
    half = made(torch.tensor([2.5], dtype=dtype))
    differ(half, made(torch.tensor([2])), 0.1)
    differ(half, made(torch.tensor([3])), 0.1)
    bitwise(made(torch.tensor([2.0], dtype=dtype)), made(torch.tensor([2])))
