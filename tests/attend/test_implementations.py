"""The implementations agree: with the oracle in every dtype, in gradients, dropout, and rows that
see nothing."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import whereness as wn
from attend.oracle import (
    TINY_STEP,
    Tide,
    Wave,
    array,
    attend,
    budget,
    heads,
    near,
    qkv,
    slope,
    waving,
)
from whereness.attend.core import plainly
from whereness.encoding import as_encoding

IMPLEMENTATIONS = ("auto", "reference", "sdpa")
everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
HALF_TYPES = (torch.bfloat16, torch.float16)


def half_seen(queries: int, keys: int, blind: int | None = None) -> Tensor:
    """A mask (S, T); row `blind` is all False."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(4)) > 0.4
    mask[:, 0] = True
    if blind is not None:
        mask[blind] = False
    return mask


def key_mask(keys: int) -> Tensor:
    mask = torch.ones(2, keys, dtype=torch.bool)
    mask[0, 1::3] = False
    return mask


SETTINGS = {
    "plain": lambda s, t: {},
    "causal": lambda s, t: {"causal": True},
    "window": lambda s, t: {"causal": True, "window": 3},
    "mask": lambda s, t: {"mask": half_seen(s, t)},
    "key mask": lambda s, t: {"key_mask": key_mask(t)},
    "blind row": lambda s, t: {"mask": half_seen(s, t, blind=0)},
}
SHAPES = {"short": (6, 6, 8), "few queries": (3, 40, 16), "long": (32, 32, 32)}


# Dtypes


def check(implementation: str, setting: str, shape: str, dtype: torch.dtype, biased: bool) -> None:
    """Within `budget` of the oracle, which is given the rounded inputs."""
    queries, keys, dim = SHAPES[shape]
    q, k, v = qkv(queries=queries, keys=keys, dim=dim, dtype=dtype)
    options = SETTINGS[setting](queries, keys)
    q_ids, k_ids = torch.arange(keys - queries, keys), torch.arange(keys)
    bias = waving(Wave(4), q_ids, k_ids) if biased else {}
    expected, weights = attend(q, k, v, **options, **bias)
    found = wn.attention(
        q,
        k,
        v,
        Wave(4, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        if biased
        else None,
        where=wn.Where(q_ids, k_ids),
        implementation=implementation,
        **options,
    )
    assert found.dtype == dtype
    # Without a bias a fused kernel gets half tensors; with one, float32 tensors.
    rounds_weights = implementation != "reference" and dtype in HALF_TYPES and not biased
    allowed = budget(
        q, k, v, weights, expected, 1 / math.sqrt(dim), dtype, 1.0 * biased, rounds_weights
    )
    error = abs(array(found) - expected)
    assert (error <= allowed).all(), (error / allowed).max()


@everywhere
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_TYPES])
def test_every_dtype_is_as_near_to_exact_as_it_can_be(dtype, setting, biased, implementation):
    check(implementation, setting, "short", dtype, biased)


@everywhere
@pytest.mark.parametrize("shape", ["few queries", "long"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_TYPES])
def test_longer_rows_stay_in_their_budget(dtype, shape, implementation):
    check(implementation, "causal", shape, dtype, biased=False)
    check(implementation, "causal", shape, dtype, biased=True)


@everywhere
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_a_large_bias_is_not_rounded_to_a_half_type(dtype, implementation):
    """Slope 1/2: 300 tokens back are 150 logits. bfloat16 would move them by half a logit."""
    q, k, v = (heads(1, 1, n, 8, seed=s, dtype=dtype) for s, n in enumerate((1, 30, 30)))
    q = q * 0
    where = wn.Where(torch.tensor([330]), torch.arange(30))
    found = wn.attention(q, k, v, wn.ALiBi(1), where=where, implementation=implementation)
    # the slope of one head is 2^-8: make it 1/2
    steep = wn.attention(q, k, v, [wn.ALiBi(1)] * 128, where=where, implementation=implementation)
    for power, out in ((1, found), (128, steep)):
        bias = -power * 2.0**-8 * (330.0 - np.arange(30))
        expected, weights = attend(q, k, v, bias=bias)
        allowed = budget(q, k, v, weights, expected, 1 / math.sqrt(8), dtype, abs(bias).max())
        assert (abs(array(out) - expected) <= allowed).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_TYPES])
