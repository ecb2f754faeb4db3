"""Attention in blocks of queries: the reference's numbers and gradients, without its memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import whereness as wn
from attend.oracle import Wave, heads, qkv
from whereness.attend import blocks
from whereness.encoding import as_encoding
from zoo import CoPE

LENGTH, HEADS, WIDTH = 11, 4, 8


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """Blocks of 3 queries, and one of 2."""
    monkeypatch.setattr(blocks, "NUM_LOGITS", 1)
    monkeypatch.setattr(blocks, "NUM_ROWS", 3)


in_small_blocks = pytest.mark.usefixtures("small_blocks")


class Gates(wn.PositionalEncoding):
    """Reads a feature of the query's own token and one of the key's."""

    def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
        own, met = call.query_features("gate"), call.features["gate"]
        return logits + own.transpose(1, 2)[..., None] * met.transpose(1, 2)[..., None, :]


class Whole(wn.PositionalEncoding):
    """Keeps tables for door 4 and does not say what a block sees of them."""

    def tables(self, where: wn.Where) -> Tensor:
        return where.positions[:, None, :, None] * 0.1

    def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
        return logits * call.at.data


def scribbled(encoding: wn.PositionalEncoding) -> wn.PositionalEncoding:
    generator = torch.Generator().manual_seed(5)
    for p in encoding.double().parameters():
        torch.nn.init.normal_(p, generator=generator)
    return encoding


ENCODINGS: dict[str, Callable[[], Any]] = {
    "none": wn.NoPE,
    "wave": lambda: Wave(HEADS),
    "factor": lambda: wn.LearnedRelative(HEADS, 4, "multiply"),
    "added to weights": lambda: wn.LearnedRelative(HEADS, 4, "add", "weights"),
    "factor of weights": lambda: wn.LearnedRelative(HEADS, 4, "multiply", "weights"),
    "shaw": lambda: wn.Shaw(WIDTH, 3),
    "shaw keys": lambda: wn.Shaw(WIDTH, 3, values=False),
    "gates": Gates,
    "list": lambda: [wn.RoPE(WIDTH), wn.ALiBi(HEADS), wn.Shaw(WIDTH, 2), Gates()],
    "two": lambda: [wn.LearnedRelative(HEADS, 3, "multiply"), wn.LearnedRelative(HEADS, 2)],
}
each_encoding = pytest.mark.parametrize("make", ENCODINGS.values(), ids=ENCODINGS)


def made(make: Callable[[], Any]) -> wn.PositionalEncoding:
    return scribbled(as_encoding(make()))


def ids(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed))


def nowhere(positions: Tensor) -> Tensor:
    return positions.index_fill(-1, torch.tensor([0, 5]), wn.NOWHERE)


KEY_MASK = torch.arange(2 * LENGTH).view(2, LENGTH) % 5 != 0
MASK = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4
SETTINGS: dict[str, tuple[dict[str, int], Callable[[], dict[str, Any]]]] = {
    "plain": ({}, dict),
    "causal": ({}, lambda: {"causal": True}),
    "groups of one": ({"groups": HEADS}, lambda: {"causal": True}),
    "last queries": ({"queries": 7}, lambda: {"causal": True}),
    "window": ({}, lambda: {"causal": True, "window": 4, "scale": 0.3}),
    "window both ways": ({}, lambda: {"window": 3}),
    "mask": ({}, lambda: {"mask": MASK, "causal": True}),
    "mask of keys": ({}, lambda: {"mask": MASK[:, :, :1], "causal": True}),
    "pads": ({}, lambda: {"key_mask": KEY_MASK, "causal": True}),
    "packed": ({}, lambda: {"where": wn.Where(segments=torch.arange(LENGTH) // 4)}),
    "packed, causal": (
        {},
        lambda: {"where": wn.Where(segments=torch.arange(LENGTH) // 4), "causal": True},
    ),
    "any positions": ({}, lambda: {"where": nowhere(ids(2, LENGTH))}),
    "cross": (
        {"queries": 7},
        lambda: {"where": wn.Where(ids(2, 7), nowhere(ids(1, LENGTH, seed=4)))},
    ),
}
each_setting = pytest.mark.parametrize(("sizes", "options"), SETTINGS.values(), ids=SETTINGS)


def gradients(
    implementation: str, encoding: wn.PositionalEncoding, sizes: dict[str, int], **options: Any
) -> list[Tensor]:
    """Output, and the gradients of q, k, v, the feature and all parameters."""
    sizes = {"queries": LENGTH, "keys": LENGTH, "dim": WIDTH, "num_heads": HEADS, **sizes}
    q, k, v = (t.requires_grad_() for t in qkv(**sizes))
    gate = heads(1, 2, LENGTH, HEADS, seed=7)[0].requires_grad_()
    members = encoding.members()
    features = {"gate": gate}
    if len(members) > 1:
        features = {f"{i}.gate": gate for i, m in enumerate(members) if isinstance(m, Gates)}
    given = {"features": features, "implementation": implementation, **options}
    out = wn.attention(q, k, v, encoding, **given)
    inputs = [q, k, v, gate, *encoding.parameters()]
    loss = (out * heads(*out.shape, seed=8)).sum()
    return [out, *torch.autograd.grad(loss, inputs, materialize_grads=True)]


# The same numbers


@in_small_blocks
@each_setting
@each_encoding
def test_numbers_and_gradients_are_those_of_the_reference(make, sizes, options):
    encoding = made(make)
    expected = gradients("reference", encoding, sizes, **options())
    found = gradients("blocks", encoding, sizes, **options())
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


@in_small_blocks
def test_counts_of_gates_may_end_with_the_block():
    encoding = scribbled(CoPE(WIDTH, 5))
    expected, found = (
        gradients(name, encoding, {"queries": 8}, causal=True) for name in ("reference", "blocks")
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


@in_small_blocks
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_types_are_rounded_once(dtype):
    q, k, v = qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH, num_heads=HEADS, dtype=dtype)
    encoding = scribbled(wn.Shaw(WIDTH, 3)).float()
    slow, fast = (
        wn.attention(q, k, v, encoding, causal=True, implementation=name)
        for name in ("reference", "blocks")
    )
    assert fast.dtype == dtype
    wide = wn.attention(*(t.float() for t in (q, k, v)), encoding, causal=True)
    for found in (slow, fast):
        assert_close(found, wide.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@in_small_blocks
def test_autocast_changes_nothing():
    q, k, v = (t.float() for t in qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH, num_heads=HEADS))
    encoding = scribbled(wn.Shaw(WIDTH, 3)).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = wn.attention(q, k, v, encoding, implementation="blocks")
    assert_close(found, wn.attention(q, k, v, encoding, implementation="reference"))


@in_small_blocks
def test_second_derivatives():
    encoding = scribbled(wn.Shaw(2, 2))
    inputs = [t.requires_grad_() for t in qkv(1, 1, 1, 4, 4, 2)]

    def run(*inputs: Tensor) -> Tensor:
        return wn.attention(*inputs, encoding, causal=True, implementation="blocks")

    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@in_small_blocks
def test_dropout_is_the_same_in_the_backward_pass():
    """The output is linear in v: v . dv is the loss if both passes drop the same weights."""
    q, k, v = (
        t.requires_grad_() for t in qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH, num_heads=HEADS)
    )
    factor = scribbled(wn.LearnedRelative(HEADS, 4, "multiply"))
    whole = wn.attention(q, k, v, factor, implementation="blocks")
    out = wn.attention(q, k, v, factor, dropout=0.5, implementation="blocks")
    assert not torch.allclose(out, whole)
    state = torch.get_rng_state()
    out.square().sum().backward()
    assert_close((v * v.grad).sum(), 2 * out.square().sum())
    assert torch.equal(torch.get_rng_state(), state)


@in_small_blocks
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_may_be_checkpointed_as_well(reentrant):
    torch.manual_seed(0)
    layer = wn.Attention(16, 2, wn.Shaw(8, 3), causal=True, implementation="blocks").double()
    grads = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=reentrant)):
        x = heads(1, 2, LENGTH, 16)[0].requires_grad_()
        run(x).square().sum().backward()
        grads.append([x.grad, *(p.grad.clone() for p in layer.parameters())])
        layer.zero_grad()
    for a, b in zip(*grads, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


@in_small_blocks
@pytest.mark.parametrize("padded", [False, True])
def test_decoding_in_chunks_is_the_full_pass(padded):
    torch.manual_seed(0)
    layer = wn.Attention(16, 2, wn.Shaw(8, 3), causal=True, implementation="blocks").double()
    x, mask = heads(1, 2, LENGTH, 16)[0], KEY_MASK if padded else None
    full, cache, found = layer(x, key_mask=mask), wn.KVCache(), []
    for chunk in (slice(0, 4), slice(4, 10), slice(10, 11)):
        seen = None if mask is None else mask[:, : chunk.stop]
        found.append(layer(x[:, chunk], cache=cache, key_mask=seen))
    assert_close(torch.cat(found, 1), full, rtol=1e-12, atol=1e-12)


# Without the memory


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gave."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


LONG = {
    "shaw": lambda: wn.Shaw(16, 20),
    "factor": lambda: wn.LearnedRelative(8, 20, "multiply"),
    "after softmax": lambda: wn.LearnedRelative(8, 20, "add", "weights"),
}
each_long = pytest.mark.parametrize("make", LONG.values(), ids=LONG)


@each_long
@pytest.mark.parametrize("regular", [True, False])
def test_no_tensor_has_a_number_for_every_pair(make, regular):
    length, encoding, kept = 2048, make(), []
    q, k, v = (t.requires_grad_() for t in qkv(1, 8, 8, length, length, 16, dtype=torch.float32))
    where = None if regular else torch.arange(length).flip(0)

    def keep(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = wn.attention(q, k, v, encoding, where=where, causal=True)
        out.sum().backward()
    assert largest.elements < length * length
    assert sum(kept) <= 8 * q.numel()  # what is kept for the backward pass


@pytest.mark.parametrize("regular", [True, False])
@each_long
def test_nothing_prepared_has_a_number_for_every_pair(make, regular):
    positions = torch.arange(3000)
    where = wn.Where(positions).as_regular() if regular else wn.Where(positions)
    encoding = make()
    with Largest() as largest:
        encoding.prepare(where)
    assert largest.elements <= 8 * 2 * 3000


@in_small_blocks
def test_a_causal_block_meets_only_the_keys_that_it_may_see():
    met = []

    class Spy(wn.PositionalEncoding):
        def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
            assert (
                call.allowed.shape[-2:] == logits.shape[-2:] == (call.q.shape[2], call.k.shape[2])
            )
            assert call.at.where.positions.shape[1] == call.q.shape[2]
            assert call.at.where.keys.shape[1] == call.k.shape[2] == call.features["f"].shape[1]
            met.append(tuple(logits.shape[-2:]))
            return logits

    q, k, v = qkv(queries=7, keys=LENGTH, dim=WIDTH)
    options = {"features": {"f": torch.zeros(2, LENGTH)}, "where": wn.Where(ids(7), ids(LENGTH))}
    wn.attention(q, k, v, Spy(), causal=True, **options)
    wn.attention(q, k, v, Spy(), **options)
    met_by_sdpa, met[:] = list(met), []
    assert met_by_sdpa == [(3, 7), (3, 10), (1, 11), (3, 11), (3, 11), (1, 11)]


# Where they serve


class Counted:
    """How often a block was answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks, original = 0, blocks._block

        def count(*args: Any) -> Tensor:
            self.blocks += 1
            return original(*args)

        monkeypatch.setattr(blocks, "_block", count)


