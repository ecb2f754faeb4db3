"""FlexAttention: its functions of head, query and key, its blocks, and what it refuses.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import whereness as wn
from attend.oracle import array, attend, may_see, qkv
from whereness.attend import flex
from whereness.attend.request import Options, Request
from whereness.encoding import as_encoding

# Types that are checked at run time would be looked at inside torch's graph of these functions.
through_torch = pytest.mark.untyped


def drawn(encoding: wn.PositionalEncoding, dtype: torch.dtype = torch.float64):
    """With parameters at random and none to learn: the CPU has no gradients."""
    generator = torch.Generator().manual_seed(7)
    for parameter in encoding.to(dtype).parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return encoding.requires_grad_(False)


MAKERS = {
    "none": lambda: None,
    "rope": lambda: wn.RoPE(8),
    "alibi": lambda: wn.ALiBi(4),
    "t5": lambda: drawn(wn.T5(4, 8, 20, bidirectional=True)),
    "relative": lambda: drawn(wn.LearnedRelative(4, 9)),
    "multiply": lambda: drawn(wn.LearnedRelative(4, 9, "multiply")),
    "kerple": lambda: drawn(wn.KERPLE(4)),
    "sandwich": lambda: wn.Sandwich(4, 8),
    "list": lambda: [
        drawn(wn.LearnedRelative(4, 9)),
        wn.RoPE(8),
        drawn(wn.LearnedRelative(4, 5, "multiply")),
        wn.ALiBi(4),
    ],
}

PADS = torch.ones(2, 40, dtype=torch.bool)
PADS[0, :7] = PADS[1, 20:24] = False
HALF = torch.rand(2, 4, 40, 40, generator=torch.Generator().manual_seed(1)) < 0.6
HALF[1, 2, 5] = False  # a query that sees nothing
DOCUMENTS = torch.tensor([[0] * 15 + [1] * 25, [3] * 32 + [2] * 8])

# Option -> (S, T, what wn.attention gets)
SETTINGS = {
    "full": (40, 40, {}),
    "causal": (40, 40, {"causal": True}),
    "chunk": (5, 40, {"causal": True}),
    "row": (1, 40, {"causal": True}),
    "window": (40, 40, {"causal": True, "window": 3}),
    "window on both sides": (40, 40, {"window": 4}),
    "pads": (40, 40, {"causal": True, "key_mask": PADS}),
    "the same pads": (40, 40, {"key_mask": PADS[:1]}),
    "documents": (40, 40, {"causal": True, "where": wn.Where(segments=DOCUMENTS)}),
    "mask": (40, 40, {"causal": True, "mask": HALF}),
    "one mask": (40, 40, {"mask": HALF[0, 0]}),
    "one row of a mask": (40, 40, {"causal": True, "mask": HALF[:, :1, 8:9]}),
    "positions": (5, 40, {"where": wn.Where(torch.arange(5) * 7, torch.arange(40))}),
}


def same(name: str, setting: str, dtype: torch.dtype, **to: float) -> None:
    queries, keys, options = SETTINGS[setting]
    encoding = MAKERS[name]()
    q, k, v = qkv(queries=queries, keys=keys, dtype=dtype)
    expected, found = (
        wn.attention(q, k, v, encoding, implementation=implementation, **options)
        for implementation in ("reference", "flex")
    )
    assert found.dtype == dtype
    assert_close(found, expected, **to)


@through_torch
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["none", "alibi", "list"])
def test_it_equals_the_reference(name, setting):
    same(name, setting, torch.float64, rtol=1e-12, atol=1e-13)


@through_torch
@pytest.mark.parametrize("setting", ["causal", "chunk", "positions"])
@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"none", "alibi", "list"}))
def test_every_bias_equals_the_reference(name, setting):
    same(name, setting, torch.float64, rtol=1e-12, atol=1e-13)


@through_torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_rounds_half_types_once(dtype):
    ulp = torch.finfo(dtype).eps
    same("list", "causal", dtype, rtol=4 * ulp, atol=4 * ulp)


@through_torch
def test_a_large_bias_is_not_rounded_to_a_half_type():
    """-0.25 * 1023 and -0.25 * 1022 are one number in bfloat16."""
    q, k = torch.zeros(1, 1, 1, 8).bfloat16(), torch.zeros(1, 1, 1024, 8).bfloat16()
    v = torch.zeros(1, 1, 1024, 1).bfloat16()
    v[0, 0, 0] = 1
    alibi = drawn(wn.LearnedRelative(1, 1023), torch.float32)
    alibi.table[:, 0] = -0.25 * torch.arange(-1023, 1024).abs()
    mask = torch.arange(1024)[None] < 2
    found = wn.attention(q, k, v, alibi, causal=True, mask=mask, implementation="flex")
    assert found.item() == pytest.approx(1 / (1 + np.exp(0.25)), rel=2.0**-8)


@through_torch
def test_it_equals_the_oracle():
    q, k, v = qkv(queries=5, keys=9)
    offset = np.arange(9) - np.arange(4, 9)[:, None]
    bias = -wn.ALiBi(4).slopes.double().numpy()[:, None, None] * abs(offset)
    expected, _ = attend(q, k, v, causal=True, bias=bias)
    found = wn.attention(q, k, v, wn.ALiBi(4), causal=True, implementation="flex")
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@through_torch
def test_inputs_that_ask_for_gradients_are_served_without_them():
    q, k, v = (x.requires_grad_() for x in qkv(queries=5, keys=5))
    with torch.no_grad():
        found = wn.attention(q, k, v, wn.ALiBi(4), implementation="flex")
        assert_close(found, wn.attention(q, k, v, wn.ALiBi(4), implementation="reference"))
    assert not found.requires_grad and q.requires_grad


@pytest.mark.parametrize(("batch", "queries"), [(0, 3), (2, 0)])
def test_nothing_in_nothing_out(batch, queries):
    q, k = torch.ones(batch, 4, queries, 8), torch.ones(batch, 2, 6, 8)
    v = torch.ones(batch, 2, 6, 5)
    found = wn.attention(q, k, v, wn.ALiBi(4), causal=True, implementation="flex")
    assert found.shape == (batch, 4, queries, 5)


# Blocks, which the path above does not use


def request(queries: int, keys: int, where: wn.Where | None = None, **options) -> Request:
    """A call of two sequences."""
    q, k, v = qkv(queries=queries, keys=keys)
    encoding = as_encoding(None)
    where = where or wn.Where(torch.arange(queries), torch.arange(keys))
    at = encoding.prepare(where)
    return Request(q, k, v, (q, k), encoding, at, Options(**options), 1.0, {})


def blocks_of(mask: object) -> tuple[Tensor, Tensor]:
    """(seen in part, seen whole), (blocks of queries, blocks of keys) bool."""
    found = []
    for count, index in (
        (mask.kv_num_blocks, mask.kv_indices),
        (mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        dense = torch.zeros(index.shape[-2:], dtype=torch.bool)
        for row, (n, columns) in enumerate(zip(count[0, 0], index[0, 0], strict=True)):
            dense[row, columns[:n].long()] = True
        found.append(dense)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "window"),
    [
        (300, 300, True, None),
        (256, 256, True, None),
        (300, 300, True, 1),
        (300, 300, True, 140),
        (600, 600, True, 128),
        (600, 600, True, 400),
        (600, 600, False, 130),
        (3, 300, True, None),
        (1, 300, True, 20),
        (257, 300, True, None),
        (130, 700, True, 300),
    ],
)
def test_blocks_are_skipped_masked_or_whole_as_the_mask_has_them(queries, keys, causal, window):
    mask = flex._block_mask(request(queries, keys, causal=causal, window=window))
    part, whole = blocks_of(mask)
    size = flex.BLOCK
    assert part.shape == whole.shape == (-(-queries // size), -(-keys // size))
    exact = np.zeros((part.shape[0] * size, part.shape[1] * size), dtype=bool)
    for i, j in np.ndindex(queries, keys):
        exact[i, j] = may_see(i, j, queries, keys, causal, window)
    cut = exact.reshape(part.shape[0], size, part.shape[1], size)
    any_seen, all_seen = cut.any((1, 3)), cut.all((1, 3))
    assert whole.tolist() == all_seen.tolist()
    assert part.tolist() == (any_seen & ~all_seen).tolist()


@pytest.mark.parametrize(
    "options",
    [{"key_mask": torch.ones(1, 300, dtype=torch.bool)}, {"segments": torch.zeros(1, 300).long()}],
    ids=["pads", "documents"],
)
def test_nothing_is_whole_where_values_hide_keys(options):
    where = wn.Where(torch.arange(300), **options)
    part, whole = blocks_of(flex._block_mask(request(300, 300, where, causal=True)))
    assert not whole.any()
    assert part.tolist() == np.tri(3, dtype=bool).tolist()
    mask = torch.ones(300, 300, dtype=torch.bool)
    assert not blocks_of(flex._block_mask(request(300, 300, mask=mask)))[1].any()


def test_slots_that_do_not_follow_one_another_skip_nothing():
    """A cache that has forgotten keys: a window of slots, and gaps between them."""
    kept = torch.tensor([0, 1, *range(500, 798)])
    ids = wn.Where(torch.arange(300))
    where = wn.Where(ids.positions, key_mask=torch.ones(1, 300, dtype=torch.bool))
    object.__setattr__(where, "slots", kept)
    asked = request(300, 300, where, causal=True, window=100)
    part, whole = blocks_of(flex._block_mask(asked))
    assert part.all() and not whole.any()
    i, j = torch.arange(300)[:, None], torch.arange(300)
    zero = torch.tensor(0)
    found = flex._mask_mod(asked)(zero, zero, i, j)
    behind = kept[:, None] - kept
    assert found.tolist() == ((behind >= 0) & (behind < 100)).tolist()


def test_no_mask_where_every_query_sees_every_key():
    assert flex._block_mask(request(300, 300)) is None
    assert flex._block_mask(request(1, 300, causal=True)) is None


# Compiled: the blocks are used


@pytest.mark.more
@pytest.mark.untyped
@pytest.mark.filterwarnings("ignore")
def test_the_compiled_kernel_equals_the_reference(monkeypatch):
    """On the CPU; with lengths that vary, and one kernel for all of them but the first."""
    monkeypatch.setattr(flex, "_attention", lambda _: flex._compiled())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    alibi = wn.ALiBi(4)
    for length in (150, 260, 390, 513):
        q, k, v = qkv(queries=length, keys=length, dtype=torch.float32)
        expected, found = (
            wn.attention(q, k, v, alibi, causal=True, window=200, implementation=i)
            for i in ("reference", "flex")
        )
        assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


# The function by itself


def values_of(mod: object, heads: int, queries: int, keys: int) -> Tensor:
    """What it makes of scores of 2, (H, S, T)."""
    h = torch.arange(heads)[:, None, None]
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    return mod(torch.full((heads, queries, keys), 2.0), torch.tensor(0), h, i, j)


@pytest.mark.parametrize("name", ["alibi", "t5", "relative", "kerple", "sandwich"])
def test_score_mod_adds_the_bias(name):
    encoding, line = MAKERS[name](), torch.arange(7)
    expected = 2 + encoding.bias(line, line)
    for where in (7, line, wn.Where(line), encoding.prepare(line)):
        assert_close(values_of(wn.score_mod(encoding, where), 4, 7, 7), expected, rtol=0, atol=0)
    where = wn.Where(line[4:] * 2, line)
    assert_close(
        values_of(wn.score_mod(encoding, where), 4, 3, 7), 2 + encoding.bias(line[4:] * 2, line)
    )


def test_score_mod_multiplies_and_adds_in_order():
    both, line = MAKERS["list"](), torch.arange(6)
    added, _, factor, alibi = both
    expected = (2 + added.bias(line, line)) * factor.factor(line, line) + alibi.bias(line, line)
    assert_close(values_of(wn.score_mod(as_encoding(both), 6), 4, 6, 6), expected)
    assert_close(values_of(wn.score_mod(as_encoding(both), line), 4, 6, 6), expected)


def test_score_mod_of_sequences_that_differ():
    ids = torch.tensor([[0, 1, 2], [5, 0, 9]])
    mod, expected = wn.score_mod(wn.ALiBi(2), ids), wn.ALiBi(2).bias(ids, ids)
    for b in range(2):
        h, i, j = torch.arange(2)[:, None, None], torch.arange(3)[:, None], torch.arange(3)
        assert_close(mod(torch.zeros(2, 3, 3), torch.tensor(b), h, i, j), expected[b])


def held(function: object) -> list[Tensor]:
    """Every tensor that a function captured, or that those which it captured did."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        inside = cell.cell_contents
        found += [inside] if isinstance(inside, Tensor) else held(inside)
    return found