def test_a_bias_may_be_wider_than_the_queries(dtype, implementation):
    """As a learned bias in float64 is: its type never decides that of the output."""
    q, k, v = qkv(dtype=dtype)
    ids = torch.arange(6)
    expected, weights = attend(q, k, v, **waving(Wave(4), ids, ids))
    found = wn.attention(q, k, v, Wave(4), where=ids, implementation=implementation)
    assert found.dtype == dtype
    allowed = budget(q, k, v, weights, expected, 1 / math.sqrt(8), dtype, 1.0)
    assert (abs(array(found) - expected) <= allowed).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_float64_agrees_to_ten_digits(setting):
    q, k, v = qkv()
    options = SETTINGS[setting](6, 6)
    for encoding in (None, [wn.RoPE(8), wn.ALiBi(4), Tide()]):
        auto, slow, fast = (
            wn.attention(q, k, v, encoding, implementation=i, **options) for i in IMPLEMENTATIONS
        )
        near(auto, slow)
        near(fast, slow)


# Which implementation runs


@pytest.fixture
def fused_calls(monkeypatch) -> list[dict]:
    """The options of every call of SDPA."""
    original, seen = torch.nn.functional.scaled_dot_product_attention, []

    def spy(*args, **kwargs):
        seen.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    return seen


def test_auto_is_fused_where_it_can_be(fused_calls):
    q, k, v = qkv()
    additive = (None, wn.RoPE(8), wn.ALiBi(4), wn.T5(4), [wn.RoPE(8), Wave(4), Tide()])
    for count, encoding in enumerate(additive, 1):
        wn.attention(q, k, v, encoding, causal=True)
        assert len(fused_calls) == count


def test_auto_is_the_reference_where_it_must_be(fused_calls):
    q, k, v = qkv()
    wn.attention(q, k, v, return_weights=True)
    for encoding in (
        Wave(4, "multiply"),
        Wave(4, "add", "weights"),
        wn.Shaw(8, 3),
        wn.Shaw(8, 3, values=False),
        [wn.ALiBi(4), wn.LearnedRelative(4, 3, "multiply")],
    ):
        wn.attention(q, k, v, encoding)
    assert fused_calls == []


def test_the_reference_never_uses_a_fused_kernel(fused_calls):
    wn.attention(*qkv(), implementation="reference")
    assert fused_calls == []


def test_no_mask_is_built_where_the_kernel_knows_it(fused_calls):
    q, k, v = qkv()
    wn.attention(q, k, v)
    wn.attention(q, k, v, wn.RoPE(8), causal=True)
    wn.attention(q[:, :, -1:], k, v, wn.RoPE(8), causal=True)
    assert [c.get("attn_mask") is None for c in fused_calls] == [True] * 3
    assert [c.get("is_causal", False) for c in fused_calls] == [False, True, False]


@pytest.mark.parametrize("encoding", [None, "alibi"])
def test_no_kernel_is_given_a_row_without_a_key(fused_calls, encoding):
    """Some of them make NaN of it."""
    made = None if encoding is None else wn.ALiBi(4)
    wn.attention(*qkv(), made, mask=half_seen(6, 6, blind=2), causal=True)
    (mask,) = (c["attn_mask"] for c in fused_calls)
    seen = mask if mask.dtype == torch.bool else mask.isfinite()
    assert seen.any(-1).all()


# Rows that see nothing

BLIND = {
    "mask": {"mask": half_seen(6, 6, blind=2)},
    "key mask": {"key_mask": torch.tensor([[0] * 6, [1] * 6])},
    "left pads": {"key_mask": torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6]), "causal": True},
    "segments": {
        "where": wn.Where(
            torch.arange(6),
            torch.arange(6),
            segments=torch.arange(6),
            k_segments=torch.arange(6) // 3 * 9,
        )
    },
}
ENCODINGS = {
    "none": lambda: None,
    "rope": lambda: wn.RoPE(8),
    "alibi": lambda: wn.ALiBi(4),
    "learned": lambda: wn.LearnedRelative(4, 3).double(),
    "list": lambda: [wn.RoPE(8), wn.LearnedRelative(4, 3).double(), Tide()],
}


