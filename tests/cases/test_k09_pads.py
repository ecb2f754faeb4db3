"""K09: a real token's output depends neither on pads, wherever they stand, nor on batch mates."""

import pytest
import torch

import whereness as wn
from cases.support import (
    ABSOLUTE,
    ALL,
    DIM,
    HEADS,
    MAKERS,
    RELATIVE,
    Recorder,
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

SIDES = {"left": (3, 0), "right": (0, 3), "both": (2, 3)}
PAD = 0


def padded(ids: torch.Tensor, left: int, right: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids with pads, the mask of real tokens), both (1, left + S + right)."""
    filled = torch.nn.functional.pad(ids, (left, right), value=PAD)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
    return filled, mask


@case("P108")
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ALL)
def test_pads_change_no_real_token(name, side, causal):
    if name == "t5" and not causal:
        name = wn.T5(HEADS, 8, 16, bidirectional=True)
    whole, ids = model(name, causal=causal), tokens(6)
    filled, mask = padded(ids, *SIDES[side])
    equal(whole(filled, key_mask=mask)[mask.bool()], whole(ids)[0])


@case("P108")
@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_the_first_real_token_reads_row_0(name):
    _, mask = padded(tokens(6), 3)
    ids = wn.positions.from_mask(mask)
    assert ids[0, 3:].tolist() == [0, 1, 2, 3, 4, 5]
    made = encoding(name)
    bitwise(made(ids)[0, 3], made(torch.tensor([0]))[0])
    bitwise(made(ids)[0, 0], torch.zeros_like(made(torch.tensor([0]))[0]))


@case("P108", "P117")
@pytest.mark.parametrize("name", ABSOLUTE)
def test_counting_from_the_pad_is_harmful_for_absolute_encodings(name):
    """That is what the test above would see if the library numbered the pads."""
    whole, ids = model(name), tokens(6)
    filled, mask = padded(ids, 3)
    where = wn.Where(torch.arange(9), key_mask=mask)
    differ(whole(filled, where=where)[:, 3:], whole(ids))


@case("P109")
@pytest.mark.parametrize("pads", [0, 1, 5])
@pytest.mark.parametrize("name", ALL)
def test_any_number_of_pads_gives_the_same_next_token(name, pads):
    whole, ids = model(name), tokens(6)
    filled, mask = padded(ids, pads)
    found = whole(filled, key_mask=mask)
    assert found.isfinite().all()
    equal(found[:, -1], whole(ids)[:, -1])


@case("P109")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
@pytest.mark.parametrize("name", [n for n in ALL if MAKERS[n]().site is None])
def test_a_row_of_pads_alone_is_zero_and_has_finite_gradients(name, implementation, dtype):
    made = encoding(name).to(dtype)
    q, k, v = (heads(5, batch=2, seed=s, dtype=dtype).requires_grad_() for s in (1, 2, 3))
    mask = torch.tensor([[0] * 5, [0, 0, 1, 1, 1]])
    out = wn.attention(q, k, v, made, causal=True, key_mask=mask, implementation=implementation)
    assert out.isfinite().all()
    assert not out[0].any()
    assert not out[1, :, :2].any()  # these see pads alone
    out.float().square().sum().backward()
    for given in (q, k, v, *made.parameters()):
        assert given.grad.isfinite().all()


@case("P109")
@pytest.mark.parametrize("name", ALL)
def test_a_half_precision_model_survives_pads(name):
    whole, ids = model(name).half(), tokens(6)
    filled, mask = padded(ids, 5)
    found = whole(filled, key_mask=mask)
    assert found.isfinite().all()


@case("P111")
@pytest.mark.parametrize("name", RELATIVE)
def test_a_counter_that_counts_pads_is_harmless_if_the_mask_is_right(name):
    whole, ids = model(name), tokens(6)
    filled, mask = padded(ids, 3)
    where = wn.Where(torch.arange(9), key_mask=mask)
    equal(whole(filled, where=where)[:, 3:], whole(ids))


@case("P111")
@pytest.mark.parametrize("name", RELATIVE)
def test_a_dropped_mask_is_seen(name):
    whole, ids = model(name), tokens(6)
    filled, _ = padded(ids, 3)
    differ(whole(filled)[:, 3:], whole(ids), 0.1)


@case("P111")
@pytest.mark.parametrize("name", RELATIVE)
def test_decoding_from_a_counter_after_a_prefill_from_the_mask_is_seen(name):
    whole, ids = model(name), tokens(8)
    filled, mask = padded(ids, 3)
    expected = whole(ids)[:, -2:]
    for counter, check in ((None, equal), (torch.arange(9, 11), differ)):
        caches = whole.new_caches()
        whole(filled[:, :9], key_mask=mask[:, :9], caches=caches)
        check(whole(filled[:, 9:], key_mask=mask, where=counter, caches=caches), expected)


@case("P113")
def test_the_bias_itself_does_not_count_pads():
    alibi, (_, mask) = wn.ALiBi(HEADS), padded(tokens(6), 3)
    ids, plain = wn.positions.from_mask(mask), torch.arange(6)
    bitwise(alibi.bias(ids, ids)[0, :, 3:, 3:], alibi.bias(plain, plain))
    assert not alibi.bias(ids, ids)[0, :, :3].any()


@case("P113")
@pytest.mark.parametrize("pads", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_prefill_and_decoding_count_by_one_rule(name, pads):
    whole, ids = model(name), tokens(8)
    filled, mask = padded(ids, pads)
    found = decoded(whole, filled, [pads + 4, 1, 3], key_mask=mask)
    equal(found[:, pads:], whole(ids))


@case("P115")
def test_ids_go_on_from_the_last_real_token_row_by_row():
    recorder = Recorder()
    whole, ids = model(recorder), tokens(7, batch=3)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 1, 1]])
    found = decoded(whole, ids, [5, 1, 1], key_mask=mask)
    first, *steps = recorder.seen
    n = wn.NOWHERE
    assert first == [[n, n, 0, 1, 2], [0, 1, 2, 3, 4], [0, n, n, 1, n]]
    assert steps == [[[3], [5], [2]], [[4], [6], [3]]]
    for row in range(3):
        real = mask[row].bool()
        equal(found[row, real], whole(ids[row, real][None])[0])


@case("P115")
@pytest.mark.parametrize("name", ALL)
def test_unpadding_before_decoding_changes_nothing(name):
    """Prefill with 2 pads, drop them from the cache, decode two steps: ids 3 and 4."""
    whole, ids = model(name), tokens(5)
    filled, mask = padded(ids[:, :3], 2)
    caches = whole.new_caches()
    whole(filled, key_mask=mask, caches=caches)
    for cache in caches:
        cache.evict(torch.tensor([0, 1]))
        assert cache.positions.tolist() == [[0, 1, 2]]
        assert cache.next_position.tolist() == [3]
    equal(whole(ids[:, 3:], caches=caches), whole(ids)[:, 3:])


@case("P117")
def test_left_pads_do_not_spoil_a_rotary_model():
    whole, ids = model("rope"), tokens(6)
    filled, mask = padded(ids, 5)
    equal(whole(filled, key_mask=mask)[:, 5:], whole(ids), 1e-12)
    late = wn.Where(torch.arange(11), key_mask=mask)
    equal(whole(filled, where=late)[:, 5:], whole(ids), 1e-12)
    learned = model("learned")
    equal(learned(filled, key_mask=mask)[:, 5:], learned(ids), 1e-12)
    differ(learned(filled, where=late)[:, 5:], learned(ids), 0.1)


VIRTUAL = torch.tensor([[1, 1, 1, 1, 0, 0, 1, 1, 1, 1]])


@case("P119")
def test_virtual_tokens_are_counted_the_same_in_training_and_decoding():
    recorder = Recorder()
    whole, ids = model(recorder), tokens(10)
    expected = whole(ids, key_mask=VIRTUAL)
    assert recorder.seen[-1][0][6:] == [4, 5, 6, 7]
    found = decoded(whole, ids, [4, 5, 1], key_mask=VIRTUAL)
    assert [rows[0][-1] for rows in recorder.seen[-3:]] == [3, 6, 7]
    assert recorder.seen[-2][0][2:] == [4, 5, 6]
    real = VIRTUAL.bool()
    equal(found[real], expected[real])


@case("P119")
@pytest.mark.parametrize("name", ALL)
def test_pads_between_virtual_and_real_tokens_change_nothing(name):
    whole, ids = model(name), tokens(10)
    real = VIRTUAL.bool()
    equal(whole(ids, key_mask=VIRTUAL)[real], whole(ids[real][None])[0])


@case("P119")
def test_a_table_is_checked_after_virtual_tokens_are_counted():
    ids, whole = tokens(11), model(wn.LearnedAbsolute(DIM, 8))
    mask = torch.cat([VIRTUAL, torch.ones(1, 1, dtype=torch.int64)], 1)
    whole(ids[:, :10], key_mask=mask[:, :10])  # 4 + 4 tokens fit 8 rows
    with pytest.raises(ValueError, match=r"positions below 8.*8\]"):
        whole(ids, key_mask=mask)
    caches = whole.new_caches()
    whole(ids[:, :10], key_mask=mask[:, :10], caches=caches)
    with pytest.raises(ValueError, match=r"positions below 8.*8\]"):
        whole(ids[:, 10:], key_mask=mask, caches=caches)


@case("P108", "P111")
@pytest.mark.parametrize("name", ALL)
def test_batch_mates_change_nothing(name):
    whole, mask = model(name), torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
    ids, mates = tokens(6, batch=2), tokens(6, batch=2, seed=7)
    mixed = torch.stack([ids[0], mates[1]])
    first, second = whole(ids, key_mask=mask), whole(mixed, key_mask=mask)
    equal(first[0, 3:], second[0, 3:])
    for rows, found in ((ids, first), (mixed, second)):
        equal(found[0, 3:], whole(rows[:1, 3:])[0])
        equal(found[1], whole(rows[1:])[0])
