"""wn.attention against the oracle: every argument alone, then all of them at once."""

import inspect
import math
import typing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import whereness as wn
from attend.oracle import Tide, Wave, array, attend, differ, heads, near, qkv, tide, turned, waving
from zoo import FoX

IMPLEMENTATIONS = ("auto", "reference", "sdpa", "blocks")
everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def test_the_oracle_knows_a_case_worked_out_by_hand():
    q, k = np.array([[[[2.0]], [[0.0]]]]), np.array([[[[math.log(3.0)], [0.0]]]])
    v = np.array([[[[1.0], [10.0]]]])
    out, weights = attend(q, k, v, scale=0.5)
    assert weights[0, 0, 0] == pytest.approx([0.75, 0.25])
    assert weights[0, 1, 0] == pytest.approx([0.5, 0.5])
    assert out[0, :, 0, 0] == pytest.approx([3.25, 5.5])
    assert attend(q, k, v, key_mask=[[False, False]])[0].tolist() == [[[[0.0]], [[0.0]]]]
    # 1/2 of 3/4 and 1/4, plus 1 and 2, and nothing for the key that is not seen
    hidden = np.array([[True, False]])
    _, changed = attend(q, k, v, scale=0.5, mask=hidden, weights_factor=0.5, weights_bias=1.0)
    assert changed[0, 0, 0] == pytest.approx([1.5, 0.0])


# One argument at a time

SIZES = {
    "square": {},
    "few queries": {"queries": 3, "keys": 7},
    "one query": {"queries": 1, "keys": 5},
    "one key": {"queries": 4, "keys": 1},
    "one of each": {"queries": 1, "keys": 1},
    "one row": {"batch": 1},
    "as many groups as heads": {"groups": 4},
    "one group": {"groups": 1},
    "three heads a group": {"num_heads": 6},
}


@everywhere
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_plain(sizes, implementation):
    q, k, v = qkv(**sizes)
    near(wn.attention(q, k, v, implementation=implementation), attend(q, k, v)[0])


@everywhere
@pytest.mark.parametrize("sizes", [s for n, s in SIZES.items() if n != "one key"])
def test_causal_queries_are_the_last_slots(sizes, implementation):
    q, k, v = qkv(**sizes)
    found = wn.attention(q, k, v, causal=True, implementation=implementation)
    near(found, attend(q, k, v, causal=True)[0])


@everywhere
@pytest.mark.parametrize("window", [1, 2, 5, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [6, 9])
def test_a_window_counts_slots(keys, causal, window, implementation):
    q, k, v = qkv(keys=keys)
    options = {"causal": causal, "window": window}
    found = wn.attention(q, k, v, **options, implementation=implementation)
    near(found, attend(q, k, v, **options)[0])


def test_a_window_without_a_causal_mask_looks_both_ways():
    q, k, v = qkv()
    differ(attend(q, k, v, window=2)[0], attend(q, k, v, window=2, causal=True)[0])


KEY_MASK = [[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1]]


@everywhere
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.int32])
def test_a_key_mask_hides_keys_whatever_its_type(dtype, implementation):
    q, k, v = qkv()
    mask = torch.tensor(KEY_MASK).to(dtype)
    found = wn.attention(q, k, v, key_mask=mask, implementation=implementation)
    near(found, attend(q, k, v, key_mask=np.array(KEY_MASK, bool))[0])


@everywhere
@pytest.mark.parametrize("shape", [(6,), (1, 6)])
def test_one_key_mask_serves_every_row(shape, implementation):
    q, k, v = qkv()
    mask = torch.tensor(KEY_MASK[0]).reshape(shape)
    found = wn.attention(q, k, v, key_mask=mask, implementation=implementation)
    near(found, attend(q, k, v, key_mask=np.array(KEY_MASK[:1], bool))[0])


MASKS = {
    "S T": (5, 7),
    "1 1 S T": (1, 1, 5, 7),
    "B 1 S T": (2, 1, 5, 7),
    "1 H S T": (1, 4, 5, 7),
    "B H S T": (2, 4, 5, 7),
    "B 1 1 T": (2, 1, 1, 7),
    "1 T": (1, 7),
}


def random_mask(*shape: int, seed: int = 3, hidden: float = 0.3) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > hidden


