"""K13: ids are honoured, on the right axis, for queries and for keys."""

import pytest
import torch

import whereness as wn
from cases.support import (
    ABSOLUTE,
    ALL,
    DIM,
    GROUPS,
    HEAD_DIM,
    HEADS,
    MAKERS,
    POSITIONAL,
    RELATIVE,
    Recorder,
    case,
    decoded,
    differ,
    encoding,
    equal,
    model,
    scribbled,
    tokens,
)

WARPED = torch.tensor([0, 2, 3, 7, 9])


@case("P144")
@pytest.mark.parametrize("name", POSITIONAL)
def test_ids_that_are_not_uniform_change_the_output(name):
    whole, ids = model(name), tokens(5)
    differ(whole(ids, where=WARPED), whole(ids))
    differ(whole(ids, where=WARPED), whole(ids, where=WARPED.flip(0)))


@case("P144")
@pytest.mark.parametrize("name", RELATIVE)
def test_a_uniform_shift_alone_proves_nothing_for_relative_encodings(name):
    whole, ids = model(name), tokens(5)
    equal(whole(ids, where=torch.arange(5) + 5), whole(ids))


@case("P144")
@pytest.mark.parametrize("name", [n for n in ALL if MAKERS[n]().site is None])
def test_the_layer_passes_ids_on_to_attention(name):
    """Outer and inner: the model's layer, and wn.attention on that layer's own q, k and v."""
    made = encoding(name)
    layer = scribbled(wn.Attention(DIM, HEADS, made, GROUPS, True).double())
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    q, k, v = (
        p(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    for where in (WARPED, WARPED.expand(2, -1), wn.Where(WARPED), made.prepare(WARPED)):
        inner = wn.attention(q, k, v, made, where=where, causal=True)
        equal(layer(x, where=where), layer.out_proj(inner.transpose(1, 2).flatten(2)))


@case("P144")
@pytest.mark.parametrize("name", POSITIONAL)
def test_every_row_of_a_batch_has_its_own_ids(name):
    whole, ids = model(name), tokens(5).expand(2, -1)
    both = torch.stack([WARPED, torch.arange(5)])
    found = whole(ids, where=both)
    equal(found[:1], whole(ids[:1], where=WARPED))
    equal(found[1:], whole(ids[1:]))
    differ(found[0], found[1])


SHAPES = {"plain": (2, 3, 5), "S = H": (2, 5, 5), "B = S = H": (4, 4, 4), "B = H": (5, 3, 5)}
LAYOUTS = ("bhsd", "bshd")


def arranged(x: torch.Tensor, layout: str) -> torch.Tensor:
    """(B, H, S, D) in another layout, and back."""
    return x if layout == "bhsd" else x.transpose(1, 2)


@case("P146")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_tokens_axis_turns_and_no_other(shape, layout):
    batch, length, count = SHAPES[shape]
    rope, one = wn.RoPE(HEAD_DIM), torch.randn(HEAD_DIM, dtype=torch.float64)
    x = arranged(one.expand(batch, count, length, -1), layout)
    found = arranged(rope.rotate(x, torch.arange(length), layout=layout), layout)
    q, _ = rope(x, x, layout=layout)
    equal(arranged(q, layout), found)
    inplace = rope.rotate_(x.clone(), torch.arange(length), layout=layout)
    equal(arranged(inplace, layout), found)
    # The same vector everywhere: rows and heads agree, tokens do not.
    equal(found, found[:1, :1].expand_as(found))
    for t in range(1, length):
        differ(found[:, :, t], found[:, :, 0])


@case("P146")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [n for n in RELATIVE if n != "shaw"])
def test_permuted_batch_rows_and_heads_only_move_the_output(name, shape, layout):
    batch, length, count = SHAPES[shape]
    makers = {
        "alibi": lambda: wn.ALiBi(count),
        "kerple": lambda: wn.KERPLE(count),
        "sandwich": lambda: wn.Sandwich(count, 8),
        "t5": lambda: wn.T5(count, 8, 16),
        "relative_add": lambda: wn.LearnedRelative(count, 5),
        "relative_multiply": lambda: wn.LearnedRelative(count, 5, "multiply"),
    }
    made = scribbled(makers.get(name, MAKERS[name])()).double()
    by_head = name in makers
    q, k, v = torch.randn(3, batch, count, length, HEAD_DIM, dtype=torch.float64)

    def out(*inputs: torch.Tensor) -> torch.Tensor:
        inputs = [arranged(t, layout) for t in inputs]
        return arranged(wn.attention(*inputs, made, causal=True, layout=layout), layout)

    expected = out(q, k, v)
    rows, order = torch.randperm(batch), torch.arange(count).roll(1)
    equal(out(q[rows], k[rows], v[rows]), expected[rows])
    moved = out(q[:, order], k[:, order], v[:, order])
    if by_head:
        # Head h has the h-th slope or column: that, and nothing else, may differ.
        differ(moved, expected[:, order])
    else:
        equal(moved, expected[:, order])
    swapped = torch.arange(length)
    swapped[:2] = swapped[:2].flip(0)
    other = out(q[:, :, swapped], k[:, :, swapped], v[:, :, swapped])
    differ(other[:, :, 2:], expected[:, :, 2:])


@case("P146")
@pytest.mark.parametrize("name", POSITIONAL)
def test_swapped_tokens_change_what_comes_after(name):
    whole, ids = model(name, causal=True), torch.tensor([[3, 8, 5, 9, 1]])
    swapped = ids[:, [1, 0, 2, 3, 4]]
    differ(whole(swapped)[:, 2:], whole(ids)[:, 2:])


@case("P146")
def test_shapes_that_a_layout_does_not_have_are_refused():
    rope, x = wn.RoPE(HEAD_DIM), torch.zeros(2, 3, 5, HEAD_DIM)
    with pytest.raises(ValueError, match="needed 5, got 3"):
        rope.rotate(x, torch.arange(3))
    with pytest.raises(ValueError, match="needed 3, got 5"):
        rope.rotate(x, torch.arange(5), layout="bshd")
    with pytest.raises(ValueError, match="batch size 3"):
        rope.rotate(x, torch.zeros(3, 5, dtype=torch.int64))


@case("P146")
@pytest.mark.untyped
def test_a_layout_without_a_name_is_refused():
    with pytest.raises(ValueError, match="'bsd'"):
        wn.RoPE(HEAD_DIM).rotate(torch.zeros(2, 3, 5, HEAD_DIM), layout="bsd")


CUSTOM = torch.tensor([[0, 0, 1, 2, 2, 2]])


@case("P149")
def test_custom_ids_are_continued_by_last_plus_one():
    recorder = Recorder()
    whole, ids = model(recorder), tokens(8)
    caches = whole.new_caches()
    whole(ids[:, :6], where=CUSTOM, caches=caches)
    for t in (6, 7):
        whole(ids[:, t : t + 1], caches=caches)
    assert recorder.seen == [CUSTOM.tolist(), [[3]], [[4]]]


@case("P149")
def test_the_rule_for_custom_ids_can_be_asked_for():
    steps = wn.positions.continued(CUSTOM, 2)
    assert steps.tolist() == [[3, 4]]
    uneven = torch.tensor([[0, 0, 1, 2, 2, 2], [5, 9, 7, wn.NOWHERE, wn.NOWHERE, wn.NOWHERE]])
    assert wn.positions.continued(uneven, 2).tolist() == [[3, 4], [10, 11]]
    # Explicit ids by this rule are what the cache goes on with.
    whole, ids = model("learned"), tokens(8)
    by_rule = torch.cat([CUSTOM, steps], 1)
    equal(decoded(whole, ids, [6, 1, 1], where=by_rule), whole(ids, where=by_rule))
    caches = whole.new_caches()
    whole(ids[:, :6], where=CUSTOM, caches=caches)
    equal(whole(ids[:, 6:], caches=caches), whole(ids, where=by_rule)[:, 6:])


@case("P149")
@pytest.mark.parametrize("chunks", [[6, 1, 1], [3, 3, 2], [1] * 8])
@pytest.mark.parametrize("name", ALL)
def test_custom_ids_give_the_same_in_one_shot_and_in_steps(name, chunks):
    whole, ids = model(name), tokens(8)
    where = torch.cat([CUSTOM, torch.tensor([[3, 4]])], 1)
    equal(decoded(whole, ids, chunks, where=where), whole(ids, where=where))


@case("P149")
@pytest.mark.parametrize("name", ALL)
def test_repeated_ids_never_leak_the_future(name):
    whole, ids = model(name), tokens(6)
    later = ids.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 50
    equal(whole(later, where=CUSTOM)[:, :4], whole(ids, where=CUSTOM)[:, :4])


def crossing(name: str) -> tuple[wn.Attention, torch.Tensor, torch.Tensor]:
    """A layer that is not causal, two queries and a context of five."""
    layer = scribbled(wn.Attention(DIM, HEADS, MAKERS[name](), GROUPS)).double()
    x, context = (torch.randn(1, n, DIM, dtype=torch.float64) for n in (2, 5))
    return layer, x, context


CROSSING = [n for n in POSITIONAL if MAKERS[n]().site != "tokens" and n != "t5"]


@case("P150")
@pytest.mark.parametrize("name", CROSSING)
def test_cross_attention_has_ids_of_its_own_on_each_side(name):
    layer, x, context = crossing(name)
    q_ids, k_ids = torch.tensor([0, 1]), torch.arange(5)
    found = layer(x, context, where=wn.Where(q_ids, k_ids))
    assert found.shape == x.shape
    # Only the keys move, then only the queries.
    differ(layer(x, context, where=wn.Where(q_ids, k_ids * 2)), found)
    differ(layer(x, context, where=wn.Where(q_ids * 3 + 2, k_ids)), found)
    together = layer(x, context, where=wn.Where(q_ids + 9, k_ids + 9))
    if name in ABSOLUTE:
        differ(together, found)
    else:
        equal(together, found)


@case("P150")
@pytest.mark.parametrize("name", CROSSING)
def test_without_ids_each_stream_of_cross_attention_is_counted_from_0(name):
    layer, x, context = crossing(name)
    counted = layer(x, context, where=wn.Where(torch.arange(2), torch.arange(5)))
    equal(layer(x, context), counted)
    pads = torch.tensor([[0, 0, 1, 1, 1]])
    short = layer(x, context[:, 2:], where=wn.Where(torch.arange(2), torch.arange(3)))
    equal(layer(x, context, key_mask=pads), short)


@case("P150")
def test_different_numbers_of_queries_and_keys_without_ids_are_refused():
    rope = wn.RoPE(HEAD_DIM)
    q, k = (torch.randn(1, HEADS, n, HEAD_DIM) for n in (2, 5))
    with pytest.raises(ValueError, match="2 queries and 5 keys"):
        rope(q, k)
    with pytest.raises(ValueError, match="2 queries and 5 keys"):
        wn.attention(q, k, k, rope)
    with pytest.raises(ValueError, match="needed 5, got 2"):
        rope(q, k, torch.arange(2))
    q2, k2 = rope(q, k, wn.Where(torch.arange(2), torch.arange(5)))
    equal(q2, rope.rotate(q, torch.arange(2)), 1e-6)
    equal(k2, rope.rotate(k, torch.arange(5)), 1e-6)
