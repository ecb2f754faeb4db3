"""Rows of text, images, video and sound, against an oracle that places one token after another."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness import NOWHERE, positions
from whereness.positions import Audio, Film, Image, Text, Video, from_token_types, multimodal

SECONDS = ["0.5", "0.083", "1.5", "0.04"]


def cells(segment: Any, rate: int, floor: bool) -> list[list]:
    """Positions from 0 of a segment's tokens, by loops over frames, rows and columns."""
    if isinstance(segment, Text):
        return [[i * segment.step] * 3 for i in range(segment.tokens)]
    if isinstance(segment, Image):
        return [[0, r, c] for r in range(segment.height) for c in range(segment.width)]
    if isinstance(segment, Audio):
        return [
            [ticked(i, segment.seconds_per_token, rate, floor)] * 3 for i in range(segment.tokens)
        ]
    return [
        [ticked(t, segment.seconds_per_frame, rate, floor), r, c]
        for t in range(segment.frames)
        for r in range(segment.height)
        for c in range(segment.width)
    ]


def ticked(number: int, seconds: float | None, rate: int, floor: bool) -> Any:
    if seconds is None:
        return number
    exact = number * Fraction(repr(seconds)) * rate
    return math.floor(exact) if floor else exact


def placed_by_hand(row: list, rate: int, floor: bool, after: str) -> tuple[list[list], Any]:
    """(positions, where the next token stands)."""
    found, start = [], 0
    for segment in row:
        tokens = [[start + x for x in cell] for cell in cells(segment, rate, floor)]
        found += tokens
        if not tokens:
            continue
        if after == "side" and isinstance(segment, Image | Video):
            start += max(segment.height, segment.width)
        else:
            start = max(x for token in tokens for x in token) + 1
    return found, max((x for token in found for x in token), default=-1) + 1


small = st.integers(1, 4)
seconds = st.none() | st.sampled_from(SECONDS).map(float)
segments = st.one_of(
    st.builds(Text, st.integers(0, 4), st.integers(0, 2)),
    st.builds(Image, small, small),
    st.builds(Video, small, small, small, seconds),
    st.builds(Audio, small, seconds),
)
rows_of_segments = st.lists(st.lists(segments, max_size=4), min_size=1, max_size=3)


def near(found: torch.Tensor, expected: list) -> None:
    wanted = torch.tensor([[float(x) for x in token] for token in expected], dtype=torch.float64)
    torch.testing.assert_close(
        found.double(), wanted.reshape(-1, 3), rtol=1e-12, atol=1e-12, equal_nan=True
    )


@given(
    rows_of_segments,
    st.sampled_from([1, 2, 25]),
    st.sampled_from(["exact", "floor"]),
    st.sampled_from(["farthest", "side"]),
    st.sampled_from(["left", "right"]),
    st.integers(0, 3),
)
@settings(max_examples=150)
def test_segments_are_placed_one_after_the_other(rows, rate, times, after, padding_side, spare):
    by_hand = [placed_by_hand(row, rate, times == "floor", after) for row in rows]
    total = max(len(ids) for ids, _ in by_hand) + spare
    found = multimodal(
        rows,
        ticks_per_second=rate,
        times=times,
        after=after,
        total=total if spare else None,
        padding_side=padding_side,
    )
    assert found.positions.shape == (len(rows), total, 3)
    timed = [getattr(s, "seconds_per_frame", None) or getattr(s, "seconds_per_token", None)
             for row in rows for s in row]  # fmt: skip
    real = times == "exact" and any(timed)
    assert found.positions.dtype == (torch.float64 if real else torch.int64)
    for ids, (expected, following), last, delta in zip(
        found.positions, by_hand, found.next_position, found.delta, strict=True
    ):
        spot = len(ids) - len(expected) if padding_side == "left" else 0
        near(ids[spot : spot + len(expected)], expected)
        pads = torch.cat([ids[:spot], ids[spot + len(expected) :]])
        assert (pads.isnan() if real else pads == NOWHERE).all()
        assert float(last) == pytest.approx(float(following), abs=1e-9)
        assert float(delta) == pytest.approx(float(following) - len(expected), abs=1e-9)


def test_a_single_row_needs_no_list_of_rows():
    row = [Text(2), Image(2, 1), Text(1)]
    assert multimodal(row).positions.tolist() == multimodal([row]).positions.tolist()


def test_what_the_papers_show():
    """Qwen2.5-VL: 3 grids of 2 x 2 at 25 ticks a second, 2 s a grid; then text goes on at 101."""
    video = Video(3, 2, 2, seconds_per_frame=2.0)
    found = multimodal([video, Text(5)], ticks_per_second=25, times="floor").positions[0]
    assert found[:12, 0].tolist() == [0] * 4 + [50] * 4 + [100] * 4
    assert found[:12, 1].tolist() == [0, 0, 1, 1] * 3
    assert found[:12, 2].tolist() == [0, 1, 0, 1] * 3
    assert found[12:].tolist() == [[i] * 3 for i in range(101, 106)]


