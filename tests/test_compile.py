"""`torch.compile(fullgraph=True, dynamic=True)`: no graph break, one compilation for all lengths
and one more for a single token; numbers and gradients are those of eager."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.testing import assert_close

import whereness as wn

pytestmark = pytest.mark.untyped  # the checks of types would be compiled, too
more = pytest.mark.more
HEADS, GROUPS, WIDTH = 2, 1, 12  # no length: torch takes equal sizes for one size
DIM = HEADS * WIDTH
LENGTHS = (8, 9, 300, 4096)
SOME_LENGTHS = (8, 9, 300, 1100)  # where eager has a number for every pair
LAST = 4096


@dataclass(frozen=True)
class Way:
    """Something to compile: tensors to tensors. `inputs` gives what it takes at a length."""

    run: Callable[..., Any]
    inputs: Callable[[int], Sequence[Tensor]]
    learned: tuple[nn.Parameter, ...] = ()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def queries_keys_values(length: int) -> list[Tensor]:
    sizes = ((2, HEADS), (2, GROUPS), (2, GROUPS))
    return [drawn(*size, length, WIDTH, seed=s) for s, size in enumerate(sizes)]


def places(length: int) -> Tensor:
    return torch.arange(length) * 3 + 1


def cells(length: int) -> Tensor:
    return torch.stack((torch.arange(length) // 5, torch.arange(length) % 5), -1)


def scribbled(module: nn.Module) -> Any:
    torch.manual_seed(0)
    for p in module.double().parameters():
        nn.init.normal_(p)
    return module


# What an encoding gives by itself


def turning(rope: Any, where: Callable[[int], Tensor] | None) -> Way:
    if where is None:
        return Way(rope, lambda n: queries_keys_values(n)[:2])
    return Way(rope, lambda n: (*queries_keys_values(n)[:2], where(n)))


def inverse(rope: wn.RoPE) -> Way:
    def run(x: Tensor, positions: Tensor) -> Tensor:
        return rope.rotate_(x * 1.0, positions, inverse=True)

    return Way(run, lambda n: (drawn(2, HEADS, n, WIDTH), places(n)))


def rows(encoding: wn.PositionalEncoding) -> Way:
    return Way(encoding, lambda n: (places(n),), tuple(encoding.parameters()))


def bias(encoding: Any) -> Way:
    """Of a query for every second key: a number a pair is many at the greatest length."""
    return Way(
        encoding.bias,
        lambda n: (places(n)[-max(n // 2, 1) :], places(n)),
        tuple(encoding.parameters()),
    )


ALONE: dict[str, Callable[[], Way]] = {
    "rope": lambda: turning(wn.RoPE(WIDTH), None),
    "rope, interleaved, partial": lambda: turning(
        wn.RoPE(WIDTH, 100.0, "interleaved", 4, "trailing"), places
    ),
    "rope, inverse, in place": lambda: inverse(wn.RoPE(WIDTH)),
    "axial": lambda: turning(wn.AxialRoPE(WIDTH), cells),
    "axial, shared": lambda: turning(wn.AxialRoPE(WIDTH, layout="shared_blocks"), cells),
    "alibi": lambda: bias(wn.ALiBi(HEADS)),
    "t5": lambda: bias(scribbled(wn.T5(HEADS))),
    "t5, both ways": lambda: bias(scribbled(wn.T5(HEADS, bidirectional=True))),
    "relative": lambda: bias(scribbled(wn.LearnedRelative(HEADS, 20))),
    "sinusoidal": lambda: rows(wn.Sinusoidal(DIM)),
    "learned": lambda: rows(scribbled(wn.LearnedAbsolute(DIM, 3 * LAST + 2))),
}


# Attention with it


def attention(make: Callable[[], Any], where: Callable[[int], Tensor] | None = None) -> Way:
    encoding = make()
    members = encoding if isinstance(encoding, list) else [encoding]
    learned = [p for e in members if e is not None for p in scribbled(e).parameters()]

    def run(q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None = None) -> Tensor:
        return wn.attention(q, k, v, encoding, where=positions, causal=True)

    def inputs(length: int) -> list[Tensor]:
        given = [t[:1] for t in queries_keys_values(length)]
        return given if where is None else [*given, where(length)]

    return Way(run, inputs, tuple(learned))


def masked() -> Way:
    def run(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> Tensor:
        options = {"key_mask": key_mask, "window": 50, "causal": True}
        return wn.attention(q, k, v, wn.RoPE(WIDTH), **options)

    def inputs(length: int) -> list[Tensor]:
        given = [t[:1] for t in queries_keys_values(length)]
        return [*given, (torch.arange(length) >= min(3, length - 1))[None]]

    return Way(run, inputs)


def packed() -> Way:
    def run(q: Tensor, k: Tensor, v: Tensor, segments: Tensor) -> Tensor:
        where = wn.Where(segments=segments)
        return wn.attention(q, k, v, wn.RoPE(WIDTH), where=where, causal=True)

    return Way(run, lambda n: [*(t[:1] for t in queries_keys_values(n)), torch.arange(n) // 6])


def layer(make: Callable[[], Any]) -> Way:
    torch.manual_seed(0)
    made = wn.Attention(DIM, HEADS, make(), GROUPS, causal=True).double()
    return Way(made, lambda n: (drawn(1, n, DIM),), tuple(made.parameters()))


def model(make: Callable[[], Any]) -> Way:
    torch.manual_seed(0)
    made = wn.Transformer(20, DIM, depth=1, num_heads=HEADS, encoding=make()).double()
    return Way(made, lambda n: ((torch.arange(n) % 20)[None],), tuple(made.parameters()))


ATTENTION: dict[str, Callable[[], Way]] = {
    "nope": lambda: attention(wn.NoPE),
    "rope": lambda: attention(lambda: wn.RoPE(WIDTH)),
    "rope at given places": lambda: attention(lambda: wn.RoPE(WIDTH), places),
    "rope, pads and a window": masked,
    "rope, packed": packed,
    "axial": lambda: attention(lambda: wn.AxialRoPE(WIDTH), cells),
    "alibi": lambda: attention(lambda: wn.ALiBi(HEADS)),
    "alibi at given places": lambda: attention(lambda: wn.ALiBi(HEADS), places),
    "t5": lambda: attention(lambda: wn.T5(HEADS)),
    "relative": lambda: attention(lambda: wn.LearnedRelative(HEADS, 20)),
    "rope and alibi": lambda: attention(lambda: [wn.RoPE(WIDTH), wn.ALiBi(HEADS)]),
    "factor": lambda: attention(lambda: wn.LearnedRelative(HEADS, 20, "multiply")),
    "shaw": lambda: attention(lambda: wn.Shaw(WIDTH, 20)),
    "sinusoidal": lambda: layer(lambda: wn.Sinusoidal(DIM, site="every_layer")),
    "learned": lambda: layer(lambda: wn.LearnedAbsolute(DIM, LAST, site="queries_keys")),
    "model, rope": lambda: model(lambda: wn.RoPE(WIDTH)),
    "model, sinusoidal": lambda: model(lambda: wn.Sinusoidal(DIM)),
    "model, learned": lambda: model(lambda: wn.LearnedAbsolute(DIM, LAST)),
}
ALL = {
    **{f"{name} alone": make for name, make in ALONE.items()},
    **{f"attention, {name}": make for name, make in ATTENTION.items()},
}
FIRST = (
    *(f"{name} alone" for name in ("rope", "axial", "alibi", "t5", "sinusoidal", "learned")),
    *(f"attention, {name}" for name in ("rope", "axial", "alibi", "t5", "sinusoidal", "learned")),
)


# The test


def outcome(run: Callable[..., Any], way: Way, length: int) -> list[Tensor]:
    """What it gives at a length, and the gradients of its real inputs and of what it learns."""
    inputs = [t.clone() for t in way.inputs(length)]
    real = [t.requires_grad_() for t in inputs if t.is_floating_point()]
    found = run(*inputs)
    outs = list(found) if isinstance(found, tuple) else [found]
    wanted = [*real, *way.learned]
    if not wanted:
        return outs
    loss = sum((o.double() * drawn(*o.shape, seed=9)).sum() for o in outs)
    return [*outs, *torch.autograd.grad(loss, wanted)]


def check_compiled(way: Way, backend: str, lengths: Sequence[int], tolerance: float) -> None:
    def same_at(length: int) -> None:
        found, expected = (outcome(run, way, length) for run in (compiled, way.run))
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, rtol=tolerance, atol=tolerance)

    torch._dynamo.reset()
    counters.clear()
    graphs = counters["stats"]
    compiled = torch.compile(way.run, backend=backend, fullgraph=True, dynamic=True)
    for length in lengths:
        same_at(length)
        assert graphs["unique_graphs"] == 1, f"compiled anew at length {length}"
    same_at(1)
    assert graphs["unique_graphs"] <= 2


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FIRST else [more]) for n in ALL])
def test_one_graph_serves_every_length(name):
    lengths = LENGTHS if name.endswith("alone") else SOME_LENGTHS
    check_compiled(ALL[name](), "aot_eager", lengths, 1e-12)


@more
@pytest.mark.parametrize("name", ["attention, rope", "attention, alibi"])
def test_and_long_ones(name):
    check_compiled(ALL[name](), "aot_eager", LENGTHS, 1e-12)


@more
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    "name",
    [
        "rope, interleaved, partial alone",
        "axial alone",
        "t5 alone",
        "sinusoidal alone",
        "learned alone",
        "attention, rope",
        "attention, alibi",
        "attention, relative",
        "attention, sinusoidal",
    ],
)
def test_one_generated_kernel_serves_every_length(name):
    check_compiled(ALL[name](), "inductor", (8, 9, 300), 1e-9)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rope = wn.RoPE(WIDTH)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rope(q, k)


class Attended(nn.Module):
    def __init__(self, encoding: wn.PositionalEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return wn.attention(q, k, v, self.encoding, causal=True)


EXPORTED: dict[str, Callable[[], nn.Module]] = {
    "rope": Turned,
    "attention, rope": lambda: Attended(wn.RoPE(WIDTH)),
    "attention, t5": lambda: Attended(scribbled(wn.T5(HEADS))),
    "attention, shaw": lambda: Attended(scribbled(wn.Shaw(WIDTH, 20))),
}


@pytest.mark.parametrize("make", EXPORTED.values(), ids=EXPORTED)
def test_what_is_exported_serves_every_length(make):
    module = make()
    count = 2 if isinstance(module, Turned) else 3
    length = torch.export.Dim("length", min=2, max=8192)
    exported = torch.export.export(
        module,
        tuple(queries_keys_values(17)[:count]),
        dynamic_shapes=tuple({2: length} for _ in range(count)),
    ).module()
    for n in (2, 9, 300):
        inputs = queries_keys_values(n)[:count]
        assert_close(exported(*inputs), module(*inputs), rtol=1e-12, atol=1e-12)
