"""Rows of rotary encoding: against the memory limit, against other forms, against other libraries.

q (1, 32, 2048, 128) and k (1, 8, 2048, 128) unless a row says otherwise; tables are prepared. The
oracle turns pairs in NumPy's float64.

Axes: B batch, S tokens, H heads, D head_dim, P pairs.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

import whereness as wn
from whereness.bench.contest import OURS, AbsentError, Bar, Contestant, Row, Scale, Verdict
from whereness.bench.gate import compare
from whereness.bench.peers import lone_file, peer

D, HEADS, KEY_HEADS = 128, 32, 8
BASE = 10_000.0
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNIT = 2.0**-24
HF, COMPILED = "transformers", "transformers compiled"

Pair = tuple[Tensor, Tensor]


def drawn(scale: Scale, dtype: torch.dtype, batch: int = 1, layout: str = "bhsd") -> Pair:
    """q and k of a row, the same numbers in every run."""
    generator = torch.Generator().manual_seed(0)
    tokens = scale.of(2048, 64) // batch

    def draw(heads: int) -> Tensor:
        shape = (batch, heads, tokens, D) if layout == "bhsd" else (batch, tokens, heads, D)
        return torch.randn(shape, generator=generator).to(dtype)

    return draw(HEADS), draw(KEY_HEADS)


def tokens_of(x: Tensor, layout: str = "bhsd") -> int:
    """Tokens of a sequence."""
    return x.shape[2 if layout == "bhsd" else 1]


# The oracle


def exact(
    x: Tensor,
    angles: Tensor,
    pairing: str = "half",
    layout: str = "bhsd",
    rotary_dim: int = D,
) -> Tensor:
    """x turned in float64; angles (S, P) or (B, S, P)."""
    x = x.detach().double()
    part, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    angles = angles if angles.dim() == 3 else angles[None]
    angles = angles[:, None] if layout == "bhsd" else angles[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    if pairing == "half":
        u, v = part.chunk(2, -1)
        turned = torch.cat([u * cos - v * sin, u * sin + v * cos], -1)
    else:
        u, v = part[..., 0::2], part[..., 1::2]
        turned = torch.stack([u * cos - v * sin, u * sin + v * cos], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def angles_at(positions: Tensor, width: int = D) -> Tensor:
    """(..., P) in float64, by NumPy's powers."""
    np = peer("numpy")
    frequencies = BASE ** (-2.0 * np.arange(width // 2) / width)
    return positions.double()[..., None] * torch.from_numpy(frequencies)


def allowed(x: Tensor, farthest: int = 0) -> float:
    """What the dtype explains: exact tables, products in float32, one rounding.

    A peer forms angles up to `farthest` in float32 and, in half types, rounds every product.
    """
    size = float(x.detach().abs().max()) * 2**0.5
    unit = torch.finfo(x.dtype).eps / 2
    if farthest:
        return (4 * farthest * UNIT + 8 * unit) * size
    return (8 * UNIT + (unit if x.dtype != torch.float32 else 0.0)) * size


# Contestants


def checked(
    name: str,
    run: Callable[[], object],
    output: Callable[[], Sequence[Tensor]],
    expected: Callable[[], Sequence[Tensor]],
    tolerance: float,
) -> Contestant:
    """A contestant whose outputs are compared with those expected."""
    return Contestant(name, run, compare(output, expected, tolerance))


def nothing_to_check() -> Verdict:
    """The gate of plain copies and products by one."""
    return Verdict(None, note="torch's own")


def ours(
    rope: Any,
    q: Tensor,
    k: Tensor,
    where: Tensor,
    expected: Callable[[], Sequence[Tensor]],
    *,
    in_place: bool,
    name: str = OURS,
    layout: str = "bhsd",
) -> Contestant:
    """Our rotation of q and k, in place or into new tensors."""
    at = rope.prepare(where)
    if not in_place:
        run: Callable[[], Any] = lambda: rope(q, k, at)  # noqa: E731
        if layout != "bhsd":
            run = lambda: rope(q, k, at, layout=layout)  # noqa: E731
        return checked(name, run, run, expected, allowed(q))

    def turn(x: Tensor, y: Tensor) -> Pair:
        return rope.rotate_(x, at, layout=layout), rope.rotate_(y, at, layout=layout)

    before = q.clone(), k.clone()

    def output() -> list[Tensor]:
        # On the very tensors that are timed, strides and all.
        found = [x.clone() for x in turn(q, k)]
        q.copy_(before[0])
        k.copy_(before[1])
        return found

    return checked(name, lambda: turn(q, k), output, expected, allowed(q))


def turned(
    q: Tensor, k: Tensor, angles: Tensor, *how: Any, **more: Any
) -> Callable[[], Sequence[Tensor]]:
    """The oracle of a pair as it is now."""
    before = q.clone(), k.clone()
    return lambda: [exact(x, angles, *how, **more) for x in before]


def against_torch(dtype: str, in_place: bool) -> Callable[[Scale], list[Contestant]]:
    """Ours beside one pass of torch over the same memory."""

    def make(scale: Scale) -> list[Contestant]:
        q, k = drawn(scale, DTYPES[dtype])
        positions = torch.arange(tokens_of(q))
        mine = ours(
            wn.RoPE(D), q, k, positions, turned(q, k, angles_at(positions)), in_place=in_place
        )
        if in_place:
            a, b = q.clone(), k.clone()
            return [
                mine,
                Contestant("mul_(1)", lambda: (a.mul_(1), b.mul_(1)), nothing_to_check),
            ]
        return [mine, Contestant("clone()", lambda: (q.clone(), k.clone()), nothing_to_check)]

    return make


# Other forms beside the plain one, in place


def form(kind: str) -> Callable[[Scale], list[Contestant]]:
    """Another form beside pairing "half" of the whole width, with as many bytes."""

    def make(scale: Scale) -> list[Contestant]:
        dtype, batch = torch.float32, 2 if kind == "ids" else 1
        layout = "bshd" if kind in ("bshd", "fused") else "bhsd"
        q, k = drawn(scale, dtype, batch, layout)
        if kind == "fused":
            q, k = _fused(q, k)
        where = torch.arange(tokens_of(q, layout))
        angles, rope, how = angles_at(where), wn.RoPE(D), ("half", layout)
        rotary_dim = D
        if kind == "interleaved":
            rope, how = wn.RoPE(D, pairing="interleaved"), ("interleaved", layout)
        elif kind == "partial":
            rotary_dim = D // 2
            rope, angles = wn.RoPE(D, rotary_dim=rotary_dim), angles_at(where, rotary_dim)
        elif kind == "ids":
            where = torch.stack([where, where + 1000])
            angles = angles_at(where)
        elif kind == "axial":
            rope, where = wn.AxialRoPE(D), wn.positions.grid(len(where) // 32, 32)
            angles = torch.cat([angles_at(where[:, axis], D // 2) for axis in (0, 1)], -1)
        expected = turned(q, k, angles, *how, rotary_dim=rotary_dim)
        mine = ours(rope, q, k, where, expected, in_place=True, layout=layout)
        x, y = drawn(scale, dtype, batch)
        line = torch.arange(tokens_of(x))
        plain = turned(x, y, angles_at(line))
        return [mine, ours(wn.RoPE(D), x, y, line, plain, in_place=True, name="plain half")]

    return make


def _fused(q: Tensor, k: Tensor) -> Pair:
    """The same numbers as views of one projection of queries, keys and values."""
    every = torch.cat([q, k, torch.zeros_like(k)], 2)
    return every[:, :, :HEADS], every[:, :, HEADS : HEADS + KEY_HEADS]


# transformers


def hf_tables(positions: Tensor, dtype: torch.dtype) -> Pair:
    """cos and sin as its Llama makes them."""
    config = peer("transformers").LlamaConfig(
        hidden_size=HEADS * D, num_attention_heads=HEADS, head_dim=D, max_position_embeddings=8192
    )
    module = peer("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding(config)
    return module(torch.zeros(1, dtype=dtype), positions[None])


def hf_turn() -> Callable[..., Pair]:
    """Its eager function."""
    return peer("transformers.models.llama.modeling_llama").apply_rotary_pos_emb


@cache
def hf_compiled() -> Callable[..., Pair]:
    """The same through torch.compile, once for all rows."""
    return torch.compile(hf_turn(), dynamic=False)


def hf(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    expected: Callable[[], Sequence[Tensor]],
    *,
    compiled: bool = False,
) -> Contestant:
    """transformers' rotation of q and k, with its tables."""
    function = hf_compiled() if compiled else hf_turn()
    cos, sin = hf_tables(positions, q.dtype)
    if compiled:
        try:
            function(q, k, cos, sin)
        except Exception as error:
            if "compil" not in f"{type(error).__name__} {error}".lower():
                raise
            first = str(error).strip().splitlines()[0]
            raise AbsentError(f"torch.compile cannot compile here: {first}") from error
    run: Callable[[], Any] = lambda: function(q, k, cos, sin)  # noqa: E731
    farthest = int(positions.max()) + 1
    return checked(COMPILED if compiled else HF, run, run, expected, allowed(q, farthest))


def against_hf(
    dtype: str, in_place: bool, compiled: bool = False
) -> Callable[[Scale], list[Contestant]]:
    """Ours beside transformers, which always makes new tensors."""

    def make(scale: Scale) -> list[Contestant]:
        q, k = drawn(scale, DTYPES[dtype])
        positions = torch.arange(tokens_of(q))
        expected = turned(q, k, angles_at(positions))
        a, b = q.clone(), k.clone()
        return [
            ours(wn.RoPE(D), a, b, positions, expected, in_place=in_place),
            hf(q, k, positions, expected, compiled=compiled),
        ]

    return make


def training(dtype: str) -> Callable[[Scale], list[Contestant]]:
    """Forward and backward, beside transformers."""

    def make(scale: Scale) -> list[Contestant]:
        q, k = (x.requires_grad_() for x in drawn(scale, DTYPES[dtype]))
        generator = torch.Generator().manual_seed(1)
        grads = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in (q, k)]
        positions = torch.arange(tokens_of(q))
        angles = angles_at(positions)
        rope, turn = wn.RoPE(D), hf_turn()
        at, (cos, sin) = rope.prepare(positions), hf_tables(positions, q.dtype)

        def step(outs: Sequence[Tensor]) -> list[Tensor]:
            return [*outs, *torch.autograd.grad(outs, (q, k), grads)]

        def expected() -> list[Tensor]:
            # The transpose of a turn turns back.
            forward = [exact(x, angles) for x in (q, k)]
            return forward + [exact(g, -angles) for g in grads]

        def mine() -> list[Tensor]:
            return step(rope(q, k, at))

        def theirs() -> list[Tensor]:
            return step(turn(q, k, cos, sin))

        return [
            checked(OURS, mine, mine, expected, allowed(grads[0])),
            checked(HF, theirs, theirs, expected, allowed(grads[0], len(positions))),
        ]

    return make


def decode(gradients: str) -> Callable[[Scale], list[Contestant]]:
    """One token, q and k in one call. gradients: "none", "recorded" or "backward" as well."""

    def make(scale: Scale) -> list[Contestant]:
        generator = torch.Generator().manual_seed(0)
        q, k = (torch.randn(1, h, 1, D, generator=generator) for h in (HEADS, KEY_HEADS))
        positions = torch.tensor([2047])
        expected = turned(q, k, angles_at(positions))
        if gradients == "none":
            rope = wn.RoPE(D)
            return [
                ours(rope, q, k, positions, expected, in_place=False),
                hf(q, k, positions, expected),
            ]
        q.requires_grad_(), k.requires_grad_()
        rope, turn = wn.RoPE(D), hf_turn()
        at, (cos, sin) = rope.prepare(positions), hf_tables(positions, q.dtype)
        ones = [torch.ones_like(q), torch.ones_like(k)]

        def finish(outs: Pair) -> Pair:
            if gradients == "backward":
                torch.autograd.grad(outs, (q, k), ones)
            return outs

        def mine() -> Pair:
            return finish(rope(q, k, at))

        def theirs() -> Pair:
            return finish(turn(q, k, cos, sin))

        return [
            checked(OURS, mine, mine, expected, allowed(q)),
            checked(HF, theirs, theirs, expected, allowed(q, 2048)),
        ]

    return make


# Other libraries, into new tensors


def library(name: str, dtype: str) -> Callable[[Scale], list[Contestant]]:
    """Ours beside a library, in the library's pairing and layout."""

    def make(scale: Scale) -> list[Contestant]:
        layout = "bshd" if name == "torchtune" else "bhsd"
        q, k = drawn(scale, DTYPES[dtype], layout=layout)
        where = torch.arange(tokens_of(q, layout))
        angles, rope = angles_at(where), wn.RoPE(D, pairing="interleaved")
        if name == "timm":
            rows, columns = len(where) // 32, 32
            where = wn.positions.grid(rows, columns)
            angles = torch.cat([angles_at(where[:, a], D // 2) for a in (0, 1)], -1)
            rope = wn.AxialRoPE(D, pairing="interleaved")
        turn = LIBRARIES[name](len(where))
        expected = turned(q, k, angles, "interleaved", layout)
        farthest = int(where.max()) + 1

        def theirs() -> Pair:
            return turn(q), turn(k)

        return [
            ours(rope, q, k, where, expected, in_place=False, layout=layout),
            checked(name, theirs, theirs, expected, allowed(q, farthest)),
        ]

    return make


def _rotary_embedding_torch(length: int) -> Callable[[Tensor], Tensor]:
    module = peer("rotary_embedding_torch").RotaryEmbedding(D)
    with torch.no_grad():
        module(torch.arange(length), seq_len=length)  # fills its cache
    return module.rotate_queries_or_keys


def _x_transformers(length: int) -> Callable[[Tensor], Tensor]:
    theirs = peer("x_transformers.x_transformers")
    frequencies, scale = theirs.RotaryEmbedding(D)(torch.arange(length))
    return lambda x: theirs.apply_rotary_pos_emb(x, frequencies, scale)


def _torchtune(length: int) -> Callable[[Tensor], Tensor]:
    theirs = lone_file("torchtune.modules.position_embeddings")
    return theirs.RotaryPositionalEmbeddings(D, max_seq_len=length)


def _timm(length: int) -> Callable[[Tensor], Tensor]:
    theirs = lone_file("timm.layers.pos_embed_sincos")
    options = {"in_pixels": False, "temperature": BASE}
    table = theirs.RotaryEmbeddingCat(D, **options).get_embed([length // 32, 32])
    return lambda x: theirs.apply_rot_embed_cat(x, table)


LIBRARIES = {
    "rotary-embedding-torch": _rotary_embedding_torch,
    "x-transformers": _x_transformers,
    "torchtune": _torchtune,
    "timm": _timm,
}

IN_PLACE = {"float32": 1.25, "bfloat16": 1.15, "float16": 1.35}
NEW = {"float32": 1.15, "bfloat16": 1.45, "float16": 1.6}
FASTER = {
    ("float32", True): 12,
    ("float32", False): 5,
    ("bfloat16", True): 7,
    ("bfloat16", False): 4,
}
TRAINING = {"float32": 5, "bfloat16": 4.5, "float16": 4.5}
FORMS = {"interleaved": 1.3, "partial": 1.3, "ids": 1.3, "bshd": 1.3, "axial": 1.3, "fused": 1.45}
FORM_NAMES = {
    "interleaved": "pairing interleaved",
    "partial": "half of the width turned",
    "ids": "ids (B, S), B = 2",
    "bshd": "layout bshd",
    "axial": "AxialRoPE, two axes",
    "fused": "views of a fused QKV",
}
HOW = {True: "in place", False: "new"}

ROWS = (
    *(
        Row(
            f"rotary/in-place/{dtype}",
            f"in place, {dtype}",
            (Bar("ratio", limit, "mul_(1)"),),
            against_torch(dtype, in_place=True),
        )
        for dtype, limit in IN_PLACE.items()
    ),
    *(
        Row(
            f"rotary/new/{dtype}",
            f"to new tensors, {dtype}",
            (Bar("ratio", limit, "clone()"),),
            against_torch(dtype, in_place=False),
        )
        for dtype, limit in NEW.items()
    ),
    *(
        Row(
            f"rotary/form/{kind}",
            f"{FORM_NAMES[kind]}, in place",
            (Bar("ratio", limit, "plain half"),),
            form(kind),
        )
        for kind, limit in FORMS.items()
    ),
    *(
        Row(
            f"rotary/transformers/{dtype}-{HOW[in_place].replace(' ', '-')}",
            f"{HOW[in_place]}, {dtype}",
            (Bar("speedup", limit, HF),),
            against_hf(dtype, in_place),
        )
        for (dtype, in_place), limit in FASTER.items()
    ),
    *(
        Row(
            f"rotary/compiled/{dtype}-{HOW[in_place].replace(' ', '-')}",
            f"{HOW[in_place]}, {dtype}",
            (Bar("speedup", 2, COMPILED),),
            against_hf(dtype, in_place, compiled=True),
        )
        for dtype, in_place in FASTER
    ),
    *(
        Row(
            f"rotary/training/{dtype}",
            f"forward + backward, {dtype}",
            (Bar("speedup", limit, HF),),
            training(dtype),
        )
        for dtype, limit in TRAINING.items()
    ),
    Row(
        "rotary/decode/plain",
        "decode, S = 1, float32",
        (Bar("time", 30e-6), Bar("ratio", 0.35, HF)),
        decode("none"),
    ),
    Row(
        "rotary/decode/gradients",
        "decode, gradients recorded",
        (Bar("ratio", 0.6, HF),),
        decode("recorded"),
    ),
    Row(
        "rotary/decode/backward",
        "decode, forward + backward",
        (Bar("ratio", None, HF),),
        decode("backward"),
    ),
    *(
        Row(
            f"rotary/{name}/{dtype}",
            f"new, {dtype}",
            (Bar("speedup", None, name),),
            library(name, dtype),
        )
        for name in LIBRARIES
        for dtype in ("float32", "bfloat16")
    ),
)
