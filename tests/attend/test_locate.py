"""Positions that nobody gave: what they are, and that they are the same as when given.

The expected positions are counted in plain loops over tokens.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import whereness as wn
from attend.oracle import attend, differ, near, qkv

NOWHERE = wn.NOWHERE


class Seen(wn.PositionalEncoding):
    """Keeps the Where of the last preparation."""

    def tables(self, where: wn.Where) -> None:
        self.where = where


def defaults(queries: int, keys: int, **options) -> tuple[list, list]:
    """(positions, key positions) that wn.attention fills in, as lists of rows."""
    seen = Seen()
    wn.attention(*qkv(queries=queries, keys=keys), seen, **options)
    return seen.where.positions.tolist(), seen.where.keys.tolist()


def counted(segments: list[int], real: list[int]) -> list[int]:
    """Real tokens counted from 0 in every document, in however many parts; pads nowhere."""
    found, counts = [], dict.fromkeys(segments, 0)
    for segment, bit in zip(segments, real, strict=True):
        found.append(counts[segment] if bit else NOWHERE)
        counts[segment] += bit
    return found


@pytest.mark.parametrize("causal", [False, True])
def test_as_many_queries_as_keys_count_from_nought(causal):
    assert defaults(5, 5, causal=causal) == ([[0, 1, 2, 3, 4]],) * 2


def test_fewer_causal_queries_are_the_last_of_the_keys():
    assert defaults(2, 5, causal=True) == ([[3, 4]], [[0, 1, 2, 3, 4]])


rows = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.integers(0, 1), min_size=n, max_size=n), min_size=2, max_size=2),
        st.lists(st.lists(st.integers(-1, 2), min_size=n, max_size=n), min_size=2, max_size=2),
        st.integers(1, n),
    )
)


@given(rows)
@settings(max_examples=60)
def test_a_key_mask_counts_real_tokens(drawn):
    masks, _, queries = drawn
    length = len(masks[0])
    expected = [counted([0] * length, mask) for mask in masks]
    key_mask = torch.tensor(masks)
    assert defaults(length, length, key_mask=key_mask) == (expected, expected)
    assert defaults(length, length, where=wn.Where(key_mask=key_mask)) == (expected, expected)
    last = [row[length - queries :] for row in expected]
    assert defaults(queries, length, key_mask=key_mask, causal=True) == (last, expected)


@given(rows)
@settings(max_examples=60)
def test_every_segment_counts_anew(drawn):
    masks, segments, _ = drawn
    length = len(masks[0])
    where = wn.Where(segments=torch.tensor(segments))
    expected = [counted(row, [1] * length) for row in segments]
    assert defaults(length, length, where=where) == (expected, expected)
    # with pads, and one row of segments or of the mask for the whole batch
    for doc, mask in ((segments, masks), (segments[:1], masks), (segments, masks[:1])):
        pairs = zip(doc * (2 // len(doc)), mask * (2 // len(mask)), strict=True)
        expected = [counted(d, m) for d, m in pairs]
        where = wn.Where(segments=torch.tensor(doc), key_mask=torch.tensor(mask))
        assert defaults(length, length, where=where) == (expected, expected)
        where = wn.Where(segments=torch.tensor(doc))
        found = defaults(length, length, where=where, key_mask=torch.tensor(mask))
        assert found == (expected, expected)


def test_lengths_given_as_a_number_are_where_the_tokens_are():
    seen = Seen()
    q = torch.zeros(1, 1, 3, 2, device="meta")
    wn.attention(q, q, q, seen, where=wn.Where(lengths=5))
    assert seen.where.lengths.device.type == "meta"


def test_an_encoding_that_reads_no_positions_needs_none():
    q, k, v = qkv(queries=3, keys=5)
    near(wn.attention(q, k, v), attend(q, k, v)[0])
    grid = wn.Where(wn.positions.grid(2, 3), num_axes=2)
    q, k, v = qkv()
    near(wn.attention(q, k, v, where=grid), attend(q, k, v)[0])


# Positions that the library built may be handled by a shorter form: never with other numbers

BIASES = {
    "alibi": lambda: wn.ALiBi(4),
    "learned": lambda: _drawn(wn.LearnedRelative(4, 4).double()),
    "t5": lambda: _drawn(wn.T5(4, 8, 9, bidirectional=True, scaled=True).double()),
    "list": lambda: [wn.RoPE(8), wn.ALiBi(4), _drawn(wn.LearnedRelative(4, 2).double())],
}


def _drawn(module: torch.nn.Module) -> torch.nn.Module:
    for p in module.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(7))
    return module


@dataclass(frozen=True)
class Built:
    """A call without positions, and the positions that it means."""

    queries: int
    keys: int
    positions: list
    k_positions: list
    segments: list | None = None
    key_mask: list | None = None
    causal: bool = True


BUILT = {
    "square": Built(6, 6, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
    "both ways": Built(6, 6, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], causal=False),
    "last": Built(2, 6, [4, 5], [0, 1, 2, 3, 4, 5]),
    "one": Built(1, 6, [5], [0, 1, 2, 3, 4, 5]),
    "packed": Built(6, 6, [0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3], [4, 4, 1, 1, 1, 1]),
    "a document in two parts": Built(
        6, 6, [0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3], [4, 4, 1, 1, 4, 4]
    ),
    "hole": Built(
        6,
        6,
        [0, 1, NOWHERE, NOWHERE, 2, 3],
        [0, 1, NOWHERE, NOWHERE, 2, 3],
        None,
        [1, 1, 0, 0, 1, 1],
    ),
}


@pytest.mark.parametrize("encoding", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("built", BUILT.values(), ids=BUILT)
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_built_positions_mean_the_same_as_given_ones(built, encoding, implementation):
    q, k, v = qkv(queries=built.queries, keys=built.keys)
    made = encoding()
    own = {
        n: None if x is None else torch.tensor(x)
        for n, x in (("segments", built.segments), ("key_mask", built.key_mask))
    }
    given = {n: torch.tensor(getattr(built, n)) for n in ("positions", "k_positions")}
    if own["segments"] is not None:
        given["k_segments"] = own["segments"]
    options = {"causal": built.causal, "implementation": implementation}
    where = wn.Where(**own)
    if built.queries == built.keys:
        given.pop("k_positions"), given.pop("k_segments", None)
    left = wn.attention(q, k, v, made, where=where, **options)
    near(left, wn.attention(q, k, v, made, where=wn.Where(**given, **own), **options))


def test_alibi_in_every_form_equals_its_formula():
    q, k, v = qkv(queries=3, keys=7)
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    distance = (torch.arange(7) - torch.arange(4, 7)[:, None]).abs()
    bias = -slopes[:, None, None] * distance
    expected = attend(q, k, v, causal=True, bias=bias)[0]
    near(wn.attention(q, k, v, wn.ALiBi(4), causal=True), expected)
    where = wn.Where(torch.arange(4, 7) + 50, torch.arange(7) + 50)
    near(wn.attention(q, k, v, wn.ALiBi(4), causal=True, where=where), expected)


# In a layer


class Moving(Seen):
    """Moves every position by 10 in training mode."""

    def move(self, where: wn.Where, generator: torch.Generator | None = None) -> wn.Where:
        return where.shifted(10) if self.training else where


def layer(encoding, **options) -> wn.Attention:
    torch.manual_seed(0)
    return wn.Attention(32, 4, encoding, 2, **options).double()


def stream(length: int, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, 32, generator=generator, dtype=torch.float64)


def test_a_layer_fills_in_the_same_positions():
    seen = Seen()
    one = layer(seen)
    one(stream(4))
    assert seen.where.positions.tolist() == [[0, 1, 2, 3]]
    one(stream(4), key_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 0, 1]]))
    assert seen.where.positions.tolist() == [[NOWHERE, 0, 1, 2], [0, 1, NOWHERE, 2]]
    one(stream(4), where=torch.tensor([7, 8, 1, 1]))
    assert seen.where.positions.tolist() == [[7, 8, 1, 1]]


@pytest.mark.parametrize("queries", [3, 5, 6])
def test_both_streams_of_cross_attention_count_from_nought(queries):
    seen = Seen()
    one = layer(seen)
    one(stream(queries), stream(5, seed=2))
    assert seen.where.positions.tolist() == [list(range(queries))]
    assert seen.where.k_positions.tolist() == [[0, 1, 2, 3, 4]]
    one(
        stream(queries),
        stream(5, seed=2),
        key_mask=torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 1]]),
    )
    assert seen.where.positions.tolist() == [list(range(queries))]
    assert seen.where.k_positions.tolist() == [[NOWHERE, NOWHERE, 0, 1, 2], [0, 1, 2, NOWHERE, 3]]


def test_positions_move_in_training_only():
    for call in (
        lambda e: wn.attention(*qkv(queries=3), e),
        lambda e: layer([e]).train(e.training)(stream(3)),
    ):
        moving = Moving()
        call(moving)
        assert moving.where.positions.tolist() == [[10, 11, 12]]
        moving.eval()
        call(moving)
        assert moving.where.positions.tolist() == [[0, 1, 2]]


def alibi_loss(ids: Tensor) -> Tensor:
    """What ALiBi of four heads takes off the logits, (H, S, S)."""
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    return slopes[:, None, None] * (ids - ids[:, None]).abs()


class Stretching(wn.PositionalEncoding):
    """Doubles all positions, in the way that comes to mind first."""

    def move(self, where: wn.Where, generator: torch.Generator | None = None) -> wn.Where:
        return replace(where, positions=2 * where.positions)


def test_a_bias_sees_positions_that_another_member_moved():
    q, k, v = qkv()
    bias = -alibi_loss(2 * torch.arange(6))
    found = wn.attention(q, k, v, [Stretching(), wn.ALiBi(4)])
    near(found, attend(q, k, v, bias=bias)[0])
    differ(found, wn.attention(q, k, v, wn.ALiBi(4)))
