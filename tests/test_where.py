"""wn.Where: what it takes, the shapes it gives back, and what it refuses."""

import dataclasses
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness import NOWHERE, Where
from whereness.where import filled, is_nowhere, offsets

FIELDS = ("positions", "k_positions", "segments", "k_segments", "key_mask", "lengths")


def refused(error: type[Exception], message: str, *args, **options) -> None:
    with pytest.raises(error, match=message):
        Where(*args, **options)


# Shapes and types


def test_it_shows_what_was_given():
    assert repr(Where()) == "Where()"
    assert repr(Where(torch.arange(3), lengths=8)) == "Where(positions=int64 (1, 3), lengths=8)"
    full = Where(
        torch.zeros(2, 3, 2),
        torch.zeros(4, 2),
        key_mask=torch.ones(2, 4).bool(),
        lengths=torch.tensor([5, 6]),
        num_axes=2,
    )
    assert repr(full.as_regular()) == (
        "Where(positions=float32 (2, 3, 2), k_positions=float32 (1, 4, 2), "
        "key_mask=bool (2, 4), lengths=int64 (2, 1), num_axes=2)"
    )


@pytest.mark.untyped
def test_what_multimodal_gives_is_not_taken_for_positions():
    placed = wn.positions.multimodal([wn.positions.Text(2)])
    rope = wn.MultimodalRoPE(8, (2, 1, 1))
    q = torch.zeros(1, 1, 2, 8)
    advice = r"Placed.*Give Where\(its \.positions, num_axes=3\)\."
    refused(TypeError, advice, placed, num_axes=3)
    for call in (
        lambda: rope.prepare(placed),  # type: ignore[bad-argument-type]
        lambda: rope(q, q, placed),  # type: ignore[bad-argument-type]
        lambda: wn.attention(q, q, q, rope, where=placed),  # type: ignore[no-matching-overload]
    ):
        with pytest.raises(TypeError, match=advice):
            call()


def test_every_tensor_gets_a_batch_axis():
    where = Where(
        torch.arange(3),
        torch.arange(4),
        segments=torch.zeros(3).long(),
        k_segments=torch.ones(4).long(),
        key_mask=torch.tensor([True, False, True, True]),
        lengths=torch.tensor([9]),
    )
    shapes = [tuple(getattr(where, n).shape) for n in FIELDS]
    assert shapes == [(1, 3), (1, 4), (1, 3), (1, 4), (1, 4), (1, 1)]
    assert (where.num_queries, where.num_keys) == (3, 4)


def test_a_batch_axis_that_is_there_stays():
    where = Where(
        torch.arange(6).reshape(2, 3),
        torch.arange(8).reshape(2, 4),
        segments=torch.zeros(2, 3).long(),
        k_segments=torch.ones(1, 4).long(),
        key_mask=torch.ones(2, 4).bool(),
        lengths=torch.tensor([9, 8]),
    )
    shapes = [tuple(getattr(where, n).shape) for n in FIELDS]
    assert shapes == [(2, 3), (2, 4), (2, 3), (1, 4), (2, 4), (2, 1)]
    assert where.positions.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("axes", [2, 3])
