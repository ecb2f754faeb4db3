"""Which positions follow slots: by a loop over all pairs that may see each other."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import whereness as wn
from whereness import spans
from whereness.attend.masks import may_attend
from whereness.relative.bias import Strip
from whereness.spans import Span, aligned
from whereness.where import NOWHERE, Where

N = NOWHERE


def located(*, queries: int = 8, keys: int = 8, causal: bool = True, **options) -> Where:
    """What attention makes of its arguments."""
    seen: list[Where] = []

    class Spy(wn.PositionalEncoding):
        def tables(self, where: Where) -> None:
            seen.append(where)

    q, k = torch.zeros(2, 1, queries, 4), torch.zeros(2, 1, keys, 4)
    wn.attention(q, k, k, Spy(), causal=causal, **options)
    return seen[0]


def mask(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def test_default_positions_are_known_without_a_look(monkeypatch):
    monkeypatch.setattr(spans, "_look", lambda where: pytest.fail("looked"))
    for queries in (1, 3, 8):
        found = aligned(located(queries=queries))
        assert found is not None
        assert found == spans.Alignment(queries - 8, (Span(None, (0, queries), (0, 8), True),))


def test_pads_at_the_ends_leave_one_run_a_sequence():
    found = aligned(located(key_mask=mask([0, 0, 1, 1, 1, 1, 1, 1], [1] * 6 + [0] * 2)))
    assert found is not None
    assert (found.shift, found.all_placed) == (0, False)
    assert found.spans == (
        Span(0, (0, 2), (2, 8), False),
        Span(0, (2, 8), (2, 8), True),
        Span(1, (0, 6), (0, 6), True),
        Span(1, (6, 8), (0, 6), False),
    )


def test_documents_see_themselves():
    found = aligned(located(where=Where(segments=torch.tensor([4, 4, 4, 9, 9, 1, 1, 1]))))
    assert found is not None
    assert found.spans == tuple(Span(None, e, e, True) for e in ((0, 3), (3, 5), (5, 8)))


@pytest.mark.parametrize(
    "options",
    [
        {"key_mask": mask([1, 1, 0, 1, 1, 1, 1, 1], [1] * 8)},
        {"where": Where(segments=torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]))},
        {"where": torch.tensor([0, 1, 2, 3, 5, 6, 7, 8])},
        {"where": torch.arange(8) * 2},
        {"where": torch.arange(8), "key_mask": mask([1, 1, 0, 1, 1, 1, 1, 1])},
        {"where": torch.arange(8).flip(0)},
        {"where": torch.arange(8).double()},
        {"where": torch.tensor([N, 0, 1, 2, 3, 4, 5, 6])},
        {"where": Where(torch.arange(8), torch.stack([torch.arange(8), torch.arange(8) + 1]))},
    ],
)
def test_what_leaves_its_slots(options):
    assert aligned(located(**options)) is None


def test_documents_of_a_few_tokens_are_too_many_runs():
    where = located(queries=400, keys=400, where=Where(segments=torch.arange(400) // 2))
    assert aligned(where) is None


def test_no_look_at_values_that_are_not_there():
    where = located(key_mask=mask([0, 1, 1, 1, 1, 1, 1, 1], [1] * 8))
    assert aligned(where) is not None
    assert aligned(where.to("meta")) is None
    assert not spans.may_look(torch.zeros(2, device="meta"))
    assert spans.may_look(torch.zeros(2))
    seen = []
    torch.vmap(lambda x: seen.append(spans.may_look(x)) or x)(torch.zeros(2, 3))
    assert seen == [False]


numbers = st.lists(st.integers(0, 2), min_size=6, max_size=6)


@given(st.data())
def test_every_pair_that_sees_each_other_is_one_shift_apart(data):
    """And every such pair is in one span, and no other: whatever positions, pads and documents."""
    segments = torch.tensor(sorted(data.draw(numbers))) if data.draw(st.booleans()) else None
    key_mask = torch.ones(2, 6, dtype=torch.bool)
    key_mask[0, : data.draw(st.integers(0, 3))] = False
    key_mask[1, data.draw(st.integers(2, 6)) :] = False
    key_mask[:, data.draw(st.integers(0, 5))] &= data.draw(st.booleans())
    positions = None
    if data.draw(st.booleans()):
        steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 0]), min_size=6, max_size=6))
        positions = torch.tensor(steps).cumsum(0)
    given_mask = key_mask if data.draw(st.booleans()) else None
    options = {"where": Where(positions, segments=segments), "key_mask": given_mask}
    where = located(queries=6, keys=6, causal=False, **options)
    found = aligned(where)
    seen = may_attend(where, 6, 6, causal=False, window=None, mask=None, device=torch.device("cpu"))
    seen = seen[:, 0].expand(2, 6, 6).tolist()
    places, keys = (p.expand(2, 6).tolist() for p in (where.positions, where.keys))
    pairs = [p for p in itertools.product(range(2), range(6), range(6)) if seen[p[0]][p[1]][p[2]]]
    if found is None or found.spans is None:
        return
    covered = [
        (b, i, j)
        for s in found.spans
        for b in (range(2) if s.sequence is None else [s.sequence])
        for i in range(*s.queries)
        for j in range(*s.keys)
    ]
    assert sorted(covered) == pairs
    for b, i, j in pairs:
        if places[b][i] != N:
            assert keys[b][j] - places[b][i] == j - i + found.shift


# Strips made of them


@pytest.mark.parametrize(
    "options",
    [
        {"key_mask": mask([0, 0, 1, 1, 1, 1, 1, 1], [1] * 6 + [0] * 2)},
        {"where": Where(segments=torch.arange(8) // 5)},
        {"where": Where(torch.arange(3), torch.arange(8)), "queries": 3, "causal": False},
    ],
)
def test_a_strip_has_the_bias_of_every_pair_that_sees_each_other(options):
    where = located(**options)
    encoding = wn.LearnedRelative(2, 4)
    torch.nn.init.normal_(encoding.table)
    at = encoding.prepare(where)
    assert isinstance(at.data, Strip)
    exact = encoding.bias(where.positions, where.keys)
    strip = at.bias()
    sizes = where.num_queries, where.num_keys
    seen = may_attend(where, *sizes, causal=False, window=None, mask=None, device=strip.device)
    assert torch.equal((strip * seen), (exact * seen))
    assert torch.equal(encoding.at_rows(at, slice(1, 3)).bias(), strip[..., 1:3, :])


def test_offsets_that_nothing_sees_are_not_asked_for():
    """beyond="raise" is about documents, not about the row that they are packed in."""
    encoding = wn.LearnedRelative(1, 3, beyond="raise")
    where = located(where=Where(segments=torch.arange(8) // 4))
    assert isinstance(encoding.prepare(where).data, Strip)
    with pytest.raises(ValueError, match="up to distance 3, got 4"):
        encoding.prepare(located(where=Where(segments=torch.arange(8) // 5)))
