"""DINOv3RoPE: its coordinates, periods and training maps against plain loops.

Axes: B batch, H heads, S tokens, D head_dim, n axes of a position.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, turned

NORMALISE = ("separate", "max", "min")


def centres(sizes: tuple[int, ...], normalise: str) -> list[list[float]]:
    """Row-major, by the formula."""
    of = {"separate": list(sizes), "max": [max(sizes)] * 9, "min": [min(sizes)] * 9}[normalise]
    return [
        [2 * (i + 0.5) / n - 1 for i, n in zip(cell, of, strict=False)]
        for cell in np.ndindex(*sizes)
    ]


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    normalise=st.sampled_from(NORMALISE),
    prefix=st.integers(0, 3),
)
def test_coordinates_are_centres_of_patches(sizes, normalise, prefix):
    rope = wn.DINOv3RoPE(4 * len(sizes), len(sizes), normalise=normalise)
    found = rope.coordinates(*sizes, prefix=prefix)
    assert found.dtype == torch.float64
    assert found[:prefix].isnan().all()
    expected = torch.tensor(centres(sizes, normalise), dtype=torch.float64)
    assert_close(found[prefix:], expected, rtol=0, atol=4e-16)


@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pairing=st.sampled_from(["half", "interleaved"]),
    base=st.sampled_from([100.0, 10_000.0, 7.0]),
    quarter=st.integers(1, 4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 10**6),
)
def test_pairs_turn_by_coordinate_over_period(sizes, pairing, base, quarter, dtype, seed):
    rope = wn.DINOv3RoPE(4 * quarter, 2, base, pairing)
    cells = centres(sizes, "separate")
    angles = np.array(
        [
            [2 * math.pi * c / base ** (j / quarter) for c in cell for j in range(quarter)]
            for cell in cells
        ]
    )
    x = drawn(seed, (1, 2, len(cells), 4 * quarter), dtype)
    exact, size = turned(x.double().numpy(), pairs(pairing, 4 * quarter), angles)
    agree(rope.rotate(x, rope.coordinates(*sizes)), exact, size, float(np.abs(angles).max()))


def test_a_larger_picture_turns_no_further():
    """The corner of any square picture is at most half a side away from its centre."""
    rope = wn.DINOv3RoPE(64)
    for n in (2, 14, 100):
        assert rope.angles(rope.coordinates(n, n)).abs().max() < 2 * math.pi


def test_cls_and_registers_are_not_turned():
    rope, x = wn.DINOv3RoPE(16), drawn(0, (1, 2, 5 + 6, 16), torch.float32)
    found = rope.rotate(x, rope.coordinates(2, 3, prefix=5))
    assert_close(found[:, :, :5], x[:, :, :5], rtol=0, atol=0)
    expected = rope.rotate(x[:, :, 5:], rope.coordinates(2, 3))
    assert_close(found[:, :, 5:], expected, rtol=0, atol=0)
    assert (found[:, :, 5:] != x[:, :, 5:]).any(-1).all()


def test_positions_may_be_float32_and_by_sequence():
    rope, x = wn.DINOv3RoPE(16), drawn(0, (2, 2, 6, 16), torch.float64)
    both = torch.stack([rope.coordinates(2, 3), rope.coordinates(3, 2)])
    for row in range(2):
        alone = rope.rotate(x[row : row + 1], both[row])
        assert_close(rope.rotate(x, both)[row : row + 1], alone, rtol=0, atol=0)
        assert_close(rope.rotate(x, both.float())[row : row + 1], alone, rtol=0, atol=2e-6)


# Training


def rows(rope: wn.DINOv3RoPE, seed: int | None = 0) -> torch.Tensor:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    where = wn.Where(rope.coordinates(3, 4, prefix=1), num_axes=2)
    return rope.move(where, generator).positions[0]


def fitted(before: torch.Tensor, after: torch.Tensor) -> tuple[list[float], list[float]]:
    """(factor, shift) of the map that took one axis from `before` to `after`."""
    factors, shifts = [], []
    for axis in range(before.shape[-1]):
        a, b = before[:, axis].numpy(), after[:, axis].numpy()
        factor, shift = np.polyfit(a, b, 1)
        assert np.abs(factor * a + shift - b).max() < 1e-12  # the same for every patch
        factors.append(float(factor))
        shifts.append(float(shift))
    return factors, shifts


def test_shift_jitter_and_rescale_are_one_draw_for_all_tokens():
    seen = {"shift": [], "jitter": [], "rescale": []}
    for seed in range(300):
        for name, largest in (("shift", 0.3), ("jitter", 1.5), ("rescale", 2.0)):
            rope = wn.DINOv3RoPE(16, **{name: largest})
            moved, plain = rows(rope, seed), rope.coordinates(3, 4, prefix=1)
            assert moved[0].isnan().all()
            factors, shifts = fitted(plain[1:], moved[1:])
            seen[name].append(shifts if name == "shift" else factors)
            quiet = factors if name == "shift" else shifts
            assert_close(quiet, [1.0 if name == "shift" else 0.0] * 2, rtol=0, atol=1e-12)
    shift, jitter, rescale = (np.array(seen[name]) for name in ("shift", "jitter", "rescale"))
    for drawn_, largest in (
        (shift, 0.3),
        (np.log(jitter), np.log(1.5)),
        (np.log(rescale), np.log(2)),
    ):
        # Uniform in [-largest, largest]: 600 draws fill it, with mean 0 and variance largest^2/3.
        assert np.abs(drawn_).max() <= largest + 1e-12
        assert np.abs(drawn_).max() > 0.97 * largest
        assert abs(drawn_.mean()) < 0.1 * largest
        assert abs(drawn_.var() * 3 / largest**2 - 1) < 0.15
    for by_axis in (shift, np.log(jitter)):
        assert np.abs(by_axis[:, 0] - by_axis[:, 1]).min() > 1e-6
    assert_close(rescale[:, 0], rescale[:, 1], rtol=1e-12, atol=0)


def test_a_shift_comes_before_the_factors():
    """(c + shift) factor: the order of the authors' code."""
    rope = wn.DINOv3RoPE(16, shift=0.3, jitter=1.5, rescale=2.0)
    factors, shifts = fitted(rope.coordinates(3, 4), rows(rope)[1:])
    only_shift = fitted(rope.coordinates(3, 4), rows(wn.DINOv3RoPE(16, shift=0.3))[1:])[1]
    assert_close([f * s for f, s in zip(factors, only_shift, strict=True)], shifts)


