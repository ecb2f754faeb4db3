"""Decoding equals the full pass, for every scaling, across every threshold.

Axes: B batch, S tokens, E model dim, H query heads, G key heads, D head_dim.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import whereness as wn
from rotary.scaled import BY_LENGTH, EVERY, LONG, SHORT, Scaled
from rotary.support import drawn

S = wn.scaling
DIM, HEADS, GROUPS, LENGTH = 32, 4, 2, 17
ORIGINAL = 8  # of the settings that depend on length: 17 tokens cross 8 and 16
ROUNDING = 1e-10


def learned(scaling: S.Scaling | None) -> wn.LeRoPE:
    made = wn.LeRoPE(8, 100.0, "interleaved", scaling=scaling)
    made.alpha.data.copy_(torch.linspace(-0.3, 0.4, 4))
    return made


MAKERS = {
    **{s.name: s.make for s in EVERY},
    "partial": lambda: wn.RoPE(
        8, 100.0, rotary_dim=6, scaling=S.DynamicNTK(2.0, ORIGINAL), rotary_side="trailing"
    ),
    "xpos": lambda: wn.XPos(8, 100.0, scale_base=20.0),
    "xpos-dynamic": lambda: wn.XPos(
        8, 100.0, scaling=S.DynamicNTK(2.0, ORIGINAL), scale_base=20.0, centre=9.0
    ),
    "lerope": lambda: learned(None),
    "lerope-longrope": lambda: learned(S.LongRoPE(SHORT, LONG, ORIGINAL, 4.0)),
    "fope": lambda: wn.FoPE(8, 100.0, length=40),
    "[rope, temperature]": lambda: [
        Scaled("", S.DynamicNTK(2.0, ORIGINAL)).make(),
        wn.Temperature(0.3, 4.0),
    ],
}
each_encoding = pytest.mark.parametrize("name", MAKERS)
relative_ones = [name for name in MAKERS if name not in ("fope", "[rope, temperature]")]
CHUNKS = {
    "ones": [1] * LENGTH,
    "threes": [3, 3, 3, 3, 3, 2],
    "fours": [4, 4, 4, 4, 1],
    "all": [LENGTH],
    "prompt": [9, *[1] * 8],
    "at the threshold": [8, 1, 7, 1],
}


def layer(name: str) -> wn.Attention:
    torch.manual_seed(0)
    return wn.Attention(DIM, HEADS, MAKERS[name](), GROUPS, causal=True).double().eval()


def stream(length: int = LENGTH, batch: int = 1, seed: int = 1) -> Tensor:
    return drawn(seed, (batch, length, DIM), torch.float64)


def full(one: wn.Attention, x: Tensor, length: int | None = None) -> Tensor:
    return one(x, where=wn.Where(lengths=x.shape[1] if length is None else length))


def fed(one: wn.Attention, x: Tensor, chunks: list[int], cache: wn.KVCache, length: int) -> Tensor:
    """x in chunks of these sizes; positions are the cache's."""
    assert sum(chunks) == x.shape[1]
    where = wn.Where(lengths=length)
    return torch.cat([one(part, where=where, cache=cache) for part in x.split(chunks, 1)], 1)


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("chunks", CHUNKS)
@each_encoding
def test_chunks_of_any_size_equal_one_shot(name, chunks):
    one, x = layer(name), stream(batch=2)
    expected = full(one, x)
    close(fed(one, x, CHUNKS[chunks], wn.KVCache(), LENGTH), expected)
    if chunks != "all":
        close(one(x), expected)  # without a cache the length is what the positions say


@pytest.mark.parametrize("length", [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 2 * ORIGINAL])
@each_encoding
def test_lengths_on_both_sides_of_the_threshold(name, length):
    one, x = layer(name), stream(length)
    close(fed(one, x, [1] * length, wn.KVCache(), length), full(one, x))


