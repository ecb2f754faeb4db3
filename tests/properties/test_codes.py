"""Measures of codes against the definitions told once more, in NumPy and loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from whereness.properties import codes

tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=4, max_side=12),
    elements=st.integers(-8, 8).map(float),
)


def close(a: float, b: float, tolerance: float = 1e-12):
    assert a == pytest.approx(b, rel=tolerance, abs=tolerance)


def apart(p: np.ndarray) -> list[float]:
    return [math.dist(a, b) for i, a in enumerate(p) for b in p[:i]]


def drawn(rows: int, channels: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, channels)))


@given(tables)
def test_distances(p):
    mean = sum(apart(p)) / len(apart(p))
    t = torch.from_numpy(p)
    close(codes.min_distance(t), min(apart(p)))
    close(codes.uniqueness(t), min(apart(p)) / mean if mean else 0.0)
    close(codes.lipschitz(t), max(math.dist(a, b) for a, b in itertools.pairwise(p)))
    close(codes.max_abs(t), max(abs(v) for v in p.flatten()))


@given(tables)
def test_first_repeat(p):
    expected = next((i for i in range(len(p)) if p[i].tolist() in p[:i].tolist()), None)
    assert codes.first_repeat(torch.from_numpy(p)) == expected


@given(tables)
def test_norm_growth(p):
    points = [
        (math.log(n), math.log(math.hypot(*row))) for n, row in enumerate(p) if n and any(row)
    ]
    got = codes.norm_growth(torch.from_numpy(p))
    if len(points) < 2:
        assert got is None
    else:
        close(got, np.polyfit(*zip(*points, strict=True), 1)[0], 1e-9)


@given(tables)
def test_content_ratio(p):
    power = sum(v * v for v in p.flatten()) / p.size
    got = codes.content_ratio(torch.from_numpy(p))
    assert got is None if power == 0 else got == pytest.approx(1 / power)


@pytest.mark.parametrize("shift", [1, 3, 10])
def test_linear_relation(shift):
    p = drawn(60, 5)
    known = np.hstack([p[:-shift], np.ones((60 - shift, 1))])
    ahead = p[shift:].numpy()
    a = np.linalg.solve(known.T @ known, known.T @ ahead)  # the normal equations
    expected = np.linalg.norm(known @ a - ahead) / np.linalg.norm(ahead - ahead.mean(0))
    close(codes.linear_relation(p, shift), expected, 1e-9)


def test_a_matrix_that_moves_the_codes_is_found():
    turn = torch.linalg.qr(drawn(6, 6))[0]
    rows = [drawn(1, 6, seed=1)[0]]
    for _ in range(40):
        rows.append(turn @ rows[-1])
    p = torch.stack(rows)
    assert codes.linear_relation(p, 3) < 1e-9
    assert codes.rigid_shift(p, 3) < 1e-12
    stretched = p * torch.tensor([1.0, 1, 1, 1, 1, 3]).double()
    assert codes.linear_relation(stretched, 3) < 1e-9
    assert codes.rigid_shift(stretched, 3) > 0.1


def test_rigid_shift():
    p = drawn(12, 4)
    before, after = apart(p[:-2].numpy()), apart(p[2:].numpy())
    expected = max(abs(a - b) for a, b in zip(before, after, strict=True)) / np.mean(before)
    close(codes.rigid_shift(p, 2), expected)


def test_constant_codes_are_moved_by_the_constant():
    assert codes.linear_relation(torch.ones(20, 3).double() / 3, 1) == 0
    assert codes.rigid_shift(torch.ones(20, 3).double() / 3, 1) == 0


def recurrence_r2(p: np.ndarray) -> float:
    half, error, spread = len(p) // 2, 0.0, 0.0
    for x in p.T:
        rows = np.array([[x[i - 1], x[i - 2], 1.0] for i in range(2, half)])
        a, b, c = np.linalg.lstsq(rows, x[2:half], rcond=None)[0]
        error += sum((a * x[i - 1] + b * x[i - 2] + c - x[i]) ** 2 for i in range(half, len(p)))
        spread += ((x[half:] - x[half:].mean()) ** 2).sum()
    return 1 - error / spread


@pytest.mark.parametrize("rows", [20, 21, 64])
def test_process_r2(rows):
    p = drawn(rows, 3)
    close(codes.process_r2(p), recurrence_r2(p.numpy()), 1e-9)


def test_sines_and_lines_go_on_and_random_rows_do_not():
    n = torch.arange(64).double()
    process = torch.stack([(0.3 * n).sin(), (0.01 * n).cos(), 2 * n - 5], -1)
    assert codes.process_r2(process) > 1 - 1e-9
    assert codes.process_r2(drawn(64, 3)) < 0.3


def test_position_decoding():
    p = drawn(40, 3)
    known = np.hstack([p, np.ones((40, 1))])
    n = np.arange(40.0)
    judged = [i for i in range(40) if i % 3 == 2]
    fitted = [i for i in range(40) if i % 3 != 2]
    w = np.linalg.lstsq(known[fitted], n[fitted], rcond=None)[0]
    error = ((known[judged] @ w - n[judged]) ** 2).sum()
    close(codes.position_decoding(p), 1 - error / 40 / n[judged].var() * 40 / len(judged), 1e-9)


def test_position_is_read_from_its_bits_and_not_from_random_rows():
    bits = (torch.arange(64)[:, None] >> torch.arange(6)) & 1
    assert codes.position_decoding(bits.double()) > 1 - 1e-9
    assert codes.position_decoding(drawn(64, 8)) < 0.5


@given(tables)
def test_unseen(p):
    trained = len(p) // 2
    outside = above = 0
    for column in p.T:
        low, high = min(column[:trained]), max(column[:trained])
        above += sum(v > high for v in column[trained:])
        outside += sum(v > high or v < low for v in column[trained:])
    size = (len(p) - trained) * p.shape[1]
    t = torch.from_numpy(p)
    close(codes.unseen(t, trained, only_above=False), outside / size)
    close(codes.unseen(t, trained, only_above=True), above / size)


def test_difference_compares_the_rows_that_both_have():
    p = drawn(6, 2)
    longer = torch.cat([p, drawn(3, 2, seed=1)])
    assert codes.difference(p, longer) == 0
    longer[4, 1] += 0.25
    close(codes.difference(longer, p), 0.25)


@pytest.mark.parametrize(
    ("measure", "rows"),
    [
        (lambda p: codes.linear_relation(p, 3), 4),
        (lambda p: codes.rigid_shift(p, 3), 4),
        (codes.process_r2, 9),
        (codes.position_decoding, 8),
        (lambda p: codes.unseen(p, 9, only_above=False), 9),
        (codes.norm_growth, 2),
    ],
)
def test_too_few_rows_give_none(measure, rows):
    assert measure(drawn(rows, 2)) is None