@through_torch
def test_score_mod_of_a_length_keeps_the_offsets_alone():
    numbers = [x.numel() for x in held(wn.score_mod(wn.ALiBi(8), 4096))]
    assert sorted(numbers) == [1, 8 * 8191]


def test_gradients_of_a_learned_bias_pass_score_mod():
    made, line = wn.KERPLE(3).double(), torch.arange(6)
    weights = torch.randn(3, 6, 6, dtype=torch.float64)
    (values_of(wn.score_mod(made, 6), 3, 6, 6) * weights).sum().backward()
    found = [p.grad.clone() for p in made.parameters()]
    made.zero_grad()
    (made.bias(line, line) * weights).sum().backward()
    for got, parameter in zip(found, made.parameters(), strict=True):
        assert_close(got, parameter.grad)


def test_there_is_no_score_mod_without_a_bias():
    assert wn.score_mod(wn.RoPE(8), 5) is None
    assert wn.score_mod(wn.NoPE(), 5) is None


@through_torch
def test_torch_takes_score_mod():
    q, k, v = qkv(queries=6, keys=6, groups=4)
    found = flex._uncompiled(q, k, v, score_mod=wn.score_mod(wn.ALiBi(4), 6))
    expected, _ = attend(q, k, v, bias=array(wn.ALiBi(4).bias(torch.arange(6), torch.arange(6))))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


