"""wn.schedules: which layer gets which encoding, what is shared and what is made anew."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness.schedules import Schedule, every, listed, shared


def kinds(encodings) -> list[str]:
    return [type(e).__name__ for e in encodings]


@given(st.integers(1, 6), st.integers(0, 14))
@settings(max_examples=40)
def test_every_nth_layer_counted_from_one(n, depth):
    one, other = wn.NoPE(), wn.RoPE(8)
    layers = every(n, one, otherwise=other).layers(depth)
    assert len(layers) == depth
    for number, encoding in enumerate(layers, 1):
        assert encoding is (one if number % n == 0 else other)


def test_an_encoding_is_shared_by_its_layers():
    relative = wn.LearnedRelative(4, 3)
    assert all(e is relative for e in shared(relative).layers(3))
    assert all(e is relative for e in every(1, relative, otherwise=wn.NoPE()).layers(3))


def test_a_list_makes_one_combination_for_all_its_layers():
    rope, alibi = wn.RoPE(8), wn.ALiBi(4)
    layers = every(2, [rope, alibi], otherwise=None).layers(4)
    assert kinds(layers) == ["NoPE", "Combined", "NoPE", "Combined"]
    assert layers[1] is layers[3]
    assert layers[0] is layers[2]
    assert layers[1].members() == (rope, alibi)


def test_a_function_makes_an_encoding_of_each_layers_own():
    calls = []

    def make() -> wn.PositionalEncoding:
        calls.append(1)
        return wn.LearnedRelative(4, 3)

    layers = every(2, make, otherwise=wn.NoPE()).layers(6)
    made = layers[1::2]
    assert len({id(e) for e in made}) == len(calls) == 3
    assert len({p.data_ptr() for e in made for p in e.parameters()}) == 3
    assert kinds(layers) == ["NoPE", "LearnedRelative"] * 3
    assert kinds(shared(lambda: [wn.RoPE(8), wn.ALiBi(4)]).layers(2)) == ["Combined"] * 2
    assert kinds(shared(wn.NoPE).layers(2)) == ["NoPE"] * 2


def test_asking_again_makes_nothing_anew():
    schedule = shared(lambda: wn.LearnedRelative(4, 3))
    first = schedule[1]
    assert schedule[1] is first
    assert schedule.layers(3)[1] is first
    assert schedule[0] is not first


def test_layers_may_be_asked_for_in_any_order():
    one, other = wn.NoPE(), wn.RoPE(8)
    schedule = every(3, one, otherwise=other)
    assert [schedule[i] is one for i in (5, 0, 2, 4)] == [True, False, True, False]


def test_one_source_a_layer():
    rope, alibi = wn.RoPE(8), wn.ALiBi(4)
    schedule = listed([rope, alibi, None, rope, lambda: wn.ALiBi(4), [alibi, rope]])
    assert len(schedule) == 6
    layers = list(schedule)
    assert layers == schedule.layers(6)
    assert kinds(layers) == ["RoPE", "ALiBi", "NoPE", "RoPE", "ALiBi", "Combined"]
    assert layers[0] is layers[3] is rope
    assert layers[4] is not alibi
    assert layers[5].members() == (alibi, rope)


def test_a_listing_is_not_changed_by_its_list():
    sources = [wn.RoPE(8), wn.NoPE()]
    schedule = listed(sources)
    sources.clear()
    assert kinds(schedule) == ["RoPE", "NoPE"]


def test_a_choice_that_makes_a_new_list_each_time_is_taken_as_it_is():
    ropes, alibi = [wn.RoPE(8, base) for base in (10.0, 20.0, 30.0, 40.0)], wn.ALiBi(4)
    layers = Schedule(lambda layer: [ropes[layer], alibi]).layers(4)
    assert [e.members()[0].base for e in layers] == [10.0, 20.0, 30.0, 40.0]


def test_a_schedule_that_has_a_depth_has_no_other():
    schedule = listed([wn.NoPE(), wn.NoPE()])
    for depth in (1, 3):
        with pytest.raises(ValueError, match=f"lists 2 layers, the model has {depth}"):
            schedule.layers(depth)
    with pytest.raises(IndexError, match="Layer 2 is outside the schedule of 2 layers"):
        schedule[2]
    with pytest.raises(IndexError, match="Layer -1 is outside"):
        schedule[-1]
    with pytest.raises(ValueError, match="lists 2 layers, the model has 3"):
        wn.Transformer(10, 32, 3, 4, schedule)


def test_a_schedule_that_has_no_depth_says_so():
    schedule = every(2, wn.NoPE(), otherwise=wn.RoPE(8))
    with pytest.raises(TypeError, match=r"no depth of its own: use schedule.layers\(depth\)"):
        len(schedule)
    with pytest.raises(TypeError, match="no depth of its own"):
        list(schedule)
    with pytest.raises(IndexError, match="Layer -1"):
        schedule[-1]
    assert schedule.layers(0) == []
    assert kinds([schedule[1000]]) == ["RoPE"]


def test_a_schedule_is_true_like_any_object():
    """`schedule or default` is a common way to fill in a default."""
    assert bool(every(2, wn.NoPE(), otherwise=wn.NoPE()))


@pytest.mark.untyped
def test_what_makes_no_schedule():
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"n must be at least 1, got {bad}"):
            every(bad, wn.NoPE(), otherwise=wn.NoPE())
    for bad in (2.0, "2", True):
        with pytest.raises(TypeError, match="n must be an int"):
            every(bad, wn.NoPE(), otherwise=wn.NoPE())
    for bad in (1.0, slice(0, 2), "0"):
        with pytest.raises(TypeError, match=f"takes a layer number, got {type(bad).__name__}"):
            shared(wn.NoPE())[bad]
    with pytest.raises(ValueError, match="depth must be at least 0, got -1"):
        shared(wn.NoPE()).layers(-1)
    with pytest.raises(TypeError, match="depth must be an int"):
        shared(wn.NoPE()).layers(2.0)
    for bad in ("rope", 3, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="whereness encoding"):
            shared(lambda bad=bad: bad)[0]
    with pytest.raises(TypeError, match="whereness encoding"):
        shared("rope")[0]
