"""Positions of rows of text, against loops in Python."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness import NOWHERE, positions
from whereness.positions.rows import next_position

lengths_of_documents = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def documents(lengths: list[int], total: int) -> tuple[list[int], list[int]]:
    """(positions, document numbers) of a packed row, one token after the other."""
    ids, numbers = [], []
    for number, length in enumerate(lengths):
        for position in range(length):
            ids.append(position)
            numbers.append(number)
    tail = total - len(ids)
    return ids + [NOWHERE] * tail, numbers + [-1] * tail


# Packed rows


@given(
    lengths_of_documents,
    st.none() | st.integers(0, 4),
    st.sampled_from([torch.int64, torch.int32, torch.uint8]),
)
@settings(max_examples=80)
def test_packed_rows(lengths, spare, dtype):
    total = sum(lengths) + (spare or 0)
    ids, numbers = documents(lengths, total)
    given_total = None if spare is None else total
    for given_lengths in (lengths, tuple(lengths), torch.tensor(lengths, dtype=dtype)):
        found = positions.packed(given_lengths, given_total)
        assert (found.dtype, found.tolist()) == (torch.int64, ids)
        found = positions.segments(given_lengths, given_total)
        assert (found.dtype, found.tolist()) == (torch.int64, numbers)


def test_documents_without_tokens_take_a_number_and_no_slot():
    assert positions.packed([0, 2, 0, 0, 1, 0], 4).tolist() == [0, 1, 0, NOWHERE]
    assert positions.segments([0, 2, 0, 0, 1, 0], 4).tolist() == [1, 1, 4, -1]
    assert positions.packed([0]).tolist() == positions.segments([0, 0]).tolist() == []
    assert positions.packed([0], 2).tolist() == [NOWHERE] * 2
    assert positions.segments([0], 2).tolist() == [-1] * 2


def test_packed_rows_equal_what_attention_counts_in_segments():
    seen = Seen()
    q = torch.zeros(1, 1, 7, 2)
    where = wn.Where(segments=positions.segments([3, 4]))
    wn.attention(q, q, q, seen, where=where)
    assert seen.where.positions[0].tolist() == positions.packed([3, 4]).tolist()


class Seen(wn.PositionalEncoding):
    """Keeps the Where of the last preparation."""

    def tables(self, where: wn.Where) -> None:
        self.where = where


@pytest.mark.parametrize("make", [positions.packed, positions.segments])
@pytest.mark.untyped
def test_what_is_no_list_of_lengths(make):
    for bad, error, message in (
        ([], ValueError, r"lengths must be \(documents,\), at least one; got \(0,\)"),
        (torch.tensor([]).long(), ValueError, r"at least one; got \(0,\)"),
        (torch.tensor(3), ValueError, r"got \(\)"),
        (torch.ones(1, 2).long(), ValueError, r"got \(1, 2\)"),
        ([2, -1], ValueError, "length 1 must be at least 0, got -1"),
        (torch.tensor([2, -1]), ValueError, "lengths must not be negative"),
        ([2.0], TypeError, "length 0 must be an int, got float"),
        ([1, True], TypeError, "length 1 must be an int, got bool"),
        (torch.tensor([2.0]), TypeError, "lengths must hold integers, got torch.float32"),
        (torch.tensor([True]), TypeError, "lengths must hold integers, got torch.bool"),
    ):
        with pytest.raises(error, match=message):
            make(bad)
    with pytest.raises(ValueError, match="total must hold all documents: needed 5, got 4"):
        make([2, 3], 4)
    with pytest.raises(ValueError, match="needed 5, got 4"):
        make(torch.tensor([2, 3]), total=4)
    with pytest.raises(ValueError, match="total must be at least 0, got -1"):
        make([0], -1)
    with pytest.raises(TypeError, match="total must be an int, got float"):
        make([2], 2.0)


# From a mask


@given(
    st.integers(0, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 1), min_size=n, max_size=n), min_size=1, max_size=3
        )
    )
)
@settings(max_examples=60)
def test_from_a_mask(rows):
    expected = []
    for row in rows:
        count, ids = 0, []
        for real in row:
            ids.append(count if real else NOWHERE)
            count += real
        expected.append(ids)
    for dtype in (torch.int64, torch.bool, torch.uint8):
        found = positions.from_mask(torch.tensor(rows, dtype=dtype))
        assert (found.dtype, found.tolist()) == (torch.int64, expected)
    assert positions.from_mask(torch.tensor(rows[0], dtype=torch.bool)).tolist() == expected[0]


@pytest.mark.untyped
def test_what_is_no_mask():
    for bad in (torch.tensor(1), torch.ones(1, 1, 2, 2).bool()):
        shape = re.escape(str(tuple(bad.shape)))
        message = rf"attention_mask must be \(B, T\) or \(T,\), got {shape}"
        with pytest.raises(ValueError, match=message):
            positions.from_mask(bad)
    with pytest.raises(TypeError, match="1 and 0 .*got torch.float32"):
        positions.from_mask(torch.ones(2))
    with pytest.raises(ValueError, match="must hold only 1"):
        positions.from_mask(torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="must be a tensor, got list"):
        positions.from_mask([1, 0])


@pytest.mark.untyped
def test_an_error_names_the_argument_that_the_caller_gave():
    with pytest.raises(ValueError, match="^attention_mask "):
        positions.from_mask(torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="^attention_mask "):
        positions.from_mask(torch.ones(2))


# After a cache


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), st.integers(1, 4))
@settings(max_examples=40)
def test_positions_after_a_cache(past, new):
    expected = [[length + step for step in range(new)] for length in past]
    for lengths in (past, torch.tensor(past), torch.tensor(past, dtype=torch.int32)):
        found = positions.decode(lengths, new)
        assert (found.dtype, found.tolist()) == (torch.int64, expected)
    assert positions.decode(past).tolist() == [[length] for length in past]


@pytest.mark.untyped
def test_what_no_cache_can_have():
    for bad, error, message in (
        (torch.tensor([2.0]), TypeError, "cache_lengths must hold integers, got torch.float32"),
        (torch.tensor([True]), TypeError, "cache_lengths must hold integers, got torch.bool"),
        (torch.tensor(3), ValueError, r"cache_lengths must be \(B,\), got \(\)"),
        (torch.ones(1, 2).long(), ValueError, r"got \(1, 2\)"),
        ([3, -1], ValueError, "cache_lengths must be at least 0, got -1"),
        (torch.tensor([-1]), ValueError, "cache_lengths must not be negative"),
    ):
        with pytest.raises(error, match=message):
            positions.decode(bad)
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"num_new must be at least 1, got {bad}"):
            positions.decode([1], bad)
    with pytest.raises(TypeError, match="num_new must be an int"):
        positions.decode([1], 1.0)


@pytest.mark.untyped
@pytest.mark.parametrize("bad", [[1.5], [2, True]])
def test_lengths_in_a_list_are_not_rounded_in_silence(bad):
    with pytest.raises(TypeError, match="int"):
        positions.decode(bad)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=30)
def test_text_after_a_cache_has_one_number_on_every_axis(past, new, axes):
    found = positions.decode(past, new, axes)
    expected = [[[length + step] * axes for step in range(new)] for length in past]
    assert found.tolist() == (expected if axes > 1 else positions.decode(past, new).tolist())
    with pytest.raises(ValueError, match="num_axes must be at least 1, got 0"):
        positions.decode(past, new, 0)


# A prefill in chunks


@given(st.data())
@settings(max_examples=60)
def test_chunks_of_an_uneven_prefill(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    cached = data.draw(
        st.none() | st.lists(st.integers(0, 20), min_size=len(lengths), max_size=len(lengths))
    )
    start, size = data.draw(st.integers(0, 10)), data.draw(st.integers(1, 5))
    expected = [
        [
            slot + (cached[row] if cached else 0) if slot < length else NOWHERE
            for slot in range(start, start + size)
        ]
        for row, length in enumerate(lengths)
    ]
    for make in (list, torch.tensor):
        past = None if cached is None else make(cached)
        found = positions.prefill(make(lengths), start, size, past)
        assert (found.dtype, found.tolist()) == (torch.int64, expected)


def test_chunks_of_a_prefill_equal_one_shot():
    """Rows of 7 and 4 tokens, one of them after 3 tokens that its cache holds already."""
    torch.manual_seed(0)
    layer = wn.Attention(16, 2, wn.RoPE(8), causal=True).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    lengths, whole = [7, 4], positions.prefill([7, 4], 0, 7, [0, 3])
    expected = layer(x, where=wn.Where(whole, key_mask=whole != NOWHERE))
    for size in (1, 2, 3, 4, 7):
        cache, outs = wn.KVCache(), []
        for start in range(0, 7, size):
            ids = positions.prefill(lengths, start, min(size, 7 - start), [0, 3])
            where = wn.Where(ids, key_mask=ids != NOWHERE)
            outs.append(layer(x[:, start : start + size], where=where, cache=cache))
        found = torch.cat(outs, 1)
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[row, :length], expected[row, :length])
        assert cache.next_position.tolist() == [7, 7]


@pytest.mark.untyped
def test_what_is_no_prefill():
    for given_arguments, error, message in (
        (([3], -1, 2), ValueError, "start must be at least 0, got -1"),
        (([3], 0, 0), ValueError, "size must be at least 1, got 0"),
        (([3.0], 0, 1), TypeError, "lengths must be an int, got float"),
        ((torch.tensor([3.0]), 0, 1), TypeError, "lengths must hold integers, got torch.float32"),
        (([3], 0, 1, [1, 2]), ValueError, "cache_lengths must be one a row: needed 1, got 2"),
        ((torch.tensor([-1]), 0, 1), ValueError, "lengths must not be negative"),
    ):
        with pytest.raises(error, match=message):
            positions.prefill(*given_arguments)


# Ids of a caller's own


@given(st.data())
@settings(max_examples=60)
def test_ids_go_on_one_beyond_the_largest(data):
    axes = data.draw(st.integers(1, 3))
    number = st.integers(-9, 9) | st.just(NOWHERE)
    token = number if axes == 1 else st.lists(number, min_size=axes, max_size=axes)
    rows = data.draw(st.lists(st.lists(token, min_size=3, max_size=3), min_size=1, max_size=3))
    new = data.draw(st.integers(1, 3))
    expected = []
    for row in rows:
        tokens = [t if isinstance(t, list) else [t] for t in row]
        placed = [max(t) for t in tokens if NOWHERE not in t]
        first = max(placed) + 1 if placed else 0
        ids = [first + step for step in range(new)]
        expected.append(ids if axes == 1 else [[i] * axes for i in ids])
    found = positions.continued(torch.tensor(rows), new, axes)
    assert (found.dtype, found.tolist()) == (torch.int64, expected)


def test_real_ids_go_on_as_real_ones():
    found = positions.continued(torch.tensor([0.5, torch.nan, 2.25]), 2)
    assert (found.dtype, found.tolist()) == (torch.float32, [[3.25, 4.25]])


def test_pads_and_what_was_before_count_as_asked():
    ids, pads = torch.tensor([[1, 5], [2, 3]]), torch.tensor([[False, True], [False, False]])
    assert next_position(ids, pads=pads).tolist() == [2, 4]
    before = torch.tensor([9, 0])
    assert next_position(ids, before=before).tolist() == [9, 4]
    none = torch.full((2, 2), NOWHERE)
    assert next_position(none, before=before).tolist() == [9, 0]


@pytest.mark.untyped
def test_what_cannot_be_continued():
    with pytest.raises(TypeError, match="bfloat16"):
        positions.continued(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="num_new must be at least 1"):
        positions.continued(torch.arange(3), 0)
    with pytest.raises(ValueError, match="end in num_axes=2"):
        positions.continued(torch.zeros(3, 3).long(), num_axes=2)


@pytest.mark.parametrize("total", [None, 10])
def test_lengths_whose_sum_overflows(total):
    # 2^62 + 2^62 is below zero in int64, and would fit any total.
    with pytest.raises(ValueError, match="lengths must be at most 2147483647; got"):
        positions.packed(torch.tensor([2**62, 2**62]), total)


def test_lengths_without_values():
    with pytest.raises(ValueError, match="meta device have no values: give total"):
        positions.packed(torch.ones(3, dtype=torch.int64, device="meta"))


@pytest.mark.untyped
def test_continued_needs_positions():
    with pytest.raises(TypeError, match="positions must be a tensor, got NoneType"):
        positions.continued(None)
