"""Biases of offsets in blocks of flipped queries: against the oracle, in numbers, gradients and
memory, and what may not come here."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import whereness as wn
from attend.oracle import TINY_STEP, Tide, array, attend, budget, heads, near, qkv, slope, turned
from whereness.attend import core, hankel, toeplitz
from whereness.attend.request import Options
from whereness.encoding import as_encoding
from whereness.kernels import diagonals

HEADS, LENGTH = 4, 19


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks and tiles of uneven sizes in a few tokens."""
    monkeypatch.setattr(hankel, "ROWS", (5, 7))
    monkeypatch.setattr(hankel, "TILE", (4, 6))


# The encodings, and their biases written down again: (offset, head) -> bias


def learned(seed: int = 7) -> wn.LearnedRelative:
    made = wn.LearnedRelative(HEADS, 3).double()
    made.table.data = heads(1, 1, 7, HEADS, seed=seed)[0, 0]
    return made


def bucketed() -> wn.T5:
    made = wn.T5(HEADS, 4, 8, scaled=True).double()
    made.table.data = heads(1, 1, 4, HEADS, seed=8)[0, 0]
    return made


def of_alibi(offset: int, h: int) -> float:
    return -(2.0 ** (-8 * (h + 1) / HEADS)) * abs(offset)


def of_learned(offset: int, h: int, seed: int = 7) -> float:
    return float(heads(1, 1, 7, HEADS, seed=seed)[0, 0, max(-3, min(3, offset)) + 3, h])


def of_t5(offset: int, h: int) -> float:
    back = max(0, -offset)
    bucket = back if back < 2 else min(3, 2 + math.floor(math.log(back / 2) / math.log(4) * 2))
    return float(heads(1, 1, 4, HEADS, seed=8)[0, 0, bucket, h])


ENCODINGS: dict[str, tuple[Any, Any]] = {
    "alibi": (lambda: wn.ALiBi(HEADS), of_alibi),
    "t5": (bucketed, of_t5),
    "learned": (learned, of_learned),
    "rope and alibi": (lambda: [wn.RoPE(8), wn.ALiBi(HEADS)], of_alibi),
    "two": (lambda: [learned(), wn.ALiBi(HEADS)], lambda o, h: of_learned(o, h) + of_alibi(o, h)),
}


# What hides keys


def half_seen(*shape: int) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) > 0.4
    mask[..., 3, :] = False  # a query that sees nothing
    return mask


def pads(left: int, right: int) -> Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, :left] = False
    mask[1, LENGTH - right :] = False
    return mask


DOCUMENTS = torch.stack([torch.arange(LENGTH) // 8, torch.arange(LENGTH) // 11])
HIDDEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": half_seen(LENGTH, LENGTH)},
    "masks of heads": {"mask": half_seen(2, HEADS, LENGTH, LENGTH)},
    "left pads": {"key_mask": pads(3, 0)},
    "right pads": {"key_mask": pads(0, 4)},
    "documents": {"segments": DOCUMENTS},
    "all": {"segments": DOCUMENTS, "key_mask": pads(2, 3), "mask": half_seen(2, 1, LENGTH, LENGTH)},
}
SEEN = {
    "all": {"causal": False},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 6},
    "window on both sides": {"causal": False, "window": 4},
}


def places(hidden: dict[str, Any]) -> list[list[int | None]]:
    """Real tokens counted from 0 in each document; pads have no place."""
    real = array(hidden.get("key_mask", torch.ones(2, LENGTH)))
    documents = array(hidden.get("segments", torch.zeros(2, LENGTH)))
    found: list[list[int | None]] = []
    for b in range(2):
        counts: dict[float, int] = {}
        row: list[int | None] = []
        for slot in range(LENGTH):
            if not real[b, slot]:
                row.append(None)
                continue
            row.append(counts.setdefault(documents[b, slot], 0))
            counts[documents[b, slot]] += 1
        found.append(row)
    return found


def biases(of_offset: Any, hidden: dict[str, Any], queries: int = LENGTH) -> np.ndarray:
    rows = places(hidden)
    found = np.zeros((2, HEADS, queries, LENGTH), np.result_type(of_offset(0, 0), float))
    for b, h, i, j in np.ndindex(found.shape):
        q, k = rows[b][i + LENGTH - queries], rows[b][j]
        if q is not None and k is not None:
            found[b, h, i, j] = of_offset(k - q, h)
    return found