# A video and its sound


def in_turns(film: Film, rate: int, floor: bool) -> list[list]:
    """Chunk after chunk, picture before sound."""
    picture, sound = cells(film.video, rate, floor), cells(film.audio, rate, floor)
    chunk = Fraction(repr(film.seconds_per_chunk)) * rate
    number = 0
    found: list[list] = []
    while len(found) < len(picture) + len(sound):
        for part in (picture, sound):
            found += [token for token in part if token[0] // chunk == number]
        number += 1
    return found


@given(
    st.builds(Video, st.integers(1, 6), small, small, st.sampled_from([0.5, 1.0, 1.5, 2.0])),
    st.builds(Audio, st.integers(1, 60), st.sampled_from([None, 0.04, 0.5])),
    st.sampled_from([1.0, 2.0]),
)
@settings(max_examples=60)
def test_picture_and_sound_take_turns(video, audio, chunk):
    film = Film(video, audio, chunk)
    found = multimodal([Text(2), film, Text(1)], ticks_per_second=25, times="floor")
    expected = [[2 + x for x in token] for token in in_turns(film, 25, True)]
    following = max(x for token in expected for x in token) + 1
    assert found.positions[0].tolist() == [[0] * 3, [1] * 3, *expected, [following] * 3]


# From token types


@given(
    rows_of_segments.map(lambda rows: [[s for s in row if not timed_sound(s)] for row in rows]),
    st.sampled_from([1, 2, 25]),
    st.sampled_from(["exact", "floor"]),
    st.sampled_from(["farthest", "side"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["left", "right"]),
)
@settings(max_examples=150)
def test_types_and_grids_give_what_segments_give(rows, rate, times, after, merge, padding_side):
    rows = [[Text(s.tokens) if isinstance(s, Text) else s for s in row] for row in rows]
    rate_given = any(isinstance(s, Video) and s.seconds_per_frame for row in rows for s in row)
    if rate_given:  # all videos have a rate, or none
        rows = [[with_rate(s) for s in row] for row in rows]
    codes, images, videos, intervals = [], [], [], []
    for row in rows:
        types: list[int] = []
        for s in row:
            if isinstance(s, Image):
                types += [1] * (s.height * s.width)
                images.append([1, s.height * merge, s.width * merge])
            elif isinstance(s, Video):
                types += [2] * (s.frames * s.height * s.width)
                videos.append([s.frames, s.height * merge, s.width * merge])
                intervals.append(s.seconds_per_frame)
            else:
                types += [0 if isinstance(s, Text) else 3] * s.tokens
        codes.append(types)
    total = max(map(len, codes))
    expected = multimodal(
        rows, ticks_per_second=rate, times=times, after=after, padding_side=padding_side
    )
    pad = [[0] * (total - len(types)) for types in codes]
    left = padding_side == "left"
    token_types = [p + c if left else c + p for p, c in zip(pad, codes, strict=True)]
    mask = [[0] * len(p) + [1] * len(c) for p, c in zip(pad, codes, strict=True)]
    if not left:
        mask = [m[::-1] for m in mask]
    found = from_token_types(
        torch.tensor(token_types, dtype=torch.int64).reshape(len(rows), total),
        torch.tensor(images).reshape(-1, 3) if images else None,
        torch.tensor(videos).reshape(-1, 3) if videos else None,
        seconds_per_frame=torch.tensor(intervals, dtype=torch.float64) if rate_given else None,
        ticks_per_second=rate,
        times=times,
        merge=merge,
        after=after,
        attention_mask=torch.tensor(mask, dtype=torch.int64).reshape(len(rows), total),
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)


def timed_sound(segment: Any) -> bool:
    return isinstance(segment, Audio) and segment.seconds_per_token is not None


def with_rate(segment: Any) -> Any:
    if isinstance(segment, Video) and segment.seconds_per_frame is None:
        return Video(segment.frames, segment.height, segment.width, 0.5)
    return segment


def test_images_side_by_side_are_told_apart():
    types = torch.tensor([[1, 1, 1, 1, 0]])
    found = from_token_types(types, torch.tensor([[1, 1, 2], [1, 2, 1]]))
    expected = multimodal([Image(1, 2), Image(2, 1), Text(1)])
    assert found.positions.tolist() == expected.positions.tolist()


def test_images_are_counted_over_the_rows_of_a_batch():
    types = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 0]])
    found = from_token_types(types, torch.tensor([[1, 2, 1], [1, 1, 3]]))
    expected = multimodal([[Text(1), Image(2, 1), Text(1)], [Image(1, 3), Text(1)]])
    assert found.positions.tolist() == expected.positions.tolist()
    assert found.next_position.tolist() == [4, 4]
    assert found.delta.tolist() == [0, 0]