@in_small_blocks
def test_auto_takes_them_for_what_no_fused_kernel_serves(monkeypatch):
    counted, given = Counted(monkeypatch), qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH)
    wn.attention(*given, wn.Shaw(WIDTH, 3))
    assert counted.blocks == 4
    wn.attention(*given, wn.ALiBi(HEADS))
    wn.attention(*given, wn.Shaw(WIDTH, 3), return_weights=True)
    wn.attention(*given, [wn.Shaw(WIDTH, 3), Whole()])
    assert counted.blocks == 4


def test_short_sequences_are_one_block(monkeypatch):
    counted = Counted(monkeypatch)
    wn.attention(*qkv(), wn.Shaw(8, 3))
    assert counted.blocks == 0


def test_what_they_cannot_serve_is_refused():
    given = qkv()
    with pytest.raises(ValueError, match="blocks.*keeps no weights"):
        wn.attention(*given, return_weights=True, implementation="blocks")
    with pytest.raises(ValueError, match=r"blocks.*Whole.data_of_rows"):
        wn.attention(*given, [wn.RoPE(8), Whole()], implementation="blocks")


@in_small_blocks
@pytest.mark.untyped
def test_a_functional_transform_takes_the_plain_steps():
    q, k, v = qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH)
    shaw = scribbled(wn.Shaw(WIDTH, 3))

    def loss(q: Tensor, implementation: str) -> Tensor:
        return wn.attention(q, k, v, shaw, implementation=implementation).square().sum()

    expected = q.clone().requires_grad_()
    loss(expected, "blocks").backward()
    assert_close(torch.func.grad(loss)(q, "auto"), expected.grad, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"blocks.*torch\.func"):
        torch.func.grad(loss)(q, "blocks")


@in_small_blocks
@pytest.mark.untyped
def test_compiled_attention_takes_the_plain_steps():
    q, k, v = qkv(queries=LENGTH, keys=LENGTH, dim=WIDTH)
    shaw = scribbled(wn.Shaw(WIDTH, 3))

    def run(implementation: str) -> Tensor:
        return wn.attention(q, k, v, shaw, causal=True, implementation=implementation)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_close(compiled("auto"), run("blocks"), rtol=1e-12, atol=1e-12)
    with pytest.raises(Exception, match="does not compile"):
        compiled("blocks")