@everywhere
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_a_mask_of_any_shape_that_broadcasts(shape, implementation):
    q, k, v = qkv(queries=5, keys=7)
    mask = random_mask(*shape)
    found = wn.attention(q, k, v, mask=mask, implementation=implementation)
    near(found, attend(q, k, v, mask=mask)[0])


@everywhere
def test_segments_never_see_each_other(implementation):
    q, k, v = qkv()
    segments = torch.tensor([[0, 0, 1, 1, 1, 1], [5, 5, 5, 2, 2, -1]])
    for where in (wn.Where(segments=segments), wn.Where(torch.arange(6), segments=segments)):
        found = wn.attention(q, k, v, where=where, implementation=implementation)
        near(found, attend(q, k, v, segments=segments)[0])


@everywhere
def test_keys_have_segments_of_their_own(implementation):
    q, k, v = qkv(queries=3, keys=5)
    mine, theirs = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 0, 0, 1, 7], [1, 1, 1, 2, 2]])
    where = wn.Where(torch.arange(3), torch.arange(5), segments=mine, k_segments=theirs)
    found = wn.attention(q, k, v, where=where, implementation=implementation)
    near(found, attend(q, k, v, segments=mine, k_segments=theirs)[0])


@everywhere
@pytest.mark.parametrize("scale", [0.1, 1, -0.7, 0])
def test_an_explicit_scale_replaces_the_default(scale, implementation):
    q, k, v = qkv()
    found = wn.attention(q, k, v, scale=scale, implementation=implementation)
    near(found, attend(q, k, v, scale=scale)[0])


class Louder(wn.PositionalEncoding):
    reads = "nothing"

    def logit_scale(self, head_dim: int) -> float:
        return 0.25 * head_dim


@everywhere
def test_the_encodings_factor_joins_the_default_scale_and_yields_to_an_explicit_one(
    implementation,
):
    q, k, v = qkv(dim=16)
    run = lambda e, **o: wn.attention(q, k, v, e, implementation=implementation, **o)  # noqa: E731
    near(run(Louder()), attend(q, k, v, scale=4 / math.sqrt(16))[0])
    near(run([Louder(), Louder()]), attend(q, k, v, scale=16 / math.sqrt(16))[0])
    near(run(Louder(), scale=0.3), attend(q, k, v, scale=0.3)[0])


@everywhere
def test_t5_leaves_the_scale_out_unless_told_otherwise(implementation):
    q, k, v = qkv()
    for scaled, scale in ((False, 1.0), (True, None)):
        t5 = wn.T5(4, scaled=scaled)
        bias = t5.bias(torch.arange(6), torch.arange(6))
        found = wn.attention(q, k, v, t5, causal=True, implementation=implementation)
        # The encoding's own tests judge the bias; it is float32 and enters as it is.
        near(found, attend(q, k, v, causal=True, scale=scale, bias=bias)[0])


# Doors 3 to 5


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_added_to_the_logits(causal, implementation):
    q, k, v = qkv()
    ids = torch.arange(6) + 3
    options = {"where": ids, "causal": causal, "implementation": implementation}
    found = wn.attention(q, k, v, Wave(4), **options)
    expected = attend(q, k, v, causal=causal, **waving(Wave(4), ids, ids))[0]
    near(found, expected)
    differ(expected, attend(q, k, v, causal=causal)[0])


@pytest.mark.parametrize("implementation", ["auto", "reference"])
@pytest.mark.parametrize(
    ("operation", "on"), [("multiply", "logits"), ("multiply", "weights"), ("add", "weights")]
)
def test_other_changes_of_logits_and_weights(operation, on, implementation):
    q, k, v = qkv(keys=8)
    mask, encoding = random_mask(2, 1, 6, 8), Wave(4, operation, on)
    q_ids, k_ids = torch.arange(6) + 1, torch.arange(8) - 3
    found, weights = wn.attention(
        q,
        k,
        v,
        encoding,
        where=wn.Where(q_ids, k_ids),
        mask=mask,
        return_weights=True,
        implementation=implementation,
    )
    expected = attend(q, k, v, mask=mask, **waving(encoding, q_ids, k_ids))
    near(found, expected[0])
    near(weights, expected[1])
    differ(expected[0], attend(q, k, v, mask=mask)[0])


