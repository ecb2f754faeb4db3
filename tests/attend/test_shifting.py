"""Cached tokens at other positions: what follows is the same, or that of a pass fed there anew."""

import copy
from typing import Any

import pytest
import torch

import whereness as wn
from attend.by_hand import HEAD_DIM, by_hand, layer, projected, stream
from attend.oracle import Tide, Wave, differ, near, turned
from zoo import FoX, PoPE

NOWHERE = wn.NOWHERE
TEXT, IMAGE = wn.positions.Text, wn.positions.Image
RELATIVE = {
    "nope": lambda: None,
    "rope": lambda: wn.RoPE(8),
    "rope of a part": lambda: wn.RoPE(8, 100.0, "interleaved", 4, "trailing"),
    "yarn": lambda: wn.RoPE(8, scaling=wn.scaling.YaRN(4.0, 16)),
    "xpos": lambda: wn.XPos(8, centre=7.0),
    "axial_rope": lambda: wn.AxialRoPE(8, 1),
    "alibi": lambda: wn.ALiBi(4),
    "t5": lambda: wn.T5(4, 8, 16),
    "shaw": lambda: wn.Shaw(8, 3),
    "relative_add": lambda: wn.LearnedRelative(4, 5),
    "relative_multiply": lambda: wn.LearnedRelative(4, 5, "multiply", "weights"),
    "rope and a bias": lambda: [wn.RoPE(8), wn.ALiBi(4)],
    "raw keys": lambda: [wn.RoPE(8), ReadsKeys()],
    "fox": lambda: FoX(32, 4),
}


class ReadsKeys(wn.PositionalEncoding):
    """Looks at the content of keys, so that none may be turned in the cache."""

    reads_keys = True
    relative = True

    def scores(self, logits: torch.Tensor, call: wn.Call) -> torch.Tensor:
        return logits + 0.1 * call.k.sum(-1)[:, :, None]


OFFSETS: dict[str, Any] = {
    "back": -3,
    "on": 7,
    "far": 100_000,
    "by row": torch.tensor([5, -40]),
    "nowhere": 0,
}


def fed(one: wn.Attention, x: torch.Tensor, **options: Any) -> wn.KVCache:
    cache = wn.KVCache()
    one(x, cache=cache, **options)
    return cache


@pytest.mark.parametrize("chunks", [[3], [1, 1, 1], [2, 1]], ids=str)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", RELATIVE)
def test_a_shift_changes_nothing_for_relative_encodings(name, offset, chunks):
    one, x = layer(RELATIVE[name]()), stream(9)
    if name == "xpos" and offset == "far":
        cache = fed(one, x)
        with pytest.raises(ValueError, match="centre"):
            cache.shift(one.encoding, OFFSETS[offset])
        assert cache.positions.tolist() == [[*range(9)]]
        return
    expected, cache, by = one(x), fed(one, x[:, :6]), OFFSETS[offset]
    cache.shift(one.encoding, by)
    rows = by.tolist() if isinstance(by, torch.Tensor) else [by]
    assert cache.positions.tolist() == [[p + n for p in range(6)] for n in rows]
    assert cache.next_position.tolist() == [6 + n for n in rows]
    outs, start = [], 6
    for size in chunks:
        outs.append(one(x[:, start : start + size], cache=cache))
        start += size
    near(torch.cat(outs, 1), expected[:, 6:].detach())


def test_a_shifted_key_is_the_key_of_the_new_position():
    one, x = layer(wn.RoPE(8)), stream(4)
    cache = fed(one, x, where=torch.tensor([[0, 2, 3, 7], [1, 1, 2, 2]]))
    cache.shift(one.encoding, torch.tensor([10, -2]))
    ids = [[10, 12, 13, 17], [-1, -1, 0, 0]]
    near(cache.k, turned(projected(one.k_proj, x, HEAD_DIM), ids))
    near(cache.v, projected(one.v_proj, x, HEAD_DIM))
    assert cache.positions.tolist() == ids
    assert cache.next_position.tolist() == [18, 1]


