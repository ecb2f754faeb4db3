"""The Triton kernel in Triton's interpreter, against loops over elements; compiled for GPUs.

Not run on a GPU. The interpreter cuts off what it rounds to bfloat16, where GPUs round to nearest:
that the code for them says so is tested as well.
"""

import re
import sys
from itertools import product

import numpy as np
import pytest
import torch

import interpreted
from interpreted import Cell
from processes import python
from whereness.kernels import triton_rotary

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Relative error of a sum of two products, then of one rounding to the dtype.
FORMED = {"float32": 2**-23, "bfloat16": 2**-23, "float16": 2**-23, "float64": 2**-52}
ROUNDED = {"bfloat16": 2**-7, "float16": 2**-11}
TINY = 2**-25  # half the smallest float16

# head_dim, pairs, start: all of a head; leading, trailing, middle; odd widths; one pair.
PARTS = ((8, 4, 0), (10, 3, 0), (10, 3, 4), (13, 3, 2), (9, 4, 1), (7, 1, 3))
SIZES = (
    # batch, heads, length, head_dim: equal axes of 1, 2, 3, axes that do not divide one another
    (1, (1,), 1, 2),
    (2, (2, 2), 2, 2),
    (3, (3, 3), 3, 6),
    (1, (5, 1), 1, 8),
    (3, (8, 2), 2, 6),
    (2, (12, 4), 1, 8),
    (1, (2, 1), 33, 128),  # more than one block of tokens, the last one not full
    (1, (1,), 3, 512),
    (1, (1,), 2, 96),
)
HALVES = ("float32", "bfloat16")
BOTH = (False, True)
CELLS = {
    "parts": [
        Cell(dtype, interleaved, transposed, head_dim=d, pairs=p, start=s)
        for dtype, interleaved, transposed, (d, p, s) in product(DTYPES, BOTH, BOTH, PARTS)
    ],
    "tables and strides": [
        Cell(dtype, interleaved, tables=tables, memory=memory, out="bshd", head_dim=10, start=1)
        for dtype, interleaved, tables, memory in product(
            HALVES, BOTH, interpreted.TABLES, ("bhsd", "bshd", "fused", "every_second")
        )
    ],
    "strides of results": [
        Cell("float32", interleaved, memory="sbhd", out=out, head_dim=10, start=2)
        for interleaved, out in product(BOTH, interpreted.MEMORY)
        if out != "packed"
    ],
    "in place": [
        Cell(dtype, interleaved, transposed, memory=memory, out="in_place", head_dim=11, start=2)
        for dtype, interleaved, transposed, memory in product(
            HALVES, BOTH, BOTH, ("bhsd", "bshd", "sbhd", "fused", "channels_first", "every_second")
        )
    ],
    "packed": [
        Cell(dtype, interleaved, batch=1, length=7, memory="packed", out=out, tables=tables)
        for dtype, interleaved, out, tables in product(
            HALVES, BOTH, ("packed", "in_place"), ("shared", "groups")
        )
    ],
    "sizes": [
        Cell(dtype, interleaved, True, *size, pairs=size[-1] // 2, tables="shared")
        for dtype, interleaved, size in product(HALVES, BOTH, SIZES)
    ],
}


@pytest.fixture(scope="module")
def interpreter():
    with interpreted.process(interpret=True) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, interpreted.process(interpret=False) as pool:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def oracle(cell, x, cos, sin):
    """Every pair turned alone; beside each result the sizes of the two products it sums."""
    batch, heads, length, _ = x.shape
    out, size = x.copy(), np.zeros_like(x)
    sign = -1.0 if cell.transposed else 1.0
    for b, h, s, p in np.ndindex(batch, heads, length, cell.pairs):
        row = b if cos.shape[0] > 1 else 0
        table = h * cos.shape[2] // heads
        c, n = cos[row, s, table, p], sign * sin[row, s, table, p]
        if cell.interleaved:
            first, second = cell.start + 2 * p, cell.start + 2 * p + 1
        else:
            first, second = cell.start + p, cell.start + cell.pairs + p
        u, v = x[b, h, s, first], x[b, h, s, second]
        out[b, h, s, first] = u * c - v * n
        out[b, h, s, second] = u * n + v * c
        size[b, h, s, first] = abs(u * c) + abs(v * n)
        size[b, h, s, second] = abs(u * n) + abs(v * c)
    return out, size


@pytest.mark.more
@pytest.mark.parametrize("cell", [c for group in CELLS.values() for c in group], ids=str)
def test_a_cell_in_the_interpreter_is_the_formula(interpreter, cell):
    for found in interpreter(interpreted.turned, cell):
        expected, size = oracle(cell, found["x"], found["cos"], found["sin"])
        out = found["out"]
        assert np.isfinite(out).all()  # every element was written, from numbers of its own
        assert found["stray"] == 0
        allowed = FORMED[cell.dtype] * size
        if cell.dtype in ROUNDED:
            allowed += (size > 0) * (ROUNDED[cell.dtype] * (np.abs(expected) + allowed) + TINY)
        assert (np.abs(out - expected) <= allowed).all()


def test_the_cells_are_different():
    cells = [str(cell) for group in CELLS.values() for cell in group]
    assert len(set(cells)) == len(cells)


@pytest.mark.more
@pytest.mark.parametrize("interleaved", BOTH, ids=["half", "interleaved"])
def test_transposed_is_the_gradient_of_the_formula(interpreter, interleaved):
    cell = Cell("float64", interleaved, True, head_dim=11, pairs=3, start=2, tables="groups")
    for found in interpreter(interpreted.turned, cell):
        # The kernel's input is the gradient that arrives, its output the one that goes on.
        grad, cos, sin = (torch.from_numpy(found[name]) for name in ("x", "cos", "sin"))
        x = torch.randn(grad.shape, dtype=torch.float64, requires_grad=True)
        repeats = x.shape[1] // cos.shape[2]
        cos, sin = (t.repeat_interleave(repeats, 2).transpose(1, 2) for t in (cos, sin))
        firsts, seconds = ((2, 4, 6), (3, 5, 7)) if interleaved else ((2, 3, 4), (5, 6, 7))
        channels = list(x.unbind(-1))
        for pair, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            u, v, c, s = x[..., first], x[..., second], cos[..., pair], sin[..., pair]
            channels[first], channels[second] = u * c - v * s, u * s + v * c
        torch.stack(channels, -1).backward(grad)
        torch.testing.assert_close(torch.from_numpy(found["out"]), x.grad, rtol=0, atol=1e-14)


@pytest.mark.more
def test_an_encoding_turns_by_it(interpreter):
    plain, by_kernel = (
        interpreter(interpreted.through_layers, backend) for backend in ("reference", "triton")
    )
    for expected, found in zip(plain, by_kernel, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("interleaved", BOTH, ids=["half", "interleaved"])
@pytest.mark.parametrize("axis", range(4), ids=["batch", "head", "token", "channel"])
def test_offsets_beyond_31_bits(interpreter, axis, interleaved, start):
    before, after = interpreter(interpreted.turned_afar, axis, interleaved, start)
    passing = 2 if start == 0 else 0
    np.testing.assert_array_equal(after[..., start], -before[..., start + 1])
    np.testing.assert_array_equal(after[..., start + 1], before[..., start])
    np.testing.assert_array_equal(after[..., passing], before[..., passing])


@pytest.mark.more
@pytest.mark.parametrize("interleaved", BOTH, ids=["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", [80, 90])
def test_it_compiles_for_gpus(compiler, capability, dtype, interleaved):
    whole = Cell(dtype, interleaved, heads=(8,), length=64, head_dim=128, pairs=64, memory="bshd")
    part = Cell(dtype, interleaved, True, head_dim=80, pairs=12, start=56, memory="fused")
    codes = [compiler(interpreted.compiled, cell, capability) for cell in (whole, part)]
    wide = "ld.global.v2.b64" if dtype == "float64" else "ld.global.v4.b32"
    for code in codes:
        assert wide in code  # 16 bytes a read
        roundings = set(re.findall(r"cvt\.(\w+)\.b?f16(?:x2)?\.f32", code))
        assert roundings == ({"rn"} if dtype in ROUNDED else set())  # to nearest


@pytest.mark.more
def test_a_tensor_on_the_cpu_is_refused_by_a_triton_that_compiles(compiler):
    told = compiler(interpreted.refused)
    assert "need tensors on a GPU, got one on cpu" in told
    assert "TRITON_INTERPRET=1" in told


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    triton_rotary._kernel.cache_clear()
    x, table = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 1)
    with pytest.raises(ImportError, match="needs Triton, which is not installed: install"):
        triton_rotary.rotate([x], [(table, table)], 0, False, False, [x])


@pytest.mark.more
def test_the_benchmark_says_that_there_is_no_gpu():
    done = python("benchmarks/gpu_rotary.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "Needs a GPU that torch can use; found none, so nothing was run."
    ]
    assert not done.stdout
