import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whereness.lab import statistics
from whereness.lab.statistics import (
    block_lengths,
    bootstrap,
    mean_loss,
    paired_difference,
    spread,
)

finite = st.floats(-10, 10)


def autoregressive(num, phi, rng):
    """A stationary AR(1) series of mean 0 whose innovations have variance 1."""
    values = [rng.normal() / math.sqrt(1 - phi**2)]
    for noise in rng.normal(size=num - 1):
        values.append(phi * values[-1] + noise)
    return values


def slow(values, length, rng, resamples=2000):
    """The procedure, told anew with numpy: index by index round the circle."""
    num = len(values)
    means = []
    for _ in range(resamples):
        drawn = []
        while len(drawn) < num:
            start = rng.integers(num)
            drawn += [values[(start + step) % num] for step in range(length)]
        means.append(np.mean(drawn[:num]))
    return np.array(means)


@pytest.mark.parametrize(
    ("num", "length"), [(1, 1), (2, 1), (3, 1), (4, 2), (15, 2), (16, 3), (64, 4), (750, 9)]
)
def test_the_length_of_a_block(num, length):
    assert block_lengths({512: num}) == {512: length}


@pytest.mark.parametrize(
    ("num_windows", "expected"),
    [
        ({64: 744, 128: 372, 512: 93}, {64: 40, 128: 20, 512: 5}),
        ({64: 48, 300: 10, 512: 6}, {64: 16, 300: 3, 512: 2}),  # 300 does not divide 1024
        ({8: 3, 64: 1}, {8: 3, 64: 1}),  # no more than there are
    ],
)
def test_blocks_have_as_many_bytes_at_every_length(num_windows, expected):
    assert block_lengths(num_windows) == expected


def test_short_windows_have_the_error_of_long_ones():
    """Of one text, which is correlated over many short windows, the mean is the same."""
    series = autoregressive(8 * 500, 0.9, np.random.default_rng(6))
    long = np.reshape(series, (-1, 8)).mean(-1).tolist()
    blocks = block_lengths({64: 4000, 512: 500})
    short = spread(series, blocks[64])["se"]
    assert short == pytest.approx(spread(long, blocks[512])["se"], rel=0.07)


def test_it_agrees_with_a_slow_bootstrap():
    rng = np.random.default_rng(1)
    values = [3 + v for v in autoregressive(100, 0.6, rng)]  # 20 blocks of 5
    ours, theirs = spread(values, 5), slow(values, 5, rng)
    # The standard deviation of 2000 values is off by 1 / sqrt(4000), 1.6 %; two of them differ.
    assert ours["se"] == pytest.approx(theirs.std(), rel=0.07)
    low, high = np.quantile(theirs, [0.025, 0.975])
    assert ours["low"] == pytest.approx(low, abs=0.15 * theirs.std())
    assert ours["high"] == pytest.approx(high, abs=0.15 * theirs.std())
    assert ours["mean"] == pytest.approx(np.mean(values))


def test_the_last_block_is_cut():
    """With 10 windows and blocks of 2, 5 blocks fit; with 11, one window of the 6th counts."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=11).tolist()
    theirs = slow(values, 2, rng)
    assert float(bootstrap(values, 2).std()) == pytest.approx(theirs.std(), rel=0.07)


def test_every_window_is_drawn_equally_often():
    """The mean of the resamples is unbiased, the first and last window being a window's rest."""
    for place in (0, 1, 25, 49):
        values = [0.0] * 50
        values[place] = 50.0
        means = bootstrap(values, 4)
        assert float(means.mean()) == pytest.approx(1.0, abs=4 * float(means.std()) / 2000**0.5)


def test_independent_windows_have_the_textbook_error():
    rng = np.random.default_rng(3)
    found = []
    for _ in range(40):
        values = rng.normal(size=400)
        found.append(spread(values.tolist(), 7)["se"] / (values.std(ddof=1) / 20))
    # Blocks of 7 in 400 windows: a ratio of about sqrt(1 - 7 / 400), spread by 0.1 a trial.
    assert np.mean(found) == pytest.approx(0.99, abs=4 * 0.1 / 40**0.5)


def test_correlated_windows_have_a_larger_error():
    """Of an AR(1) the standard error of the mean tends to 1 / ((1 - phi) sqrt(N))."""
    rng = np.random.default_rng(4)
    num, phi = 4000, 0.5
    values = autoregressive(num, phi, rng)
    known = 1 / ((1 - phi) * math.sqrt(num))
    naive = np.std(values, ddof=1) / math.sqrt(num)
    assert known / naive == pytest.approx(math.sqrt(3), rel=0.1)
    se = spread(values, 16)["se"]
    assert se > 1.4 * naive
    assert se == pytest.approx(known, rel=0.15)