# What is refused


@pytest.mark.parametrize(
    ("encoding", "options", "message"),
    [
        (wn.ALiBi(4), {"return_weights": True}, "'flex' has no weights to return: use 'reference'"),
        (wn.ALiBi(4), {"dropout": 0.1}, "'flex' has no dropout: use 'sdpa' or 'reference'"),
        (wn.Shaw(8, 3), {}, "'flex' serves biases and factors on logits only, not those of Shaw"),
        (
            [wn.ALiBi(4), wn.LearnedRelative(4, 3, on="weights")],
            {},
            "'flex' serves biases and factors on logits only, not those of LearnedRelative",
        ),
        (wn.LearnedRelative(4, 3), {}, "'flex' has no gradients on the device 'cpu': use 'sdpa'"),
    ],
    ids=["weights", "dropout", "shaw", "on weights", "gradients"],
)
def test_what_it_cannot_serve_is_refused(encoding, options, message):
    q, k, v = qkv(queries=5, keys=5)
    with pytest.raises(ValueError, match=message):
        wn.attention(q, k, v, encoding, causal=True, implementation="flex", **options)


@pytest.mark.parametrize("which", range(3))
def test_gradients_of_inputs_are_refused_on_the_cpu(which):
    inputs = list(qkv(queries=5, keys=5))
    inputs[which].requires_grad_()
    with pytest.raises(ValueError, match=r"no gradients .* call it in torch.no_grad\(\)"):
        wn.attention(*inputs, implementation="flex")