def test_weights_changed_after_softmax_are_masked_again_and_not_renormalised():
    q, k, v = qkv()
    mask = random_mask(6, 6)
    mask[2] = False
    _, weights = wn.attention(
        q,
        k,
        v,
        Wave(4, "add", "weights"),
        where=torch.arange(6),
        mask=mask,
        return_weights=True,
    )
    assert (weights.masked_select(~mask) == 0).all()
    differ(weights.sum(-1)[:, :, mask.any(-1)], 1.0)
    assert (weights.sum(-1)[:, :, 2] == 0).all()


@everywhere
def test_queries_and_keys_are_turned(implementation):
    q, k, v = qkv(keys=9)
    q_ids, k_ids = torch.arange(6) * 2, torch.tensor([5, 0, 2, 100, 4, 5, 6, 7, 8])
    where = wn.Where(q_ids, k_ids)
    found = wn.attention(q, k, v, wn.RoPE(8), where=where, implementation=implementation)
    expected = attend(turned(q, q_ids), turned(k, k_ids), v)[0]
    near(found, expected)
    differ(expected, attend(q, k, v)[0])


@everywhere
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": True}], ids=str)
def test_values_and_outputs_are_changed(options, implementation):
    keys = 6 if options.get("causal") else 9
    q, k, v = qkv(keys=keys)
    if "mask" in options:
        options = {"mask": random_mask(2, 1, 6, keys)}
    q_ids, k_ids = torch.arange(6) + 2, torch.arange(keys) * 3
    where = wn.Where(q_ids, k_ids)
    found = wn.attention(q, k, v, Tide(), where=where, implementation=implementation, **options)
    near(found, attend(q, k, array(v) * tide(k_ids), **options)[0] / tide(q_ids))


class Watching(wn.PositionalEncoding):
    """Keeps what doors 4 and 5 are shown."""

    reads = "nothing"
    needs_weights = True

    def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
        self.logits, self.call = logits, call
        return logits

    def weights(self, weights: Tensor, logits: Tensor, call: wn.Call) -> Tensor:
        self.after, self.scored = weights, logits
        return weights

    def outputs(self, out: Tensor, weights: Tensor | None, call: wn.Call) -> Tensor:
        self.read = weights
        return out


def test_what_the_later_doors_are_shown():
    q, k, v = qkv()
    mask = random_mask(2, 1, 6, 6)
    mask[1, 0, 3] = False
    watching = Watching()
    wn.attention(q, k, v, [wn.RoPE(8), watching, Wave(4)], mask=mask, scale=0.3)
    logits = 0.3 * (turned(q, range(6)) @ np.repeat(turned(k, range(6)), 2, 1).swapaxes(2, 3))
    near(watching.logits, logits)  # scaled, finite, not masked yet
    assert torch.equal(watching.call.allowed.expand(2, 4, 6, 6), mask.expand(2, 4, 6, 6))
    near(watching.call.q, q)  # content: before door 3, groups repeated
    near(watching.call.k, np.repeat(array(k), 2, 1))
    assert watching.call.scale == 0.3
    near(watching.scored, logits + waving(Wave(4), range(6), range(6))["bias"])
    bias = waving(Wave(4), range(6), range(6))
    expected = attend(*(turned(t, range(6)) for t in (q, k)), v, mask=mask, scale=0.3, **bias)[1]
    near(watching.after, expected)  # 0 where nothing is seen
    near(watching.read, expected)


@pytest.mark.parametrize("scale", [None, 0.6])
def test_a_learned_vector_per_offset_meets_the_query_and_joins_what_is_read(scale):
    q, k, v = qkv(queries=4, keys=6, groups=4)
    q_ids, k_ids = torch.tensor([0, 7, 2, 9]), torch.arange(6)
    shaw = wn.Shaw(8, 3).double()
    found = wn.attention(q, k, v, shaw, where=wn.Where(q_ids, k_ids), scale=scale)

    factor = 1 / math.sqrt(8) if scale is None else scale
    row = [[max(-3, min(3, int(b - a))) + 3 for b in k_ids] for a in q_ids]
    bias = np.zeros((2, 4, 4, 6))
    for b, h, i, j in np.ndindex(bias.shape):
        bias[b, h, i, j] = factor * np.dot(array(q)[b, h, i], array(shaw.key_table)[row[i][j]])
    expected, weights = attend(q, k, v, scale=factor, bias=bias)
    for b, h, i, j in np.ndindex(bias.shape):
        expected[b, h, i] += weights[b, h, i, j] * array(shaw.value_table)[row[i][j]]
    near(found, expected)