def check_blind_rows(made, options: dict, implementation: str, dropout: float) -> None:
    q, k, v = (t.requires_grad_() for t in qkv())
    encoding = as_encoding(made)
    given = {n: o.bool() if n == "key_mask" else o for n, o in options.items() if n != "where"}
    if "where" in options:
        given |= {n: getattr(options["where"], n) for n in ("segments", "k_segments")}
    blind = ~torch.as_tensor(attend(q, k, v, **given)[1].any(-1))
    assert blind.any()
    assert not blind.all()
    out = wn.attention(q, k, v, encoding, **options, dropout=dropout, implementation=implementation)
    assert (out[blind] == 0).all()
    (out**2).sum().backward()
    for tensor in (q, k, v, *encoding.parameters()):
        assert tensor.grad.isfinite().all()
    assert (q.grad[blind] == 0).all()
    assert (q.grad[~blind] != 0).any()


@everywhere
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("options", BLIND.values(), ids=BLIND)
def test_a_row_that_sees_nothing_gives_nothing_and_spoils_no_gradient(
    options, encoding, implementation
):
    check_blind_rows(encoding(), options, implementation, 0.0)


@everywhere
def test_nor_under_dropout(implementation):
    check_blind_rows(None, BLIND["mask"], implementation, 0.5)


@pytest.mark.parametrize("operation", ["add", "multiply"])
@pytest.mark.parametrize("on", ["logits", "weights"])
def test_nor_with_encodings_that_need_the_reference(operation, on):
    for encoding in (wn.LearnedRelative(4, 3, operation, on).double(), wn.Shaw(8, 2).double()):
        torch.nn.init.normal_(next(encoding.parameters()))
        check_blind_rows(encoding, BLIND["mask"], "auto", 0.0)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_TYPES])
def test_nor_in_any_dtype(dtype, implementation):
    q, k, v = (t.requires_grad_() for t in qkv(dtype=dtype))
    for encoding in (None, wn.ALiBi(4)):
        out = wn.attention(
            q, k, v, encoding, mask=half_seen(6, 6, 2), implementation=implementation
        )
        assert (out[:, :, 2] == 0).all()
        out.float().square().sum().backward()
        for t in (q, k, v):
            assert t.grad.isfinite().all()


# Gradients


@everywhere
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("sizes", [{}, {"groups": 4}, {"queries": 3}])
def test_gradients_are_those_of_the_oracle(sizes, setting, biased, implementation):
    sizes = {"keys": 6, **sizes}
    named = dict(zip("qkv", qkv(**sizes), strict=True))
    inputs = [t.requires_grad_() for t in named.values()]
    queries = named["q"].shape[2]
    options = SETTINGS[setting](queries, 6)
    ids = wn.Where(torch.arange(6 - queries, 6), torch.arange(6))
    out = wn.attention(
        *inputs,
        Wave(4) if biased else None,
        where=ids,
        implementation=implementation,
        **options,
    )
    weight = heads(*out.shape, seed=11)
    grads = torch.autograd.grad((out * weight).sum(), inputs)
    bias = waving(Wave(4), ids.positions, ids.k_positions) if biased else {}
    for (name, _), grad in zip(named.items(), grads, strict=True):
        along = {n: heads(*t.shape, seed=12) * (n == name) for n, t in named.items()}
        change = (array(weight) * slope(named, along, **options, **bias)).sum()
        assert (grad * along[name]).sum().item() == pytest.approx(change, rel=1e-10, abs=1e-10)


@everywhere
@pytest.mark.parametrize("causal", [False, True])
def test_a_learned_bias_gets_the_gradient_of_the_oracle(causal, implementation):
    q, k, v = qkv(groups=4)
    relative = wn.LearnedRelative(4, 3).double()
    out = wn.attention(q, k, v, relative, causal=causal, implementation=implementation)
    weight, along = heads(*out.shape, seed=11), array(heads(7, 4, seed=12))
    (grad,) = torch.autograd.grad((out * weight).sum(), [relative.table])
    bias = np.zeros((1, 4, 6, 6), complex)  # the table starts at 0
    for _, h, i, j in np.ndindex(bias.shape):
        bias[0, h, i, j] = 1j * TINY_STEP * along[max(-3, min(3, j - i)) + 3, h]
    moved = attend(q, k, v, causal=causal, bias=bias)[0].imag / TINY_STEP
    near((grad * torch.as_tensor(along)).sum(), (array(weight) * moved).sum())


# Dropout