def test_positions_of_several_axes(axes):
    where = Where(torch.zeros(5, axes).long(), num_axes=axes)
    assert where.positions.shape == (1, 5, axes)
    assert (where.num_queries, where.num_keys) == (5, 5)
    assert Where(torch.zeros(2, 5, axes), num_axes=axes).positions.shape == (2, 5, axes)
    # (S, n) with one axis is a batch: the caller says what the last axis is
    assert Where(torch.zeros(5, axes).long()).num_queries == axes


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_become_int64(dtype):
    numbers = torch.tensor([0, 100, 5], dtype=dtype)
    where = Where(numbers, numbers, segments=numbers, k_segments=numbers, lengths=numbers[:1])
    for name in ("positions", "k_positions", "segments", "k_segments"):
        value = getattr(where, name)
        assert (value.dtype, value.tolist()) == (torch.int64, [[0, 100, 5]]), name
    assert where.lengths.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_positions_keep_their_type(dtype):
    where = Where(torch.tensor([0.5, float("nan")], dtype=dtype), torch.tensor([1, 2]))
    assert (where.positions.dtype, where.k_positions.dtype) == (dtype, torch.int64)
    assert is_nowhere(where.positions).tolist() == [[False, True]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_a_key_mask_becomes_bool(dtype):
    where = Where(key_mask=torch.tensor([1, 0, 1]).to(dtype))
    assert (where.key_mask.dtype, where.key_mask.tolist()) == (torch.bool, [[True, False, True]])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (7, [[7]]),
        (0, [[0]]),
        (torch.tensor(7), [[7]]),
        (torch.tensor([7, 9]), [[7], [9]]),
        (torch.tensor([[7, 9, 9]]), [[7, 9, 9]]),
        (torch.tensor([7, 9], dtype=torch.int32), [[7], [9]]),
    ],
    ids=str,
)
def test_lengths_are_one_a_sequence_or_one_a_token(lengths, expected):
    where = Where(torch.arange(3), lengths=lengths)
    assert where.lengths.tolist() == expected
    assert where.lengths.dtype == torch.int64


def test_nothing_needs_to_be_given():
    where = Where()
    assert all(getattr(where, n) is None for n in FIELDS)
    assert where.keys is where.new_keys is where.key_segments is None
    assert where.new_pads() is None
    assert (where.num_axes, where.cached, where.regular) == (1, 0, False)


def test_the_new_tokens_are_the_keys_unless_keys_are_given():
    where = Where(torch.arange(3), segments=torch.tensor([0, 0, 1]))
    assert where.keys is where.positions
    assert where.new_keys is where.positions
    assert where.key_segments is where.segments
    other = Where(
        torch.arange(2),
        torch.arange(5),
        segments=torch.zeros(2).long(),
        k_segments=torch.ones(5).long(),
    )
    assert other.keys.tolist() == [[0, 1, 2, 3, 4]]
    assert other.key_segments.tolist() == [[1] * 5]
    assert dataclasses.replace(other, cached=3).new_keys.tolist() == [[3, 4]]


def test_pads_among_the_new_tokens():
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]])
    assert Where(torch.arange(5), key_mask=mask).new_pads().tolist() == (mask == 0).tolist()
    where = Where(torch.arange(2), torch.arange(5), key_mask=mask)
    assert where.new_pads().tolist() == [[False, True], [False, False]]


# What is refused


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["positions", "k_positions"])
def test_positions_of_a_wrong_type(name):
    given = {"positions": torch.arange(3), name: None}
    for bad in ([0, 1, 2], range(3), 3, "012"):
        refused(
            TypeError, f"{name} must be a tensor, got {type(bad).__name__}", **{**given, name: bad}
        )
    for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.complex64):
        bad = torch.zeros(3, dtype=dtype)
        refused(
            TypeError,
            f"{name} must hold int64, float32 or float64, got {dtype}",
            **{**given, name: bad},
        )


@pytest.mark.parametrize("name", ["positions", "k_positions"])
def test_positions_of_a_wrong_shape(name):
    given = {"positions": torch.arange(3)}
    assert Where(torch.zeros(2, 3, 1), torch.zeros(2, 4, 1)).keys.shape == (2, 4)
    for shape in ((), (1, 2, 3)):
        bad = torch.zeros(shape).long()
        refused(
            ValueError,
            rf"{name} must have shape .*got {re.escape(str(shape))}",
            **{**given, name: bad},
        )
    given = {"positions": torch.zeros(3, 2)}
    for shape, message in (
        ((3,), "shape"),
        ((3, 3), "end in num_axes=2"),
        ((2, 1), "end in num_axes=2"),
        ((1, 1, 3, 2), r"\(S, n\) or \(B, S, n\)"),
    ):
        bad = torch.zeros(shape)
        refused(ValueError, rf"{name} must .*{message}", **{**given, name: bad}, num_axes=2)


