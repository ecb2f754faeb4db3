"""Grids and video, against loops in Python."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whereness import NOWHERE, positions


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=60)
def test_grids(sizes, prefix):
    found = positions.grid(*sizes, prefix=prefix)
    cells = [list(cell) for cell in itertools.product(*map(range, sizes))]
    assert found.dtype == torch.int64
    assert found.tolist() == [[NOWHERE] * len(sizes)] * prefix + cells


def test_the_first_coordinate_of_a_grid_is_the_row():
    assert positions.grid(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert positions.grid(2, 3, device="meta").device.type == "meta"


@pytest.mark.untyped
def test_what_is_no_grid():
    with pytest.raises(ValueError, match="at least one size"):
        positions.grid()
    with pytest.raises(ValueError, match="size 1 of the grid must be at least 1, got 0"):
        positions.grid(2, 0)
    with pytest.raises(TypeError, match="size 0 of the grid must be an int, got float"):
        positions.grid(2.0, 3)
    with pytest.raises(TypeError, match="size 0 of the grid must be an int, got tuple"):
        positions.grid((2, 3))
    with pytest.raises(ValueError, match="prefix must be at least 0, got -1"):
        positions.grid(2, prefix=-1)
    with pytest.raises(TypeError, match="prefix must be an int, got bool"):
        positions.grid(2, prefix=True)


# Which way the tokens run


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 2))
@settings(max_examples=40)
def test_columns_run_down_and_frames_stay_in_order(sizes, prefix):
    found = positions.grid(*sizes, prefix=prefix, order="column")
    *outer, height, width = sizes
    cells = [
        [*first, row, column]
        for first in itertools.product(*map(range, outer))
        for column in range(width)
        for row in range(height)
    ]
    assert found.tolist() == [[NOWHERE] * len(sizes)] * prefix + cells


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40)
def test_tokens_of_a_merge_block_are_neighbours(frames, height, width, merge):
    found = positions.grid(frames, height * merge, width * merge, merge=merge)
    expected = [
        [frame, top * merge + row, left * merge + column]
        for frame in range(frames)
        for top in range(height)
        for left in range(width)
        for row in range(merge)
        for column in range(merge)
    ]
    assert found.tolist() == expected
    # One block after the other is one token after the other of the merged grid.
    blocks = found.view(-1, merge * merge, 3)
    merged = torch.cat([blocks[:, 0, :1], blocks[:, 0, 1:] // merge], -1)
    assert merged.tolist() == positions.grid(frames, height, width).tolist()


# Where the numbers start


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
@settings(max_examples=40)
def test_origins(sizes):
    corner = positions.grid(*sizes)
    centre = positions.grid(*sizes, origin="centre")
    whole = positions.grid(*sizes, origin="whole_centre")
    assert (centre.dtype, whole.dtype) == (torch.float64, torch.int64)
    for cell, about_centre, about_cell in zip(
        corner.tolist(), centre.tolist(), whole.tolist(), strict=True
    ):
        pairs = list(zip(cell, sizes, strict=True))
        assert about_centre == [i - (n - 1) / 2 for i, n in pairs]
        # Negative coordinates of n - n // 2 cells come first, then 0 .. n // 2 - 1.
        assert about_cell == [[*range(-(n - n // 2), 0), *range(n // 2)][i] for i, n in pairs]
    assert (centre + centre.flip(0)).abs().max() == 0


def test_a_prefix_of_real_coordinates_has_no_place_either():
    found = positions.grid(2, 2, prefix=2, origin="centre")
    assert found[:2].isnan().all()
    assert not found[2:].isnan().any()


# The number of tokens


def test_a_grid_must_have_as_many_cells_as_there_are_tokens():
    assert positions.grid(2, 3, prefix=1, tokens=7).shape == (7, 2)
    with pytest.raises(ValueError, match="2 x 3 and a prefix of 1 has 7 tokens, the input has 6"):
        positions.grid(2, 3, prefix=1, tokens=6)
    with pytest.raises(ValueError, match="224 x 224 has 50176 tokens.*divide pixels"):
        positions.grid(224, 224, tokens=196)
    with pytest.raises(ValueError, match="2 x 2 x 2 has 8 tokens"):
        positions.video(2, 2, 2, tokens=4)


# Time


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["0.5", "0.083", "1.5", "0.04", "2", "0.29", "0.7"]),
    st.sampled_from([1, 2, 25, 100]),
)
@settings(max_examples=80)
def test_times_of_a_video_are_those_of_exact_fractions(frames, height, width, seconds, rate):
    interval = Fraction(seconds) * rate
    for times, of in (("exact", float), ("floor", math.floor)):
        found = positions.video(
            frames,
            height,
            width,
            seconds_per_frame=float(seconds),
            ticks_per_second=rate,
            times=times,
        )
        assert found.dtype == (torch.float64 if times == "exact" else torch.int64)
        expected = [
            [of(frame * interval), row, column]
            for frame in range(frames)
            for row in range(height)
            for column in range(width)
        ]
        tolerance = 1e-12 if times == "exact" else 0
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=found.dtype), rtol=tolerance, atol=0
        )


def test_a_video_without_a_rate_counts_its_frames():
    assert positions.video(2, 1, 2).tolist() == positions.grid(2, 1, 2).tolist()
    assert positions.video(2, 2, 2, merge=2).tolist() == positions.grid(2, 2, 2, merge=2).tolist()


@pytest.mark.untyped
def test_what_no_grid_or_video_has():
    grid, video = positions.grid, positions.video
    for make, error, message in (
        (lambda: grid(2, 2, order="rows"), ValueError, "order must be one of"),
        (lambda: grid(2, 2, origin="center"), ValueError, "origin must be one of"),
        (lambda: grid(4, order="column"), ValueError, "two sizes or more, got 1"),
        (lambda: grid(4, merge=2), ValueError, "two sizes or more, got 1"),
        (lambda: grid(4, 6, merge=4), ValueError, "merge=4 must divide.*got 4 and 6"),
        (lambda: grid(6, 4, merge=4), ValueError, "merge=4 must divide.*got 6 and 4"),
        (lambda: grid(4, 4, merge=2, order="column"), ValueError, "row order"),
        (lambda: grid(4, 4, merge=0), ValueError, "merge must be at least 1"),
        (lambda: grid(4, 4, tokens=16.0), TypeError, "tokens must be an int"),
        (lambda: video(0, 1, 1), ValueError, "frames must be at least 1"),
        (lambda: video(1, 1, 1, seconds_per_frame=0), ValueError, "seconds_per_frame must be"),
        (lambda: video(1, 1, 1, ticks_per_second=-1), ValueError, "ticks_per_second must be"),
        (lambda: video(1, 1, 1, times="round"), ValueError, "times must be one of"),
        (lambda: video(1, 1, 1, seconds_per_frame=True), TypeError, "must be a number"),
    ):
        with pytest.raises(error, match=message):
            make()