@pytest.mark.parametrize("by", [-3, torch.tensor([90, -4])], ids=["one", "by row"])
@pytest.mark.parametrize(
    "scaling",
    [
        wn.scaling.DynamicNTK(2.0, 4),
        wn.scaling.LongRoPE([1.0] * 4, [1.5, 2.0, 3.0, 4.0], 4, factor=4.0),
    ],
    ids=["dynamic", "longrope"],
)
def test_keys_of_tables_by_length_move_by_the_tables_of_their_rows(scaling, by):
    one, x = layer(wn.RoPE(8, scaling=scaling)), stream(6)
    lengths = torch.tensor([9, 3])
    ids = torch.arange(6)
    expected = one(x, where=wn.Where(ids, lengths=lengths))
    cache = fed(one, x[:, :5], where=wn.Where(ids[:5], lengths=lengths))
    cache.shift(one.encoding, by)
    new = wn.Where(cache.next_position[:, None], lengths=lengths)
    near(one(x[:, 5:], where=new, cache=cache), expected[:, 5:].detach())


@pytest.mark.parametrize("make", [wn.RoPE, wn.XPos])
def test_a_shift_is_what_rerotate_gives(make):
    one, x = layer(make(8)), stream(4)
    cache = fed(one, x)
    old = cache.positions
    expected = wn.rerotate(cache.k, one.encoding, one.encoding, old, old + 9)
    cache.shift(one.encoding, 9)
    near(cache.k, expected.detach())


def test_turns_that_do_not_commute_are_undone_in_the_reverse_order():
    one, x = layer([wn.RoPE(8), wn.RoPE(8, 100.0, "interleaved")]), stream(5)
    cache = fed(one, x[:, :4])
    cache.shift(one.encoding, 2, keep=1)
    ids = torch.tensor([0, 3, 4, 5])
    near(cache.k, fed(one, x[:, :4], where=ids).k.detach())
    expected = one(x, where=torch.tensor([*ids, 6]))[:, 4:]
    near(one(x[:, 4:], cache=cache), expected.detach())


def test_attention_sinks_stay_and_the_rest_closes_the_gap():
    """The first two tokens stay, the next three are forgotten, the others move up."""
    one, x = layer(wn.RoPE(8)), stream(9)
    cache = fed(one, x[:, :8])
    cache.evict(torch.tensor([2, 3, 4]))
    cache.shift(one.encoding, -3, keep=2)
    assert cache.positions.tolist() == [[0, 1, 2, 3, 4]]
    assert cache.next_position.tolist() == [5]
    found = one(x[:, 8:], cache=cache)
    order = [0, 1, 5, 6, 7, 8]
    expected = by_hand(one, x[:, order], rotary=True, positions=range(6))
    near(found, expected[:, -1:])
    # Where they stood before, the answer is another one.
    apart = by_hand(one, x[:, order], rotary=True, positions=order)
    differ(found, apart[:, -1:])


def test_sinks_of_rows_that_shift_apart():
    one, x = layer([wn.RoPE(8), wn.ALiBi(4)]), stream(7)
    cache = fed(one, x[:, :6], where=torch.tensor([0, 1, 3, 4, 5, 6]))
    cache.shift(one.encoding, torch.tensor([3, -1]), keep=2)
    ids = torch.tensor([[0, 1, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5]])
    assert cache.positions.equal(ids)
    assert cache.next_position.tolist() == [10, 6]
    new = torch.tensor([[10], [6]])
    assert not cache.regular
    expected = one(x, where=torch.cat([ids, new], 1))[:, 6:]
    near(one(x[:, 6:], cache=cache), expected.detach())