def test_infinite_positions():
    for bad in (float("inf"), -float("inf")):
        refused(ValueError, f"positions must be finite .*; got {bad}", torch.tensor([0.0, bad]))
        refused(ValueError, "k_positions must be finite", torch.arange(2), torch.tensor([0.0, bad]))
        refused(ValueError, "positions must be finite", torch.tensor([[0.0, bad]]), num_axes=2)


def test_positions_beyond_what_float64_can_count():
    far = 2**53
    for near_enough in (far, -far, NOWHERE):
        ids = torch.tensor([0, near_enough])
        assert Where(ids, ids).keys.tolist() == [[0, near_enough]]
    for bad in (far + 1, -far - 1, 2**63 - 1, NOWHERE + 1):
        ids = torch.tensor([0, bad])
        refused(ValueError, f"^positions must lie within 2.53 .*; got {bad}\\.$", ids)
        refused(ValueError, "^k_positions must lie within 2.53", torch.arange(2), ids)
    with pytest.raises(ValueError, match="within 2.53"):
        Where(torch.tensor([far])).shifted(1)


@pytest.mark.untyped
def test_numbers_of_axes_that_make_no_sense():
    refused(ValueError, "num_axes must be at least 1, got 0", torch.arange(3), num_axes=0)
    for bad in (2.0, "2", None, True):
        refused(TypeError, "num_axes must be an int", torch.arange(3), num_axes=bad)


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["segments", "k_segments", "lengths"])
def test_what_must_be_integers(name):
    given = {"segments": torch.zeros(3).long()} if name == "k_segments" else {}
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.bfloat16):
        bad = torch.zeros(3, dtype=dtype)
        refused(
            TypeError,
            f"{name} must hold integers, got {dtype}",
            torch.arange(3),
            **given,
            **{name: bad},
        )
    for bad in ([0, 0, 0], 1.5, True):
        message = f"{name} must be a tensor of integers, got {type(bad).__name__}"
        refused(TypeError, message, torch.arange(3), **given, **{name: bad})


@pytest.mark.untyped
def test_a_key_mask_of_a_wrong_kind():
    refused(TypeError, "key_mask must be a tensor, got list", key_mask=[1, 0])
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        refused(
            TypeError,
            rf"1 and 0 \(1 = real token\), got {dtype}.*mask == 0",
            key_mask=torch.ones(3, dtype=dtype),
        )
    for bad in (2, -1):
        refused(ValueError, "only 1 .* and 0", key_mask=torch.tensor([1, bad]))
    refused(
        ValueError,
        r"key_mask must have shape \(S,\) or \(B, S\), got \(1, 1, 1, 3\)",
        key_mask=torch.ones(1, 1, 1, 3).bool(),
    )


def test_lengths_that_make_no_sense():
    for bad in (-1, -(10**30)):
        refused(ValueError, f"lengths must be at least 0, got {bad}", torch.arange(3), lengths=bad)
    for bad in (2**53 + 1, 2**63, 10**30):
        message = f"lengths must be at most {2**53}, got {bad}"
        refused(ValueError, message, torch.arange(3), lengths=bad)
        refused(ValueError, message, lengths=bad)
    assert Where(lengths=2**53).lengths.item() == 2**53
    refused(
        ValueError,
        rf"lengths must be at most 2\^53; got {2**53 + 1}",
        lengths=torch.tensor([3, 2**53 + 1, 2**62]),
    )
    refused(
        ValueError,
        "lengths must hold numbers below 2",
        lengths=torch.tensor([2**63 + 5], dtype=torch.uint64),
    )
    refused(
        ValueError,
        "lengths must not be negative; got -2",
        torch.arange(3),
        lengths=torch.tensor([3, -2]),
    )
    refused(
        ValueError,
        r"lengths must be an int, \(B,\) or \(B, S\), got \(1, 1, 1\)",
        torch.arange(3),
        lengths=torch.ones(1, 1, 1).long(),
    )