@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_features_come_from_the_caller(implementation):
    q, k, v = qkv(queries=4, keys=6)
    log_f = -heads(2, 6, 4, seed=9).abs()
    found = wn.attention(
        q, k, v, FoX(8, 4), causal=True, features={"log_f": log_f}, implementation=implementation
    )
    bias = np.zeros((2, 4, 4, 6))
    for b, h, i, j in np.ndindex(bias.shape):
        bias[b, h, i, j] = array(log_f)[b, j + 1 : i + 3, h].sum()
    near(found, attend(q, k, v, causal=True, bias=bias)[0])


@everywhere
def test_a_list_opens_the_doors_of_all_its_members(implementation):
    q, k, v = qkv(keys=8)
    q_ids, k_ids = torch.arange(6) + 4, torch.arange(8) * 2
    found = wn.attention(
        q,
        k,
        v,
        [Louder(), wn.RoPE(8), Wave(4), Tide()],
        where=wn.Where(q_ids, k_ids),
        implementation=implementation,
    )
    expected = attend(
        turned(q, q_ids),
        turned(k, k_ids),
        array(v) * tide(k_ids),
        scale=2 / math.sqrt(8),
        **waving(Wave(4), q_ids, k_ids),
    )[0]
    near(found, expected / tide(q_ids))


@pytest.mark.parametrize("first", ["factor", "bias"])
def test_a_list_is_applied_in_order(first):
    q, k, v = qkv()
    ids = torch.arange(6)
    times, plus = Wave(4, "multiply"), Wave(4)
    number = waving(plus, ids, ids)["bias"]
    # (logits + bias) * factor = logits * factor + bias * factor
    bias = number if first == "factor" else number * number
    pair = [times, plus] if first == "factor" else [plus, times]
    found = wn.attention(q, k, v, pair, where=ids)
    near(found, attend(q, k, v, factor=number, bias=bias)[0])


# Positions


@everywhere
def test_every_row_of_a_batch_has_positions_of_its_own(implementation):
    q, k, v = qkv()
    ids = torch.tensor([[0, 1, 2, 3, 4, 5], [9, 8, 7, 3, 2, 1]])
    for encoding in (Wave(4), [wn.RoPE(8), Wave(4)]):
        rotary = isinstance(encoding, list)
        found = wn.attention(q, k, v, encoding, where=ids, implementation=implementation)
        a, b = (turned(q, ids), turned(k, ids)) if rotary else (q, k)
        near(found, attend(a, b, v, **waving(Wave(4), ids, ids))[0])


@everywhere
@pytest.mark.parametrize("rows", [(1, 2), (2, 1), (2, 2)])
def test_keys_have_positions_of_their_own(rows, implementation):
    q, k, v = qkv(queries=3, keys=5)
    q_ids = torch.tensor([[4, 2, 9], [0, 0, 1]])[: rows[0]]
    k_ids = torch.tensor([[1, 0, 6, 5, 5], [3, 1, 4, 1, 5]])[: rows[1]]
    where = wn.Where(q_ids, k_ids)
    found = wn.attention(q, k, v, Wave(4), where=where, implementation=implementation)
    near(found, attend(q, k, v, **waving(Wave(4), q_ids, k_ids))[0])


@everywhere
def test_real_positions_are_positions(implementation):
    q, k, v = qkv()
    ids = torch.tensor([0.0, 0.25, 1.5, 3.0, 3.5, 10.0])
    found = wn.attention(q, k, v, [wn.RoPE(8), Wave(4)], where=ids, implementation=implementation)
    near(found, attend(turned(q, ids), turned(k, ids), v, **waving(Wave(4), ids, ids))[0])


def test_repeated_positions_do_not_leak_the_future():
    q, k, v = qkv()
    ids = torch.tensor([0, 0, 0, 1, 1, 1])
    found = wn.attention(q, k, v, Wave(4), where=ids, causal=True)
    near(found, attend(q, k, v, causal=True, **waving(Wave(4), ids, ids))[0])