def test_shifts_go_with_eviction_rollback_and_beams():
    one, x = layer(wn.RoPE(8)), stream(8)
    cache = fed(one, x[:, :6])
    cache.shift(one.encoding, torch.tensor([4, 8]))
    cache.reorder(torch.tensor([1, 1, 0]))
    cache.trim(4)
    assert cache.next_position.tolist() == [12, 12, 8]
    cache.shift(one.encoding, -4)
    cache.evict(torch.tensor([1]))
    assert cache.positions.tolist() == [[4, 6, 7], [4, 6, 7], [0, 2, 3]]
    rows = x[[1, 1, 0]]
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[4, 1] = False
    expected = one(rows[:, [0, 1, 2, 3, 7]], mask=mask)[:, 4:]
    near(one(rows[:, 7:], cache=cache), expected.detach())


def test_pads_stay_without_a_place():
    one, x = layer(wn.RoPE(8)), stream(5)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    cache, moved = (fed(one, x[:, :4], key_mask=mask) for _ in range(2))
    moved.shift(one.encoding, 3)
    assert moved.positions.tolist() == [[NOWHERE, 3, 4, 5], [3, 4, 5, NOWHERE]]
    assert moved.next_position.tolist() == [6, 6]
    near(one(x[:, 4:], cache=moved), one(x[:, 4:], cache=cache).detach())


def test_real_positions_move_by_real_offsets():
    one, x = layer(wn.RoPE(8)), stream(4)
    ids = torch.tensor([0.0, 0.5, 2.25], dtype=torch.float64)
    for by in (0.75, torch.tensor([0.75, -1.5], dtype=torch.float64), 2):
        cache, still = (fed(one, x[:, :3], where=ids) for _ in range(2))
        cache.shift(one.encoding, by)
        near(one(x[:, 3:], cache=cache), one(x[:, 3:], cache=still).detach())
        assert cache.positions.dtype == torch.float64
    assert cache.positions.tolist() == [[2.0, 2.5, 4.25, 5.25]]
    assert cache.next_position.tolist() == [6.25]


