"""K05: all keys and queries of a sequence use one table, and output is a function of input."""

import pytest
import torch

import whereness as wn
from cases.support import bitwise, case, decoded, differ, equal, model, tokens

S = wn.scaling
ORIGINAL, LENGTH = 8, 12
SHORT, LONG = [1.0, 1.5, 1.25, 2.0], [1.0, 2.5, 4.0, 7.0]
SCALINGS = {
    "dynamic": S.DynamicNTK(2.0, ORIGINAL),
    "dynamic-qwen": S.DynamicNTK(None, ORIGINAL, "qwen"),
    "longrope": S.LongRoPE(SHORT, LONG, ORIGINAL, 4.0),
    "longrope-mscales": S.LongRoPE(SHORT, LONG, ORIGINAL, short_mscale=1.1, long_mscale=1.4),
    "linear-several": S.Linear((1.0, 2.0, 4.0), ORIGINAL),
}
each_scaling = pytest.mark.parametrize("name", SCALINGS)


def rope(name: str) -> wn.RoPE:
    return wn.RoPE(8, 100.0, scaling=SCALINGS[name])


def one_shot(whole: wn.Transformer, ids: torch.Tensor, length: int | None = None) -> torch.Tensor:
    return whole(ids, where=wn.Where(lengths=ids.shape[1] if length is None else length))


def fed(whole: wn.Transformer, ids: torch.Tensor, chunks: list[int], length: int) -> torch.Tensor:
    caches, where = whole.new_caches(), wn.Where(lengths=length)
    parts = ids.split(chunks, 1)
    return torch.cat([whole(part, where=where, caches=caches) for part in parts], 1)


@case("P055")
@pytest.mark.parametrize("length", [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 12, 2 * ORIGINAL])
@each_scaling
def test_token_by_token_equals_one_shot(name, length):
    whole, ids = model(rope(name)), tokens(length, batch=2)
    expected = whole(ids)
    equal(fed(whole, ids, [1] * length, length), expected)
    equal(one_shot(whole, ids), expected)


@case("P055")
@each_scaling
def test_mixed_tables_are_far_from_it_and_refused(name):
    """What the fault gives: every step with the table of the length so far."""
    whole, ids = model(rope(name)), tokens(LENGTH)
    caches, found = whole.new_caches(), []
    for t in range(LENGTH):
        for cache in caches:
            if len(cache):
                cache.lengths = torch.full((1, 1), t + 1)  # force what would be refused
        found.append(whole(ids[:, t : t + 1], where=wn.Where(lengths=t + 1), caches=caches))
    differ(torch.cat(found, 1), one_shot(whole, ids))
    caches = whole.new_caches()
    whole(ids[:, :8], where=wn.Where(lengths=8), caches=caches)
    with pytest.raises(ValueError, match="lengths changed. Cached keys used another table"):
        whole(ids[:, 8:9], where=wn.Where(lengths=9), caches=caches)
    with pytest.raises(ValueError, match=r"give Where\(lengths="):
        decoded(whole, ids, [8, 4])


@case("P056")
@each_scaling
def test_short_long_short(name):
    whole, short, long = model(rope(name)), tokens(6), tokens(30, seed=3)
    before = whole(short)
    whole(long)
    one_shot(whole, long, 32)
    bitwise(whole(short), before)
    bitwise(model(rope(name))(short), before)  # one that has never seen a long text


@case("P056")
@each_scaling
def test_a_long_neighbour_in_the_batch_changes_nothing(name):
    whole, ids = model(rope(name)), tokens(20, batch=2)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 6:] = False
    together = whole(ids, key_mask=mask)
    equal(together[:1, :6], whole(ids[:1, :6]))
    equal(together[1:], whole(ids[1:]))
    differ(one_shot(whole, ids[:1, :6], 20), whole(ids[:1, :6]))  # what the fault gives


@case("P058")
@pytest.mark.parametrize("chunks", [[1] * 12, [3] * 4, [4] * 3, [12], [5, 6, 1]], ids=str)
@each_scaling
def test_a_prompt_in_chunks_uses_one_set_of_divisors(name, chunks):
    whole, ids = model(rope(name)), tokens(LENGTH)
    equal(fed(whole, ids, chunks, LENGTH), one_shot(whole, ids))
    if chunks[0] < ORIGINAL:
        first = one_shot(whole, ids[:, : chunks[0]])
        if chunks[0] > 1:  # alone, the first token sees only itself
            differ(first, one_shot(whole, ids)[:, : chunks[0]], 1e-4)


@case("P060")
@each_scaling
def test_recomputing_the_cache_gives_the_one_shot_result(name):
    whole, ids = model(rope(name)), tokens(LENGTH)
    caches = whole.new_caches()
    whole(ids[:, :ORIGINAL], where=wn.Where(lengths=ORIGINAL), caches=caches)
    anew = whole.new_caches()
    where = wn.Where(lengths=LENGTH)
    whole(ids[:, :ORIGINAL], where=where, caches=anew)
    equal(whole(ids[:, ORIGINAL:], where=where, caches=anew), one_shot(whole, ids)[:, ORIGINAL:])


@case("P060")
@each_scaling
def test_keys_that_were_rerotated_give_the_one_shot_result(name):
    """One layer: deeper ones hold values of another text once the first layer's keys move."""
    encoding = rope(name)
    whole, ids = model(encoding, depth=1), tokens(LENGTH)
    caches = whole.new_caches()
    whole(ids[:, :ORIGINAL], where=wn.Where(lengths=ORIGINAL), caches=caches)
    places = torch.arange(ORIGINAL)
    old, new = (wn.Where(places, lengths=n) for n in (ORIGINAL, LENGTH))
    for cache in caches:
        cache.k = wn.rerotate(cache.k, encoding, encoding, old, new)
        cache.lengths = new.lengths
    found = whole(ids[:, ORIGINAL:], where=wn.Where(lengths=LENGTH), caches=caches)
    equal(found, one_shot(whole, ids)[:, ORIGINAL:])


@case("P060")
@each_scaling
def test_the_table_may_be_pinned(name):
    """A length that is said from the start pins the long table or the short one."""
    whole, ids = model(rope(name)), tokens(6)
    long = one_shot(whole, ids, LENGTH)
    equal(fed(whole, ids, [2, 1, 3], LENGTH), long)
    short = one_shot(whole, ids, 1)
    equal(short, whole(ids))
    differ(long, short)


@case("P060")
def test_amplitudes_go_with_the_set():
    encoding = rope("longrope-mscales")
    assert [encoding.amplitude_at(n) for n in (ORIGINAL, ORIGINAL + 1)] == [1.1, 1.4]
    plain = S.LongRoPE(SHORT, LONG, ORIGINAL, 4.0)
    same = [wn.RoPE(8, scaling=plain).amplitude_at(n) for n in (ORIGINAL, ORIGINAL + 1)]
    assert same[0] == same[1] > 1.2