def test_batches_that_disagree():
    refused(
        ValueError,
        r"Batch sizes must agree or be 1, got .*'positions': 2.*'segments': 3",
        torch.zeros(2, 4).long(),
        segments=torch.zeros(3, 4).long(),
    )
    refused(ValueError, r"'k_positions': 3", torch.zeros(2, 4).long(), torch.zeros(3, 4).long())
    refused(
        ValueError, r"'key_mask': 3", torch.zeros(2, 4).long(), key_mask=torch.ones(3, 4).bool()
    )
    refused(ValueError, r"'lengths': 3", torch.zeros(2, 4).long(), lengths=torch.ones(3).long())
    refused(
        ValueError,
        r"'segments': 2.*'k_segments': 3",
        torch.arange(4),
        segments=torch.zeros(2, 4).long(),
        k_segments=torch.zeros(3, 4).long(),
    )
    # a batch of one serves any other
    Where(torch.arange(4), segments=torch.zeros(3, 4).long(), key_mask=torch.ones(1, 4).bool())


def test_lengths_of_streams_that_disagree():
    refused(
        ValueError,
        "segments must be as long as positions: needed 4 tokens, got 3",
        torch.arange(4),
        segments=torch.zeros(3).long(),
    )
    refused(
        ValueError,
        "key_mask must be as long as the keys: needed 4 tokens, got 5",
        torch.arange(4),
        key_mask=torch.ones(5).bool(),
    )
    refused(
        ValueError,
        "key_mask must be as long as the keys: needed 5 tokens, got 4",
        torch.arange(4),
        torch.arange(5),
        key_mask=torch.ones(4).bool(),
    )
    refused(
        ValueError,
        "k_segments must be as long as the keys: needed 5 tokens, got 4",
        torch.arange(4),
        torch.arange(5),
        segments=torch.zeros(4).long(),
        k_segments=torch.zeros(4).long(),
    )


def test_half_of_a_pair():
    refused(ValueError, "k_positions need positions beside them", k_positions=torch.arange(3))
    refused(
        ValueError,
        "k_segments need segments beside them",
        torch.arange(3),
        k_segments=torch.zeros(3).long(),
    )
    refused(
        ValueError,
        "segments with k_positions need k_segments",
        torch.arange(3),
        torch.arange(4),
        segments=torch.zeros(3).long(),
    )


