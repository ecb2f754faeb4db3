"""Random positions: their law, their reproducibility; positions of digits."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whereness.positions import abacus, randomized

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden.json").read_text(encoding="utf-8"))
EXPECTED = [v for v in GOLDEN["values"] if v["quantity"] == "expected_positions"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 40), st.integers(0, 30), st.integers(0, 99))
@settings(max_examples=60)
def test_draws_are_different_sorted_and_in_range(length, spare, seed):
    most = length + spare
    found = randomized(length, most, seeded(seed))
    assert (found.dtype, found.shape) == (torch.int64, (length,))
    drawn = found.tolist()
    assert drawn == sorted(set(drawn))
    assert all(0 <= p < most for p in drawn)
    assert found.equal(randomized(length, most, seeded(seed)))


def test_every_subset_is_as_likely():
    generator, number = seeded(), 6000
    found = Counter(tuple(randomized(2, 4, generator).tolist()) for _ in range(number))
    subsets = list(itertools.combinations(range(4), 2))
    assert set(found) == set(subsets)
    share = number / len(subsets)
    deviation = sum((found[s] - share) ** 2 / share for s in subsets)
    assert deviation < 20.5  # chi squared of 5 degrees of freedom: 1 in 1000


@pytest.mark.parametrize("value", EXPECTED, ids=lambda value: value["id"])
def test_the_mean_draw_is_that_of_golden_values(value):
    length, most = value["input"]["length"], value["input"]["max_position"]
    generator, number = seeded(), 2000
    drawn = torch.stack([randomized(length, most, generator) for _ in range(number)]).double()
    error = 5 * drawn.std(0) / number**0.5
    mean = drawn.mean(0)
    assert abs(mean[0] - value["expected"]["first"]) < error[0]
    assert abs(mean[-1] - value["expected"]["last"]) < error[-1]
    expected = torch.arange(1, length + 1) * value["expected"]["gap"] - 1
    assert ((mean - expected).abs() < error).all()


def test_without_a_generator_torchs_seed_decides():
    torch.manual_seed(3)
    first = randomized(5, 100)
    torch.manual_seed(3)
    assert randomized(5, 100).equal(first)
    assert not randomized(5, 100).equal(first)


@pytest.mark.untyped
def test_what_cannot_be_drawn():
    for arguments, error, message in (
        ((5, 4), ValueError, "needed 5, got 4"),
        ((-1, 4), ValueError, "length must be at least 0"),
        ((1.0, 4), TypeError, "length must be an int"),
        ((1, 4.0), TypeError, "max_position must be an int"),
    ):
        with pytest.raises(error, match=message):
            randomized(*arguments)


# Digits


@given(
    st.integers(0, 9).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=3)
    )
)
@settings(max_examples=60)
def test_digits_are_counted_in_their_numbers(rows):
    expected = []
    for row in rows:
        places, place = [], 0
        for digit in row:
            place = place + 1 if digit else 0
            places.append(place)
        expected.append(places)
    found = abacus(torch.tensor(rows, dtype=torch.bool))
    assert (found.dtype, found.tolist()) == (torch.int64, expected)
    assert abacus(torch.tensor(rows[0], dtype=torch.int64)).tolist() == expected[0]


@pytest.mark.untyped
def test_what_marks_no_digits():
    with pytest.raises(TypeError, match="is_digit must be a tensor, got list"):
        abacus([True])
    with pytest.raises(TypeError, match="is_digit must hold bool"):
        abacus(torch.zeros(2))
    with pytest.raises(ValueError, match=r"is_digit must be \(S,\) or \(B, S\), got \(1, 1, 1\)"):
        abacus(torch.zeros(1, 1, 1, dtype=torch.bool))


@pytest.mark.untyped
def test_a_generator_of_another_kind():
    with pytest.raises(TypeError, match="generator must be a torch.Generator, got int"):
        randomized(2, 4, generator=1)