def call(inputs: Any, encoding: Any, hidden: dict[str, Any], **options: Any) -> Tensor:
    given = {n: o for n, o in hidden.items() if n != "segments"}
    where = wn.Where(segments=hidden["segments"]) if "segments" in hidden else None
    options = {"implementation": "toeplitz", **options}
    return wn.attention(*inputs, encoding, where=where, **given, **options)


# Numbers


@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_the_output_is_that_of_the_oracle(hidden, seen, groups):
    inputs = qkv(queries=LENGTH, groups=groups)
    bias = biases(of_learned, HIDDEN[hidden])
    expected, _ = attend(*inputs, bias=bias, **HIDDEN[hidden], **SEEN[seen])
    near(call(inputs, learned(), HIDDEN[hidden], **SEEN[seen]), expected)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_bias_of_offsets_comes_here(encoding):
    q, k, v = qkv(queries=LENGTH)
    make, of_offset = ENCODINGS[encoding]
    hidden = HIDDEN["right pads"]
    numbers = [[p or 0 for p in row] for row in places(hidden)]
    turn = "rope" in encoding
    moved = [turned(x, numbers) if turn else x for x in (q, k)]
    bias = biases(of_offset, hidden).astype(np.float32 if encoding == "alibi" else float)
    expected, _ = attend(*moved, v, bias=bias, causal=True, **hidden)
    found = call((q, k, v), make(), hidden, causal=True)
    near(
        found[hidden["key_mask"][:, None].expand(found.shape[:3])],
        expected[array(hidden["key_mask"][:, None].expand(found.shape[:3]))],
        1e-7,
    )


@pytest.mark.parametrize("queries", [1, 2, 11])
@pytest.mark.parametrize("window", [None, 5])
def test_the_queries_are_the_last_of_the_keys(window, queries):
    inputs = qkv(queries=queries, keys=LENGTH)
    options = {"causal": True, "window": window}
    expected, _ = attend(*inputs, bias=biases(of_learned, {}, queries), **options)
    near(call(inputs, learned(), {}, **options), expected)


def test_other_streams_are_counted_from_0_each():
    """As in cross-attention: offsets are those of slots but for a shift."""
    inputs = qkv(queries=7, keys=LENGTH)
    where = wn.Where(torch.arange(7), torch.arange(LENGTH))
    bias = np.zeros((2, HEADS, 7, LENGTH))
    for b, h, i, j in np.ndindex(bias.shape):
        bias[b, h, i, j] = of_learned(j - i, h)
    found = wn.attention(*inputs, learned(), where=where, implementation="toeplitz")
    near(found, attend(*inputs, bias=bias)[0])


