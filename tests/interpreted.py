"""Triton's kernels without a GPU: run in Triton's interpreter or only compiled, in a process apart.

Triton reads TRITON_INTERPRET when it is imported, and torch.compile in another test may have
imported it: so no test imports it in its own process. What crosses is plain: a Cell there, NumPy
arrays back.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# What a memory order keeps around the numbers of a view (B, H, S, D), and how it shows them.
MEMORY = {
    "bhsd": torch.empty,
    "bshd": lambda b, h, s, d: torch.empty(b, s, h, d).transpose(1, 2),
    "sbhd": lambda b, h, s, d: torch.empty(s, b, h, d).permute(1, 2, 0, 3),
    "fused": lambda b, h, s, d: torch.empty(b, s, 3, h, d)[:, :, 1].transpose(1, 2),
    "channels_first": lambda b, h, s, d: torch.empty(b, h, d, s).transpose(2, 3),
    "every_second": lambda b, h, s, d: torch.empty(b, h, 2 * s, 2 * d)[:, :, ::2, 1::2],
    "packed": lambda b, h, s, d: torch.empty(s, h, d).unsqueeze(0).transpose(1, 2),  # b = 1
}
# Batch and heads of the tables.
TABLES = {
    "shared": lambda b, h: (1, 1),
    "rows": lambda b, h: (b, 1),
    "heads": lambda b, h: (1, h),
    "groups": lambda b, h: (b, h // 2),
}


@dataclass(frozen=True)
class Cell:
    """One call of the kernel: two tensors, each with random tables of its own."""

    dtype: str = "float32"
    interleaved: bool = False
    transposed: bool = False
    batch: int = 2
    heads: tuple[int, ...] = (4, 2)
    length: int = 3
    head_dim: int = 8
    pairs: int = 4
    start: int = 0
    tables: str = "rows"
    memory: str = "bhsd"
    out: str = "bhsd"
    """Memory order of the results, or "in_place"."""

    def __str__(self) -> str:
        of = "interleaved" if self.interleaved else "half"
        way = "back" if self.transposed else "forth"
        heads = "+".join(map(str, self.heads))
        size = f"{self.batch}x{heads}x{self.length}x{self.head_dim}"
        part = f"{self.start}:{self.start + 2 * self.pairs}"
        return f"{self.dtype}-{of}-{way}-{size}-{part}-{self.tables}-{self.memory}-{self.out}"


@contextmanager
def process(interpret: bool) -> Iterator[ProcessPoolExecutor]:
    """A process of its own, whose Triton interprets or compiles."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _prepare, (interpret,)) as pool:
        yield pool


def _prepare(interpret: bool) -> None:
    os.environ["TRITON_INTERPRET"] = str(int(interpret))
    torch.set_num_threads(1)


def turned(cell: Cell, seed: int = 0) -> list[dict[str, Any]]:
    """What the kernel makes of a cell: x, cos, sin and out of each tensor in float64.

    What lies around the tensors and tables is NaN, and so are the results beforehand: numbers that
    are no part of them, and cells that stay unwritten, show. `stray` counts writes elsewhere.
    """
    from whereness.kernels.triton_rotary import rotate

    torch.manual_seed(seed)
    dtype = getattr(torch, cell.dtype)
    xs, tables, outs = [], [], []
    for heads in cell.heads:
        shape = (cell.batch, heads, cell.length, cell.head_dim)
        xs.append(_poisoned(cell.memory, shape, dtype))
        xs[-1].copy_(torch.randn(shape, dtype=torch.float64))
        tables.append((_table(cell, heads), _table(cell, heads)))
        in_place = cell.out == "in_place"
        outs.append(xs[-1] if in_place else _poisoned(cell.out, shape, dtype))
    inputs = [x.double() for x in xs]
    rotate(xs, tables, cell.start, cell.interleaved, cell.transposed, outs)
    each = zip(inputs, tables, outs, strict=True)
    return [
        {
            "x": x.numpy(),
            "cos": cos.double().numpy(),
            "sin": sin.double().numpy(),
            "out": out.double().numpy(),
            "stray": int((~_whole(out).isnan()).sum() - (~out.isnan()).sum()),
        }
        for x, (cos, sin), out in each
    ]