def test_all_axes_move():
    one, x = layer(wn.AxialRoPE(8, 2)), stream(5)
    where = wn.Where(wn.positions.grid(2, 2), num_axes=2)
    cache, still = (fed(one, x[:, :4], where=where) for _ in range(2))
    cache.shift(one.encoding, torch.tensor([3, 5]))
    assert cache.positions[1].tolist() == [[5, 5], [5, 6], [6, 5], [6, 6]]
    new = torch.tensor([[[5, 5]], [[7, 7]]])
    found = one(x[:, 4:], where=wn.Where(new, num_axes=2), cache=cache)
    back = wn.Where(torch.tensor([[2, 2]]), num_axes=2)
    near(found, one(x[:, 4:], where=back, cache=still).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_shift_rounds_once(dtype):
    rope = wn.RoPE(8)
    one = layer(rope).to(dtype)
    cache = fed(one, stream(6).to(dtype), where=torch.arange(6) + 100_000)
    before = cache.k
    cache.shift(rope, -99_999)
    assert cache.k.dtype == dtype
    wide = rope.rotate(rope.rotate(before.double(), torch.arange(6) + 100_000, inverse=True),
                       torch.arange(6) + 1)  # fmt: skip
    near(cache.k.double(), wide.to(dtype).double(), 0.0)


def test_a_toeplitz_cache_stays_one_unless_some_stay_behind():
    one, x = layer(wn.ALiBi(4)), stream(4)
    cache = fed(one, x)
    assert cache.regular
    cache.shift(one.encoding, torch.tensor([3, 5]))
    assert cache.regular
    cache.shift(one.encoding, 1, keep=1)
    assert not cache.regular


def test_caches_that_moved_differently_are_told_apart():
    one, x = layer(wn.RoPE(8)), stream(4)
    caches, same = [fed(one, x) for _ in range(6)], fed(one, x)
    moves = ((-1, 0), (-2, 0), (1, 0), (1, 1), (torch.tensor([1, 2]), 0), (0, 0))
    for cache, (by, keep) in zip(caches, moves, strict=True):
        cache.shift(one.encoding, by, keep)
    same.shift(one.encoding, -1)
    assert len({c.state for c in caches}) == 6
    assert same.state == caches[0].state
    prepared = fed(one, x)
    at = one.encoding.prepare(prepared.extend(wn.Where(torch.tensor([4]))))
    prepared.shift(one.encoding, 1)
    with pytest.raises(ValueError, match="older state"):
        one(stream(1), where=at, cache=prepared)


# Lengths that a sequence outgrows

BY_LENGTH = {
    "dynamic": wn.scaling.DynamicNTK(2.0, 8),
    "longrope": wn.scaling.LongRoPE(
        [1.0, 1.1, 1.2, 1.3], [1.5, 2.0, 3.0, 4.0], 8, short_mscale=1.1, long_mscale=1.4
    ),
    "linear": wn.scaling.Linear((1.0, 2.0, 4.0), 8),
}


@pytest.mark.parametrize(
    ("old", "new"),
    [(4, 14), (torch.tensor([7, 6]), torch.tensor([7, 18])), (14, torch.tensor([7, 30]))],
    ids=["one", "by row", "apart and back"],
)
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("scaling", BY_LENGTH)
def test_after_new_lengths_new_tokens_are_those_of_one_pass_at_them(scaling, members, old, new):
    encoding = [wn.RoPE(8, scaling=BY_LENGTH[scaling]), wn.NoPE(), wn.ALiBi(4)][:members]
    one, x = layer(encoding), stream(9)
    mask = torch.ones(2, 9).long()
    mask[0, :2] = 0  # rows of 7 and 9 tokens
    ids = wn.positions.from_mask(mask)

    def where(first: int, last: int, lengths: Any) -> wn.Where:
        part = slice(first, last)
        return wn.Where(ids[:, part], key_mask=mask[:, part], lengths=lengths)

    expected = one(x, where=where(0, 9, new))[:, 6:]
    cache, stale = (fed(one, x[:, :6], where=where(0, 6, old)) for _ in range(2))
    before = where(6, 8, new)
    with pytest.raises(ValueError, match=r"lengths changed.*cache\.relengthen\("):
        one(x[:, 6:8], where=before, cache=cache)
    cache.relengthen(one.encoding, new)
    found = [one(x[:, a:b], where=where(a, b, new), cache=cache) for a, b in ((6, 8), (8, 9))]
    near(torch.cat(found, 1), expected.detach())
    differ(one(x[:, 6:], where=where(6, 9, old), cache=stale).detach(), expected)


def test_new_lengths_and_rerotate_agree():
    rope = wn.RoPE(8, scaling=BY_LENGTH["dynamic"])
    one, x = layer(rope).float(), stream(5).float()
    cache = fed(one, x, where=wn.Where(torch.arange(5), lengths=6))
    places = [wn.Where(torch.arange(5), lengths=n) for n in (6, 50)]
    expected = wn.rerotate(cache.k, rope, rope, *places)
    state = cache.state
    cache.relengthen(rope, 50)
    assert cache.k.equal(expected)
    assert cache.lengths.tolist() == [[50]]
    assert cache.state != state


def test_raw_keys_take_new_lengths_as_they_are():
    one, x = layer([wn.RoPE(8, scaling=BY_LENGTH["dynamic"]), ReadsKeys()]), stream(7)
    cache = fed(one, x[:, :6], where=wn.Where(torch.arange(6), lengths=6))
    raw = cache.k
    cache.relengthen(one.encoding, 40)
    assert cache.k is raw
    expected = one(x, where=wn.Where(torch.arange(7), lengths=40))[:, 6:]
    near(
        one(x[:, 6:], where=wn.Where(torch.tensor([6]), lengths=40), cache=cache), expected.detach()
    )


@pytest.mark.untyped
def test_what_takes_no_new_lengths():
    rope = wn.RoPE(8, scaling=BY_LENGTH["dynamic"])
    one, x = layer(rope), stream(4)
    with pytest.raises(ValueError, match="empty cache"):
        wn.KVCache().relengthen(rope, 9)
    with pytest.raises(ValueError, match="not fed with lengths"):
        fed(layer(wn.RoPE(8)), x).relengthen(rope, 9)
    packed = fed(one, x, where=wn.Where(torch.arange(4), lengths=torch.full((2, 4), 4)))
    with pytest.raises(ValueError, match="one a sequence"):
        packed.relengthen(rope, 9)
    cache = fed(one, x, where=wn.Where(torch.arange(4), lengths=4))
    before = (cache.k.clone(), cache.positions.tolist(), cache.state)
    tides = Tide()
    tides.needs_lengths = True
    joins = wn.Sinusoidal(32, site="every_layer")
    joins.needs_lengths = True
    other = wn.RoPE(8, 500.0, scaling=BY_LENGTH["dynamic"])
    for encoding, lengths, error, message in (
        (rope, -1, ValueError, "lengths must be at least 0"),
        (rope, True, TypeError, "lengths must be an int"),
        (rope, 9.0, TypeError, "lengths must be an int"),
        (rope, torch.tensor([9.0, 9.0]), TypeError, "lengths must hold integers"),
        (rope, torch.tensor([9]), ValueError, r"one a row, \(2,\); got \(1,\)"),
        (rope, torch.tensor([9, -9]), ValueError, "not be negative"),
        (tides, 9, TypeError, "Tide has changed the cached values"),
        (joins, 9, ValueError, "Sinusoidal joined the tokens by the old lengths"),
        (other, 9, ValueError, "give the encoding of the layer"),
    ):
        with pytest.raises(error, match=message):
            cache.relengthen(encoding, lengths)
        unchanged(cache, before)


# What is refused


def test_moved_tokens_stay_beyond_the_kept_ones():
    one, x = layer(wn.RoPE(8)), stream(10)
    cache = fed(one, x)
    before = (cache.k.clone(), cache.positions.tolist(), cache.state)
    for by in (-6, -1, torch.tensor([3, -1])):
        with pytest.raises(ValueError, match=r"before the first 4, which stay\. Evict"):
            cache.shift(one.encoding, by, keep=4)
        unchanged(cache, before)
    cache.evict([4, 5])
    with pytest.raises(ValueError, match="before the first 4"):
        cache.shift(one.encoding, -3, keep=4)
    cache.shift(one.encoding, -2, keep=4)
    assert cache.positions.tolist() == [[*range(8)]]


def test_pads_repeated_positions_and_documents_do_not_count_as_an_order():
    one, x = layer(wn.RoPE(8)), stream(6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    left = fed(one, x, key_mask=mask)
    left.shift(one.encoding, -5, keep=2)  # the kept ones are pads
    assert left.positions[0, 2:].tolist() == [-5, -4, -3, -2]
    placed = fed(one, x, where=wn.Where(torch.arange(6), key_mask=mask))
    placed.shift(one.encoding, -1, keep=2)
    right = fed(one, x, where=wn.Where(torch.arange(6), key_mask=mask.flip(1)))
    right.shift(one.encoding, 0, keep=4)
    grouped = fed(one, x, where=torch.tensor([0, 1, 1, 1, 2, 2]))
    with pytest.raises(ValueError, match="before the first 2"):
        grouped.shift(one.encoding, -1, keep=2)
    grouped = fed(one, x, where=torch.tensor([0, 2, 1, 1, 2, 2]))
    grouped.shift(one.encoding, -1, keep=2)
    documents = wn.Where(
        torch.tensor([0, 1, 2, 0, 1, 2]), segments=torch.tensor([0, 0, 0, 1, 1, 1])
    )
    packed = fed(one, x, where=documents)
    packed.shift(one.encoding, -2, keep=2)
    image = fed(
        layer(wn.MultimodalRoPE(8, (2, 1, 1))).requires_grad_(False),
        x[:1],
        where=wn.Where(
            wn.positions.multimodal([TEXT(2), IMAGE(1, 2), TEXT(2)]).positions, num_axes=3
        ),
    )
    with pytest.raises(ValueError, match="before the first 3"):
        image.shift(image.encoding, -2, keep=3)
    split = copy.deepcopy(image)
    split.shift(image.encoding, -1, keep=3)  # half an image stays: there is no order to keep
    image.evict([3])
    image.shift(image.encoding, -1, keep=3)
    assert image.positions[0, :, 2].tolist() == [0, 1, 2, 3, 4]


def test_keys_move_by_the_encoding_that_turned_them():
    one, x = layer([wn.RoPE(8), wn.ALiBi(4)]).requires_grad_(False), stream(5)
    cache, members = fed(one, x), one.encoding.members()
    before = (cache.k.clone(), cache.positions.tolist(), cache.state)
    others: Any = [
        wn.RoPE(8, 500_000.0),
        [wn.RoPE(8), wn.RoPE(8)],
        wn.ALiBi(4),
        [wn.RoPE(8), ReadsKeys()],
        wn.RoPE(8, pairing="interleaved"),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"turned by RoPE\(.*give the encoding of the layer"):
            cache.shift(other, 3)
        unchanged(cache, before)
    for same in (one.encoding, list(members), members[0], wn.RoPE(8), copy.deepcopy(one.encoding)):
        cache.shift(same, 3)
    assert cache.positions[0, 0] == 15
    twin = copy.deepcopy(cache)
    twin.shift(one.encoding, -15)
    near(twin.k, before[0].detach())
    cache.trim(0)
    assert cache.encoding is None


def unchanged(cache: wn.KVCache, before: tuple) -> None:
    assert cache.k.equal(before[0])
    assert (cache.positions.tolist(), cache.state) == before[1:]


@pytest.mark.parametrize(
    ("encoding", "error", "message"),
    [
        (wn.Sinusoidal(32, site="every_layer"), ValueError, "Sinusoidal is not relative"),
        (wn.LearnedAbsolute(32, 9, site="queries_keys"), ValueError, "LearnedAbsolute is not rel"),
        (wn.Integer(32, site="tokens"), ValueError, "Integer is not relative.*Feed the tokens"),
        ([wn.RoPE(8), wn.Binary(32, 8, site="every_layer")], ValueError, "Binary is not relative"),
    ],
    ids=["sinusoidal", "learned", "integer", "a member"],
)
def test_absolute_encodings_are_refused(encoding, error, message):
    one = layer(wn.RoPE(8))
    cache = fed(one, stream(3))
    before = (cache.k.clone(), cache.positions.tolist(), cache.state)
    with pytest.raises(error, match=message):
        cache.shift(encoding, 1)
    unchanged(cache, before)


def test_a_door_that_cannot_be_undone_is_refused():
    cache = fed(layer(None), stream(3))
    tides, waves = Tide(), Wave(4)
    tides.relative = waves.relative = True  # so that they get as far as their doors
    for encoding, message in (
        (PoPE(8), "PoPE cannot be turned back"),
        (tides, "Tide has changed the cached values"),
    ):
        with pytest.raises(TypeError, match=message):
            cache.shift(encoding, 1)
    cache.shift(waves, 1)  # a bias has no key to turn


@pytest.mark.untyped
def test_what_is_no_shift():
    one = layer(wn.RoPE(8))
    with pytest.raises(ValueError, match="empty cache"):
        wn.KVCache().shift(one.encoding, 1)
    cache = fed(one, stream(3))
    before = (cache.k.clone(), cache.positions.tolist(), cache.state)
    for arguments, error, message in (
        ((1.0,), TypeError, "offset must be an int, got float"),
        ((True,), TypeError, "offset must be an int, got bool"),
        (("1",), TypeError, "offset must be an int, got str"),
        ((torch.tensor([1.0, 1.0]),), TypeError, "offset must hold integers, got torch.float32"),
        ((torch.tensor([True, True]),), TypeError, "torch.bool"),
        ((torch.tensor([1, 1, 1]),), ValueError, r"one a row, \(2,\); got \(3,\)"),
        ((torch.tensor(1),), ValueError, r"got \(\)"),
        ((2**54,), ValueError, "within 2.53"),
        ((1, 3), ValueError, "keep must be at most 2, got 3"),
        ((1, -1), ValueError, "keep must be at least 0"),
        ((1, 1.0), TypeError, "keep must be an int"),
    ):
        with pytest.raises(error, match=message):
            cache.shift(one.encoding, *arguments)
        unchanged(cache, before)
    with pytest.raises(TypeError, match="encoding must be"):
        cache.shift("rope", 1)
    real = fed(one, stream(3), where=torch.arange(3.0))
    for by in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="offset must be finite"):
            real.shift(one.encoding, by)
    with pytest.raises(ValueError, match="offset must be finite"):
        real.shift(one.encoding, torch.tensor([1.0, float("nan")]))
    with pytest.raises(TypeError, match="offset must be a number, got str"):
        real.shift(one.encoding, "1")


# A model


def model(encoding: Any) -> wn.Transformer:
    torch.manual_seed(0)
    return wn.Transformer(20, 16, 3, 2, encoding).double().eval()


IDS = torch.arange(14).view(2, 7)


def test_a_model_shifts_all_its_layers():
    whole = model(wn.schedules.every(2, wn.NoPE(), otherwise=wn.RoPE(8)))
    caches = whole.new_caches()
    whole(IDS[:, :4], caches=caches)
    whole.shift(caches, torch.tensor([100, -2]))
    assert [c.positions.tolist() for c in caches] == [[[*range(100, 104)], [*range(-2, 2)]]] * 3
    near(whole(IDS[:, 4:], caches=caches), whole(IDS)[:, 4:].detach())
    before = [c.k for c in caches]
    with pytest.raises(ValueError, match="before the first 2, which stay"):
        whole.shift(caches, -3, keep=2)
    assert all(c.k is k for c, k in zip(caches, before, strict=True))
    whole.shift(caches, 3, keep=2)
    assert caches[2].positions[0].tolist() == [100, 101, 105, 106, 107, 108, 109]


def test_a_model_with_positions_at_its_input_cannot_shift():
    whole = model([wn.Sinusoidal(16), wn.RoPE(8)])
    caches = whole.new_caches()
    whole(IDS, caches=caches)
    with pytest.raises(ValueError, match="Sinusoidal is not relative"):
        whole.shift(caches, 1)
    with pytest.raises(ValueError, match="Needed 3 caches"):
        whole.shift(caches[:2], 1)
    assert [c.positions.tolist() for c in caches] == [[[*range(7)]]] * 3
    caches[0].trim(3)
    with pytest.raises(ValueError, match="shift and reorder"):
        whole.shift(caches, 1)


def test_a_model_takes_new_lengths_exactly_in_one_layer():
    dynamic = wn.RoPE(8, scaling=BY_LENGTH["dynamic"])
    for schedule in (dynamic, wn.schedules.every(2, dynamic, otherwise=wn.NoPE())):
        torch.manual_seed(0)
        depth = 1 if schedule is dynamic else 2  # a layer that reads no lengths, before the other
        whole = wn.Transformer(20, 16, depth, 2, schedule).double().eval()
        caches = whole.new_caches()
        whole(IDS[:, :4], where=wn.Where(lengths=8), caches=caches)
        with pytest.raises(ValueError, match="lengths must be at least 0"):
            whole.relengthen(caches, -1)
        assert [c.lengths.tolist() for c in caches] == [[[8]]] * depth
        whole.relengthen(caches, torch.tensor([20, 9]))
        where = wn.Where(lengths=torch.tensor([20, 9]))
        expected = whole(IDS, where=where)[:, 4:]
        near(whole(IDS[:, 4:], where=where, caches=caches), expected.detach())
    with pytest.raises(ValueError, match="Needed 2 caches"):
        whole.relengthen(caches[:1], 9)
