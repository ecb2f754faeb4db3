"""wn.positions against loops in Python, and without a look at values where none is needed."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import whereness as wn
from whereness import NOWHERE, positions

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


# Grids


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


# Devices


class NoLook(TorchDispatchMode):
    """Refuses what makes an accelerator wait: to read a value, or to size a tensor by values."""

    LOOKS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.startswith(self.LOOKS):
            raise AssertionError(f"looked at a value: {func}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def like_an_accelerator(monkeypatch):
    """Checks take the path of an accelerator, on which no value may be looked at."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


MAKERS = {
    "packed": lambda n: positions.packed(n, 9),
    "segments": lambda n: positions.segments(n, 9),
    "decode": lambda n: positions.decode(n, 2),
    "from_mask": lambda n: positions.from_mask(n > 0),
    "from ones and zeros": positions.from_mask,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_ids_are_made_where_the_lengths_are(make):
    found = make(torch.ones(3, dtype=torch.int64, device="meta"))
    assert found.device.type == "meta"
    assert found.shape == make(torch.ones(3, dtype=torch.int64)).shape


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_no_value_is_looked_at(make, like_an_accelerator):
    ones = torch.ones(3, dtype=torch.int64)
    with NoLook():
        found = make(ones)
    assert found.tolist() == make(ones).tolist()


def test_the_watch_for_looks_is_in_force(like_an_accelerator):
    lengths = torch.ones(3, dtype=torch.int64)
    with NoLook(), pytest.raises(AssertionError, match="looked at a value"):
        positions.packed(lengths)  # a sum that nobody gave has to be looked at
    with NoLook(), pytest.raises(RuntimeError, match="."):
        positions.packed(lengths, 2)  # what is wrong is still refused, without waiting


@pytest.mark.parametrize("encoding", ["rope", "alibi", "relative_add", "t5", "shaw"])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_attention_looks_at_no_value(encoding, implementation, like_an_accelerator):
    made = wn.create(encoding, dim=16, num_heads=2)
    q, lengths = torch.ones(2, 2, 5, 8), torch.tensor([2, 3])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    with NoLook():
        for where in (
            None,
            positions.packed(lengths, 5),
            wn.Where(key_mask=mask),
            wn.Where(segments=positions.segments(lengths, 5), lengths=lengths),
        ):
            wn.attention(q, q, q, made, where=where, causal=True, implementation=implementation)


def test_a_layer_with_a_cache_looks_at_no_value(like_an_accelerator):
    layer = wn.Attention(16, 2, [wn.RoPE(8), wn.ALiBi(2)], causal=True)
    cache, x = wn.KVCache(), torch.ones(2, 4, 16)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    with NoLook():
        layer(x, cache=cache, key_mask=mask[:, :4])
        layer(x[:, :1], cache=cache, key_mask=mask)
        cache.reorder(torch.tensor([1, 0]))
        cache.trim(3)
        layer(x[:, :1], cache=cache)