@pytest.mark.parametrize("sizes", [(8, 3), (8, 13), (5, 5), (1, 1)])
def test_any_width_and_layout(sizes):
    width, of_values = sizes
    q, k, _ = qkv(queries=LENGTH, dim=width)
    v = heads(2, LENGTH, 2, of_values, seed=5).transpose(1, 2)
    expected, _ = attend(q, k, v, bias=biases(of_learned, {}), causal=True, scale=0.3)
    q = q.mT.contiguous().mT  # channels far apart in memory
    near(call((q, k, v), learned(), {}, causal=True, scale=0.3), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", ["plain", "mask", "documents"])
def test_every_dtype_is_as_near_to_exact_as_it_can_be(hidden, dtype):
    """A bias of hundreds of logits too: no half type may round it."""
    inputs = qkv(queries=LENGTH, dtype=dtype)
    encoding = [wn.ALiBi(HEADS)] * 30
    bias = 30 * biases(of_alibi, HIDDEN[hidden])
    expected, weights = attend(*inputs, bias=bias, causal=True, **HIDDEN[hidden])
    found = call(inputs, encoding, HIDDEN[hidden], causal=True)
    assert found.dtype == dtype
    allowed = budget(*inputs, weights, expected, 8**-0.5, dtype, abs(bias).max())
    assert (abs(array(found) - expected) <= allowed).all()


@pytest.mark.parametrize("fixed", [False, True])
def test_a_hole_in_positions_that_were_built_is_a_mask(fixed):
    """As a cache has it whose tokens are hidden from later queries."""
    inputs = [t.requires_grad_() for t in qkv(queries=LENGTH)]
    encoding = learned()
    encoding.table.requires_grad_(not fixed)
    hole = pads(2, 0)
    hole[:, 7] = False
    where = wn.Where(torch.arange(LENGTH), key_mask=hole).as_regular()
    results = []
    for implementation in ("reference", "toeplitz"):
        out = wn.attention(
            *inputs, encoding, where=where, causal=True, implementation=implementation
        )
        wanted = inputs if fixed else [*inputs, encoding.table]
        results.append([out.detach(), *torch.autograd.grad(out.sum(), wanted)])
    bias = biases(of_learned, {})
    near(results[1][0], attend(*inputs, bias=bias, causal=True, key_mask=hole)[0])
    for slow, fast in zip(*results, strict=True):
        near(fast, slow)


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("fixed", [False, True])
def test_tokens_may_come_before_heads(fixed, groups):
    """Layout bshd, whose gradients lie so too, and those of sum(), which lie nowhere."""
    q, k, v = qkv(queries=LENGTH, groups=groups)
    encoding = learned()
    encoding.table.requires_grad_(not fixed)
    results = []
    for layout in ("bhsd", "bshd"):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        if layout == "bshd":
            inputs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in inputs]
        out = call(inputs, encoding, {}, causal=True, layout=layout)
        grads = torch.autograd.grad(out.sum(), inputs if fixed else [*inputs, encoding.table])
        found = [out.detach(), *grads]
        if layout == "bshd":
            found[:4] = [t.transpose(1, 2) for t in found[:4]]
        results.append(found)
    for a, b in zip(*results, strict=True):
        near(a, b)


def test_door_5_is_opened():
    q, k, v = qkv(queries=LENGTH)
    slow, fast = (
        wn.attention(q, k, v, [learned(), Tide()], causal=True, implementation=i)
        for i in ("reference", "toeplitz")
    )
    near(fast, slow)