def test_prepared_positions_serve_several_calls():
    encoding = wn.Combined([wn.RoPE(8), Wave(4)])
    where = wn.Where(torch.arange(6) * 3, key_mask=torch.tensor(KEY_MASK))
    at = encoding.prepare(where)
    for seed in (1, 2):
        q, k, v = (heads(2, n, 6, 8, seed=seed + s) for s, n in enumerate((4, 2, 2)))
        found = wn.attention(q, k, v, encoding, where=at, causal=True)
        ids = where.positions[0]
        expected = attend(
            turned(q, ids),
            turned(k, ids),
            v,
            causal=True,
            key_mask=np.array(KEY_MASK, bool),
            **waving(Wave(4), ids, ids),
        )[0]
        near(found, expected)
        near(wn.attention(q, k, v, encoding, where=where, causal=True), expected)


def test_one_where_serves_several_encodings():
    q, k, v = qkv()
    where = wn.Where(torch.arange(6) + 2)
    for _ in range(2):
        found = wn.attention(q, k, v, wn.RoPE(8), where=where)
        near(found, attend(turned(q, where.positions), turned(k, where.positions), v)[0])
        found = wn.attention(q, k, v, Wave(4), where=where)
        near(found, attend(q, k, v, **waving(Wave(4), where.positions, where.positions))[0])


# Layouts


@everywhere
def test_tokens_before_heads(implementation):
    q, k, v = qkv(keys=8)
    options = {
        "where": wn.Where(torch.arange(6), torch.arange(8) + 1),
        "mask": random_mask(2, 4, 6, 8),
        "implementation": implementation,
    }
    encoding = [wn.RoPE(8), Wave(4), Tide()]
    found = wn.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), encoding, layout="bshd", **options
    )
    assert found.shape == (2, 6, 4, 8)
    near(found.transpose(1, 2), wn.attention(q, k, v, encoding, **options))


@everywhere
@pytest.mark.parametrize("given", ["segments", "positions"])
def test_packed_documents_equal_separate_ones(given, implementation):
    lengths, encoding = [3, 1, 4], [wn.RoPE(8), Wave(4)]
    q, k, v = (heads(8, n, 8, seed=s) for s, n in enumerate((4, 2, 2)))
    where = wn.Where(
        wn.positions.packed(lengths) if given == "positions" else None,
        segments=wn.positions.segments(lengths),
    )
    found = wn.attention(
        q, k, v, encoding, where=where, causal=True, layout="thd", implementation=implementation
    )
    assert found.shape == (8, 4, 8)
    start = 0
    for length in lengths:
        one = [array(t)[start : start + length].swapaxes(0, 1)[None] for t in (q, k, v)]
        ids = np.arange(length)
        one[:2] = turned(one[0], ids), turned(one[1], ids)
        expected = attend(*one, causal=True, **waving(Wave(4), ids, ids))[0]
        near(found[start : start + length].transpose(0, 1)[None], expected)
        start += length


@pytest.mark.untyped
def test_type_checkers_are_told_what_comes_back():
    """One signature for each answer, which say the same of every other argument."""
    whole = inspect.signature(wn.attention)
    answers = {}
    for form in typing.get_overloads(wn.attention):
        told = inspect.signature(form)
        answers[str(told.parameters["return_weights"])] = told.return_annotation
        assert list(told.parameters) == list(whole.parameters)
        for name, parameter in told.parameters.items():
            assert name == "return_weights" or parameter == whole.parameters[name]
    assert answers == {
        "return_weights: Literal[False] = False": torch.Tensor,
        "return_weights: Literal[True]": tuple[torch.Tensor, torch.Tensor],
        "return_weights: bool": whole.return_annotation,
    }


def test_weights_have_one_layout():
    q, k, v = qkv()
    _, expected = wn.attention(q, k, v, return_weights=True)
    swapped = (t.transpose(1, 2) for t in (q, k, v))
    near(wn.attention(*swapped, layout="bshd", return_weights=True)[1], expected)
    packed = (t[0].transpose(0, 1) for t in (q, k, v))
    near(wn.attention(*packed, layout="thd", return_weights=True)[1], expected[:1])


# Weights


