"""wn.KVCache: what it holds, what it forgets, and where the next token stands.

The oracle knows no cache: it is given all tokens and a mask of those that are hidden.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import whereness as wn
from attend.by_hand import DIM, GROUPS, HEAD_DIM, HEADS, by_hand, layer, projected, stream
from attend.oracle import Tide, Wave, array, differ, near, tide, turned
from zoo import DeBERTa, FoX, PaTH

NOWHERE = wn.NOWHERE
DOORS = {"rotary": True, "waves": True, "tides": True}


def everything(**options: Any) -> wn.Attention:
    """A causal layer with doors 3, 4 and 5 open."""
    return layer([wn.RoPE(8), Wave(4), Tide()], **options)


def filled(one: wn.Attention, x: Tensor, **options: Any) -> wn.KVCache:
    """A cache that has seen x."""
    cache = wn.KVCache()
    one(x, cache=cache, **options)
    return cache


def hidden(length: int, slots: list[int], until: int) -> np.ndarray:
    """A mask (S, T): queries from slot `until` on do not see `slots`."""
    mask = np.ones((length, length), bool)
    mask[until:, slots] = False
    return mask


# What it holds


def test_an_empty_cache():
    cache = wn.KVCache()
    assert (len(cache), cache.length) == (0, 0)
    assert cache.k is None
    assert cache.next_position is None


def test_a_cache_holds_what_the_doors_gave():
    one, x = everything(), stream(5)
    ids = torch.tensor([[2, 3, 5, 7, 9]])
    segments = torch.tensor([[0, 0, 0, 4, 4]])
    mask = torch.tensor([[1, 1, 0, 1, 1], [1] * 5])
    cache = filled(one, x, where=wn.Where(ids, segments=segments, key_mask=mask))
    assert (len(cache), cache.length) == (5, 5)
    near(cache.k, turned(projected(one.k_proj, x, HEAD_DIM), ids))
    near(cache.v, projected(one.v_proj, x, HEAD_DIM) * tide(ids))
    assert cache.positions.tolist() == ids.tolist()
    assert cache.segments.tolist() == segments.tolist()
    assert cache.key_mask.tolist() == mask.bool().tolist()
    assert cache.k.shape == (2, GROUPS, 5, HEAD_DIM)


class ReadsKeys(wn.PositionalEncoding):
    """Looks at the content of keys, so that none may be turned in the cache."""

    reads_keys = True
    content_aware = True

    def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
        self.keys = call.k
        return logits


def test_keys_stay_raw_where_an_encoding_reads_them():
    reader = ReadsKeys()
    one, x, ids = layer([wn.RoPE(8), reader]), stream(5), torch.arange(5) + 3
    assert not one.encoding.cacheable
    cache, raw = wn.KVCache(), projected(one.k_proj, x, HEAD_DIM)
    for start, end in ((0, 3), (3, 5)):
        out = one(x[:, start:end], where=ids[start:end], cache=cache)
        near(cache.k, raw[:, :, :end])
        near(reader.keys, np.repeat(raw[:, :, :end], 2, 1))
    near(out, by_hand(one, x, rotary=True, positions=ids)[:, 3:])


@pytest.mark.parametrize("chunks", [[6], [1] * 6, [2, 3, 1], [4, 2]])
@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_fed_in_chunks(chunks, implementation):
    one, x, cache = everything(implementation=implementation), stream(6), wn.KVCache()
    ids = torch.tensor([[0, 2, 3, 5, 6, 9], [1, 1, 2, 2, 3, 3]])
    outs, start = [], 0
    for size in chunks:
        end = start + size
        outs.append(one(x[:, start:end], where=ids[:, start:end], cache=cache))
        start = end
        assert len(cache) == end
    near(torch.cat(outs, 1), by_hand(one, x, positions=ids, **DOORS))


def test_masks_of_a_step_span_cached_and_new_tokens():
    one, x = everything(), stream(6)
    cache = filled(one, x[:, :4])
    mask = torch.rand(2, 4, 2, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    full = torch.ones(2, 4, 6, 6, dtype=torch.bool)
    full[:, :, 4:] = mask
    found = one(x[:, 4:], cache=cache, mask=mask)
    near(found, by_hand(one, x, positions=range(6), mask=full, **DOORS)[:, 4:])


@pytest.mark.parametrize("window", [1, 3])
def test_a_window_reaches_into_the_cache(window):
    one, x = everything(window=window), stream(6)
    cache = filled(one, x[:, :4])
    near(one(x[:, 4:], cache=cache), by_hand(one, x, positions=range(6), **DOORS)[:, 4:])


def test_weights_of_a_step():
    one, x = everything(), stream(6)
    cache = filled(one, x[:, :4])
    _, full = one(x, return_weights=True)
    _, step = one(x[:, 4:], cache=cache, return_weights=True)
    near(step, full[:, :, 4:])


# Where the next token stands


def after(ids: list, **options: Any) -> wn.KVCache:
    """The cache after tokens at these positions."""
    positions = torch.tensor(ids)
    return filled(
        layer(wn.RoPE(8)), stream(positions.shape[-1]), where=wn.Where(positions, **options)
    )


def continued(cache: wn.KVCache, new: int, **options: Any) -> list[list[int]]:
    """Positions of the next tokens when nobody gives them."""
    one = layer(wn.RoPE(8))
    one(stream(new), cache=cache, **options)
    return cache.positions[:, len(cache) - new :].tolist()


def test_default_positions_start_at_nought_and_go_on():
    cache = filled(layer(wn.RoPE(8)), stream(4))
    assert cache.positions.tolist() == [[0, 1, 2, 3]]
    assert cache.next_position.tolist() == [4]
    assert continued(cache, 2) == [[4, 5]]
    assert cache.next_position.tolist() == [6]


def test_the_next_position_follows_the_largest_and_not_the_number_of_slots():
    cache = after([0, 0, 1, 2, 2, 2])
    assert cache.next_position.tolist() == [3]
    assert continued(cache, 3) == [[3, 4, 5]]
    assert after([0, 5, 1]).next_position.tolist() == [6]
    assert after([-7, -9, -8]).next_position.tolist() == [-6]
    assert after([-7, NOWHERE, -8]).next_position.tolist() == [-6]
    assert after([[0, 1, 2], [7, 8, 9]]).next_position.tolist() == [3, 10]


def test_a_later_step_back_does_not_turn_the_clock_back():
    cache = after([0, 1, 2, 3])
    layer(wn.RoPE(8))(stream(2), where=torch.tensor([1, 2]), cache=cache)
    assert cache.next_position.tolist() == [4]


def test_real_positions_go_on_as_real_ones():
    cache = after([0.0, 0.5, 2.5])
    assert cache.next_position.tolist() == [3.5]
    assert continued(cache, 2) == [[3.5, 4.5]]
    assert cache.positions.dtype == torch.float32


def test_pads_of_a_step_on_real_positions_have_no_place_either():
    cache = after([0.0, 0.5])
    layer(wn.RoPE(8))(stream(2), cache=cache, key_mask=torch.tensor([[1, 1, 0, 1]]))
    assert cache.positions.nan_to_num(-1.0).tolist() == [[0.0, 0.5, -1.0, 1.5]]
    assert cache.next_position.tolist() == [2.5]


def test_the_next_position_on_several_axes_is_beyond_the_largest():
    one = layer(wn.AxialRoPE(8, 2))
    where = wn.Where(torch.tensor([[0, 0], [3, 5], [4, 1]]), num_axes=2)
    assert filled(one, stream(3), where=where).next_position.tolist() == [6]


def three_axes(times: Any, side: str) -> wn.Where:
    """Two rows of 6 and 4 tokens in 6 slots, next at 7 (or 5 and a half) and 5."""
    at = wn.positions
    rows = [[at.Text(2), at.Video(2, 1, 1, times), at.Text(2)], [at.Text(1), at.Image(1, 3)]]
    ids = at.multimodal(rows, padding_side=side).positions
    absent = ids.isnan() if ids.is_floating_point() else ids == NOWHERE
    return wn.Where(ids, key_mask=~absent.any(-1), num_axes=3)


@pytest.mark.parametrize("chunks", [[1, 1, 2], [4]], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("times", [None, 1.5])
def test_positions_of_several_axes_go_on_as_text(times, side, masked, chunks):
    one, x = layer(wn.MultimodalRoPE(8, (2, 1, 1))), stream(10)
    prompt = three_axes(times, side)
    cache = filled(one, x[:, :6], where=prompt)
    start = [6, 4] if times is None else [6.5, 4]
    assert cache.next_position.tolist() == start
    mask = torch.ones(2, 10).bool()
    mask[:, :6] = prompt.key_mask
    if masked:
        mask[0, 7] = mask[1, 9] = False
    ids = torch.full((2, 4, 3), NOWHERE) if times is None else torch.full((2, 4, 3), torch.nan)
    ids = ids.to(prompt.positions.dtype)
    for row in range(2):
        after = start[row]
        for slot in range(4):
            if mask[row, 6 + slot]:
                ids[row, slot] = after
                after += 1
    whole = wn.Where(torch.cat([prompt.positions, ids], 1), key_mask=mask, num_axes=3)
    outs, at = [], 6
    for size in chunks:
        options = {"key_mask": mask[:, : at + size]} if masked else {}
        outs.append(one(x[:, at : at + size], cache=cache, **options))
        at += size
    found, expected = torch.cat(outs, 1), one(x, where=whole)[:, 6:].detach()
    real = mask[:, 6:]
    near(found[real], expected[real])
    assert cache.positions[:, 6:].nan_to_num(-1).equal(ids.nan_to_num(-1))
    if not masked:
        given = wn.positions.continued(prompt.positions, 4, 3)
        assert cache.positions[:, 6:].equal(given)


def test_a_model_of_several_axes_decodes_beside_layers_without_positions():
    torch.manual_seed(0)
    schedule = wn.schedules.every(2, wn.NoPE(), otherwise=wn.MultimodalRoPE(8, (2, 1, 1)))
    model = wn.Transformer(20, 16, 3, 2, schedule).double().eval()
    prompt, ids = three_axes(None, "left"), torch.arange(16).view(2, 8)
    caches = model.new_caches()
    model(ids[:, :6], where=prompt, caches=caches)
    found = model(ids[:, 6:], caches=caches)
    new = wn.positions.continued(prompt.positions, 2, 3)
    mask = torch.cat([prompt.key_mask, torch.ones(2, 2).bool()], 1)
    whole = wn.Where(torch.cat([prompt.positions, new], 1), key_mask=mask, num_axes=3)
    near(found, model(ids, where=whole)[:, 6:].detach())


def test_after_all_slots_are_evicted_the_axes_still_go_on():
    one, x = layer(wn.MultimodalRoPE(8, (2, 1, 1))), stream(6)
    cache = filled(one, x, where=three_axes(None, "right"))
    cache.evict(range(6))
    one(x[:, :1], cache=cache)
    assert cache.positions.tolist() == [[[6] * 3], [[4] * 3]]


def test_positions_of_several_axes_that_do_not_go_on_by_themselves():
    grid = layer(wn.AxialRoPE(8, 2))
    where = wn.Where(wn.positions.grid(2, 2), num_axes=2)
    cache = filled(grid, stream(4), where=where)
    message = (
        r"AxialRoPE needs positions of 2 axes for the new tokens.*positions\.continued\(.*, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        grid(stream(1), cache=cache)
    with pytest.raises(ValueError, match=r"the cached ones have 2: feed the tokens again"):
        layer(wn.MultimodalRoPE(8, (2, 1, 1)))(stream(1), cache=cache)
    with pytest.raises(ValueError, match=r"3 axes: give where.*grid\(\).*multimodal\(\)"):
        layer(wn.MultimodalRoPE(8, (2, 1, 1)))(stream(1), cache=wn.KVCache())


def test_what_a_cache_says_of_itself():
    cache = wn.KVCache()
    assert repr(cache) == "KVCache(empty)"
    dynamic = layer(wn.RoPE(8, scaling=wn.scaling.DynamicNTK(2.0, 8)))
    lengths = torch.tensor([9, 30])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    dynamic(stream(3), where=wn.Where(lengths=lengths), key_mask=mask, cache=cache)
    assert repr(cache) == "KVCache(3 slots, batch 2, next_position=[2, 3], lengths=[9, 30])"
    axes = filled(layer(wn.MultimodalRoPE(8, (2, 1, 1))), stream(6), where=three_axes(1.5, "left"))
    assert repr(axes) == "KVCache(6 slots, batch 2, next_position=[6.5, 4.0], num_axes=3)"
    many = filled(layer(), stream(2, batch=9), where=torch.arange(2).expand(9, 2))
    assert repr(many) == "KVCache(2 slots, batch 9, next_position=int64 (9,))"


def test_right_pads_of_a_prompt_do_not_count():
    one, mask = layer(wn.RoPE(8)), torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
    cache = filled(one, stream(5), key_mask=mask)
    assert cache.positions.tolist() == [[0, 1, 2, NOWHERE, NOWHERE], [0, 1, 2, 3, 4]]
    assert cache.next_position.tolist() == [3, 5]
    assert continued(cache, 2) == [[3, 4], [5, 6]]
    assert cache.key_mask.tolist() == [[*row, True, True] for row in mask.bool().tolist()]


def test_pads_with_a_place_of_their_own_do_not_count_either():
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    ids = torch.arange(5).expand(2, 5)
    cache = filled(layer(wn.RoPE(8)), stream(5), where=wn.Where(ids, key_mask=mask))
    assert cache.next_position.tolist() == [3, 5]
    assert continued(cache, 1) == [[3], [5]]


def test_pads_of_a_step_have_no_place():
    cache = filled(layer(wn.RoPE(8)), stream(3))
    mask = torch.tensor([[1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0]])
    assert continued(cache, 3, key_mask=mask) == [[NOWHERE, 3, 4], [3, 4, NOWHERE]]
    assert cache.next_position.tolist() == [5, 5]
    assert continued(cache, 1) == [[5], [5]]


@pytest.mark.parametrize("start", [0, 4, -9])
def test_a_step_of_pads_alone_leaves_the_clock(start):
    cache = after([start, start + 1])
    mask = torch.tensor([[1, 1, 0, 0]])
    assert continued(cache, 2, key_mask=mask) == [[NOWHERE, NOWHERE]]
    assert cache.next_position.tolist() == [start + 2]


def test_a_prompt_of_pads_alone_starts_at_nought():
    cache = filled(layer(wn.RoPE(8)), stream(2), key_mask=torch.tensor([[0, 0], [1, 1]]))
    assert cache.next_position.tolist() == [0, 2]
    assert continued(cache, 1) == [[0], [2]]


@pytest.mark.parametrize("chunks", [[8], [3, 5], [5, 3], [1] * 8], ids=str)
def test_documents_are_counted_anew_as_without_a_cache_or_refused(chunks):
    encoding = wn.LearnedAbsolute(DIM, 20, site="every_layer")
    one, x, cache = layer(encoding), stream(8), wn.KVCache()
    segments = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    outs, start = [], 0
    for size in chunks:
        end = start + size
        where = wn.Where(segments=segments[start:end])
        try:
            outs.append(one(x[:, start:end], where=where, cache=cache))
        except ValueError:
            assert len(cache) == start
            return
        start = end
    near(torch.cat(outs, 1), one(x, where=wn.Where(segments=segments)).detach())


# Segments in a cache


def test_a_step_sees_only_its_own_document():
    one, x = everything(), stream(6)
    ids, segments = torch.tensor([0, 1, 0, 1, 2, 2]), torch.tensor([0, 0, 1, 1, 1, 0])
    cache = filled(one, x[:, :4], where=wn.Where(ids[:4], segments=segments[:4]))
    found = one(x[:, 4:], where=wn.Where(ids[4:], segments=segments[4:]), cache=cache)
    near(found, by_hand(one, x, positions=ids, segments=segments, **DOORS)[:, 4:])


def test_segments_are_given_always_or_never():
    one, x, segments = everything(), stream(6), torch.zeros(3, dtype=torch.int64)
    ids = torch.arange(3)
    for first, second in ((segments, None), (None, segments)):
        cache = filled(one, x[:, :3], where=wn.Where(ids, segments=first))
        with pytest.raises(ValueError, match="segments for all tokens of a cache or for none"):
            one(x[:, 3:], where=wn.Where(ids + 3, segments=second), cache=cache)
        assert len(cache) == 3


# Key masks and a cache


def test_a_key_mask_spans_cached_and_new_tokens():
    one, x = everything(), stream(6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1]])
    cache = filled(one, x[:, :4], key_mask=mask[:, :4])
    found = one(x[:, 4:], cache=cache, key_mask=mask)
    ids = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 0, 4]]
    expected = by_hand(one, x, positions=ids, key_mask=mask.bool(), **DOORS)[:, 4:]
    near(found[mask[:, 4:].bool()], expected[mask[:, 4:].bool()])
    for wrong in (mask[:, 4:], mask[:, :4], mask[:, :5]):
        with pytest.raises(ValueError, match=r"T=7.*6 cached and 1 new"):
            one(x[:, :1], cache=cache, key_mask=wrong)


def test_pads_are_remembered_when_a_step_brings_no_mask():
    one, x = everything(), stream(6)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    cache = filled(one, x[:, :4], key_mask=mask)
    found = one(x[:, 4:], cache=cache)
    ids = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    full = np.ones((2, 6), bool)
    full[0, :2] = False
    near(found, by_hand(one, x, positions=ids, key_mask=full, **DOORS)[:, 4:])


def test_a_mask_may_come_with_the_first_pad():
    one, x = everything(), stream(6)
    cache = filled(one, x[:, :4])
    mask = torch.tensor([[1, 1, 1, 1, 0, 1], [1] * 6])
    found = one(x[:, 4:], cache=cache, key_mask=mask)
    ids = [[0, 1, 2, 3, 0, 4], [0, 1, 2, 3, 4, 5]]
    expected = by_hand(one, x, positions=ids, key_mask=mask.bool(), **DOORS)[:, 4:]
    near(found[mask[:, 4:].bool()], expected[mask[:, 4:].bool()])


def test_a_mask_cannot_make_a_cached_pad_real():
    one, x = everything(), stream(6)
    cache = filled(one, x[:, :4], key_mask=torch.tensor([[0, 1, 1, 1], [1] * 4]))
    with pytest.raises(ValueError, match="calls a cached pad a real token"):
        one(x[:, 4:], cache=cache, key_mask=torch.ones(2, 6).long())
    assert len(cache) == 4


@pytest.mark.parametrize("with_mask", [False, True], ids=["without a mask before", "with one"])
def test_a_mask_that_hides_a_cached_token_is_honoured_or_refused(with_mask):
    one, x = everything(), stream(6)
    options = {"key_mask": torch.ones(2, 4).long()} if with_mask else {}
    cache = filled(one, x[:, :4], **options)
    mask = torch.tensor([[1, 0, 0, 1, 1, 1], [1] * 6])
    try:
        found = one(x[:, 4:], cache=cache, key_mask=mask)
    except ValueError:
        assert len(cache) == 4
        return
    expected = by_hand(one, x, positions=range(6), key_mask=mask.bool(), **DOORS)
    near(found, expected[:, 4:])
    # The cache keeps what it knows: a step without a mask sees the token again.
    near(
        one(x[:, 5:], cache=cache),
        by_hand(one, torch.cat([x, x[:, 5:]], 1), positions=range(7), **DOORS)[:, 6:],
    )


# Forgetting


@pytest.mark.parametrize("kept", [1, 3, 4])
def test_trim_rolls_back(kept):
    one, x, other = everything(), stream(6), stream(2, seed=5)
    ids = torch.tensor([[0, 3, 4, 6, 7, 9]])
    cache = filled(one, x, where=ids)
    cache.trim(kept)
    assert (len(cache), cache.positions.tolist()) == (kept, ids[:, :kept].tolist())
    after = ids[0, kept - 1].item() + 1
    assert cache.next_position.tolist() == [after]
    found = one(other, cache=cache)
    both = torch.cat([ids[0, :kept], torch.tensor([after, after + 1])])
    expected = by_hand(one, torch.cat([x[:, :kept], other], 1), positions=both, **DOORS)
    near(found, expected[:, kept:])


def test_trim_to_all_and_to_nothing():
    one, x = everything(), stream(4)
    cache = filled(one, x, where=torch.tensor([5, 6, 7, 8]))
    cache.trim(4)
    assert (len(cache), cache.next_position.tolist()) == (4, [9])
    cache.trim(0)
    assert len(cache) == 0
    near(one(x, cache=cache), by_hand(one, x, positions=range(4), **DOORS))
    wn.KVCache().trim(0)


def test_trim_forgets_pads_and_segments_as_well():
    one, x = everything(), stream(5)
    ids = torch.tensor([[0, 1, NOWHERE, 2, NOWHERE], [0, 1, 2, 0, NOWHERE]])
    mask, segments = ids != NOWHERE, torch.tensor([0, 0, 0, 1, 1])
    cache = filled(one, x, where=wn.Where(ids, segments=segments, key_mask=mask))
    cache.trim(3)
    assert cache.key_mask.tolist() == mask[:, :3].tolist()
    assert cache.segments.tolist() == [[0, 0, 0]]
    assert cache.next_position.tolist() == [2, 3]


def test_trim_does_not_count_pads_that_have_a_place():
    mask = torch.tensor([[1, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]])
    where = wn.Where(torch.arange(6), key_mask=mask)
    cache = filled(layer(wn.RoPE(8)), stream(6), where=where)
    cache.trim(5)
    assert cache.next_position.tolist() == [3, 5]


@pytest.mark.parametrize("slots", [[0], [4], [1, 2], [0, 3, 3], []])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_eviction_hides_keys_and_nothing_else(slots, implementation):
    one, x = everything(implementation=implementation), stream(7)
    cache = filled(one, x[:, :5])
    cache.evict(torch.tensor(slots, dtype=torch.int64))
    kept = [t for t in range(5) if t not in slots]
    assert (len(cache), cache.positions.tolist()) == (len(kept), [kept])
    assert cache.next_position.tolist() == [5]
    found = one(x[:, 5:], cache=cache)
    expected = by_hand(one, x, positions=range(7), mask=hidden(7, slots, 5), **DOORS)
    near(found, expected[:, 5:])
    assert cache.positions.tolist() == [[*kept, 5, 6]]


@pytest.mark.parametrize("encoding", [lambda: wn.ALiBi(4), lambda: wn.LearnedRelative(4, 9)])
def test_eviction_leaves_gaps_that_an_offset_bias_sees(encoding):
    one, x = layer(encoding()), stream(7)
    cache = filled(one, x[:, :5])
    cache.evict(torch.tensor([1, 2]))
    mask = torch.as_tensor(hidden(7, [1, 2], 5))
    near(one(x[:, 5:], cache=cache), one(x, mask=mask, where=torch.arange(7))[:, 5:].detach())


def test_eviction_takes_pads_and_segments_along():
    one, x = everything(), stream(4)
    mask, segments = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1]]), torch.tensor([0, 0, 1, 1])
    cache = filled(one, x, where=wn.Where(torch.arange(4), segments=segments, key_mask=mask))
    cache.evict(torch.tensor([0, 2]))
    assert cache.key_mask.tolist() == [[False, True], [True, True]]
    assert cache.segments.tolist() == [[0, 1]]
    assert cache.positions.tolist() == [[1, 3]]


def test_after_eviction_of_all_slots_the_clock_still_goes_on():
    one, x = everything(), stream(4)
    cache = filled(one, x[:, :3])
    cache.evict(torch.arange(3))
    assert (len(cache), cache.next_position.tolist()) == (0, [3])
    near(one(x[:, 3:], cache=cache), by_hand(one, x[:, 3:], positions=[3], **DOORS))
    assert cache.positions.tolist() == [[3]]


def test_eviction_then_trim_follows_the_last_kept():
    cache = filled(layer(wn.RoPE(8)), stream(6))
    cache.evict(torch.tensor([1, 4]))
    cache.trim(3)
    assert cache.positions.tolist() == [[0, 2, 3]]
    assert cache.next_position.tolist() == [4]


@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [1, 1, 0, 1], [1]])
@pytest.mark.parametrize("own", [False, True], ids=["shared positions", "own positions"])
def test_reorder_picks_rows(rows, own):
    one, x, new = everything(), stream(4), stream(1, batch=len(rows), seed=9)
    ids = torch.tensor([[0, 1, 2, 3], [4, 6, 7, 8]]) if own else torch.arange(4)[None]
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]])
    cache = filled(one, x, where=wn.Where(ids, key_mask=mask))
    cache.reorder(torch.tensor(rows))
    found = one(new, cache=cache)
    both = torch.cat([x[rows], new], 1)
    old = ids.expand(2, 4)[rows]
    both_ids = torch.cat([old, old[:, -1:] + 1], 1)
    real = torch.cat([mask[rows].bool(), torch.ones(len(rows), 1).bool()], 1)
    expected = by_hand(one, both, positions=both_ids, key_mask=real, **DOORS)
    near(found, expected[:, -1:])
    assert cache.next_position.expand(len(rows)).tolist() == (both_ids[:, -1] + 1).tolist()


def test_one_row_becomes_several_beams():
    one, x, new = everything(), stream(4, batch=1), stream(1, batch=3, seed=9)
    cache = filled(one, x)
    cache.reorder(torch.tensor([0, 0, 0]))
    both = torch.cat([x.expand(3, -1, -1), new], 1)
    near(one(new, cache=cache), by_hand(one, both, positions=range(5), **DOORS)[:, -1:])


CONTENTUAL = {
    "fox": lambda: FoX(DIM, HEADS),
    "path": lambda: PaTH(DIM, HEADS, HEAD_DIM),
    "deberta and rope": lambda: [wn.RoPE(8), DeBERTa(DIM, 4)],
}


@pytest.mark.parametrize("make", CONTENTUAL.values(), ids=CONTENTUAL)
def test_features_are_trimmed_and_reordered_with_the_keys(make):
    one, x, other = layer(make()), stream(6), stream(2, seed=5)
    with torch.no_grad():
        cache = filled(one, x)
        for name, feature in cache.features.items():
            assert feature.shape[:2] == (2, 6), name
        cache.trim(3)
        cache.reorder(torch.tensor([1, 0]))
        found = one(other, cache=cache)
        near(found, one(torch.cat([x[[1, 0], :3], other], 1))[:, 3:])
    for name, feature in cache.features.items():
        assert feature.shape[:2] == (2, 5), name


def test_features_are_evicted_with_the_keys():
    one, x = layer(FoX(DIM, HEADS)), stream(6)
    cache = filled(one, x)
    log_f = cache.features["log_f"].clone()
    cache.evict(torch.tensor([0, 4]))
    assert torch.equal(cache.features["log_f"], log_f[:, [1, 2, 3, 5]])


def test_reorder_and_no_row_changes_nothing_in_an_empty_cache():
    cache = wn.KVCache()
    cache.reorder(torch.tensor([1, 0]))
    cache.evict(torch.tensor([], dtype=torch.int64))
    assert len(cache) == 0
    assert filled(layer(), stream(2)).positions.tolist() == [[0, 1]]


def test_slots_may_be_a_list():
    one, x = layer(wn.RoPE(8)), stream(6)
    caches = [filled(one, x) for _ in range(2)]
    for cache, made in zip(caches, (list, torch.tensor), strict=True):
        cache.evict(made([1, 2]))
        cache.accept(2, made([3]))
        cache.evict(torch.tensor([], dtype=torch.int64) if made is torch.tensor else [])
    assert [c.positions.tolist() for c in caches] == [[[0, 3, 5]]] * 2
    assert caches[0].state == caches[1].state


@pytest.mark.untyped
def test_what_forgetting_refuses():
    one = layer(wn.RoPE(8))
    cache = filled(one, stream(4))
    for bad in (5, -1):
        with pytest.raises(ValueError, match=str(bad)):
            cache.trim(bad)
    with pytest.raises(TypeError, match="length must be an int"):
        cache.trim(2.0)
    for bad in ([4], [-1], [0, 7]):
        with pytest.raises(ValueError, match=r"slots must lie in 0 \.\. 3"):
            cache.evict(torch.tensor(bad))
    for bad in ([True], [0.0], ["0"]):
        with pytest.raises(TypeError, match="every slot must be an int"):
            cache.evict(bad)
    for bad in (
        "0",
        torch.tensor([0.0]),
        torch.tensor(0),
        torch.tensor([True]),
        torch.tensor([[0]]),
    ):
        with pytest.raises(TypeError, match=r"a list of ints or an int64 tensor of shape \(n,\)"):
            cache.evict(bad)
        with pytest.raises(TypeError, match=r"rows must be an int64 tensor of shape \(B',\)"):
            cache.reorder(bad)
    for bad in ([2], [-1]):
        with pytest.raises(ValueError, match=r"rows must lie in 0 \.\. 1"):
            cache.reorder(torch.tensor(bad))
    assert (len(cache), cache.positions.tolist(), len(cache.k)) == (4, [[0, 1, 2, 3]], 2)


# Any order of steps, against a list of tokens in Python

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("feed"),
            st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3),
        ),
        st.tuples(st.just("evict"), st.sets(st.integers(0, 7), max_size=3)),
        st.tuples(st.just("trim"), st.integers(0, 8)),
        st.tuples(st.just("reorder"), st.permutations([0, 1])),
    ),
    min_size=2,
    max_size=7,
)


@given(steps, st.sampled_from([None, 2, 3]))
@settings(max_examples=80)
def test_any_order_of_steps(drawn, window):
    one, pool = everything(window=window), stream(40)
    cache, fed = wn.KVCache(), 0
    # Of each row: (hidden state, position, real) of every token held, and the position to come;
    # of all rows: the slot in which each was fed, and the slot to come.
    rows, clocks, slots, next_slot = [[], []], [0, 0], [], 0
    for what, how in [*drawn, ("feed", [(True, True)])]:
        held = len(rows[0])
        if what == "feed":
            new = pool[:, fed : fed + len(how)]
            fed += len(how)
            slots += range(next_slot, next_slot + len(how))
            next_slot += len(how)
            for b in (0, 1):
                for t, bits in enumerate(how):
                    rows[b].append((new[b, t], clocks[b] if bits[b] else NOWHERE, bits[b]))
                    clocks[b] += bits[b]
            mask = torch.tensor([[token[2] for token in row] for row in rows])
            found = one(new, cache=cache, key_mask=mask)
            x = torch.stack([torch.stack([token[0] for token in row]) for row in rows])
            ids = torch.tensor([[token[1] if token[2] else 0 for token in row] for row in rows])
            near_enough = np.ones((len(slots), len(slots)), bool)
            for i, j in np.ndindex(near_enough.shape):
                near_enough[i, j] = window is None or slots[i] - slots[j] < window
            options = {"key_mask": mask, "mask": near_enough, "window": None}
            expected = by_hand(one, x, positions=ids, **options, **DOORS)[:, held:]
            seen = mask[:, held:]
            near(found[seen], expected[seen.numpy()])
        elif what == "evict":
            gone = sorted(s for s in how if s < held)
            cache.evict(torch.tensor(gone, dtype=torch.int64))
            rows = [[token for s, token in enumerate(row) if s not in gone] for row in rows]
            slots = [slot for s, slot in enumerate(slots) if s not in gone]
        elif what == "trim" and how < held:
            cache.trim(how)
            rows, slots = [row[:how] for row in rows], slots[:how]
            clocks = [max([token[1] + 1 for token in row if token[2]], default=0) for row in rows]
            next_slot = slots[-1] + 1 if slots else 0
        elif what == "reorder":
            cache.reorder(torch.tensor(how))
            rows, clocks = [rows[b] for b in how], [clocks[b] for b in how]
        assert len(cache) == len(rows[0])
        if cache.next_position is not None:
            assert cache.next_position.expand(2).tolist() == clocks
        if len(cache):
            assert cache.positions.expand(2, -1).tolist() == [[t[1] for t in row] for row in rows]


@pytest.mark.parametrize("gone", [[3], [1, 2], [4], [3, 4], [0, 4]], ids=str)
def test_a_window_counts_the_slots_of_forgotten_tokens_too(gone):
    one, x = everything(window=3), stream(7)
    cache = filled(one, x[:, :5])
    cache.evict(torch.tensor(gone))
    expected = by_hand(one, x, positions=range(7), mask=hidden(7, gone, 5), **DOORS)
    near(one(x[:, 5:6], cache=cache), expected[:, 5:6])
    near(one(x[:, 6:], cache=cache), expected[:, 6:])


def test_to_trim_to_what_is_held_changes_nothing():
    one, x = layer(wn.RoPE(8)), stream(5)
    cache = filled(one, x[:, :4])
    cache.evict(torch.tensor([3]))
    at = one.encoding.prepare(cache.extend(wn.Where(torch.tensor([4]))))
    cache.trim(3)
    assert cache.next_position.tolist() == [4]
    one(x[:, 4:], where=at, cache=cache)


# Extend, prepare, append


def test_extend_tells_where_all_keys_are_and_changes_nothing():
    one, x = everything(), stream(6)
    cache = filled(one, x[:, :4], where=torch.tensor([1, 2, 3, 5]))
    new = wn.Where(torch.tensor([[6, 8]]))
    for _ in range(2):
        where = cache.extend(new)
        assert where.positions.tolist() == [[6, 8]]
        assert where.k_positions.tolist() == [[1, 2, 3, 5, 6, 8]]
        assert where.new_keys.tolist() == [[6, 8]]
        assert (where.cached, len(cache)) == (4, 4)
    at = one.encoding.prepare(where)
    found = one(x[:, 4:], where=at, cache=cache)
    near(found, by_hand(one, x, positions=[1, 2, 3, 5, 6, 8], **DOORS)[:, 4:])


def test_one_preparation_serves_the_caches_of_all_layers():
    encoding = wn.Combined([wn.RoPE(8), Wave(4)])
    layers = [layer(encoding, owns_encoding=False) for _ in range(2)]
    caches, x = [wn.KVCache() for _ in layers], stream(6)
    for start, end in ((0, 4), (4, 6)):
        where = caches[0].extend(wn.Where(torch.arange(start, end)))
        at = encoding.prepare(where)
        outs = [
            one(x[:, start:end], where=at, cache=c) for one, c in zip(layers, caches, strict=True)
        ]
    expected = by_hand(layers[0], x, rotary=True, waves=True, positions=range(6))
    for out in outs:
        near(out, expected[:, 4:])


def test_prepared_positions_serve_one_step_only():
    one, x = layer(wn.RoPE(8)), stream(6)
    cache = filled(one, x[:, :4])
    at = one.encoding.prepare(cache.extend(wn.Where(torch.tensor([4]))))
    one(x[:, 4:5], where=at, cache=cache)
    for stale in (at, one.encoding.prepare(torch.tensor([5]))):
        with pytest.raises(ValueError, match="needed 1 queries and 6 keys"):
            one(x[:, 5:], where=stale, cache=cache)
    assert len(cache) == 5
    # Two in one go would skip the check of sizes in the layer: append has its own.
    where = cache.extend(wn.Where(torch.tensor([5])))
    key = cache.k[:, :, :1]
    cache.append(key, key, {}, where)
    with pytest.raises(ValueError, match="made for 5 cached keys, the cache holds 6"):
        cache.append(key, key, {}, where)
    assert len(cache) == 6


CHANGES = {
    "trim": lambda one, cache, x: (cache.trim(3), one(x, where=torch.tensor([8]), cache=cache)),
    "evict": lambda one, cache, x: (cache.evict(torch.tensor([1])), one(x, cache=cache)),
    "reorder": lambda one, cache, x: cache.reorder(torch.tensor([1, 0])),
    "start again": lambda one, cache, x: (
        cache.trim(0),
        one(x.expand(2, 4, -1), where=torch.arange(4) + 9, cache=cache),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_positions_prepared_for_an_older_state_of_the_same_length_are_refused(change):
    one, ids = layer(Wave(4)), torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    cache = filled(one, stream(4), where=ids)
    at = one.encoding.prepare(cache.extend(wn.Where(torch.tensor([[4], [8]]))))
    change(one, cache, stream(1, seed=3))
    assert len(cache) == 4
    with pytest.raises(ValueError, match="prepare|older|[Ee]xtend"):
        one(stream(1, seed=4), where=at, cache=cache)


def test_positions_prepared_before_all_was_forgotten_are_refused():
    one, cache = layer(Wave(4)), wn.KVCache()
    at = one.encoding.prepare(cache.extend(wn.Where(torch.tensor([0]))))
    one(stream(3), cache=cache)
    cache.evict(torch.arange(3))
    with pytest.raises(ValueError, match="prepare|older|[Ee]xtend"):
        one(stream(1), where=at, cache=cache)


def test_extend_refuses_what_the_cache_knows_better():
    cache = after([0, 1, 2])
    new = torch.tensor([3])
    for where in (
        wn.Where(new, torch.arange(4)),
        wn.Where(new, segments=torch.tensor([0]), k_segments=torch.tensor([0])),
    ):
        with pytest.raises(ValueError, match="cache knows its keys"):
            cache.extend(where)
        with pytest.raises(ValueError, match="cache knows its keys"):
            wn.KVCache().extend(where)


def test_extend_needs_positions():
    with pytest.raises(ValueError, match="positions"):
        after([0, 1, 2]).extend(wn.Where())


def test_positions_in_a_cache_are_of_one_kind():
    cache = after([0, 1, 2])
    with pytest.raises(
        TypeError, match=r"Cached positions are torch.int64, new ones torch.float32"
    ):
        cache.extend(wn.Where(torch.tensor([3.0])))
    with pytest.raises(ValueError, match="number of axes"):
        cache.extend(wn.Where(torch.tensor([[3, 3]]), num_axes=2))


def test_positions_in_a_cache_have_one_number_of_axes():
    two = filled(
        layer(wn.AxialRoPE(8, 2)), stream(4), where=wn.Where(wn.positions.grid(2, 2), num_axes=2)
    )
    with pytest.raises(ValueError, match="number of axes"):
        two.extend(wn.Where(torch.tensor([[3, 3, 3]]), num_axes=3))


def test_a_batch_of_another_size_is_refused_and_leaves_no_trace():
    for where in (None, torch.tensor([[4], [4], [4]])):
        one = layer(wn.RoPE(8))
        cache = filled(one, stream(4), where=torch.arange(4).expand(2, 4))
        with pytest.raises(ValueError, match="batch"):
            one(stream(1, batch=3), where=where, cache=cache)
        assert (len(cache), cache.v.shape[2], cache.positions.shape) == (4, 4, (2, 4))
    shared = filled(one, stream(4))  # one row of positions for both sequences
    with pytest.raises(ValueError, match="batch size 2, x has 3"):
        one(stream(1, batch=3), cache=shared)
    assert len(shared) == 4


def test_extend_refuses_a_batch_of_another_size():
    cache, new = filled(layer(wn.RoPE(8)), stream(3)), torch.tensor([3])
    three = {
        "positions": wn.Where(torch.tensor([[3], [3], [3]])),
        "key_mask": wn.Where(new, key_mask=torch.ones(3, 1).bool()),
    }
    for where in three.values():
        with pytest.raises(ValueError, match="batch"):
            cache.extend(where)
    assert cache.extend(wn.Where(torch.tensor([[3], [7]]))).k_positions.shape == (2, 4)


@pytest.mark.parametrize("refused", ["weights", "encoding"])
def test_a_step_that_is_refused_leaves_no_trace(refused):
    one = layer(wn.ALiBi(4) if refused == "weights" else wn.Shaw(8, 2), implementation="sdpa")
    cache = wn.KVCache()
    with pytest.raises(ValueError, match="sdpa"):
        one(stream(3), cache=cache, return_weights=refused == "weights")
    assert len(cache) == 0


# Lengths


class ByLength(Wave):
    """A bias that depends on how long the sequence will get."""

    needs_lengths = True

    def tables(self, where: wn.Where) -> Tensor:
        return self.bias(where.positions, where.keys) * 10 / where.lengths[:, :, None, None]

    def bias_at(self, at: wn.At) -> Tensor:
        return at.data


def test_lengths_stay_with_the_cache():
    one, x, cache = layer(ByLength(4)), stream(6), wn.KVCache()
    lengths = torch.tensor([20, 5])
    outs = [
        one(x[:, a:b], where=wn.Where(torch.arange(a, b), lengths=lengths), cache=cache)
        for a, b in ((0, 4), (4, 6))
    ]
    assert cache.lengths.tolist() == [[20], [5]]
    full = one(x, where=wn.Where(torch.arange(6), lengths=lengths))
    near(torch.cat(outs, 1), full.detach())
    cache.reorder(torch.tensor([1, 0]))
    assert cache.lengths.tolist() == [[5], [20]]


def test_an_encoding_that_needs_lengths_says_so_before_it_caches():
    one, cache = layer(ByLength(4)), wn.KVCache()
    for where in (None, torch.arange(3), wn.Where(torch.arange(3))):
        with pytest.raises(ValueError, match=r"ByLength depends on how long.*Where\(lengths="):
            one(stream(3), where=where, cache=cache)
    assert len(cache) == 0


def test_lengths_that_change_need_a_new_cache():
    one, x = layer(ByLength(4)), stream(1)
    cache = filled(one, stream(3), where=wn.Where(torch.arange(3), lengths=20))
    new = torch.tensor([3])
    for lengths in (21, torch.tensor([20, 21])):
        with pytest.raises(ValueError, match=r"lengths changed.*cache\.relengthen\("):
            one(x, where=wn.Where(new, lengths=lengths), cache=cache)
    with pytest.raises(ValueError, match="lengths are one a sequence"):
        cache.extend(wn.Where(torch.arange(3), lengths=torch.tensor([[20, 20, 20]])))
    a_token = wn.Where(torch.arange(3), lengths=torch.tensor([[20, 20, 20]]))
    packed = filled(layer(wn.RoPE(8)), stream(3), where=a_token)
    with pytest.raises(ValueError, match="lengths are one a sequence"):
        packed.extend(wn.Where(new, lengths=20))
    plain = filled(layer(wn.RoPE(8)), stream(3))
    with pytest.raises(ValueError, match="for some tokens of a cache only"):
        plain.extend(wn.Where(new, lengths=20))
    with pytest.raises(ValueError, match="for some tokens of a cache only"):
        cache.extend(wn.Where(new))
    one(x, where=wn.Where(new, lengths=torch.tensor([20, 20])), cache=cache)
    assert len(cache) == 4


def test_lengths_change_freely_after_a_fresh_start():
    one, x = layer(ByLength(4)), stream(3)
    cache = filled(one, x, where=wn.Where(torch.arange(3), lengths=20))
    cache.trim(0)
    one(x, where=wn.Where(torch.arange(3), lengths=30), cache=cache)
    assert cache.lengths.tolist() == [[30]]


# Several layers


def test_layers_that_evict_different_slots_keep_their_own_positions_or_are_refused():
    model = wn.Transformer(50, DIM, 2, HEADS, wn.ALiBi(HEADS))
    caches, ids = model.new_caches(), torch.zeros(1, 6, dtype=torch.int64)
    model(ids, caches=caches)
    caches[0].evict(torch.tensor([0]))
    caches[1].evict(torch.tensor([3]))
    try:
        model(ids[:, :1], caches=caches)
    except ValueError:
        assert [len(c) for c in caches] == [5, 5]
        return
    assert caches[0].positions.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert caches[1].positions.tolist() == [[0, 1, 2, 4, 5, 6]]


def test_layers_that_reorder_differently_are_refused():
    model = wn.Transformer(50, DIM, 2, HEADS, wn.ALiBi(HEADS))
    caches, ids = model.new_caches(), torch.zeros(2, 4, dtype=torch.int64)
    model(ids, where=torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]]), caches=caches)
    caches[0].reorder(torch.tensor([1, 0]))
    caches[1].reorder(torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="caches differ"):
        model(ids[:, :1], caches=caches)
    assert [len(c) for c in caches] == [4, 4]


def test_gradients_flow_through_a_cache():
    one, x = everything(), stream(5).requires_grad_()
    cache = filled(one, x[:, :3])
    weight = stream(2, seed=9)
    (stepped,) = torch.autograd.grad((one(x[:, 3:], cache=cache) * weight).sum(), x)
    (full,) = torch.autograd.grad((one(x)[:, 3:] * weight).sum(), x)
    near(stepped, full)
    differ(array(full)[:, :3], 0.0)


# A path of a tree that was found right


def fed_tree(one: wn.Attention, x: Tensor, start: int) -> wn.KVCache:
    """x[:, :start], then the rest as a tree: two drafts of three and one of two tokens."""
    parents = torch.tensor([-1, 0, 1, -1, 3, 0])
    cache = filled(one, x[:, :start])
    ids = wn.positions.tree(parents, start)
    one(x[:, start:], where=ids, mask=wn.positions.tree_mask(parents, start), cache=cache)
    return cache


@pytest.mark.parametrize("path", [[], [0], [0, 1], [0, 1, 2], [3, 4], [0, 5]], ids=str)
@pytest.mark.parametrize("window", [None, 3])
def test_after_an_accepted_path_the_others_were_never_fed(path, window):
    one, x, more = everything(window=window), stream(10), stream(3, seed=5)
    if window:  # windows count slots, so that a tree takes a layer without one
        one.window = None
    cache = fed_tree(one, x, 4)
    one.window = window
    cache.accept(4, torch.tensor(path, dtype=torch.int64) + 4)
    alone = torch.cat([x[:, [0, 1, 2, 3, *(4 + n for n in path)]], more], 1)
    length = 4 + len(path)
    assert cache.positions.tolist() == [[*range(length)]]
    assert (len(cache), cache.next_position.tolist()) == (length, [length])
    steps = torch.cat([one(more[:, :2], cache=cache), one(more[:, 2:], cache=cache)], 1)
    expected = by_hand(one, alone, positions=range(length + 3), **DOORS)
    near(steps, expected[:, length:])


def test_a_path_after_an_eviction_takes_the_next_slots():
    one, x, more = everything(window=4), stream(10), stream(1, seed=5)
    one.window = None
    cache = fed_tree(one, x, 4)
    cache.evict(torch.tensor([1]))
    cache.accept(3, torch.tensor([6, 7]))  # the draft of two
    one.window = 4
    assert cache.positions.tolist() == [[0, 2, 3, 4, 5]]
    assert cache.next_position.tolist() == [6]
    found = one(more, cache=cache)
    alone = torch.cat([x[:, [0, 1, 2, 3, 7, 8]], more], 1)
    near(found, by_hand(one, alone, positions=range(7), **DOORS)[:, 6:])


@pytest.mark.untyped
def test_what_is_no_path():
    one = layer(wn.RoPE(8))
    cache = filled(one, stream(6))
    state = cache.state
    for start, slots, error, message in (
        (4, [3], ValueError, r"in 4 \.\. 5"),
        (4, [6], ValueError, r"in 4 \.\. 5"),
        (4, [5, 4], ValueError, "must rise"),
        (4, [4, 4], ValueError, "must rise"),
        (7, [], ValueError, "start must be at most 6"),
        (-1, [], ValueError, "start must be at least 0"),
    ):
        with pytest.raises(error, match=message):
            cache.accept(start, torch.tensor(slots, dtype=torch.int64))
    for slots in (4, torch.tensor([4.0]), torch.tensor(4), torch.tensor([True])):
        with pytest.raises(TypeError, match="int64 tensor"):
            cache.accept(4, slots)
    assert (len(cache), cache.state) == (6, state)
    others = [filled(one, stream(6)) for _ in range(4)]
    others[0].accept(4, torch.tensor([4]))
    others[1].accept(4, torch.tensor([5]))
    others[2].accept(3, torch.tensor([3, 5]))
    others[3].trim(5)
    assert len({c.state for c in others}) == 4
