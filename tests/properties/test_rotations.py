"""Measures of door 3 against rotation matrices and sums written out."""

import cmath
import itertools
import math

import numpy as np
import pytest
import torch

import whereness as wn
from whereness.properties import rotations
from whereness.properties.doors import exact_copy

POSITIONS = (0, 1, 5, 300)


def turning(position: float, dim: int, base: float, growth: float = 0.0) -> np.ndarray:
    """The block-diagonal matrix of a position, pairs (2k, 2k + 1); `growth` stretches it."""
    matrix = np.zeros((dim, dim))
    for k in range(dim // 2):
        a = position * base ** (-2 * k / dim)
        matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [
            [math.cos(a), -math.sin(a)],
            [math.sin(a), math.cos(a)],
        ]
    return matrix * math.exp(growth * position)


class Growing(wn.RoPE):
    """Queries and keys grow with position."""

    growth = 1e-3

    def queries_keys(self, q, k, at, features):
        q, k = super().queries_keys(q, k, at, features)
        size = (self.growth * at.where.positions.double()).exp()[:, None, :, None]
        return q * size, k * size


class Quadratic(wn.RoPE):
    """Angles grow with the square of the position: no group, not relative."""

    def angles(self, positions, lengths=None):
        return super().angles(positions.double() ** 2)


def test_the_matrices_are_those_of_the_paper():
    rope = exact_copy(wn.RoPE(6, base=100.0, pairing="interleaved"))
    q, k = rotations.matrices(rope, torch.tensor(POSITIONS))
    expected = np.stack([turning(p, 6, 100.0) for p in POSITIONS])
    for matrix in (q, k):
        np.testing.assert_allclose(matrix[0].numpy(), expected, atol=1e-12)


def test_door_3_that_is_shut_or_not_linear_has_no_matrices():
    class Squaring(wn.RoPE):
        def queries_keys(self, q, k, at, features):
            q, k = super().queries_keys(q, k, at, features)
            return q * q, k * k

    positions = torch.tensor(POSITIONS)
    assert rotations.matrices(exact_copy(wn.NoPE()), positions) is None
    assert rotations.matrices(exact_copy(wn.ALiBi(2)), positions) is None
    assert rotations.matrices(exact_copy(Squaring(8)), positions) is None


@pytest.mark.parametrize("cls", [wn.RoPE, Growing])
def test_norms_and_laws(cls):
    growth = getattr(cls, "growth", 0.0)
    rope = exact_copy(cls(6, base=100.0, pairing="interleaved"))
    positions = torch.tensor(POSITIONS)
    q, _ = rotations.matrices(rope, positions)
    close = pytest.approx
    kept = max(abs(math.exp(growth * p) - 1) for p in POSITIONS)
    assert rotations.norm_preservation(q) == close(kept, rel=1e-9, abs=1e-12)
    apart = added = 0.0
    for a, b in itertools.product(POSITIONS, POSITIONS):
        r_a, r_b = (turning(p, 6, 100.0, growth) for p in (a, b))
        added = max(added, np.linalg.norm(r_a @ r_b - turning(a + b, 6, 100.0, growth)))
        apart = max(apart, np.linalg.norm(r_a.T @ r_b - turning(b - a, 6, 100.0, growth)))
    assert rotations.group_law(rope, positions) == close(added, rel=1e-9, abs=1e-11)
    assert rotations.exact_relativity(rope, positions) == close(apart, rel=1e-9, abs=1e-11)
    assert (apart > 1e-3) == (cls is Growing)


def test_angles_that_are_not_linear_in_position_break_both_laws():
    rope, positions = exact_copy(Quadratic(8)), torch.tensor((0, 1, 3))
    assert rotations.group_law(rope, positions) > 0.1
    assert rotations.exact_relativity(rope, positions) > 0.1
    found = rotations.of_rotations(rope, 64)
    assert found["norm_preservation"] < 1e-12
    assert found["exact_relativity"] > 0.1


FREQUENCIES = torch.tensor([1.0, 0.3, 0.02, 0.004], dtype=torch.float64)


@pytest.mark.parametrize(
    ("length", "count", "first"),
    [
        (1, 4, 0),
        (6, 4, 0),
        (7, 3, 1),
        (20, 3, 1),
        (21, 2, 2),
        (314, 2, 2),
        (315, 1, 3),
        (1571, 0, None),
    ],
)
def test_unfinished_pairs(length, count, first):
    wavelengths = [2 * math.pi / f for f in FREQUENCIES.tolist()]
    assert sum(w > length for w in wavelengths) == count
    got = rotations.unfinished_pairs(FREQUENCIES, length)
    assert got == {"count": count, "first": first}


@pytest.mark.parametrize("base", [2.0, 50.0, 1000.0])
def test_first_negative_offset(base):
    frequencies = [base ** (-2 * k / 16) for k in range(8)]
    expected = next(
        m for m in itertools.count(1) if math.fsum(math.cos(m * f) for f in frequencies) < 0
    )
    got = rotations.first_negative_offset(torch.tensor(frequencies, dtype=torch.float64))
    assert got == expected


def test_first_negative_offset_beyond_the_first_chunk_and_the_limit():
    slow = torch.tensor([math.pi / 2 / 5000], dtype=torch.float64)
    assert rotations.first_negative_offset(slow) == 5001
    assert rotations.first_negative_offset(slow, limit=5000) is None
    assert rotations.first_negative_offset(slow, limit=5001) == 5001


def test_decay_bound():
    for m in (0, 3, -40):
        total, sizes = 0j, []
        for f in FREQUENCIES.tolist():
            total += cmath.exp(1j * m * f)
            sizes.append(abs(total))
        got = rotations.decay_bound(FREQUENCIES, torch.tensor([m]))
        assert float(got) == pytest.approx(sum(sizes) / len(sizes), abs=1e-12)


def test_the_worst_axis_is_reported():
    axial = wn.AxialRoPE(16, axis_dims=(4, 12), base=100.0)
    found = rotations.of_rotations(exact_copy(axial), 40)
    wide, narrow = (rotations.unfinished_pairs(f, 40) for f in reversed(axial.frequencies))
    assert found["unfinished_pairs"] == max(wide, narrow, key=lambda u: u["count"])
    bounds = [rotations.first_negative_offset(f) for f in axial.frequencies]
    assert found["context_bound"] == min(bounds)
    assert found["exact_relativity"] < 1e-10