@each_encoding
def test_a_prompt_is_fed_as_the_length_will_be_not_as_it_is(name):
    """A cache is made for a length; the answer need not use all of it."""
    one, x = layer(name), stream(12)
    found = fed(one, x, [5, 4, 3], wn.KVCache(), 17)
    close(found, full(one, x, 17))
    changes = (found - full(one, x, 5)).abs().max() > 1e-6
    assert changes == any(e.needs_lengths for e in one.encoding.members())


@each_encoding
def test_a_cache_that_was_rolled_back_goes_on(name):
    one, x, cache = layer(name), stream(), wn.KVCache()
    fed(one, x[:, :12], [12], cache, LENGTH)
    cache.trim(6)
    other = stream(11, seed=2)
    found = fed(one, other, [1, 3, 7], cache, LENGTH)
    close(found, full(one, torch.cat([x[:, :6], other], 1))[:, 6:])
    cache.trim(0)
    close(fed(one, x, [4, 13], cache, LENGTH), full(one, x))


@pytest.mark.parametrize("name", relative_ones)
def test_after_eviction_it_is_a_full_pass_over_what_was_kept(name):
    """Keys stay where they were: gaps in positions, and the table of the whole length."""
    one, x, cache = layer(name), stream(), wn.KVCache()
    fed(one, x[:, :12], [5, 7], cache, LENGTH)
    gone = torch.tensor([1, 2, 5, 8])
    cache.evict(gone)
    found = fed(one, x[:, 12:], [1, 3, 1], cache, LENGTH)
    kept = [slot for slot in range(LENGTH) if slot not in gone.tolist()]
    where = wn.Where(torch.tensor(kept), lengths=LENGTH)
    close(found, one(x[:, kept], where=where)[:, 8:])
    moved = wn.Where(torch.tensor(kept) + 1000, lengths=LENGTH)
    close(found, one(x[:, kept], where=moved)[:, 8:])


@each_encoding
def test_rows_of_uneven_length(name):
    """Left pads: each row goes on from its own position, with a table of its own."""
    one, x = layer(name), stream(batch=3)
    lengths, prompt = (LENGTH, 9, 6), 12
    starts = [LENGTH - n for n in lengths]
    mask = torch.tensor([[slot >= start for slot in range(LENGTH)] for start in starts])
    cache, found = wn.KVCache(), []
    given = wn.Where(lengths=torch.tensor(lengths))
    for begin, end in ((0, prompt), (prompt, 13), (13, LENGTH)):
        part = x[:, begin:end]
        found.append(one(part, where=given, cache=cache, key_mask=mask[:, :end]))
    found = torch.cat(found, 1)
    for row, start in enumerate(starts):
        close(found[row : row + 1, start:], full(one, x[row : row + 1, start:]))


@each_encoding
def test_positions_given_by_the_caller(name):
    one, x, cache = layer(name), stream(), wn.KVCache()
    ids = torch.arange(LENGTH) + torch.arange(LENGTH) // 3 + 3
    found = [
        one(x[:, begin:end], where=wn.Where(ids[begin:end], lengths=30), cache=cache)
        for begin, end in ((0, 7), (7, 8), (8, 17))
    ]
    close(torch.cat(found, 1), one(x, where=wn.Where(ids, lengths=30)))


# What would go wrong without lengths

by_length = pytest.mark.parametrize("setting", BY_LENGTH, ids=str)


def attention(rope: wn.RoPE) -> wn.Attention:
    torch.manual_seed(0)
    return wn.Attention(DIM, HEADS, rope, GROUPS, causal=True).double().eval()


@by_length
def test_a_cache_without_lengths_is_refused(setting):
    one, x = attention(setting.make()), stream()
    with pytest.raises(ValueError, match=r"RoPE depends on how long each.*give Where\(lengths="):
        one(x[:, :3], cache=wn.KVCache())
    with pytest.raises(ValueError, match=r"RoPE depends on how long each.*give Where\(lengths="):
        one(x[:, :3], where=torch.arange(3), cache=wn.KVCache())


@by_length
def test_cached_keys_and_no_lengths_are_refused_by_the_encoding_itself(setting):
    where = wn.Where(torch.tensor([3]), torch.arange(4), cached=3)
    with pytest.raises(ValueError, match=r"length is not known: give Where\(lengths="):
        setting.make().prepare(where)


