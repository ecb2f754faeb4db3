"""Measures of scores against the definitions told once more, in loops."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from whereness.properties import scores

squares = st.integers(3, 9).flatmap(
    lambda n: hnp.arrays(np.float64, (n, n), elements=st.integers(-5, 5).map(float))
)
masks = st.booleans()


def seen_of(length: int, causal: bool) -> torch.Tensor:
    seen = torch.ones(length, length, dtype=torch.bool)
    return seen.tril() if causal else seen


def pairs(s: np.ndarray, causal: bool) -> list[tuple[int, int]]:
    n = len(s)
    return [(i, j) for i in range(n) for j in range(n) if j <= i or not causal]


def close(a, b, tolerance: float = 1e-9):
    assert a == pytest.approx(b, rel=tolerance, abs=tolerance)


@given(squares, masks)
def test_translation_invariance(s, causal):
    groups = defaultdict(list)
    for i, j in pairs(s, causal):
        groups[i - j].append(s[i, j])
    every = [v for group in groups.values() for v in group]
    mean = sum(every) / len(every)
    total = sum((v - mean) ** 2 for v in every)
    inside = sum((v - sum(g) / len(g)) ** 2 for g in groups.values() for v in g)
    got = scores.translation_invariance(torch.from_numpy(s), seen_of(len(s), causal))
    close(got, inside / total if total > 1e-9 else 0.0)


@given(squares, masks, st.integers(1, 5))
def test_monotonicity(s, causal, within):
    good = steps = 0
    n = len(s)
    for i, distance, side in itertools.product(range(n), range(within), (-1, 1)):
        near, far = i + side * distance, i + side * (distance + 1)
        if not 0 <= far < n or (causal and max(near, far) > i):
            continue
        steps += 1
        good += s[i, far] <= s[i, near]
    got = scores.monotonicity(torch.from_numpy(s), seen_of(n, causal), within)
    close(got, good / steps)


def test_ties_and_rounding_count_as_steps_that_do_not_rise():
    s = torch.zeros(4, 4).double()
    s[0, 1] = 1e-10
    assert scores.monotonicity(s, seen_of(4, causal=False)) == 1
    s[0, 1] = 1e-8
    assert scores.monotonicity(s, seen_of(4, causal=False)) < 1


@given(squares)
def test_first_increase(s):
    n = len(s)
    back = [np.mean([s[i, i - d] for i in range(d, n)]) for d in range(n)]
    expected = next((d for d in range(n - 1) if back[d + 1] > back[d] + 1e-9), None)
    assert scores.first_increase(torch.from_numpy(s)) == expected


@given(squares)
def test_symmetry(s):
    size = math.sqrt(sum(v * v for v in s.flatten()))
    apart = math.sqrt(sum((s[i, j] - s[j, i]) ** 2 for i, j in pairs(s, causal=False)))
    close(scores.symmetry(torch.from_numpy(s)), apart / size if size else 0.0)


def mean_rank(values: list[float], v: float) -> float:
    below, same = sum(w < v for w in values), sum(w == v for w in values)
    return below + (same - 1) / 2


@given(squares, masks)
def test_distance_correlation(s, causal):
    within = 4
    kept = [(i, j) for i, j in pairs(s, causal) if abs(i - j) <= within]
    x, y = [abs(i - j) for i, j in kept], [s[i, j] for i, j in kept]
    x, y = [mean_rank(x, v) for v in x], [mean_rank(y, v) for v in y]
    got = scores.distance_correlation(torch.from_numpy(s), seen_of(len(s), causal), within)
    if len(set(y)) == 1:
        assert got is None
    else:
        close(got, np.corrcoef(x, y)[0, 1])


# On a grid


CELLS = torch.cartesian_prod(torch.arange(3), torch.arange(4))


def by_displacement(function) -> torch.Tensor:
    """S of a function of (dx, dy), for the cells of the grid."""
    return torch.tensor(
        [[float(function(*(b - a).tolist())) for b in CELLS] for a in CELLS], dtype=torch.float64
    )


FUNCTIONS = {
    "sum": lambda x, y: 3 * math.cos(x) + y * y,
    "product": lambda x, y: math.cos(x) * (1 + y * y),
    "distance": lambda x, y: -(x * x + y * y),
    "one axis": lambda x, y: x + 0 * y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_displacement_is_translation_invariant(name):
    s = by_displacement(FUNCTIONS[name])
    assert scores.translation_invariance(s, torch.ones_like(s).bool(), CELLS) < 1e-12
    s[2, 5] += 10
    assert scores.translation_invariance(s, torch.ones_like(s).bool(), CELLS) > 1e-3


def table_of(name: str) -> np.ndarray:
    return np.array([[FUNCTIONS[name](x, y) for y in range(-3, 4)] for x in range(-2, 3)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_separability(name):
    table = table_of(name).astype(float)
    rows, columns, mean = table.mean(1), table.mean(0), table.mean()
    rest = total = 0.0
    for x, y in itertools.product(range(5), range(7)):
        rest += (table[x, y] - rows[x] - columns[y] + mean) ** 2
        total += (table[x, y] - mean) ** 2
    got = scores.separability(by_displacement(FUNCTIONS[name]), CELLS)
    close(got, rest / total)
    assert (got < 1e-12) == (name != "product")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_anisotropy(name):
    table, groups = table_of(name).astype(float), defaultdict(list)
    for x, y in itertools.product(range(5), range(7)):
        groups[(x - 2) ** 2 + (y - 3) ** 2].append(table[x, y])
    inside = sum(((np.array(g) - np.mean(g)) ** 2).sum() for g in groups.values())
    got = scores.anisotropy(by_displacement(FUNCTIONS[name]), CELLS)
    close(got, math.sqrt(inside / ((table - table.mean()) ** 2).sum()))
    assert (got < 1e-6) == (name == "distance")


@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0])
def test_entropy_slope(slope):
    logits = -slope * (torch.arange(64)[:, None] - torch.arange(64)).abs().double()
    weights = logits.masked_fill(~torch.ones(64, 64).tril().bool(), -math.inf).softmax(-1)

    def entropy(length):
        p = [math.exp(-slope * d) for d in range(length)]
        return -sum(v / sum(p) * math.log(v / sum(p)) for v in p)

    expected = (entropy(64) - entropy(16)) / math.log(4)
    close(scores.entropy_slope(weights[None].expand(2, -1, -1), (16, 64)), expected)
    if slope == 0:
        close(expected, 1.0)