@pytest.mark.parametrize(("phi", "expected"), [(0.0, 0.945), (0.3, 0.925)])
def test_the_interval_covers_the_truth(phi, expected):
    rng = np.random.default_rng(5)
    trials = 300
    covered = 0
    for _ in range(trials):
        found = spread(autoregressive(300, phi, rng), 7)
        covered += found["low"] <= 0 <= found["high"]
    error = math.sqrt(expected * (1 - expected) / trials)
    assert covered / trials == pytest.approx(expected, abs=3 * error)


def test_two_windows():
    """One window a block: a quarter of the resamples has twice the first, a quarter the second."""
    found = spread([1.0, 3.0], 1)
    assert found["mean"] == 2.0
    assert (found["low"], found["high"]) == (1.0, 3.0)
    assert found["se"] == pytest.approx(math.sqrt(0.5), rel=0.05)


@given(finite, st.integers(1, 40), st.integers(1, 40))
def test_equal_losses_have_no_spread(value, num, block):
    assert spread([value] * num, min(num, block)) == {
        "mean": value,
        "se": 0.0,
        "low": value,
        "high": value,
    }


@given(st.lists(finite, min_size=2, max_size=30), st.floats(-5, 5), st.integers(1, 30))
def test_the_interval_moves_and_turns_with_the_values(values, shift, block):
    block = min(block, len(values))
    found = spread(values, block)
    assert found["low"] <= found["high"]
    assert min(values) - 1e-9 <= found["low"] and found["high"] <= max(values) + 1e-9
    moved, turned = (spread(v, block) for v in ([v + shift for v in values], [-v for v in values]))
    for key in ("mean", "low", "high"):
        assert moved[key] == pytest.approx(found[key] + shift, abs=1e-9)
    assert turned["low"] == pytest.approx(-found["high"], abs=1e-9)
    assert turned["se"] == pytest.approx(found["se"], abs=1e-9)


def test_the_same_values_give_the_same_numbers():
    values = [math.sin(i) for i in range(50)]
    state = torch.get_rng_state()
    found = spread(values, 4)
    assert torch.equal(torch.get_rng_state(), state)  # others' random numbers are left alone
    torch.manual_seed(7)
    assert spread(values, 4) == found


def test_windows_are_averaged_over_seeds_first():
    losses = {1: [3.0, 1.0, 5.0], 0: [1.0, 3.0, 2.0]}
    found = mean_loss(losses, 2)
    assert list(found) == ["mean", "se", "low", "high", "by_seed"]
    assert found["by_seed"] == {"0": 2.0, "1": 3.0}
    assert list(found["by_seed"]) == ["0", "1"]
    assert {k: v for k, v in found.items() if k != "by_seed"} == spread([2.0, 2.0, 3.5], 2)
    assert mean_loss({0: [2.0, 3.0]}, 1)["by_seed"] == {"0": 2.5}


def test_differences_are_paired():
    """What all windows have in common cancels: only the difference of 0.5 remains."""
    text = [math.sin(i) * 3 for i in range(100)]
    losses = {0: [t + 0.5 for t in text], 1: [2 * t + 0.25 for t in text]}
    others = {0: text, 1: [2 * t for t in text]}
    found = paired_difference(losses, others, 5)
    assert list(found) == ["mean", "low", "high", "by_seed"]
    assert found["by_seed"] == {"0": pytest.approx(0.5), "1": pytest.approx(0.25)}
    for key in ("mean", "low", "high"):
        assert found[key] == pytest.approx(0.375)


def test_only_common_seeds_are_compared():
    losses = {0: [9.0, 9.0], 1: [2.0, 4.0]}
    others = {1: [1.0, 1.0], 2: [0.0, 0.0]}
    found = paired_difference(losses, others, 1)
    assert found["by_seed"] == {"1": 2.0}
    assert found["mean"] == 2.0
    assert (found["low"], found["high"]) == (1.0, 3.0)


def test_without_common_seeds_windows_are_still_paired():
    found = paired_difference({0: [5.0, 1.0], 1: [7.0, 3.0]}, {2: [4.0, 0.0]}, 1)
    assert found == {"mean": 2.0, "low": 2.0, "high": 2.0, "by_seed": {}}


def test_windows_of_other_texts_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paired_difference({0: [1.0, 2.0]}, {0: [1.0]}, 1)


def test_a_comparison_takes_little_time():
    losses = {s: np.random.default_rng(s).normal(size=750).tolist() for s in (0, 1)}
    began = time.process_time()
    for _ in range(20):
        mean_loss(losses, 9)
        paired_difference(losses, losses, 9)
    assert (time.process_time() - began) / 40 < 2 / (11 * 4 * 3)


def test_the_settings_are_those_of_the_schema():
    assert (statistics.RESAMPLES, statistics.LEVEL) == (2000, 0.95)
    assert len(bootstrap([1.0, 2.0], 1)) == 2000