def test_evaluation_moves_nothing():
    rope = wn.DINOv3RoPE(16, shift=0.3, jitter=1.5, rescale=2.0)
    where = wn.Where(rope.coordinates(2, 3), num_axes=2)
    assert rope.eval().move(where) is where
    assert rope.train().move(where) is not where
    assert wn.DINOv3RoPE(16).train().move(where) is where


def test_a_generator_decides_and_no_other_is_touched():
    rope = wn.DINOv3RoPE(16, shift=0.3, jitter=1.5)
    state = torch.random.get_rng_state()
    assert_close(rows(rope, 4), rows(rope, 4), rtol=0, atol=0, equal_nan=True)
    assert (rows(rope, 4)[1:] != rows(rope, 5)[1:]).all()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (rows(rope, None)[1:] != rows(rope, None)[1:]).all()


def test_queries_and_keys_move_together():
    rope = wn.DINOv3RoPE(16, shift=0.3, jitter=1.5, rescale=2.0)
    cells = rope.coordinates(2, 3)
    moved = rope.move(wn.Where(cells[:2], cells, num_axes=2), torch.Generator().manual_seed(0))
    assert_close(moved.k_positions[0, :2], moved.positions[0], rtol=0, atol=0)
    assert not moved.regular


def test_attention_moves_in_training_and_only_then():
    torch.manual_seed(0)
    rope = wn.DINOv3RoPE(8, shift=0.5)
    layer, x = wn.Attention(16, 2, rope), drawn(0, (1, 6, 16), torch.float32)
    where = wn.Where(rope.coordinates(2, 3), num_axes=2)
    layer.eval(), rope.eval()
    assert_close(layer(x, where=where), layer(x, where=where), rtol=0, atol=0)
    # A shift moves all patches alike, so scores stay; a factor does not.
    still = layer(x, where=where)
    rope.train()
    assert_close(layer(x, where=where), still, rtol=0, atol=1e-5)
    rope.jitter = 2.0
    assert (layer(x, where=where) - still).abs().max() > 1e-4


# What is refused


def test_numbers_of_patches_are_refused():
    rope, x = wn.DINOv3RoPE(16, shift=0.1), drawn(0, (1, 1, 6, 16), torch.float32)
    for call in (rope.rotate, lambda x, where: rope.move(wn.Where(where, num_axes=2))):
        with pytest.raises(TypeError, match=r"in \[-1, 1\], got torch.int64.*coordinates"):
            call(x, wn.positions.grid(2, 3))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 10}, "multiple of 2 num_axes = 4, got 10"),
        ({"head_dim": 8, "normalise": "mean"}, "'separate', 'max', 'min'; got 'mean'"),
        ({"head_dim": 8, "shift": -0.1}, "shift must be a finite number from 0, got -0.1"),
        ({"head_dim": 8, "jitter": 0.5}, "jitter must be a finite number from 1, got 0.5"),
        ({"head_dim": 8, "rescale": float("inf")}, "rescale must be a finite number from 1"),
        ({"head_dim": 8, "base": 0.0}, "base must be a finite number above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.DINOv3RoPE(**options)


@pytest.mark.untyped
def test_sizes_that_make_no_sense_are_refused():
    rope = wn.DINOv3RoPE(8)
    for sizes, message in (((3,), "2 sizes, got 1"), ((3, 0), "size 1 of the grid must be at")):
        with pytest.raises(ValueError, match=message):
            rope.coordinates(*sizes)
    with pytest.raises(TypeError, match="size 0 of the grid must be an int, got float"):
        rope.coordinates(2.0, 3)
