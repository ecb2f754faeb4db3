"""The story's numbers against hand numbers, numpy, complex numbers and closed forms.

The oracles share no code with the library. Only the random words and matrices are the story's own,
drawn by `parts.drawn`: they are what the numbers are about.
"""

import functools
import io
import itertools
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import whereness as wn
from whereness import cli, story
from whereness.story import parts
from whereness.story.parts import Measured, Numbers
from whereness.story.turning import scores_on_grid

EPS = 2.0**-53  # rounding of one float64 operation
LENGTH = 64  # width of most words


@functools.cache
def numbers(step: int) -> Any:
    """What step 1 .. 12 gives; every test reads the same."""
    return story.STEPS[step - 1].function()


def measured(step: int, name: str, of: str | None = None) -> Measured:
    """A step's measurement of a property, by name and candidate."""
    found = [m for m in numbers(step).measured if m.name == name and of in (None, m.of)]
    assert len(found) == 1, found
    return found[0]


def close(found: object, expected: object, tolerance: float) -> None:
    """Equal up to an absolute tolerance, shapes included."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance


def same(a: Any, b: Any) -> None:
    """Nested plain values, equal; LAPACK may round least squares in another way at every call."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, float):
        assert abs(a - b) <= 14_096 * EPS
    else:
        assert a == b


def largest(x: torch.Tensor) -> float:
    return float(np.abs(x.numpy()).max())


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def head(x: np.ndarray, bias: object = 0.0, turn: Callable = lambda t: t) -> tuple:
    """(outputs, weights) of one head over x (S, D): q and k turned, `bias` added to the logits."""
    q, k, v = (x @ w for w in matrices(x.shape[-1]))
    weights = softmax(turn(q) @ turn(k).T / math.sqrt(x.shape[-1]) + bias)
    return weights @ v, weights


def matrices(dim: int) -> np.ndarray:
    return parts.drawn(3, dim, dim, seed=1).numpy() / math.sqrt(dim)


