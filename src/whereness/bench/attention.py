"""Rows of attention with a bias that looks at the offset alone, beside plain causal SDPA.

S = 4096, H = 8, D = 64, causal, float32; what our encoding prepares is part of its time. The oracle
is attention in float64: for outputs at some queries of every head, for gradients in the first and
the last head.

Axes: H heads, S tokens, D head_dim.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import whereness as wn
from whereness.bench.contest import OURS, Bar, Contestant, Row, Scale
from whereness.bench.gate import compare

HEADS, D = 8, 64
SDPA, DENSE = "plain SDPA", "SDPA, ready dense bias"
UNIT = 2.0**-24


class Inputs(NamedTuple):
    """q, k, v (1, H, S, D) and the gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor


def drawn(tokens: int, gradients: bool = False) -> Inputs:
    """The same numbers in every run."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, HEADS, tokens, D, generator=generator) for _ in range(4))
    if gradients:
        for t in (q, k, v):
            t.requires_grad_()
    return Inputs(q, k, v, grad)


def encoding(kind: str) -> wn.PositionalEncoding:
    """An encoding that looks at the offset alone, its table drawn if it has one."""
    made: Any = {
        "alibi": lambda: wn.ALiBi(HEADS),
        "t5": lambda: wn.T5(HEADS, scaled=True),
        "learned_relative": lambda: wn.LearnedRelative(HEADS, 128),
    }[kind]()
    if kind != "alibi":
        with torch.no_grad():
            made.table.normal_(generator=torch.Generator().manual_seed(2))
    return made


def table_of(made: wn.PositionalEncoding) -> Tensor | None:
    """What it learns, if it learns."""
    return next(made.parameters(), None)


# The oracle


def entries(kind: str, tokens: int) -> list[int]:
    """The row of the table that serves each distance back, 0 .. tokens - 1."""
    if kind == "learned_relative":
        return [128 - min(n, 128) for n in range(tokens)]
    # T5, causal: 16 buckets of one distance, 16 that grow up to 128.
    far = [16 + int(math.log(n / 16) / math.log(8) * 16) for n in range(16, tokens)]
    return [*range(min(16, tokens)), *(min(31, bucket) for bucket in far)]


def strip(kind: str, table: Tensor | None, tokens: int) -> Tensor:
    """The bias at each distance back, (H, tokens), float64."""
    if table is None:
        slopes = torch.tensor([2.0 ** -(h + 1) for h in range(HEADS)], dtype=torch.float64)
        return -slopes[:, None] * torch.arange(tokens, dtype=torch.float64)
    return table.detach().double()[entries(kind, tokens)].T


def exact_rows(inputs: Inputs, by_distance: Tensor | None, rows: Sequence[int]) -> Tensor:
    """Causal attention at the queries `rows`, (H, len(rows), D), float64."""
    q, k, v = (t.detach().double()[0] for t in inputs[:3])
    found = []
    for i in rows:
        logits = (k[:, : i + 1] @ q[:, i, :, None])[..., 0] * D**-0.5
        if by_distance is not None:
            logits = logits + by_distance[:, : i + 1].flip(-1)
        found.append((logits.softmax(-1)[:, None] @ v[:, : i + 1])[:, 0])
    return torch.stack(found, 1)


def exact_gradients(
    inputs: Inputs, by_distance: Tensor | None, head: int
) -> tuple[list[Tensor], Tensor]:
    """(gradients of q, k, v of one head, sums of those of the bias by distance), float64."""
    q, k, v, grad = (t.detach().double()[0, head] for t in inputs)
    tokens = len(q)
    logits = q @ k.T * D**-0.5
    line = torch.arange(tokens)
    if by_distance is not None:
        logits += by_distance[head][(line[:, None] - line).clamp(min=0)]
    weights = logits.masked_fill_(line[:, None] < line, -math.inf).softmax(-1)
    out = weights @ v
    inner = weights * (grad @ v.T - (grad * out).sum(-1, keepdim=True))
    # Diagonals one below another: row i shifted by i.
    sums = torch.zeros(tokens, dtype=torch.float64)
    for i in range(tokens):
        sums[: i + 1] += inner[i, : i + 1].flip(-1)
    return [inner @ k * D**-0.5, inner.T @ q * D**-0.5, weights.T @ grad], sums


def sampled(tokens: int, number: int = 32) -> list[int]:
    """Queries to look at, first and last among them."""
    return sorted({round(i * (tokens - 1) / (number - 1)) for i in range(number)})


def allowed(inputs: Inputs) -> float:
    """Logits and exponentials of float32, times the largest value."""
    q, k, v = (t.detach() for t in inputs[:3])
    largest = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * D**-0.5
    return 16 * (1 + largest) * UNIT * float(v.abs().max())


# Contestants


def implementation(at_once: Callable[[str], object]) -> tuple[str, str]:
    """("toeplitz", "") where it serves such calls, else "auto" and the reason."""
    try:
        at_once("toeplitz")
    except ValueError as error:
        return "auto", f"implementation auto, as toeplitz was refused: {error}"
    return "toeplitz", ""


def ours_for(kind: str, small: Inputs) -> tuple[wn.PositionalEncoding, str, str]:
    """(the encoding, the implementation that serves it, a note)."""
    made = encoding(kind)
    chosen, note = implementation(
        lambda name: wn.attention(*small[:3], made, causal=True, implementation=name)
    )
    return made, chosen, note


def forward(kind: str) -> Callable[[Scale], list[Contestant]]:
    """Ours, plain SDPA, and SDPA with a dense bias that is ready before."""

    def make(scale: Scale) -> list[Contestant]:
        inputs = drawn(scale.of(4096, 96))
        tokens = inputs.q.shape[2]
        made, chosen, note = ours_for(kind, drawn(8))
        table = table_of(made)
        by_distance = strip(kind, table, tokens)
        rows = sampled(tokens)
        dense = dense_bias(by_distance)

        @torch.no_grad()
        def mine() -> Tensor:
            return wn.attention(*inputs[:3], made, causal=True, implementation=chosen)

        def plain() -> Tensor:
            return F.scaled_dot_product_attention(*inputs[:3], is_causal=True)

        def biased() -> Tensor:
            return F.scaled_dot_product_attention(*inputs[:3], attn_mask=dense)

        def entrant(
            name: str, run: Callable[[], Tensor], bias: Tensor | None, note: str = ""
        ) -> Contestant:
            gate = compare(
                lambda: run()[0][:, rows],
                lambda: exact_rows(inputs, bias, rows),
                allowed(inputs),
            )
            return Contestant(name, run, gate, note=note)

        return [
            entrant(OURS, mine, by_distance, note),
            entrant(SDPA, plain, None),
            entrant(DENSE, biased, by_distance),
        ]

    return make


def dense_bias(by_distance: Tensor) -> Tensor:
    """(1, H, S, S) in float32, the future masked: what others build."""
    heads, tokens = by_distance.shape
    future = torch.full((heads, tokens - 1), -math.inf)
    line = torch.cat([by_distance.float().flip(-1), future], -1)
    return line.unfold(-1, tokens, 1).flip(-2)[None].contiguous()


def training(kind: str) -> Callable[[Scale], list[Contestant]]:
    """Forward and backward, ours and plain SDPA."""

    def make(scale: Scale) -> list[Contestant]:
        inputs = drawn(scale.of(4096, 96), gradients=True)
        tokens = inputs.q.shape[2]
        made, chosen, note = ours_for(kind, drawn(8, gradients=True))
        table = table_of(made)
        by_distance = strip(kind, table, tokens)
        learned = [] if table is None else [table]

        def mine() -> Sequence[Tensor]:
            out = wn.attention(*inputs[:3], made, causal=True, implementation=chosen)
            return torch.autograd.grad(out, [*inputs[:3], *learned], inputs.grad)

        def plain() -> Sequence[Tensor]:
            out = F.scaled_dot_product_attention(*inputs[:3], is_causal=True)
            return torch.autograd.grad(out, inputs[:3], inputs.grad)

        heads = (0, HEADS - 1)
        size = allowed(inputs) * float(inputs.grad.abs().max()) * 4

        def entrant(
            name: str, run: Callable[[], Sequence[Tensor]], bias: Tensor | None, note: str = ""
        ) -> Contestant:
            of_table = bool(learned) and bias is not None

            def output() -> list[Tensor]:
                found = run()
                parts = [g[0, h] for h in heads for g in found[:3]]
                return parts + ([found[3][:, h] for h in heads] if of_table else [])

            def expected() -> list[Tensor]:
                exact = [exact_gradients(inputs, bias, h) for h in heads]
                parts = [g for gradients, _ in exact for g in gradients]
                if not of_table or table is None:
                    return parts
                rows = torch.tensor(entries(kind, tokens))
                zero = torch.zeros(len(table), dtype=torch.float64)
                return parts + [zero.index_add(0, rows, sums) for _, sums in exact]

            # A table's gradient is a sum over S queries of differences that cancel.
            sizes = [size] * 6 + ([size * math.sqrt(tokens)] * 2 if of_table else [])
            return Contestant(name, run, compare(output, expected, sizes), note=note)

        return [entrant(OURS, mine, by_distance, note), entrant(SDPA, plain, None)]

    return make


ROWS = (
    *(
        Row(
            f"attention/forward/{kind}",
            f"{name}, S = 4096, forward",
            (Bar("ratio", 1.3, SDPA), Bar("ratio", None, DENSE)),
            forward(kind),
        )
        for kind, name in (
            ("alibi", "ALiBi"),
            ("t5", "T5"),
            ("learned_relative", "LearnedRelative"),
        )
    ),
    *(
        Row(
            f"attention/training/{kind}",
            f"{name}, S = 4096, forward + backward",
            (Bar("ratio", limit, SDPA),),
            training(kind),
        )
        for kind, name, limit in (
            ("alibi", "ALiBi", 1.35),
            ("t5", "T5", 1.7),
            ("learned_relative", "LearnedRelative", 1.7),
        )
    ),
)