def test_a_device_without_kernels_is_refused():
    q, k, v = (x.to("meta") for x in qkv(queries=5, keys=5))
    with pytest.raises(ValueError, match="'flex' has no kernel for the device 'meta'"):
        wn.attention(q, k, v, implementation="flex")


@pytest.mark.untyped
def test_compiling_for_the_cpu_is_refused():
    q, k, v = qkv(queries=5, keys=5)
    torch._dynamo.reset()
    attention = torch.compile(wn.attention, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="cannot be compiled on the CPU"):
        attention(q, k, v, implementation="flex")


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("encoding", "where", "error", "message"),
    [
        (wn.Shaw(8, 3), 5, ValueError, "score_mod serves biases and factors on logits only"),
        (wn.ALiBi(2), 0, ValueError, "where must be at least 1, got 0"),
        (wn.ALiBi(2), True, TypeError, "prepare needs a wn.Where or a tensor, got bool"),
        (wn.ALiBi(2), 5.0, TypeError, "prepare needs a wn.Where or a tensor, got float"),
        (wn.ALiBi(2), wn.T5(2).prepare(torch.arange(3)), ValueError, "prepared for another T5"),
        ("alibi", 5, TypeError, "encoding must be a whereness encoding"),
    ],
)
def test_score_mod_of_nonsense_is_refused(encoding, where, error, message):
    with pytest.raises(error, match=message):
        wn.score_mod(encoding, where)
