"""K08: one shot, step by step, in chunks, resumed, evicted, shifted: the same output."""

import copy

import pytest
import torch

import whereness as wn
from cases.support import (
    ALL,
    DIM,
    GROUPS,
    HEAD_DIM,
    HEADS,
    MAKERS,
    REACH,
    Recorder,
    bitwise,
    case,
    decoded,
    differ,
    encoding,
    equal,
    heads,
    model,
    scribbled,
    tokens,
)

CHUNKS = {
    "all": [10],
    "ones": [1] * 10,
    "threes": [3, 3, 3, 1],
    "fours": [4, 4, 2],
    "prompt": [6, 1, 1, 1, 1],
}

OF_A_LAYER = [name for name in ALL if MAKERS[name]().site != "tokens"]


def layer(made: wn.PositionalEncoding | str, **options) -> wn.Attention:
    """One causal attention layer in float64."""
    made = MAKERS[made]() if isinstance(made, str) else made
    torch.manual_seed(0)
    return scribbled(wn.Attention(DIM, HEADS, made, GROUPS, True, **options).double()).eval()


def stream(length: int, seed: int = 4) -> torch.Tensor:
    """Hidden states (1, S, E)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, length, DIM, generator=generator, dtype=torch.float64)


@case("P086")
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", ALL)
def test_prefill_in_chunks_equals_one_shot(name, chunks):
    whole, ids = model(name), tokens(10, batch=2)
    equal(decoded(whole, ids, CHUNKS[chunks]), whole(ids))


@case("P086")
@pytest.mark.parametrize("chunks", CHUNKS)
def test_prefill_in_chunks_equals_one_shot_with_explicit_ids(chunks):
    """The caller counts and the cache counts: neither adds to the other."""
    whole, ids = model("learned"), tokens(10)
    where = torch.arange(10)[None] + 3
    found = decoded(whole, ids, CHUNKS[chunks], where=where)
    equal(found, whole(ids, where=where))
    differ(found, whole(ids))


@case("P087")
@pytest.mark.parametrize("name", OF_A_LAYER)
def test_token_by_token_equals_the_full_pass(name):
    one, x, cache = layer(name), stream(6), wn.KVCache()
    steps = torch.cat([one(x[:, t : t + 1], cache=cache) for t in range(6)], 1)
    equal(steps, one(x))
    stuck = torch.cat([one(x[:, :1], where=torch.tensor([0]), cache=wn.KVCache())] * 6, 1)
    differ(steps, stuck)


@case("P089")
def test_offsets_grow_by_the_tokens_just_fed():
    recorder = Recorder()
    decoded(model(recorder), tokens(9), [6, 1, 1, 1])
    starts = [rows[0][0] for rows in recorder.seen]
    assert starts == [0, 6, 7, 8]
    counted = [p for rows in recorder.seen for p in rows[0]]
    assert counted == list(range(9))


@case("P090")
@pytest.mark.parametrize("slots", [[0, 1, 2], [1, 4, 6], [5, 6, 7]])
def test_eviction_does_not_turn_the_clock_back(slots):
    one, x, cache = layer(Recorder()), stream(9), wn.KVCache()
    one(x[:, :8], cache=cache)
    before = cache.k
    cache.evict(torch.tensor(slots))
    kept = [t for t in range(8) if t not in slots]
    assert (len(cache), cache.next_position.tolist()) == (5, [8])
    assert cache.positions.tolist() == [kept]
    bitwise(cache.k, before[:, :, kept])
    found = one(x[:, 8:], cache=cache)
    assert one.encoding.seen[-1] == [[8]]
    # The same from scratch: the kept tokens at their own positions, then the new one.
    order = torch.tensor([*kept, 8])
    equal(found[:, -1], one(x[:, order], where=order)[:, -1])
    differ(found[:, -1], one(x[:, order], where=torch.tensor([*kept, 5]))[:, -1])


@case("P093")
@pytest.mark.parametrize("make", [wn.RoPE, lambda d: wn.AxialRoPE(d, 1)])
def test_a_rotation_remembers_no_earlier_offset(make):
    rope, x, ids = make(HEAD_DIM), heads(4), torch.arange(4)
    first = rope.rotate(x, ids)
    differ(rope.rotate(x, ids + 5), first)
    bitwise(rope.rotate(x, ids + 5), make(HEAD_DIM).rotate(x, ids + 5))
    bitwise(rope.rotate(x, ids), first)
    # Another type in between, and another length.
    rope.rotate(x.bfloat16(), ids)
    rope.rotate(x[:, :, :2].float(), ids[:2])
    bitwise(rope.rotate(x, ids), first)


@case("P093")
@pytest.mark.parametrize("name", ["sinusoidal", "learned", "alibi", "t5", "relative_add"])
def test_no_table_remembers_an_earlier_offset(name):
    made, ids = encoding(name), torch.arange(4)
    read = made if hasattr(made, "rows") else lambda p: made.bias(p, ids)
    first = read(ids)
    differ(read(ids + 5), first)
    bitwise(read(ids + 5), copy.deepcopy(made)(ids + 5) if read is made else read(ids + 5))
    bitwise(read(ids), first)


def image_prompt() -> torch.Tensor:
    """Two tokens of text, a 2 x 2 image at time 2, one token of text, one answer: (8, 3)."""
    text = [[0, 0, 0], [1, 1, 1]]
    image = [[2, 2 + row, 2 + column] for row in range(2) for column in range(2)]
    return torch.tensor([*text, *image, [4, 4, 4], [5, 5, 5]])


@case("P095")
@pytest.mark.parametrize("after", ["farthest", "side"])
def test_builders_place_the_prompt_and_its_answer(after):
    parts = wn.positions
    segments = [parts.Text(2), parts.Image(2, 2), parts.Text(1)]
    types, grids = torch.tensor([[0, 0, 1, 1, 1, 1, 0]]), torch.tensor([[1, 4, 4]])
    for placed in (
        parts.multimodal(segments, after=after),
        parts.from_token_types(types, grids, merge=2, after=after),
    ):
        answer = parts.decode(placed.next_position, 1, num_axes=3)
        whole = torch.cat([placed.positions, answer], 1)
        assert whole[0].tolist() == image_prompt().tolist()
        assert (placed.next_position.tolist(), placed.delta.tolist()) == ([5], [-2])


@case("P095")
@pytest.mark.parametrize("chunks", [[7, 1], [3, 4, 1], [2, 4, 1, 1], [1] * 8])
@pytest.mark.parametrize("moved", [False, True], ids=["here", "moved"])
def test_the_position_after_an_image_is_that_of_its_farthest_axis(chunks, moved):
    where = image_prompt()
    one, x, cache = layer(wn.AxialRoPE(HEAD_DIM, 3, axis_dims=(4, 2, 2))), stream(8), wn.KVCache()
    expected, found, start = one(x, where=where), [], 0
    after = {2: 2, 6: 4, 7: 5}  # tokens fed -> where the next one stands: two less than 7
    for size in chunks:
        if start in after:
            assert cache.next_position.tolist() == [after[start]]
        end = start + size
        with torch.no_grad():
            found.append(one(x[:, start:end], where=where[start:end], cache=cache))
        cache, start = copy.deepcopy(cache) if moved else cache, end
    equal(torch.cat(found, 1), expected)


@case("P095")
def test_positions_of_several_axes_are_never_guessed():
    one, cache = layer(wn.AxialRoPE(HEAD_DIM, 3, axis_dims=(4, 2, 2))), wn.KVCache()
    one(stream(7), where=image_prompt()[:7], cache=cache)
    with pytest.raises(ValueError, match="3 axes"):
        one(stream(1), cache=cache)


@case("P097")
def test_a_hundred_shifts_equal_one_up_to_the_rounding_of_the_keys_type():
    rope, k = wn.RoPE(HEAD_DIM), heads(6, seed=8)
    back = torch.full((6,), -1)
    once = rope.rotate(k, 100 * back)
    size = k.norm(dim=-1, keepdim=True)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        shifted = k.to(dtype)
        for _ in range(100):
            shifted = rope.rotate(shifted, back)
        drift = ((shifted - once) / size).abs().max()
        # Every shift rounds once, by at most half a unit of the type: a bound, not an accident.
        assert drift <= 101 * torch.finfo(dtype).eps, dtype


@case("P097")
def test_keys_turned_back_first_do_not_drift():
    rope, k, ids = wn.RoPE(HEAD_DIM), heads(6, seed=8), torch.arange(1000, 1006)
    cached = rope.rotate(k, ids)
    for shift in range(1, 101):
        # Back to the content at the old position, then to the new one: old + new is one shift.
        cached = rope.rotate(rope.rotate(cached, ids - shift + 1, inverse=True), ids - shift)
    equal(cached, rope.rotate(k, ids - 100), 1e-12)


@case("P097")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_hundred_shifts_of_a_cache_equal_one_up_to_a_rounding_each(dtype):
    one = layer("rope").to(dtype)
    hundred, once = wn.KVCache(), wn.KVCache()
    for cache in (hundred, once):
        one(stream(6).to(dtype), where=torch.arange(6) + 1000, cache=cache)
    for _ in range(100):
        hundred.shift(one.encoding, -1)
    once.shift(one.encoding, -100)
    assert hundred.positions.tolist() == once.positions.tolist() == [[*range(900, 906)]]
    assert hundred.next_position.tolist() == once.next_position.tolist() == [906]
    drift = (hundred.k.double() - once.k.double()).norm(dim=-1) / once.k.double().norm(dim=-1)
    assert drift.max() <= 101 * torch.finfo(dtype).eps


@case("P097")
@pytest.mark.parametrize("name", [n for n in OF_A_LAYER if MAKERS[n]().relative])
def test_decoding_after_a_shift_equals_decoding_without(name):
    one, x = layer(name), stream(8)
    for by in (-5, 1000, torch.tensor([7])):
        cache = wn.KVCache()
        one(x[:, :5], cache=cache)
        cache.shift(one.encoding, by)
        steps = torch.cat([one(x[:, t : t + 1], cache=cache) for t in range(5, 8)], 1)
        equal(steps, one(x)[:, 5:])


@case("P097")
@pytest.mark.parametrize("name", [n for n in OF_A_LAYER if not MAKERS[n]().relative])
def test_a_cache_of_absolute_positions_refuses_to_shift(name):
    one, cache = layer(name), wn.KVCache()
    one(stream(5), cache=cache)
    with pytest.raises(ValueError, match="not relative"):
        cache.shift(one.encoding, -1)


@case("P098")
@pytest.mark.parametrize("covers", ["new", "past", "more"])
def test_a_mask_must_cover_past_and_new_tokens(covers):
    one, x, cache = layer("rope"), stream(6), wn.KVCache()
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]])
    one(x[:, :4], cache=cache, key_mask=mask[:, :4])
    wrong = {"new": mask[:, 4:], "past": mask[:, :4], "more": torch.ones(1, 7)}[covers].long()
    with pytest.raises(ValueError, match=r"T=6.*4 cached and 2 new"):
        one(x[:, 4:], cache=cache, key_mask=wrong)
    with pytest.raises(ValueError, match=r"\(1, 4, 2, 6\)"):
        one(x[:, 4:], cache=cache, mask=wrong.bool().expand(2, -1))
    assert len(cache) == 4  # a refused call leaves no trace
    equal(one(x[:, 4:], cache=cache, key_mask=mask), one(x, key_mask=mask)[:, 4:])


@case("P098")
@pytest.mark.parametrize("name", ALL)
def test_cached_equals_uncached_when_a_mask_is_given(name):
    whole, ids = model(name), tokens(8, batch=2)
    key_mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8])
    real = key_mask.bool()
    expected = whole(ids, key_mask=key_mask)
    equal(decoded(whole, ids, [5, 1, 2], key_mask=key_mask)[real], expected[real])
    differ(expected[0, 2:], whole(ids)[0, 2:])


@case("P100")
@pytest.mark.parametrize("name", ALL)
def test_a_window_of_several_tokens_leaves_the_keys_of_single_steps(name):
    whole, ids = model(name), tokens(10)
    window, single = whole.new_caches(), whole.new_caches()
    for caches in (window, single):
        whole(ids[:, :6], caches=caches)
    verified = whole(ids[:, 6:], caches=window)
    stepped = torch.cat([whole(ids[:, t : t + 1], caches=single) for t in range(6, 10)], 1)
    for ours, theirs in zip(window, single, strict=True):
        equal(ours.k, theirs.k)
        equal(ours.v, theirs.v)
        assert ours.positions.tolist() == theirs.positions.tolist() == [list(range(10))]
    equal(verified, stepped)


@case("P101")
def test_every_step_sits_where_the_cache_ends():
    recorder = Recorder()
    decoded(model(recorder), tokens(8), [5, 1, 1, 1])
    assert [rows[0] for rows in recorder.seen[1:]] == [[5], [6], [7]]
    assert wn.positions.decode([5]).tolist() == [[5]]


@case("P101")
def test_explicit_ids_for_a_step_are_used_as_they_are():
    recorder = Recorder()
    whole, ids = model(recorder), tokens(8)
    expected = decoded(whole, ids, [5, 1, 1, 1])
    caches, found = whole.new_caches(), [None]
    found = [whole(ids[:, :5], caches=caches)]
    for t in range(5, 8):
        where = wn.positions.decode([len(caches[0])])
        found.append(whole(ids[:, t : t + 1], where=where, caches=caches))
    assert [rows[0] for rows in recorder.seen[-3:]] == [[5], [6], [7]]
    equal(torch.cat(found, 1), expected)


WINDOWED = ("rope", "alibi", "t5", "sinusoidal-queries_keys", "relative_add")


@case("P103")
@pytest.mark.parametrize("evicts", [False, True], ids=["keeps", "evicts"])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_chunk_after_the_window_has_passed_its_first_keys(name, evicts):
    one, x, cache = layer(name, window=4), stream(9), wn.KVCache()
    found = []
    for t in range(6):
        found.append(one(x[:, t : t + 1], cache=cache))
        if evicts:
            # All that any later query can see: the last window - 1 keys.
            cache.evict(torch.arange(max(0, len(cache) - 3)))
    found.append(one(x[:, 6:], cache=cache))
    equal(torch.cat(found, 1), one(x))
    differ(one(x), layer(name)(x))


@case("P103")
@pytest.mark.parametrize("name", WINDOWED)
def test_a_rollback_after_the_window_has_passed_its_first_keys(name):
    one, x, other, cache = layer(name, window=4), stream(6), stream(2, seed=5), wn.KVCache()
    for t in range(6):
        one(x[:, t : t + 1], cache=cache)
    cache.trim(4)
    assert (len(cache), cache.next_position.tolist()) == (4, [4])
    found = one(other, cache=cache)
    equal(found, one(torch.cat([x[:, :4], other], 1))[:, 4:])
    differ(found, one(x)[:, 4:])


@case("P103")
def test_a_rollback_past_the_held_slots_is_refused():
    one, cache = layer("rope", window=4), wn.KVCache()
    one(stream(6), cache=cache)
    cache.evict(torch.tensor([0, 1]))
    for length in (5, -1):
        with pytest.raises(ValueError, match=str(length)):
            cache.trim(length)
    assert cache.positions.tolist() == [[2, 3, 4, 5]]


@case("P090", "P103")
@pytest.mark.parametrize("name", WINDOWED)
def test_eviction_brings_no_old_key_back_into_the_window(name):
    one, x, cache = layer(name, window=4), stream(9), wn.KVCache()
    one(x[:, :8], cache=cache)
    cache.evict(torch.tensor([5, 6]))
    # Without a cache: the last token sees slots 5 .. 8, of which two are hidden.
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[8, [5, 6]] = False
    equal(one(x[:, 8:], cache=cache), one(x, mask=mask)[:, 8:])


@case("P104")
def test_only_held_keys_are_turned_again_each_by_its_own_position():
    rope, x, cache = wn.RoPE(HEAD_DIM), stream(7), wn.KVCache()
    one = layer(rope)
    one(x, cache=cache)
    raw = rope.rotate(cache.k, cache.positions, inverse=True)
    cache.evict(torch.arange(3))
    assert cache.positions.tolist() == [[3, 4, 5, 6]]
    assert (len(cache), cache.next_position.tolist()) == (4, [7])
    moved = rope.rotate(cache.k, torch.full((4,), -2))
    assert moved.shape[2] == 4
    equal(moved, rope.rotate(raw[:, :, 3:], cache.positions - 2))
    with pytest.raises(ValueError, match="needed 4, got 7"):
        rope.rotate(cache.k, torch.arange(7))


@case("P104")
def test_a_shift_of_a_cache_that_has_forgotten_touches_held_keys_alone():
    rope, x, cache = wn.RoPE(HEAD_DIM), stream(7), wn.KVCache()
    one = layer(rope)
    one(x, cache=cache)
    raw = rope.rotate(cache.k, cache.positions, inverse=True)
    cache.evict(torch.arange(3))
    cache.shift(rope, -2)
    assert cache.k.shape[2] == 4
    assert (cache.positions.tolist(), cache.next_position.tolist()) == ([[1, 2, 3, 4]], [5])
    equal(cache.k, rope.rotate(raw[:, :, 3:], torch.arange(1, 5)))


@case("P106")
def test_every_layer_of_a_step_uses_the_same_positions():
    recorders: list[Recorder] = []

    def make() -> Recorder:
        recorders.append(Recorder())
        return recorders[-1]

    decoded(model(make, depth=3), tokens(7), [4, 1, 2])
    assert len(recorders) == 3
    for recorder in recorders:
        assert recorder.seen == [[[0, 1, 2, 3]], [[4]], [[5, 6]]]


@case("P106")
@pytest.mark.parametrize("name", ["rope", "learned-queries_keys", "alibi"])
def test_three_bare_layers_agree_with_their_full_pass(name):
    stack, x = [layer(name) for _ in range(3)], stream(7)
    expected = x
    for one in stack:
        expected = one(expected)
    caches, found = [wn.KVCache() for _ in stack], []
    for y in x.split([4, 1, 2], 1):
        for one, cache in zip(stack, caches, strict=True):
            y = one(y, cache=cache)  # noqa: PLW2901 (through the stack)
        found.append(y)
    equal(torch.cat(found, 1), expected)
    assert [c.next_position.tolist() for c in caches] == [[7]] * 3


@case("P106")
def test_one_cache_for_two_layers_is_refused():
    whole, cache = model("rope"), wn.KVCache()
    with pytest.raises(ValueError, match="4 queries and 8 keys"):
        whole(tokens(4), caches=[cache, cache])


@case("P090", "P119")
def test_a_table_that_ends_is_reported_with_both_numbers_in_a_late_step():
    whole = model("learned")
    caches = whole.new_caches()
    whole(tokens(REACH), caches=caches)
    with pytest.raises(ValueError, match=f"{REACH}.*{REACH}"):
        whole(tokens(1), caches=caches)