def turned_afar(axis: int, interleaved: bool, start: int) -> tuple[Any, Any]:
    """Before and after a right angle: (B, H, S, D), three elements along an axis, 2^30 apart.

    The offset of the last does not fit 31 bits, though its stride does. Only a few pages of each
    4 GiB are ever touched.
    """
    from triton.runtime.interpreter import GridExecutor

    from whereness.kernels.triton_rotary import rotate

    # It copies whole storages back from the CPU to the CPU.
    GridExecutor._restore_args_dev = lambda *_: None
    far = 2**30
    sizes, strides = [1, 1, 1, 3], [3, 3, 3, 1]
    sizes[axis], strides[axis] = 3, far
    x, out = (
        torch.empty(2 * far + 3, dtype=torch.float16).as_strided(sizes, strides) for _ in range(2)
    )
    before = torch.arange(1.0, x.numel() + 1).reshape(sizes)
    x.copy_(before)
    cos, sin = torch.zeros(1, x.shape[2], 1, 1), torch.ones(1, x.shape[2], 1, 1)
    rotate([x], [(cos, sin)], start, interleaved, False, [out])
    return before.numpy(), out.float().numpy()


def through_layers(backend: str) -> list[Any]:
    """q and k of RoPE turned by a backend, forth and back, in place, and their gradients."""
    import whereness as wn
    from whereness.kernels.rotary import using

    torch.manual_seed(0)
    rope = wn.RoPE(12, rotary_dim=6, pairing="interleaved", rotary_side="trailing")
    q, k = (torch.randn(2, 5, h, 12, requires_grad=True) for h in (4, 2))
    positions = torch.tensor([[0, 1, 2, 5, 9], [3, 3, 70, 1, 0]])
    with using(backend):
        out_q, out_k = rope(q, k, positions, layout="bshd")
        (out_q.sin().sum() + out_k.cos().sum()).backward()
        back = rope.rotate(out_q, positions, inverse=True, layout="bshd")
        in_place = rope.rotate_(k.detach().clone(), positions, layout="bshd")
    return [t.detach().numpy() for t in (out_q, out_k, q.grad, k.grad, back, in_place)]


def compiled(cell: Cell, capability: int) -> str:
    """The PTX of a cell for a GPU of this compute capability (90: 9.0), assembled as well."""
    import triton
    from triton.backends.compiler import GPUTarget

    from whereness.kernels import triton_rotary
    from whereness.kernels.triton_turn import turn

    made = []

    class Recorder:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *args, num_warps, **named: made.append((args, named, num_warps))

    dtype = getattr(torch, cell.dtype)
    shape = (cell.batch, cell.heads[0], cell.length, cell.head_dim)
    x, out = (_poisoned(memory, shape, dtype) for memory in (cell.memory, cell.out))
    cos, sin = (_table(cell, cell.heads[0]).contiguous() for _ in range(2))
    how = (cell.start, cell.interleaved, cell.transposed)
    triton_rotary._launch(Recorder(), x, cos, sin, *how, out)
    ((args, named, num_warps),) = made
    values = dict(zip(turn.arg_names, args, strict=False)) | named
    constants, attributes, signature = {}, {}, {}
    for place, name in enumerate(turn.arg_names):
        value = values[name]
        varies = name not in ("length", "blocks", "chunks", "group")
        if isinstance(value, Tensor):
            signature[name] = "*" + _SHORT[value.dtype]
        elif name in named or (value == 1 and varies):
            signature[name], constants[place,] = "constexpr", value
        else:
            signature[name] = "i32"
        aligned = isinstance(value, Tensor) or (varies and value % 16 == 0)
        if aligned and signature[name] != "constexpr":
            attributes[place,] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(turn, signature, constants, attributes)
    target = GPUTarget("cuda", capability, 32)
    whole = triton.compile(source, target=target, options={"num_warps": num_warps})
    assert whole.asm["cubin"]
    return whole.asm["ptx"]


def refused() -> str:
    """What a tensor on the CPU is told by a Triton that compiles."""
    from whereness.kernels.triton_rotary import rotate

    x, table = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 1)
    try:
        rotate([x], [(table, table)], 0, False, False, [x])
    except ValueError as error:
        return str(error)
    return ""


_SHORT = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


def _poisoned(memory: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        made = MEMORY[memory](*shape)
    finally:
        torch.set_default_dtype(before)
    _whole(made).fill_(float("nan"))
    return made


def _whole(view: Tensor) -> Tensor:
    """All of the memory that a view looks at."""
    return view if view._base is None else view._base


def _table(cell: Cell, heads: int) -> Tensor:
    """Random numbers (no angle's: any factor must do), last axis contiguous, NaN between rows."""
    rows, of_heads = TABLES[cell.tables](cell.batch, heads)
    dtype = torch.float64 if cell.dtype == "float64" else torch.float32
    wide = torch.full((rows, cell.length, of_heads, cell.pairs + 3), float("nan"), dtype=dtype)
    table = wide[..., 1 : 1 + cell.pairs]
    return table.copy_(torch.randn(table.shape, dtype=dtype))