def frequencies(dim: int) -> np.ndarray:
    return np.array([10_000.0 ** (-2 * i / dim) for i in range(dim // 2)])


def sinusoid(positions: object, dim: int) -> np.ndarray:
    angles = np.asarray(positions, dtype=float)[:, None] * frequencies(dim)
    codes = np.empty((len(angles), dim))
    codes[:, 0::2], codes[:, 1::2] = np.sin(angles), np.cos(angles)
    return codes


def turned(x: np.ndarray, positions: object) -> np.ndarray:
    """Rows of x turned as complex numbers, channel i with i + D/2."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions, dtype=float)[:, None] * frequencies(2 * half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], -1)


def bits(p: int, count: int) -> list[int]:
    """Least significant first, from Python's own binary notation."""
    return [int(digit) for digit in reversed(format(p, f"0{count}b"))]


# Step 1


def test_two_tokens_give_the_weights_and_outputs_of_the_example():
    n = numbers(1)
    close(n.two.weights, [[0.9, 0.1], [0.2, 0.8]], EPS)
    close(n.two.outputs, [[1.2, 2.2], [2.6, 3.6]], 8 * EPS)


def test_swapped_tokens_swap_rows_and_columns_of_the_weights_and_rows_of_the_outputs_exactly():
    n = numbers(1)
    close(n.swapped.weights, [[0.8, 0.2], [0.1, 0.9]], EPS)
    (a, b), (c, d) = n.two.weights.tolist()
    assert n.swapped.weights.tolist() == [[d, c], [b, a]]
    assert n.swapped.outputs.tolist() == n.two.outputs.tolist()[::-1]


def test_random_tokens_follow_a_permutation():
    n = numbers(1)
    order = list(n.permutation)
    assert sorted(order) == list(range(6))
    assert order != sorted(order)
    x = n.tokens.numpy()
    for found, tokens in ((n.straight, x), (n.permuted, x[order])):
        outputs, weights = head(tokens)
        close(found.outputs, outputs, 64 * EPS)
        close(found.weights, weights, 64 * EPS)
    close(n.permuted.weights, [[n.straight.weights[i, j] for j in order] for i in order], 16 * EPS)
    assert n.outputs_gap == largest(n.permuted.outputs - n.straight.outputs[order])
    assert n.weights_gap <= 16 * EPS
    assert measured(1, "permutation_sensitivity").value == n.outputs_gap <= 64 * EPS


# Step 2


def test_the_two_sentences_have_the_same_words_in_another_order():
    n = numbers(2)
    first, second = (sentence.split() for sentence in n.sentences)
    assert n.sentences == ("the woman ate the raccoon", "the raccoon ate the woman")
    for words, tokens in zip((first, second), n.tokens, strict=True):
        rows = [tuple(row) for row in tokens.tolist()]
        assert len(set(rows)) == len(set(words)) == 4
        assert rows[0] == rows[3]
    assert n.tokens[0][1].equal(n.tokens[1][4])
    assert n.tokens[0][4].equal(n.tokens[1][1])


def test_no_word_of_the_two_sentences_can_be_told_apart():
    n = numbers(2)
    places = ([0, 1, 2, 4], [0, 4, 2, 1])  # of: the, woman, ate, raccoon
    assert n.words == ("the", "woman", "ate", "raccoon")
    for found, x, rows in zip(n.outputs, n.tokens, places, strict=True):
        close(found, head(x.numpy())[0][rows], 64 * EPS)
    assert measured(2, "permutation_sensitivity", "no encoding").value == n.gap
    assert n.gap == largest(n.outputs[0] - n.outputs[1]) <= 64 * EPS
    assert n.mean_gap <= 64 * EPS


def test_a_causal_mask_tells_the_two_sentences_apart():
    n = numbers(2)
    future = np.triu(np.full((5, 5), -np.inf), 1)
    first, second = (head(x.numpy(), future)[0] for x in n.tokens)
    expected = np.abs(first[[0, 1, 2, 4]] - second[[0, 4, 2, 1]]).max()
    close(n.causal_gap, expected, 64 * EPS)
    assert expected > 1
    assert measured(2, "permutation_sensitivity", "causal mask alone").value == n.causal_gap


# Step 3


def dogs_by_hand(x: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of the five words with every encoding."""
    p = np.arange(5.0)
    table = parts.drawn(9, 1).numpy()[:, 0]  # one number for each offset -4 .. 4
    offsets = p[None, :].astype(int) - p[:, None].astype(int)
    # Three bits over 16 channels: 6, 5 and 5 of them.
    stretched = np.array(
        [[b[0]] * 6 + [b[1]] * 5 + [b[2]] * 5 for b in (bits(i, 3) for i in range(5))]
    )
    return {
        "no encoding": head(x)[0],
        "Integer": head(x + p[:, None])[0],
        "Integer / length": head(x + p[:, None] / 5)[0],
        "Binary": head(x + stretched)[0],
        "Sinusoidal": head(x + sinusoid(p, 16))[0],
        "LearnedRelative": head(x, table[offsets + 4])[0],
        "RoPE": head(x, turn=lambda t: turned(t, p))[0],
    }


def test_two_dogs_are_equal_until_an_encoding_joins():
    n = numbers(3)
    assert n.sentence.split()[n.places[0]] == n.sentence.split()[n.places[1]] == "dog"
    assert n.places == (1, 4)
    assert n.tokens[1].equal(n.tokens[4])
    expected = dogs_by_hand(n.tokens.numpy())
    assert list(n.outputs) == list(expected)
    for name, outputs in expected.items():
        close(n.outputs[name], outputs[[1, 4]], 256 * EPS)
        difference = np.abs(outputs[1] - outputs[4]).max()
        close(n.gaps[name], difference, 256 * EPS)
        assert measured(3, "same_word", name).value == n.gaps[name]
        assert (
            (difference > 1e-3) == (name != "no encoding") == measured(3, "same_word", name).holds
        )


# Steps 4 to 6


def test_integer_codes_swamp_the_word():
    n = numbers(4)
    dog, chased = n.tokens.numpy()
    for i, p in enumerate((0, 1, 10, 100, 1000)):
        assert n.positions[i] == p
        close(n.ratio[i], 8 * p / np.linalg.norm(dog), 4 * EPS * max(p, 1))
        close(n.kept[i], cosine(dog, dog + p), 16 * EPS)
        close(n.alike[i], cosine(dog + p, chased + p), 16 * EPS)
    assert measured(4, "max_abs").value == 1000
    assert measured(4, "min_distance").value == 8  # neighbours, 1 in each of 64 channels


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_normalised_codes_depend_on_the_length():
    n = numbers(5)
    assert (n.position, n.lengths) == (5, (10, 100, 1000, 10_000))
    assert n.codes.tolist() == [0.5, 0.05, 0.005, 0.0005]
    close(n.steps, [0.1, 0.01, 0.001, 0.0001], EPS)
    assert measured(5, "max_abs").value == 0.9999
    assert measured(5, "length_dependence").value == 127 / 256  # (N - 1) / 2N


def test_binary_codes_are_the_bits():
    n = numbers(6)
    assert n.codes.tolist() == [bits(p, 5) for p in range(17)]
    assert n.flips.tolist() == [(p ^ (p - 1)).bit_count() for p in range(1, 128)]
    assert n.repeats == (2, 4, 8, 16, 32)
    assert "0 .. 65535" in n.beyond
    assert "65536" in n.beyond
    assert measured(6, "max_abs").value == 1
    assert measured(6, "min_distance").value == 1
    assert measured(6, "length_dependence").value == 0


def gray(count: int) -> list[list[int]]:
    """By reflection: all codes of one bit less, then the same backwards with the next bit set."""
    if count == 0:
        return [[]]
    shorter = gray(count - 1)
    return [[*code, 0] for code in shorter] + [[*code, 1] for code in reversed(shorter)]


def test_no_linear_map_moves_binary_codes():
    n = numbers(6)
    tables = {"Binary": [bits(p, 7) for p in range(128)], "Binary, Gray code": gray(7)}
    for name, table in tables.items():
        close(n.residual[name], affine_residual(np.array(table, dtype=float), 3), 1e-12)
        assert measured(6, "linear_relation", name).value == n.residual[name]
    close(n.residual["Binary"], 0.71359, 5e-6)


def affine_residual(codes: np.ndarray, shift: int) -> float:
    """Through the projection on what is known, not through a map."""
    known = np.hstack([codes[:-shift], np.ones((len(codes) - shift, 1))])
    basis, sizes, _ = np.linalg.svd(known, full_matrices=False)
    basis = basis[:, sizes > 1e-10 * sizes[0]]
    later = codes[shift:]
    left = later - basis @ (basis.T @ later)
    return float(np.linalg.norm(left) / np.linalg.norm(later - later.mean(0)))


# Step 7


def by_angle_sums(shift: int, dim: int) -> np.ndarray:
    """M_k from sin(a + b) and cos(a + b)."""
    matrix = np.zeros((dim, dim))
    for i in range(dim // 2):
        angle = shift * 10_000.0 ** (-2 * i / dim)
        c, s = math.cos(angle), math.sin(angle)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, s], [-s, c]]
    return matrix


def test_the_shift_matrix_is_the_rotation_of_the_angle_sums_wherever_it_is_fitted():
    n = numbers(7)
    assert (n.shift, n.start, n.num_positions) == (3, 10_000, 4096)
    # An angle of a radians is rounded by a 2^-53.
    close(n.matrix, by_angle_sums(3, 8), 4096 * EPS)
    close(n.matrix_elsewhere, by_angle_sums(3, 8), 14_096 * EPS)
    assert n.moved <= 14_096 * EPS
    assert n.not_a_rotation <= 4096 * EPS
    blocks = np.kron(np.eye(4), np.ones((2, 2))) > 0
    assert n.outside_pairs == np.abs(n.matrix.numpy()[~blocks]).max() <= 4096 * EPS
    assert measured(7, "linear_relation").value <= 4096 * EPS
    close(n.frequencies, [1, 0.1, 0.01, 0.001], 2 * EPS)


def test_the_shift_matrix_of_other_shifts():
    n = story.shift_matrix(shift=50, start=77, num_positions=2048)
    close(n.matrix, by_angle_sums(50, 8), 4096 * EPS)
    close(n.matrix_elsewhere, by_angle_sums(50, 8), 4096 * EPS)


def test_codes_do_not_run_out_where_the_slowest_wave_begins_anew():
    n = numbers(7)
    offsets = np.arange(1, n.span + 1)
    squared = np.zeros(n.span)
    for w in frequencies(64):
        squared += 2 - 2 * np.cos(offsets * w)
    close(n.neighbours, math.sqrt(squared[0]), 64 * EPS)
    close(n.nearest, math.sqrt(squared.min()), 64 * EPS)
    assert n.nearest == n.neighbours == measured(7, "min_distance").value
    close(n.longest_wave, 2 * math.pi * 10_000 ** (62 / 64), 1e-9)
    assert n.span > 2 * 62_832 > n.longest_wave


def test_the_difference_of_two_codes_is_another_one_at_every_position():
    codes = sinusoid(range(4096), 8)
    arrows = codes[3:] - codes[:-3]
    close(measured(7, "exact_relativity").value, np.abs(arrows - arrows[0]).max(), 4096 * EPS)
    assert measured(7, "max_abs").value == np.abs(codes).max()


# Step 8


def best_offset(first: np.ndarray, second: np.ndarray, reach: int = 100) -> np.ndarray:
    """The offset whose angle sums bring `first` nearest to `second`, by trying all of them."""
    w = frequencies(first.shape[-1])
    sines, cosines = first[:, 0::2], first[:, 1::2]
    distances = []
    for k in range(-reach, reach + 1):
        s, c = np.sin(k * w), np.cos(k * w)
        moved = np.stack([sines * c + cosines * s, cosines * c - sines * s], -1)
        distances.append(((moved.reshape(first.shape) - second) ** 2).sum(-1))
    return np.argmin(distances, 0) - reach


def test_the_offset_is_recovered_from_two_absolute_codes():
    n = numbers(8)
    assert n.pairs == ((5, 8), (1005, 1008), (2157, 2150), (99, 0))
    assert n.recovered == (3, 3, -7, -99)
    assert measured(8, "exact_relativity").value == 0


def test_the_offset_is_lost_in_sums_of_word_and_code():
    n = numbers(8)
    words = parts.drawn(2, 500, LENGTH).numpy()
    generator = torch.Generator().manual_seed(2)
    starts = torch.randint(100, 3000, (500,), generator=generator).numpy()
    offsets = torch.randint(-100, 101, (500,), generator=generator).numpy()
    first, second = sinusoid(starts, LENGTH), sinusoid(starts + offsets, LENGTH)
    assert n.sizes == (0.0, 0.1, 0.3, 1.0)
    for size, found in zip(n.sizes, n.found, strict=True):
        recovered = best_offset(first + size * words[0], second + size * words[1])
        assert found == np.mean(recovered == offsets)
    moving = np.arange(500)
    answers = best_offset(
        sinusoid(moving, LENGTH) + words[0, 0], sinusoid(moving + 3, LENGTH) + words[1, 0]
    )
    assert n.answers.tolist() == answers.tolist()
    assert measured(8, "relative").value == answers.max() - answers.min() > 1


# Step 9


def test_a_fragment_has_the_same_relative_positions_wherever_it_starts():
    n = numbers(9)
    assert n.positions.tolist() == [[0, 1, 2, 3, 4], [2157, 2158, 2159, 2160, 2161]]
    assert n.offsets.tolist() == [[-2, -1, 0, 1, 2]] * 2


def test_a_moved_fragment_keeps_relative_weights_exactly_and_changes_absolute_ones():
    n = numbers(9)
    x = parts.embedded(n.words, LENGTH).numpy()
    table = parts.drawn(9, 1).numpy()[:, 0]
    relative = head(x, [[table[j - i + 4] for j in range(5)] for i in range(5)])[1]
    absolute = [head(x + sinusoid(p, LENGTH))[1] for p in n.positions]
    for start in range(2):
        close(n.weights["LearnedRelative"][start], relative[2], 64 * EPS)
        close(n.weights["Sinusoidal"][start], absolute[start][2], 2161 * 64 * EPS)
    assert n.changes["LearnedRelative"] == 0
    assert measured(9, "relative", "LearnedRelative").value == 0
    expected = np.abs(absolute[0] - absolute[1]).max()
    close(measured(9, "relative", "Sinusoidal").value, expected, 2161 * 64 * EPS)
    assert n.changes["Sinusoidal"] == measured(9, "relative", "Sinusoidal").value > 0.1


def test_the_mixed_terms_move_and_the_codes_own_product_does_not():
    n = numbers(9)
    x = parts.embedded(n.words, LENGTH).numpy()
    codes = [sinusoid(p, LENGTH) for p in n.positions]
    w = matrices(LENGTH)[0] @ matrices(LENGTH)[1].T / 8
    expected = {
        "word . word": 0.0,
        "word . code": np.abs(x @ w @ (codes[0] - codes[1]).T).max(),
        "code . word": np.abs((codes[0] - codes[1]) @ w @ x.T).max(),
        "code . code": np.abs(codes[0] @ w @ codes[0].T - codes[1] @ w @ codes[1].T).max(),
        "code . code, without W_q and W_k": 0.0,
    }
    assert list(n.terms) == list(expected)
    close(list(n.terms.values()), list(expected.values()), 2161 * 64 * EPS)
    assert n.terms["word . word"] == 0


# Step 10


def test_adding_changes_the_length_of_a_word_and_turning_does_not():
    n = numbers(10)
    word = n.token.numpy()
    assert n.positions == (0, 1, 10, 100, 1000)
    every = np.linalg.norm(word + sinusoid(range(1001), LENGTH), axis=-1) / np.linalg.norm(word)
    close(n.added, every[list(n.positions)], 1000 * EPS)
    close(n.turned, np.ones(5), 8 * EPS)
    added = measured(10, "norm_preservation", "Sinusoidal, added").value
    close(added, np.abs(every - 1).max(), 1000 * EPS)
    assert added > 0.1
    assert measured(10, "norm_preservation", "RoPE, turned").value <= 8 * EPS


def test_the_turn_is_the_transposed_shift_matrix():
    assert numbers(10).transpose_gap <= 4096 * EPS
    rope = wn.RoPE(8, pairing="interleaved")
    units = torch.eye(8, dtype=torch.float64)[None, None]
    rotation = rope.rotate(units, torch.full((8,), 3))[0, 0].T
    close(rotation, by_angle_sums(3, 8).T, 4 * EPS)


# Step 11


def as_complex(x: torch.Tensor) -> np.ndarray:
    """Channel i with i + D/2."""
    half = x.shape[-1] // 2
    return x.numpy()[:half] + 1j * x.numpy()[half:]


def score(q: torch.Tensor, k: torch.Tensor, angles: np.ndarray) -> float:
    """Re sum of conj(q) k e^(i angle), one angle a pair."""
    return float((as_complex(q).conj() * as_complex(k) * np.exp(1j * angles)).real.sum())


def test_rotated_scores_depend_on_the_offset_alone():
    n = numbers(11)
    w = frequencies(LENGTH)
    size = (np.abs(as_complex(n.q)) * np.abs(as_complex(n.k))).sum()
    assert (n.offsets, n.starts) == ((0, 1, 10, 100, 1000), (0, 1000, 100_000))
    for i, start in enumerate(n.starts):
        for j, offset in enumerate(n.offsets):
            expected = score(n.q, n.k, offset * w)
            close(n.scores[i, j], expected, 2 * (start + offset + 32) * EPS * size)
    spread = np.abs(n.scores.numpy() - n.scores.numpy()[0]).max()
    assert measured(11, "relative").value == spread <= 4 * 101_000 * EPS * size
    assert measured(11, "exact_relativity").value <= 4 * 1000 * EPS
    assert measured(11, "norm_preservation").value <= 8 * EPS
    assert n.fragment_change <= 2161 * 64 * EPS


def test_scores_of_equal_queries_and_keys_are_sums_of_cosines():
    n = numbers(11)
    w = frequencies(LENGTH)
    close(n.flat, [2 * np.cos(o * w).sum() for o in n.offsets], 1000 * 64 * EPS)
    close(n.flat, [64, 61.834, 42.103, 35.749, 17.852], 5e-4)


def test_turning_the_other_way_mirrors_the_scores_and_exchanging_channels_mends_it():
    n = numbers(11)
    w, near = frequencies(LENGTH), range(-20, 21)
    usual = [score(n.q, n.k, o * w) for o in near]
    tolerance = 71 * 64 * 4 * EPS
    close(n.ways["usual"], usual, tolerance)
    close(n.ways["other"], usual[::-1], tolerance)
    close(n.ways["other, exchanged"], usual, tolerance)
    assert n.mirror_gap <= tolerance
    assert n.swap_gap <= tolerance
    assert np.abs(np.subtract(usual, usual[::-1])).max() > 1


# Steps 11 and 12: grids


def displacements(sizes: tuple[int, ...]) -> list[list[int]]:
    """All of them, in lexicographic order."""
    return [list(step) for step in itertools.product(*(range(1 - s, s) for s in sizes))]


def test_numbered_cells_confuse_displacements():
    g = numbers(11).grid
    assert g.sizes == (8, 8)
    assert g.steps.tolist() == displacements((8, 8))
    w = frequencies(LENGTH)
    expected = [score(g.q, g.k, (8 * down + right) * w) for down, right in g.steps.tolist()]
    close(g.scores, expected, 1e-12)
    assert (len(g.steps), g.told_apart, g.confused) == (15**2, 2 * 64 - 1, 225 - 127)
    assert measured(11, "extends_to").value == 98
    at = {tuple(step): s for step, s in zip(g.steps.tolist(), g.scores.tolist(), strict=True)}
    close(at[0, 1], at[1, -7], 1e-12)


def test_the_spread_is_that_of_one_displacement_among_all_its_starts():
    squares = torch.arange(4) ** 2  # displacements alone do not tell their differences
    g = scores_on_grid(wn.RoPE(8), (4,), squares)
    w, places = frequencies(8), squares.tolist()
    by_step: dict[int, list[float]] = {}
    for i, j in itertools.product(range(4), repeat=2):
        value = score(g.q, g.k, (places[j] - places[i]) * w)
        by_step.setdefault(j - i, []).append(value)
    close(g.spread, max(max(s) - min(s) for s in by_step.values()), 256 * EPS)
    close(g.scores, [min(by_step[step]) for step in range(-3, 4)], 256 * EPS)


@pytest.mark.parametrize(
    ("name", "sizes", "per_axis"), [("plane", (8, 8), 8), ("space", (4, 4, 4), 8)]
)
def test_an_axis_that_turns_pairs_of_its_own_tells_all_displacements_apart(name, sizes, per_axis):
    g = getattr(numbers(12), name)
    assert g.sizes == sizes
    assert g.steps.tolist() == displacements(sizes)
    w = frequencies(per_axis)
    for step, found in zip(g.steps.tolist(), g.scores.tolist(), strict=True):
        angles = np.concatenate([coordinate * w for coordinate in step])
        close(found, score(g.q, g.k, angles), 256 * EPS)
    assert g.told_apart == len(g.steps) == math.prod(2 * s - 1 for s in sizes)
    assert g.spread <= 256 * EPS
    of = f"AxialRoPE, {len(sizes)} axes"
    assert measured(12, "extends_to", of).value == 0
    assert measured(12, "relative", of).value == g.spread


def test_straight_and_slanted_ways_are_not_alike():
    n = numbers(12)
    assert n.directions == ((5, 0), (4, 3), (3, 4), (0, 5))
    w = frequencies(8)
    close(
        n.by_direction,
        [2 * (np.cos(down * w) + np.cos(right * w)).sum() for down, right in n.directions],
        64 * EPS,
    )
    close(measured(12, "anisotropy").value, unevenness(w), 1e-12)


def unevenness(w: np.ndarray) -> float:
    """Spread of the scores among displacements of one length over that among all of them."""
    scores: dict[int, list[float]] = {}
    for down, right in displacements((8, 8)):
        value = 2 * (np.cos(down * w) + np.cos(right * w)).sum()
        scores.setdefault(down**2 + right**2, []).append(value)
    everything = np.concatenate([np.array(s) for s in scores.values()])
    within = sum(((np.array(s) - np.mean(s)) ** 2).sum() for s in scores.values())
    return math.sqrt(within / ((everything - everything.mean()) ** 2).sum())


# The chain


def test_there_are_twelve_steps_and_the_first_answers_nothing():
    assert len(story.STEPS) == 12
    assert story.STEPS[0].answers is None


@pytest.mark.parametrize("step", range(2, 13))
def test_a_step_answers_a_property_that_the_numbers_of_the_step_before_show_failing(step):
    answered = story.STEPS[step - 1].answers
    assert answered == story.STEPS[step - 2].fails
    failing = [m for m in numbers(step - 1).failed() if m.name == answered]
    assert failing
    for m in failing:
        assert m.value < m.least or m.value > m.most


# Steps 2 and 10 look closer at what failed; all others mend it.
@pytest.mark.parametrize(
    ("step", "names"),
    [
        (3, ["same_word"]),
        (4, ["min_distance"]),
        (5, ["max_abs"]),
        (6, ["length_dependence", "max_abs", "min_distance"]),
        (7, ["linear_relation", "max_abs", "min_distance"]),
        (8, ["exact_relativity"]),
        (9, ["relative"]),
        (11, ["norm_preservation", "relative", "exact_relativity"]),
        (12, ["extends_to", "relative"]),
    ],
)
def test_a_step_holds_what_it_was_asked_for(step, names):
    held = {m.name for m in numbers(step).measured if m.holds}
    assert held >= set(names)


@pytest.mark.parametrize(
    ("least", "most", "value", "holds"),
    [
        (0.0, 1.0, 1.0, True),
        (0.0, 1.0, 1.0001, False),
        (0.5, math.inf, 0.5, True),
        (0.5, math.inf, 0.4999, False),
        (0.0, 1.0, math.nan, False),
    ],
)
def test_a_property_holds_between_its_bounds(least, most, value, holds):
    m = Measured("max_abs", "it", value, least=least, most=most)
    assert m.holds is holds
    assert (Numbers(measured=(m,)).failed() == ()) is holds


def test_properties_have_the_names_of_measure():
    known = {*wn.measure(wn.AxialRoPE(16, 2)).as_dict(), "anisotropy"}
    named = {m.name for step in range(1, 13) for m in numbers(step).measured}
    assert named <= known
    assert {step.fails for step in story.STEPS} <= named


def test_measure_finds_the_same():
    binary = wn.measure(wn.Binary(16, 16), num_positions=128).as_dict()
    normalised = wn.measure(wn.Integer(64, length=128), num_positions=128).as_dict()
    axial = wn.measure(wn.AxialRoPE(16, 2)).as_dict()
    close(binary["linear_relation"]["3"], measured(6, "linear_relation", "Binary").value, 1e-12)
    assert normalised["length_dependence"] == measured(5, "length_dependence").value
    close(axial["grid"]["anisotropy"], measured(12, "anisotropy").value, 1e-12)


# Functions and command


@pytest.mark.parametrize("step", range(1, 13))
def test_a_step_repeats_prints_nothing_and_leaves_the_random_state_alone(step, capsys):
    state = torch.get_rng_state()
    again = story.STEPS[step - 1].function()
    assert torch.equal(torch.get_rng_state(), state)
    same(again.plain(), numbers(step).plain())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("120", 88), ("300", 88)])
def test_the_story_mentions_every_step_and_fits_the_terminal(columns, widest, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["story"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= widest
    assert not [line for line in lines if line != line.rstrip()]
    for i, step in enumerate(story.STEPS, start=1):
        assert any(line.startswith(f"{i}  {step.title}") for line in lines)
        if step.answers:
            assert f"Step {i - 1} failed {step.answers}:" in out
        assert any(step.fails in line and "FAILS" in line for line in lines)
        chain = [line.split() for line in lines if step.title in line and step.fails in line]
        assert [(words[0], words[-2]) for words in chain] == [(str(i), step.fails)]
    for told in ("0.9  0.1    0.8  0.2", "-0.989992  0.141120", "1,104 times", "225 displacements"):
        assert told in " ".join(out.split("\n")), told


def test_the_story_can_be_shown_in_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert story.show() == 0
    stream.flush()
    assert b"12  Planes and space" in stream.buffer.getvalue()


def test_one_step_is_told_alone(capsys):
    assert cli.main(["story", "--step", "7"]) == 0
    out = capsys.readouterr().out
    assert "7  Sines and cosines" in out
    assert "8  Two places" not in out
    assert "John Gall" not in out


@pytest.mark.parametrize("step", ["0", "13", "-1"])
def test_a_step_that_does_not_exist_is_refused(step, capsys):
    assert cli.main(["story", "--step", step]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"whereness: The story has steps 1 to 12, got {step}.\n"


def test_json_holds_all_numbers(capsys):
    assert cli.main(["story", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["whereness"] == wn.__version__
    assert [s["step"] for s in told["steps"]] == list(range(1, 13))
    for i, (found, step) in enumerate(zip(told["steps"], story.STEPS, strict=True), start=1):
        assert found["title"] == step.title
        assert found["function"] == step.function.__name__
        assert getattr(story, found["function"]) is step.function
        assert (found["answers"], found["fails"]) == (step.answers, step.fails)
        same(found["numbers"], numbers(i).plain())
    first, last = told["steps"][0]["numbers"], told["steps"][11]["numbers"]
    close(first["swapped"]["weights"], [[0.8, 0.2], [0.1, 0.9]], EPS)
    assert first["measured"][0] == {
        "property": "permutation_sensitivity",
        "of": "no encoding",
        "value": numbers(1).outputs_gap,
        "least": 0.001,
        "most": None,
        "holds": False,
    }
    assert last["space"]["told_apart"] == 343


def test_json_to_a_file_comes_beside_the_text(tmp_path, capsys):
    path = tmp_path / "story.json"
    assert cli.main(["story", "--step", "5", "--json", str(path)]) == 0
    assert "5  Divide by the length" in capsys.readouterr().out
    told = json.loads(path.read_text(encoding="utf-8"))
    assert [s["title"] for s in told["steps"]] == ["Divide by the length"]
    assert told["steps"][0]["numbers"]["codes"] == [0.5, 0.05, 0.005, 0.0005]