def dropped_weights(draws: int, rate: float, **options) -> tuple[Tensor, Tensor]:
    """(weights (1, H, S, T), the same after dropout, one row of the batch a draw).

    Values that are rows of the identity make every output its row of weights.
    """
    q, k, _ = qkv(batch=1, groups=4, queries=5, keys=5)
    v = torch.eye(5, dtype=torch.float64).expand(1, 4, 5, 5)
    weights = torch.as_tensor(
        attend(q, k, v, **{n: o for n, o in options.items() if n != "implementation"})[1]
    )
    many = (t.expand(draws, -1, -1, -1) for t in (q, k, v))
    return weights, wn.attention(*many, dropout=rate, **options)


@everywhere
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_the_right_share_and_keeps_the_mean(causal, rate, implementation):
    draws = 2000
    weights, found = dropped_weights(draws, rate, causal=causal, implementation=implementation)
    kept = found != 0
    # Kept weights are scaled by 1 / (1 - p), each exactly; the others are 0.
    near(found, torch.where(kept, weights / (1 - rate), 0.0))
    assert not kept[:, weights[0] == 0].any()
    # A weight is kept with probability 1 - p: 6 standard deviations of the share of `draws`.
    share = kept[:, weights[0] > 0].double().mean(0)
    off = 6 * math.sqrt(rate * (1 - rate) / draws)
    assert (share - (1 - rate)).abs().max() < off
    # So the mean is the weight, within 6 standard deviations of w sqrt(p / (1 - p) / draws).
    bound = 6 * weights[0] * math.sqrt(rate / (1 - rate) / draws)
    assert ((found.mean(0) - weights[0]).abs() <= bound + 1e-12).all()
    # Draws differ from row to row and head to head.
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[:, 0], kept[:, 1])


@everywhere
def test_no_dropout_is_exact_and_draws_nothing(implementation):
    q, k, v = qkv()
    state = torch.get_rng_state()
    near(wn.attention(q, k, v, dropout=0.0, implementation=implementation), attend(q, k, v)[0])
    assert torch.equal(torch.get_rng_state(), state)


@everywhere
def test_dropout_follows_the_seed(implementation):
    q, k, v = qkv()
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(wn.attention(q, k, v, dropout=0.5, implementation=implementation))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


# Devices and degenerate sizes


@everywhere
@pytest.mark.parametrize("encoding", [None, "rope", "alibi"])
def test_shapes_on_a_device_without_memory(encoding, implementation):
    q, k, v = (t.to("meta") for t in qkv(queries=3, keys=5))
    made = None if encoding is None else wn.create(encoding, dim=32, num_heads=4)
    out = wn.attention(q, k, v, made, causal=True, window=2, implementation=implementation)
    assert (out.shape, out.device.type) == (q.shape, "meta")


@everywhere
@pytest.mark.parametrize(("batch", "queries"), [(0, 3), (2, 0)])
def test_nothing_in_nothing_out(batch, queries, implementation):
    q, k, v = heads(batch, 4, queries, 8), heads(batch, 2, 5, 8), heads(batch, 2, 5, 8)
    where = wn.Where(torch.arange(queries), torch.arange(5))
    out = wn.attention(
        q, k, v, [wn.RoPE(8), wn.ALiBi(4)], where=where, implementation=implementation
    )
    assert out.shape == q.shape


@everywhere
def test_values_may_be_wider_than_keys(implementation):
    q, k, _ = qkv()
    v = heads(2, 2, 6, 3)
    found = wn.attention(
        q, k, v, wn.RoPE(8), where=torch.zeros(6).long(), implementation=implementation
    )
    near(found, attend(q, k, v)[0])


@everywhere
def test_inputs_are_left_alone(implementation):
    given = qkv()
    copies = [t.clone() for t in given]
    wn.attention(
        *given, [wn.RoPE(8), wn.ALiBi(4), Tide()], causal=True, implementation=implementation
    )
    for t, copy in zip(given, copies, strict=True):
        assert torch.equal(t, copy)


def test_auto_is_the_plain_steps_for_who_follows_tensors():
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    encoding, seen = wn.ALiBi(2), []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with plainly(), Watching():
        got = wn.attention(q, k, v, encoding, causal=True)
    assert "softmax" in seen
    want = wn.attention(q, k, v, encoding, causal=True, implementation="reference")
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    seen.clear()
    with Watching():
        wn.attention(q, k, v, encoding, causal=True)
    assert "softmax" not in seen