# What a model does with them


def test_decoding_goes_on_from_the_next_position():
    rope = wn.AxialRoPE(12, 3)
    layer = wn.Attention(24, 2, rope, causal=True).double()
    prompt = multimodal([[Text(1), Image(2, 3), Text(2)], [Video(2, 1, 3), Text(3)]])
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    steps = positions.decode(prompt.next_position, 2, 3)
    ids = torch.cat([prompt.positions, steps], 1)
    assert steps.tolist() == positions.continued(prompt.positions, 2, 3).tolist()
    whole = layer(x, where=wn.Where(ids, num_axes=3))
    cache = wn.KVCache()
    layer(x[:, :9], where=wn.Where(prompt.positions, num_axes=3), cache=cache)
    assert cache.next_position.tolist() == prompt.next_position.tolist()
    for t in range(2):
        out = layer(
            x[:, 9 + t : 10 + t], where=wn.Where(steps[:, t : t + 1], num_axes=3), cache=cache
        )
        torch.testing.assert_close(out, whole[:, 9 + t : 10 + t])


# What is refused


@pytest.mark.untyped
def test_what_no_row_holds():
    for make, error, message in (
        (lambda: multimodal([]), ValueError, "at least one segment"),
        (lambda: multimodal([Text(1), 3]), TypeError, "got int"),
        (lambda: multimodal([[Text(1)], Image(1, 1)]), TypeError, "."),
        (lambda: multimodal([Text(-1)]), ValueError, "tokens must be at least 0"),
        (lambda: multimodal([Text(1.0)]), TypeError, "tokens must be an int"),
        (lambda: multimodal([Image(0, 1)]), ValueError, "must be at least 1"),
        (lambda: multimodal([Audio(0)]), ValueError, "must be at least 1"),
        (lambda: multimodal([Video(1, 1, 1, -0.5)]), ValueError, "seconds_per_frame"),
        (lambda: multimodal([Text(3)], total=2), ValueError, "needed 3, got 2"),
        (lambda: multimodal([Text(3)], after="max"), ValueError, "after must be one of"),
        (lambda: multimodal([Text(3)], times="ceil"), ValueError, "times must be one of"),
        (lambda: multimodal([Text(3)], padding_side="both"), ValueError, "padding_side"),
        (lambda: multimodal([Text(3)], ticks_per_second=0), ValueError, "ticks_per_second"),
        (
            lambda: multimodal([Film(Video(1, 1, 1), Audio(1), 0.0)]),
            ValueError,
            "seconds_per_chunk",
        ),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.untyped
def test_types_that_grids_do_not_account_for():
    types, grids = torch.tensor([[0, 1, 1, 0]]), torch.tensor([[1, 1, 2]])
    for arguments, options, error, message in (
        ((types,), {}, ValueError, "image tokens: give image_grids"),
        ((2 * types,), {}, ValueError, "video tokens: give video_grids"),
        ((types, 2 * grids), {}, ValueError, "needed 16, got 2.*merge="),
        ((types, grids[:0]), {}, ValueError, "needed 0, got 2"),
        ((types, grids), {"merge": 2}, ValueError, "merge=2 must divide"),
        ((types, grids * 0), {}, ValueError, "must be at least 1"),
        ((types, grids[0]), {}, ValueError, r"\(M, 3\)"),
        ((types, grids.float()), {}, TypeError, "integers"),
        ((types, [[1, 1, 2]]), {}, TypeError, "list"),
        ((types[0], grids), {}, ValueError, r"token_types must be \(B, S\)"),
        ((types.float(), grids), {}, TypeError, "integers"),
        ((types.tolist(), grids), {}, TypeError, "list"),
        ((types * 4, grids), {}, ValueError, "0 .text.*got 4"),
        ((types, grids), {"attention_mask": types[:, 1:]}, ValueError, "as token_types"),
        (
            (2 * types, None, grids),
            {"seconds_per_frame": torch.tensor([1.0, 1.0])},
            ValueError,
            r"needed \(1,\), got \(2,\)",
        ),
        (
            (2 * types, None, grids),
            {"seconds_per_frame": torch.tensor([0.0])},
            ValueError,
            "must be positive",
        ),
        ((2 * types, None, grids), {"seconds_per_frame": [1.0]}, TypeError, "list"),
    ):
        with pytest.raises(error, match=message):
            from_token_types(*arguments, **options)


@pytest.mark.parametrize("types", [[[1, 0, 1]], [[0, 0, 1], [1, 0, 0]]])
def test_an_image_in_two_pieces_is_refused(types):
    with pytest.raises(ValueError, match="in one piece"):
        from_token_types(torch.tensor(types), torch.tensor([[1, 1, 2]]))