def test_autocast_rounds_nothing():
    inputs = [t.requires_grad_() for t in qkv(queries=LENGTH, dtype=torch.float32)]
    encoding = learned().float()
    plain = call(inputs, encoding, {}, causal=True)
    grads = torch.autograd.grad(plain.sum(), [*inputs, encoding.table])
    with torch.autocast("cpu", torch.bfloat16):
        cast = call(inputs, encoding, {}, causal=True)
        again = torch.autograd.grad(cast.sum(), [*inputs, encoding.table])
    for a, b in zip((plain, *grads), (cast, *again), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


# All implementations


def cells() -> list[tuple[str, str]]:
    return [
        (name, encoding)
        for name, server in core.SERVERS.items()
        for encoding, (make, _) in ENCODINGS.items()
        if server.refusal(Options(implementation=name), as_encoding(make())) is None
    ]


@pytest.mark.untyped  # FlexAttention traces, and the hook on types is not for tracing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("implementation", "encoding"), cells())
@torch.no_grad()  # FlexAttention has no gradients on the CPU
def test_every_implementation_gives_the_same_numbers(implementation, encoding, dtype):
    inputs = qkv(queries=LENGTH, dtype=dtype)
    made = as_encoding(ENCODINGS[encoding][0]()).float()
    exact = [t.double() for t in inputs]
    for hidden in ("plain", "left pads", "documents"):
        options = {"causal": True, "window": 9}
        expected = call(exact, made, HIDDEN[hidden], implementation="reference", **options)
        found = call(inputs, made, HIDDEN[hidden], implementation=implementation, **options)
        assert found.dtype == dtype
        # Door 3 rounds what it turned to the dtype of q, and then the output is rounded.
        turns = 3 in made.doors and dtype == torch.bfloat16
        off = torch.finfo(dtype).eps * (4 if turns else 1) + 1e-5
        torch.testing.assert_close(found.double(), expected, rtol=off, atol=off)


# Gradients


@pytest.fixture(params=["native", "torch"])
def kernel(request, monkeypatch):
    """With the compiled kernel where there is one, and without."""
    if request.param == "torch":
        monkeypatch.setattr(diagonals, "NATIVE", None)


def check_gradients(hidden: str, seen: str, groups: int, fixed: bool, queries: int = LENGTH):
    named = dict(zip("qkv", qkv(queries=queries, keys=LENGTH, groups=groups), strict=True))
    inputs = [t.requires_grad_() for t in named.values()]
    encoding = learned()
    encoding.table.requires_grad_(not fixed)
    out = call(inputs, encoding, HIDDEN[hidden], **SEEN[seen])
    weight = heads(*out.shape, seed=11)
    wanted = inputs if fixed else [*inputs, encoding.table]
    grads = torch.autograd.grad((out * weight).sum(), wanted)
    options = {**HIDDEN[hidden], **SEEN[seen]}
    bias = biases(of_learned, HIDDEN[hidden], queries)
    for (name, _), grad in zip(named.items(), grads, strict=False):
        along = {n: heads(*t.shape, seed=12) * (n == name) for n, t in named.items()}
        change = (array(weight) * slope(named, along, bias=bias, **options)).sum()
        assert (grad * along[name]).sum().item() == pytest.approx(change, rel=1e-10, abs=1e-10)
    if not fixed:
        along = biases(lambda o, h: of_learned(o, h, seed=13), HIDDEN[hidden], queries)
        moved = attend(*named.values(), bias=bias + 1j * TINY_STEP * along, **options)[0]
        change = (array(weight) * moved.imag / TINY_STEP).sum()
        found = (grads[3] * heads(1, 1, 7, HEADS, seed=13)[0, 0]).sum().item()
        assert found == pytest.approx(change, rel=1e-10, abs=1e-10)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize(
    ("hidden", "seen"), [("plain", "causal"), ("right pads", "window"), ("all", "all")]
)
def test_gradients_are_those_of_the_oracle(hidden, seen, groups):
    check_gradients(hidden, seen, groups, fixed=False)


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize(
    ("hidden", "seen"), [("plain", "causal"), ("right pads", "window"), ("all", "all")]
)
def test_gradients_beside_a_fixed_bias_are_those_of_the_oracle(hidden, seen, groups):
    check_gradients(hidden, seen, groups, fixed=True)


@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_of_a_few_last_queries(fixed):
    check_gradients("plain", "causal", 2, fixed, queries=9)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_other_dtypes(dtype):
    exact = [*qkv(queries=LENGTH), heads(2, HEADS, LENGTH, 8, seed=9)]
    found = []
    for to in (dtype, torch.float64):
        *inputs, weight = (t.to(dtype).to(to).requires_grad_() for t in exact)
        encoding = learned().float()
        out = call(inputs, encoding, HIDDEN["documents"], causal=True)
        found.append(torch.autograd.grad(out, [*inputs, encoding.table], weight))
    for a, b in zip(*found, strict=True):
        off = torch.finfo(a.dtype).eps + 1e-5
        torch.testing.assert_close(a.double(), b.double(), rtol=off, atol=off)
        assert b.abs().max() > 0.01


def test_a_gradient_without_strides_and_a_second_derivative():
    inputs = [t.requires_grad_() for t in qkv(queries=9)]
    encoding = learned()
    seconds = []
    for implementation in ("reference", "toeplitz"):
        out = wn.attention(*inputs, encoding, causal=True, implementation=implementation)
        firsts = torch.autograd.grad(out.sum(), [*inputs, encoding.table], create_graph=True)
        whole = sum(f.square().sum() for f in firsts)
        seconds.append([*firsts, *torch.autograd.grad(whole, [*inputs, encoding.table])])
    for slow, fast in zip(*seconds, strict=True):
        near(fast, slow.detach())


# Memory


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that an operation gives."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor):
                size = t.untyped_storage().nbytes() // t.element_size()
                self.numbers = max(self.numbers, size)
        return result


@pytest.mark.parametrize("encoding", ["alibi", "learned"])
@pytest.mark.parametrize("hidden", ["nothing", "pads", "documents"])
def test_no_tensor_is_as_large_as_scores(hidden, encoding, monkeypatch):
    monkeypatch.setattr(hankel, "ROWS", (64, 64))
    monkeypatch.setattr(hankel, "TILE", (64, 64))
    length, width = 512, 4
    inputs = [t.requires_grad_() for t in qkv(1, HEADS, HEADS, length, dim=width)]
    options: dict[str, Any] = {}
    if hidden == "pads":
        options["key_mask"] = torch.arange(length)[None] > 50
    if hidden == "documents":
        options["where"] = wn.Where(segments=torch.arange(length) // 200)
    with Largest() as largest:
        out = wn.attention(*inputs, ENCODINGS[encoding][0](), causal=True, **options)
        out.sum().backward()
    # The strip, q, k or v; the two scores of a tile (2 H 64 64), and the fraction of a mask.
    assert largest.numbers <= 2 * HEADS * 64 * 64
    assert largest.numbers < length * length // 4


# Who comes here


@pytest.fixture
def served(monkeypatch) -> list[int]:
    calls: list[int] = []
    original = toeplitz.serve

    def serve(request):
        calls.append(request.num_queries)
        return original(request)

    monkeypatch.setattr(toeplitz, "serve", serve)
    return calls


def test_auto_comes_here_where_it_pays(served):
    q, k, v = qkv(1, HEADS, 2, 256, dim=2)
    wn.attention(q, k, v, wn.ALiBi(HEADS), causal=True)
    assert served == [256]
    wn.attention(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], wn.ALiBi(HEADS), causal=True)
    wn.attention(q[:, :, -1:], k, v, wn.ALiBi(HEADS), causal=True)
    wn.attention(q, k, v, wn.RoPE(2), causal=True)
    wn.attention(q, k, v, wn.ALiBi(HEADS), causal=True, dropout=0.1)
    assert served == [256]


@pytest.mark.parametrize("broken", ["hole", "two pieces", "jump", "real"])
def test_positions_that_leave_their_slots_are_served_elsewhere(broken, served):
    q, k, v = qkv(1, HEADS, 2, 256, dim=2)
    options: dict[str, Any] = {}
    if broken == "hole":
        options["key_mask"] = (torch.arange(256) != 100)[None]
    if broken == "two pieces":
        options["where"] = wn.Where(segments=(torch.arange(256) // 100 == 1).long())
    if broken == "jump":
        options["where"] = torch.arange(256) + (torch.arange(256) > 100)
    if broken == "real":
        options["where"] = torch.arange(256).double()
    slow, auto = (
        wn.attention(q, k, v, wn.ALiBi(HEADS), causal=True, implementation=i, **options)
        for i in ("reference", "auto")
    )
    near(auto, slow)
    assert served == []
    with pytest.raises(ValueError, match="'toeplitz' needs positions that go on by 1"):
        wn.attention(q, k, v, wn.ALiBi(HEADS), causal=True, implementation="toeplitz", **options)


REFUSED = {
    "no weights to return": ({"return_weights": True}, lambda: wn.ALiBi(HEADS)),
    "no dropout, got 0.5": ({"dropout": 0.5}, lambda: wn.ALiBi(HEADS)),
    "RoPE has none": ({}, lambda: wn.RoPE(8)),
    "not LearnedRelative": ({}, lambda: wn.LearnedRelative(HEADS, 3, "multiply")),
    "not Shaw": ({}, lambda: wn.Shaw(8, 3)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_cannot_serve_it_refuses_with_the_reason(reason):
    options, make = REFUSED[reason]
    with pytest.raises(ValueError, match=f"'toeplitz' .*{reason}"):
        wn.attention(*qkv(), make(), implementation="toeplitz", **options)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms_and_other_devices_go_elsewhere():
    q, k, v = qkv(2, HEADS, HEADS, 256, dim=2)
    encoding = wn.ALiBi(HEADS)

    def one(*each: Tensor) -> Tensor:
        return wn.attention(*(t[None] for t in each), encoding, causal=True)[0]

    whole = wn.attention(q, k, v, encoding, causal=True)
    near(torch.vmap(one)(q, k, v), whole)
    near(torch.func.grad(lambda x: one(x, k[0], v[0]).sum())(q[0]), slow_gradient(q, k, v))
    meta = wn.attention(*(t.to("meta") for t in (q, k, v)), encoding, causal=True)
    assert meta.shape == whole.shape
    with pytest.raises(ValueError, match="'toeplitz' runs on the CPU, got meta"):
        wn.attention(*(t.to("meta") for t in (q, k, v)), encoding, implementation="toeplitz")


def slow_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q[:1].clone().requires_grad_()
    out = wn.attention(q, k[:1], v[:1], wn.ALiBi(HEADS), causal=True, implementation="reference")
    return torch.autograd.grad(out.sum(), [q])[0][0]
