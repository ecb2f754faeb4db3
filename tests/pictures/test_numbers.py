"""What the pictures show, against the formulas of the encodings, written anew here."""

import math

import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from whereness.pictures import codes, offsets, rotation, scores, spectrum, subject, values

N = 24
EXACT = {"rtol": 0, "atol": 1e-12}


def waves(dim, base=10_000.0):
    """Frequencies of a sinusoid or RoPE, one at a time."""
    return [base ** (-2 * k / dim) for k in range(dim // 2)]


def test_codes_are_sines_and_cosines_of_the_position():
    found = codes.numbers(subject(wn.Sinusoidal(8), N))
    expected = [
        [f(p * w) for w in waves(8) for f in (math.sin, math.cos)]
        for p in range(N)
    ]  # fmt: skip
    assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
def test_codes_are_the_rows_of_a_table_as_it_is_now(site):
    learned = wn.LearnedAbsolute(8, 30, site=site)
    with torch.no_grad():
        learned.table.copy_(torch.arange(240.0).view(30, 8))
    found = codes.numbers(subject(learned, N))
    assert_close(found, torch.arange(8.0 * N).double().view(N, 8), **EXACT)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_pairs_turn_by_their_frequency(pairing):
    rope = wn.RoPE(12, base=50.0, pairing=pairing, rotary_dim=8)
    found = rotation.numbers(subject(rope, N))
    expected = [[math.cos(n * w) for n in range(N)] for w in waves(8, 50.0)]
    assert_close(found, torch.tensor([expected], dtype=torch.float64), **EXACT)


def test_pairs_of_another_axis_stand_still():
    axial = wn.AxialRoPE(8, num_axes=2, base=100.0)
    found = rotation.numbers(subject(axial, 5))
    expected = [[math.cos(n * w) for n in range(5)] for w in waves(4, 100.0)]
    assert_close(found, torch.tensor([expected], dtype=torch.float64), **EXACT)


def test_axes_of_fewer_pairs_are_filled_up():
    axial = wn.AxialRoPE(12, 3, 100.0, axis_dims=(6, 2, 4))
    found = rotation.numbers(subject(axial, 5))
    expected = torch.full((3, 3, 5), torch.nan, dtype=torch.float64)
    for axis, width in enumerate((6, 2, 4)):
        for pair, w in enumerate(waves(width, 100.0)):
            expected[axis, pair] = (torch.arange(5).double() * w).cos()
    assert_close(found, expected, equal_nan=True, **EXACT)


def test_a_bias_is_that_of_the_encoding():
    found = scores.numbers(subject(wn.ALiBi(2), 4))
    distance = torch.tensor([[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]])
    slopes = torch.tensor([2.0**-4, 2.0**-8])
    assert found.content_free
    assert_close(found.values.double(), -(slopes[:, None, None] * distance).double(), **EXACT)


def test_a_factor_is_that_of_the_encoding():
    multiply = wn.LearnedRelative(1, 3, operation="multiply")
    with torch.no_grad():
        for parameter in multiply.parameters():
            parameter.copy_(torch.arange(1.0, 8.0).view(parameter.shape))  # offsets -3 .. 3
    found = scores.numbers(subject(multiply, 3))
    expected = torch.tensor([[[4.0, 5, 6], [3, 4, 5], [2, 3, 4]]])
    assert_close(found.values.double(), expected.double(), **EXACT)


def test_scores_of_a_word_come_from_its_content():
    shaw = wn.Shaw(4, 2, values=False)
    of = subject(shaw, 5)
    found = scores.numbers(of)
    word = of.tokens()[0]
    offset = torch.tensor([[k - q for k in range(5)] for q in range(5)]).clamp(-2, 2) + 2
    by_row = shaw.key_table.detach().double() @ word
    assert not found.content_free
    assert_close(found.values[0], by_row[offset] - by_row[2], **EXACT)


def test_values_are_the_rows_of_the_table_by_offset():
    shaw = wn.Shaw(4, 3)
    found = values.numbers(subject(shaw, 6))
    table = shaw.value_table.detach().double()
    assert_close(found, table[[3, 2, 1, 0, 0, 0]], **EXACT)  # offsets 0, -1, -2, -3 and beyond


def test_score_curves_fall_as_cosines_do():
    found = offsets.numbers(subject(wn.RoPE(8), N))
    expected = [2 * sum(math.cos(n * w) - 1 for w in waves(8)) for n in range(N)]
    assert len(found.lines) == 1
    assert not found.flat
    assert_close(found.mean, torch.tensor(expected, dtype=torch.float64), **EXACT)
    assert_close(found.low, found.high, **EXACT)


def test_score_curves_of_heads_are_apart():
    found = offsets.numbers(subject(wn.ALiBi(2), N))
    expected = -torch.outer(torch.tensor([2.0**-4, 2.0**-8]), torch.arange(float(N)))
    assert found.of == "head"
    assert_close(found.lines, expected.double(), **EXACT)


def test_the_band_holds_all_places_of_the_query():
    found = offsets.numbers(subject(wn.Integer(1), 4))  # S[i, j] - S[i, i] = i (j - i)
    rows = [[i * -n for i in range(n, 4)] for n in range(4)]
    assert found.low.tolist() == [min(row) for row in rows]
    assert found.high.tolist() == [max(row) for row in rows]
    assert found.mean.tolist() == [sum(row) / len(row) for row in rows]


def test_what_changes_no_score_is_flat_and_has_no_spectrum():
    of = subject(wn.NoPE(), N)
    assert offsets.numbers(of).flat
    assert spectrum.numbers(of) is None


def test_the_spectrum_of_pairs_is_their_wavelengths():
    found = spectrum.numbers(subject(wn.RoPE(8, base=100.0), N))
    expected = [2 * math.pi / w for w in waves(8, 100.0)]
    assert found.of == "pairs"
    assert_close(found.y, torch.tensor([expected], dtype=torch.float64), **EXACT)


def test_the_spectrum_of_codes_peaks_where_they_swing():
    wave = wn.LearnedAbsolute(2, 32)
    p = torch.arange(32.0)
    with torch.no_grad():  # 4 turns in 32 tokens, and 8
        turns = torch.stack([(p * 4 * math.pi / 16).cos(), (p * 8 * math.pi / 16).sin()], -1)
        wave.table.copy_(turns + 5)
    found = spectrum.numbers(subject(wave, 32))
    assert found.of == "codes"
    peaks = dict(zip(found.x.tolist(), found.y[0].tolist(), strict=True))
    assert {x for x, y in peaks.items() if y > 1e-6} == {1 / 8, 1 / 4}
    assert peaks[1 / 8] == pytest.approx(0.5, abs=1e-6)  # the table is float32


def test_the_spectrum_of_a_curve_is_its_fourier_transform():
    of = subject(wn.ALiBi(2), N)
    found = spectrum.numbers(of)
    line = [-n for n in range(N)]  # both heads: shares have no scale
    power = [
        abs(sum(v * complex(math.cos(a), -math.sin(a)) for n, v in enumerate(line)
            for a in [2 * math.pi * k * n / N])) ** 2
        for k in range(1, N // 2 + 1)
    ]  # fmt: skip
    assert found.of == "curve"
    assert_close(found.x.double(), torch.arange(1, N // 2 + 1).double() / N, rtol=0, atol=1e-7)
    expected = torch.tensor([[p / sum(power) for p in power]], dtype=torch.float64)
    assert_close(found.y, expected, rtol=0, atol=1e-9)


def test_an_encoding_with_few_positions_is_drawn_on_those():
    assert len(codes.numbers(subject(wn.LearnedAbsolute(4, 7), N))) == 7


def test_fewer_than_two_positions_are_refused():
    with pytest.raises(ValueError, match="num_positions"):
        subject(wn.NoPE(), 1)
    with pytest.raises(ValueError, match="at least 2 positions, LearnedAbsolute has 1"):
        subject(wn.LearnedAbsolute(4, 1), N)


def test_heads_that_agree_are_one_line():
    same = wn.LearnedRelative(3, 4)
    with torch.no_grad():
        for parameter in same.parameters():
            parameter.copy_(torch.arange(9.0)[:, None].expand_as(parameter))
    found = offsets.numbers(subject(same, 5))
    assert found.lines.tolist() == [[0.0, -1.0, -2.0, -3.0, -4.0]]
