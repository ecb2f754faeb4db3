"""K10: packed documents equal the same documents alone, in output and gradient."""

import pytest
import torch
from torch.nn import functional as F

import whereness as wn
from cases.support import (
    ABSOLUTE,
    ALL,
    HEADS,
    RELATIVE,
    bitwise,
    case,
    decoded,
    differ,
    encoding,
    equal,
    heads,
    model,
    tokens,
)

LENGTHS = (4, 6)
SEGMENTS = wn.positions.segments(LENGTHS)


def apart(whole: wn.Transformer, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the documents, each run alone."""
    return torch.cat([whole(document) for document in ids.split(LENGTHS, 1)], 1)


@case("P120")
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", ALL)
def test_the_second_document_neither_sees_nor_continues_the_first(name, causal):
    if name == "t5" and not causal:
        name = wn.T5(HEADS, 8, 16, bidirectional=True)
    whole, ids = model(name, causal=causal), tokens(10)
    equal(whole(ids, where=wn.Where(segments=SEGMENTS)), apart(whole, ids))
    explicit = wn.Where(wn.positions.packed(LENGTHS), segments=SEGMENTS)
    equal(whole(ids, where=explicit), apart(whole, ids))


@case("P120")
@pytest.mark.parametrize("name", ALL)
def test_a_new_numbering_without_boundaries_is_not_enough(name):
    whole, ids = model(name), tokens(10)
    found = whole(ids, where=wn.positions.packed(LENGTHS))
    differ(found[:, 4:], apart(whole, ids)[:, 4:], 0.1)


@case("P120")
@pytest.mark.parametrize("name", [*RELATIVE, *ABSOLUTE])
def test_boundaries_without_a_new_numbering_matter_where_they_should(name):
    whole, ids = model(name), tokens(10)
    found = whole(ids, where=wn.Where(torch.arange(10), segments=SEGMENTS))
    if name in RELATIVE:
        equal(found, apart(whole, ids))
    else:
        differ(found[:, 4:], apart(whole, ids)[:, 4:])


@case("P122")
@pytest.mark.parametrize("name", ABSOLUTE)
def test_repeated_ids_repeat_rows(name):
    found = encoding(name)(torch.tensor([0, 1, 0, 1]))
    bitwise(found[2:], found[:2])
    differ(found[0], found[1])


@case("P122")
@pytest.mark.parametrize("name", ["rope", "rope-partial", "axial_rope"])
def test_repeated_ids_repeat_rotations(name):
    rope, x = encoding(name), heads(1).expand(-1, -1, 4, -1)
    found = rope.rotate(x, torch.tensor([0, 1, 0, 1]))
    bitwise(found[:, :, 2:], found[:, :, :2])
    bitwise(found[:, :, 0], x[:, :, 0])
    differ(found[:, :, 1], found[:, :, 0])


@case("P122")
@pytest.mark.parametrize("name", ["alibi", "t5", "relative_add"])
def test_repeated_ids_repeat_biases(name):
    ids = torch.tensor([0, 1, 0, 1])
    found = encoding(name).bias(ids, ids)[..., :, :]
    bitwise(found[..., 2:, :], found[..., :2, :])
    bitwise(found[..., :, 2:], found[..., :, :2])
    differ(found[..., 0, :], found[..., 1, :])


@case("P123")
@pytest.mark.parametrize("ids", [[5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [2, 3, 4, 5, 6]])
@pytest.mark.parametrize("name", ["nope", "rope", "alibi"])
def test_ids_say_where_and_never_which_document(name, ids):
    made = encoding(name)
    q, k, v = (heads(5, seed=s) for s in (1, 2, 3))
    ids = torch.tensor(ids)
    _, weights = wn.attention(q, k, v, made, where=ids, causal=True, return_weights=True)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    assert ((weights > 0) == visible).all()
    where = wn.Where(ids, segments=torch.tensor([0, 0, 0, 1, 1]))
    _, weights = wn.attention(q, k, v, made, where=where, causal=True, return_weights=True)
    visible[3:, :3] = False
    assert ((weights > 0) == visible).all()


@case("P123")
@pytest.mark.parametrize("name", ALL)
def test_a_cached_step_of_several_tokens_is_not_taken_for_packing(name):
    whole, ids = model(name), tokens(8)
    positions = torch.arange(3, 11)[None]
    found = decoded(whole, ids, [5, 3], where=positions)
    equal(found, whole(ids, where=positions))


@case("P123")
@pytest.mark.parametrize("name", ALL)
def test_a_packed_row_can_go_on_from_a_cache(name):
    """Resume inside the second document: 6 tokens cached, 4 new, boundaries explicit."""
    whole, ids = model(name), tokens(10)
    caches, found = whole.new_caches(), []
    for start, end in ((0, 6), (6, 10)):
        where = wn.Where(wn.positions.packed(LENGTHS)[start:end], segments=SEGMENTS[start:end])
        found.append(whole(ids[:, start:end], where=where, caches=caches))
    equal(torch.cat(found, 1), apart(whole, ids))


@case("P126")
@pytest.mark.parametrize("name", ALL)
def test_a_row_filled_up_to_a_multiple_of_eight_keeps_its_documents(name):
    lengths, total = (5, 6), 16
    positions = wn.positions.packed(lengths, total=total)
    segments = wn.positions.segments(lengths, total=total)
    n = wn.NOWHERE
    assert positions.tolist() == [*range(5), *range(6), n, n, n, n, n]
    assert segments.tolist() == [0] * 5 + [1] * 6 + [-1] * 5
    whole, ids = model(name), tokens(total)
    expected = torch.cat([whole(ids[:, :5]), whole(ids[:, 5:11])], 1)
    for mask in (None, segments[None] >= 0):
        where = wn.Where(positions, segments=segments, key_mask=mask)
        found = whole(ids, where=where)
        assert found.isfinite().all()
        equal(found[:, :11], expected)


@case("P126")
def test_ids_and_boundaries_of_another_length_than_the_tokens_are_refused():
    whole, ids = model("rope"), tokens(16)
    positions, segments = wn.positions.packed((5, 6)), wn.positions.segments((5, 6), total=16)
    with pytest.raises(ValueError, match=r"needed 11 tokens, got 16"):
        wn.Where(positions, segments=segments)
    with pytest.raises(ValueError, match=r"needed 16 queries and 16 keys, got 11 and 11"):
        whole(ids, where=positions)
    with pytest.raises(ValueError, match=r"needed 11, got 10"):
        wn.positions.packed((5, 6), total=10)


def gradients(whole: wn.Transformer, losses: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    whole.zero_grad()
    sum(losses).backward()
    return {name: p.grad.clone() for name, p in whole.named_parameters()}


@case("P127")
@pytest.mark.parametrize("given", [None, wn.positions.packed(LENGTHS)], ids=["counted", "given"])
@pytest.mark.parametrize("name", ALL)
def test_loss_and_gradients_of_a_packed_row_are_those_of_its_documents(name, given):
    whole, ids, targets = model(name), tokens(10), tokens(10, seed=9)

    def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[0], wanted[0], reduction="sum")

    packed = loss(whole(ids, where=wn.Where(given, segments=SEGMENTS)), targets)
    parts = zip(ids.split(LENGTHS, 1), targets.split(LENGTHS, 1), strict=True)
    alone = [loss(whole(i), t) for i, t in parts]
    equal(packed, sum(alone))
    assert packed > 1
    ours, theirs = gradients(whole, [packed]), gradients(whole, alone)
    for key, gradient in theirs.items():
        equal(ours[key], gradient)
        assert gradient.any(), key