@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_weights_are_those_of_the_oracle_and_sum_to_one_or_nothing(implementation):
    q, k, v = qkv()
    mask = random_mask(2, 4, 6, 6)
    mask[0, 1, 2] = False
    out, weights = wn.attention(
        q,
        k,
        v,
        Wave(4),
        where=torch.arange(6),
        causal=True,
        mask=mask,
        return_weights=True,
        implementation=implementation,
    )
    bias = waving(Wave(4), torch.arange(6), torch.arange(6))
    expected = attend(q, k, v, causal=True, mask=mask, **bias)
    near(out, expected[0])
    near(weights, expected[1])
    sees = (mask & torch.ones(6, 6).tril().bool()).any(-1)
    near(weights.sum(-1), sees.double())
    assert not sees[0, 1, 2]


def test_weights_are_given_before_dropout():
    q, k, v = qkv()
    _, expected = wn.attention(q, k, v, return_weights=True)
    out, weights = wn.attention(q, k, v, dropout=0.6, return_weights=True)
    near(weights, expected, 0.0)
    differ(out, attend(q, k, v)[0], 0.1)


def test_weights_have_the_dtype_of_the_queries():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        _, weights = wn.attention(*qkv(dtype=dtype), return_weights=True)
        assert weights.dtype == dtype


# Everything at once


@st.composite
def calls(draw) -> dict[str, Any]:
    """Sizes and options of one call."""
    groups, a_group = draw(st.sampled_from([(1, 1), (1, 3), (2, 2), (4, 1)]))
    batch, keys = draw(st.integers(1, 2)), draw(st.integers(1, 7))
    causal = draw(st.booleans())
    queries = draw(st.integers(1, keys if causal else 7))
    num_heads = groups * a_group
    bits = st.sampled_from
    masks = [None, (queries, keys), (1, 1, queries, keys), (batch, 1, queries, keys)]
    masks += [(batch, num_heads, queries, keys), (batch, 1, 1, keys)]
    return {
        "batch": batch,
        "num_heads": num_heads,
        "groups": groups,
        "queries": queries,
        "keys": keys,
        "dim": draw(bits([2, 4, 6])),
        "causal": causal,
        "window": draw(st.none() | st.integers(1, 8)),
        "mask": draw(bits(masks)),
        "key_mask": draw(st.none() | bits([1, batch])),
        "segments": draw(st.none() | bits([1, batch])),
        "positions": draw(bits([1, batch])),
        "scale": draw(st.none() | st.floats(-2, 2)),
        "bias": draw(st.booleans()),
        "rotary": draw(st.booleans()),
        "layout": draw(bits(["bhsd", "bshd"])),
        "implementation": draw(bits(IMPLEMENTATIONS)),
        "seed": draw(st.integers(0, 1000)),
    }


@given(calls())
@settings(max_examples=150)
def test_any_combination_of_arguments(call):
    g = torch.Generator().manual_seed(call["seed"])
    B, H, G, S, T, D = (call[n] for n in ("batch", "num_heads", "groups", "queries", "keys", "dim"))
    q, k, v = (
        heads(B, n, t, D, seed=call["seed"] + s)
        for s, (n, t) in enumerate([(H, S), (G, T), (G, T)])
    )

    def drawn(rows: int | None, length: int, top: int) -> Tensor | None:
        return None if rows is None else torch.randint(top, (rows, length), generator=g)

    q_ids, k_ids = drawn(call["positions"], S, 20), drawn(call["positions"], T, 20)
    doc = {"segments": drawn(call["segments"], S, 2), "k_segments": drawn(call["segments"], T, 2)}
    key_mask = drawn(call["key_mask"], T, 3)
    key_mask = None if key_mask is None else key_mask > 0
    mask = None if call["mask"] is None else random_mask(*call["mask"], seed=call["seed"])
    common = {n: call[n] for n in ("causal", "window", "scale")}
    encoding = [wn.RoPE(D)] * call["rotary"] + [Wave(H)] * call["bias"]

    inputs = [t.transpose(1, 2) for t in (q, k, v)] if call["layout"] == "bshd" else [q, k, v]
    found = wn.attention(
        *inputs,
        encoding or None,
        where=wn.Where(q_ids, k_ids, key_mask=key_mask, **doc),
        mask=mask,
        layout=call["layout"],
        implementation=call["implementation"],
        **common,
    )
    found = found.transpose(1, 2) if call["layout"] == "bshd" else found

    if call["rotary"]:
        q, k = turned(q, q_ids), turned(k, k_ids)
    bias = waving(Wave(H), q_ids, k_ids) if call["bias"] else {}
    near(found, attend(q, k, v, mask=mask, key_mask=key_mask, **doc, **common, **bias)[0])