@by_length
def test_lengths_cannot_change_while_keys_are_cached(setting):
    one, x, cache = attention(setting.make()), stream(), wn.KVCache()
    one(x[:, :5], where=wn.Where(lengths=12), cache=cache)
    for where, message in (
        (wn.Where(lengths=13), "lengths changed. Cached keys used another table"),
        (wn.Where(lengths=torch.tensor([11])), "lengths changed"),
        (None, r"give Where\(lengths="),
    ):
        with pytest.raises(ValueError, match=message):
            one(x[:, 5:6], where=where, cache=cache)
    assert len(cache) == 5
    close(one(x[:, 5:6], where=wn.Where(lengths=12), cache=cache), full(one, x[:, :6], 12)[:, 5:])


@by_length
def test_tables_that_were_mixed_would_differ(setting):
    """The fault that lengths prevent: early keys of the short table, late queries of the long."""
    one, x, cache = attention(setting.make()), stream(), wn.KVCache()
    one(x[:, :8], where=wn.Where(lengths=8), cache=cache)
    cache.lengths = torch.full((1, 1), LENGTH)  # as an engine that does not ask would have it
    found = fed(one, x[:, 8:], [9], cache, LENGTH)
    assert (found - full(one, x)[:, 8:]).abs().max() > 1e-3


# Keys moved to another table

MOVED = [
    ("dynamic", S.DynamicNTK(2.0, ORIGINAL)),
    ("dynamic-qwen", S.DynamicNTK(None, ORIGINAL, "qwen")),
    ("linear-several", S.Linear((1.0, 2.0, 4.0), ORIGINAL)),
    ("longrope", S.LongRoPE(SHORT, LONG, ORIGINAL, 4.0)),
    (
        "longrope-mscales",
        S.LongRoPE(SHORT, LONG, ORIGINAL, short_mscale=1.1, long_mscale=1.4),
    ),
]


@pytest.mark.parametrize(("name", "scaling"), MOVED, ids=[n for n, _ in MOVED])
def test_rerotate_moves_a_cache_from_the_short_table_to_the_long_one(name, scaling):
    rope = wn.RoPE(8, 100.0, scaling=scaling)
    one, x, old = attention(rope), stream(batch=2), wn.KVCache()
    fed(one, x[:, :ORIGINAL], [3, 5], old, ORIGINAL)
    ids = torch.arange(ORIGINAL)
    short, long = (wn.Where(ids, lengths=n) for n in (ORIGINAL, LENGTH))
    new = wn.KVCache()
    one(x[:, :ORIGINAL], where=wn.Where(lengths=LENGTH), cache=new)
    moved = wn.rerotate(old.k, rope, rope, short, long)
    close(moved, new.k)
    assert (moved - old.k).abs().max() > 1e-3
    old.k, old.lengths = moved, new.lengths
    found = fed(one, x[:, ORIGINAL:], [1, 4, 4], old, LENGTH)
    close(found, full(one, x)[:, ORIGINAL:])


@pytest.mark.parametrize(("name", "scaling"), MOVED, ids=[n for n, _ in MOVED])
def test_rerotate_moves_only_the_rows_that_grew(name, scaling):
    rope = wn.RoPE(8, 100.0, scaling=scaling)
    one, x, old = attention(rope), stream(ORIGINAL, batch=2), wn.KVCache()
    before, after = torch.tensor([ORIGINAL, ORIGINAL]), torch.tensor([ORIGINAL, LENGTH])
    one(x, where=wn.Where(lengths=before), cache=old)
    ids, new = torch.arange(ORIGINAL), wn.KVCache()
    one(x, where=wn.Where(lengths=after), cache=new)
    short, long = (wn.Where(ids, lengths=n) for n in (before, after))
    moved = wn.rerotate(old.k, rope, rope, short, long)
    close(moved, new.k)
    close(moved[:1], old.k[:1])
    assert (moved[1] - old.k[1]).abs().max() > 1e-3