@pytest.mark.untyped
def test_a_where_is_one_frozen_value():
    where = Where(torch.arange(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        where.positions = torch.arange(4)
    with pytest.raises(TypeError):
        Where(torch.arange(3), torch.arange(3), torch.zeros(3).long())  # segments by name only
    assert where != Where(torch.arange(3))  # no comparison of tensors behind ==
    assert len({where, where}) == 1


# shifted, to, replace


@given(
    st.lists(st.sampled_from([NOWHERE, 0, 1, -5, 10**6]), min_size=1, max_size=6),
    st.integers(-1000, 1000),
)
@settings(max_examples=40)
def test_a_shift_moves_all_that_have_a_place(ids, offset):
    where = Where(torch.tensor(ids), torch.tensor([*ids, 7]))
    moved = [p if p == NOWHERE else p + offset for p in ids]
    assert where.shifted(offset).positions.tolist() == [moved]
    assert where.shifted(offset).k_positions.tolist() == [[*moved, 7 + offset]]
    assert where.positions.tolist() == [ids]


def test_a_shift_of_real_positions():
    where = Where(torch.tensor([0.5, float("nan"), 2.0])).shifted(0.25)
    assert where.positions.dtype == torch.float32
    assert where.positions.nan_to_num(-1.0).tolist() == [[0.75, -1.0, 2.25]]


def test_a_token_without_a_place_stays_without_when_integers_become_real():
    where = Where(torch.tensor([NOWHERE, 3])).shifted(0.5)
    assert is_nowhere(where.positions).tolist() == [[True, False]]
    assert where.positions[0, 1] == 3.5


def test_a_shift_on_several_axes_keeps_tokens_without_a_place():
    ids = torch.tensor([[NOWHERE, NOWHERE], [1, 2], [NOWHERE, 5], [5, NOWHERE]])
    where = Where(ids, num_axes=2).shifted(10)
    assert is_nowhere(where.positions, 2).tolist() == [[True, False, True, True]]
    assert where.positions[0, 0].tolist() == [NOWHERE, NOWHERE]
    assert where.positions[0, 1].tolist() == [11, 12]
    real = Where(torch.tensor([[float("nan"), 1.0], [1.0, 2.0]]), num_axes=2).shifted(1)
    assert is_nowhere(real.positions, 2).tolist() == [[True, False]]
    assert real.positions[0, 1].tolist() == [2.0, 3.0]


def test_a_shift_keeps_all_else():
    full = Where(
        torch.arange(3),
        segments=torch.tensor([0, 0, 1]),
        key_mask=torch.tensor([1, 1, 0]),
        lengths=5,
    )
    moved = full.shifted(4)
    for name in ("segments", "key_mask", "lengths"):
        assert getattr(moved, name).tolist() == getattr(full, name).tolist()
    assert moved.k_positions is None
    assert Where().shifted(3).positions is None
    assert Where(segments=torch.zeros(2).long()).shifted(1).segments is not None


def test_to_moves_every_tensor():
    where = Where(
        torch.arange(3),
        torch.arange(4),
        segments=torch.zeros(3).long(),
        k_segments=torch.ones(4).long(),
        key_mask=torch.ones(4).bool(),
        lengths=5,
    )
    assert {getattr(where.to("meta"), n).device.type for n in FIELDS} == {"meta"}
    assert {getattr(where.to("cpu"), n).device.type for n in FIELDS} == {"cpu"}
    assert where.to(torch.device("meta")).positions.shape == (1, 3)
    sparse = Where(torch.zeros(3, 2), num_axes=2).to("meta")
    assert (sparse.num_axes, sparse.k_positions, sparse.lengths) == (2, None, None)


def test_lengths_given_as_a_number_are_where_the_positions_are():
    assert Where(torch.arange(3, device="meta"), lengths=5).lengths.device.type == "meta"


def test_replace_checks_again():
    where = Where(torch.arange(3), key_mask=torch.ones(3).bool())
    changed = dataclasses.replace(where, positions=torch.tensor([4, 5, 6], dtype=torch.int32))
    assert (changed.positions.dtype, changed.positions.tolist()) == (torch.int64, [[4, 5, 6]])
    assert changed.key_mask.tolist() == [[True] * 3]
    with pytest.raises(ValueError, match="needed 4 tokens, got 3"):
        dataclasses.replace(where, positions=torch.arange(4))
    with pytest.raises(TypeError, match="bfloat16"):
        dataclasses.replace(where, positions=torch.zeros(3).bfloat16())


def test_checks_look_at_no_value_on_a_device_without_memory():
    meta = {"device": "meta"}
    where = Where(
        torch.zeros(3, **meta),
        key_mask=torch.zeros(3, dtype=torch.int64, **meta),
        lengths=torch.zeros(1, dtype=torch.int64, **meta),
    )
    assert where.key_mask.dtype == torch.bool
    assert where.shifted(3).positions.device.type == "meta"


# The flag of regular positions: offsets of positions are offsets of slots


class Seen(wn.PositionalEncoding):
    """Keeps the Where of the last preparation."""

    def tables(self, where: Where) -> None:
        self.where = where


def is_regular(queries: int, keys: int, **options) -> bool:
    seen = Seen()
    wn.attention(torch.zeros(2, 1, queries, 2), *[torch.zeros(2, 1, keys, 2)] * 2, seen, **options)
    return seen.where.regular


def test_only_positions_that_the_library_built_are_regular():
    assert is_regular(4, 4)
    assert is_regular(4, 4, causal=True)
    assert is_regular(2, 4, causal=True)
    assert not is_regular(4, 4, where=torch.arange(4))
    assert not is_regular(4, 4, where=Where(torch.arange(4)))
    assert not is_regular(2, 4, where=Where(torch.arange(2, 4), torch.arange(4)), causal=True)
    assert not is_regular(4, 4, key_mask=torch.tensor([1, 0, 1, 1]))
    assert not is_regular(4, 4, where=Where(key_mask=torch.tensor([1, 0, 1, 1])))


def test_other_positions_are_not_regular_because_the_old_ones_were():
    seen = Seen()
    wn.attention(*[torch.zeros(1, 1, 4, 2)] * 3, seen)
    assert seen.where.regular
    warped = dataclasses.replace(seen.where, positions=torch.tensor([0, 5, 6, 7]))
    assert not warped.regular
    assert seen.where.shifted(5).regular
    assert not warped.shifted(5).regular
    wn.attention(torch.zeros(1, 1, 2, 4), *[torch.zeros(1, 1, 4, 4)] * 2, seen, causal=True)
    assert seen.where.regular
    assert not dataclasses.replace(seen.where, k_positions=torch.tensor([0, 5, 6, 7])).regular


def test_a_cache_is_regular_until_something_else_comes():
    layer = wn.Attention(4, 2, Seen(), causal=True)

    def step(cache: wn.KVCache, tokens: int, **options) -> bool:
        layer(torch.zeros(1, tokens, 4), cache=cache, **options)
        return layer.encoding.where.regular

    cache = wn.KVCache()
    assert [step(cache, n) for n in (3, 1, 2)] == [True] * 3
    cache.trim(4)
    assert step(cache, 1)
    cache.evict(torch.tensor([1]))
    assert not step(cache, 1)
    cache = wn.KVCache()
    assert [step(cache, 2), step(cache, 1, where=torch.tensor([2]))] == [True, False]
    cache = wn.KVCache()
    assert not step(cache, 3, where=torch.arange(3))
    assert not step(cache, 1)
    cache = wn.KVCache()
    assert not step(cache, 3, key_mask=torch.tensor([[1, 1, 0]]))
    assert not step(cache, 1)


# Helpers of the encodings


def test_a_token_is_nowhere_if_one_coordinate_is():
    ids = torch.tensor([[NOWHERE, 0], [0, 0], [0, NOWHERE]])
    assert is_nowhere(ids, 2).tolist() == [True, False, True]
    placed, absent = filled(ids, 2)
    assert placed.tolist() == [[0, 0]] * 3
    assert absent.tolist() == [True, False, True]
    placed, absent = filled(torch.tensor([float("nan"), 2.5]))
    assert placed.tolist() == [0.0, 2.5]
    assert absent.tolist() == [True, False]


@given(
    st.lists(st.sampled_from([NOWHERE, 0, 3, -4, 10]), min_size=1, max_size=4),
    st.lists(st.sampled_from([NOWHERE, 1, 3, -9]), min_size=1, max_size=4),
)
@settings(max_examples=40)
def test_offsets_look_from_the_query_to_the_key(q, k):
    found, placed = offsets(torch.tensor(q), torch.tensor(k))
    for i, a in enumerate(q):
        for j, b in enumerate(k):
            both = NOWHERE not in (a, b)
            assert placed[i, j] == both
            assert found[i, j] == (b - a if both else 0)


def test_offsets_of_far_tokens_are_exact():
    far = 2**52
    found, _ = offsets(torch.tensor([far + 1]), torch.tensor([far]))
    assert found.tolist() == [[-1]]


def test_offsets_of_real_positions_keep_all_their_digits():
    found, placed = offsets(torch.tensor([-3.5, float("nan")]), torch.tensor([16_777_215.0]))
    assert found.tolist() == [[16_777_218.5], [0.0]]
    assert placed.tolist() == [[True], [False]]
    mixed, _ = offsets(torch.tensor([0.25]), torch.tensor([3, NOWHERE]))
    assert mixed.tolist() == [[2.75, 0.0]]


def test_offsets_of_batches_that_do_not_fit():
    found, _ = offsets(torch.zeros(2, 3).long(), torch.ones(1, 4).long())
    assert found.shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"must agree or be 1, got \(2,\) and \(3,\)"):
        offsets(torch.zeros(2, 3).long(), torch.zeros(3, 4).long())
