"""The compiled kernel against the formula in NumPy's float64, entry by entry."""

import os
from itertools import product

import numpy as np
import pytest
import torch

from whereness.kernels import reference
from whereness.kernels.rotary import backend, reason, using

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
PLACES = {torch.float32: 24, torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}
SMALLEST = {torch.float16: 2.0**-24}  # a subnormal has no more places than this
# (B, H of q, H of k, S, D, P, start)
SHAPES = [
    (1, 1, 1, 1, 2, 1, 0),
    (2, 4, 2, 7, 16, 8, 0),
    (2, 6, 2, 3, 20, 6, 0),
    (1, 2, 1, 64, 22, 7, 8),
    (3, 2, 2, 2, 7, 2, 3),
    (2, 4, 1, 0, 8, 4, 0),
    (0, 2, 1, 3, 8, 4, 0),
    (1, 3, 1, 5, 9, 0, 4),
]
LAYOUTS = ("bhsd", "bshd", "fused", "flipped")


@pytest.fixture(autouse=True)
def native():
    """WHERENESS_NO_KERNELS=1 says that there is no compiler here: then there is nothing to test."""
    if os.environ.get("WHERENESS_NO_KERNELS") == "1":
        pytest.skip("WHERENESS_NO_KERNELS=1: installed without compiled kernels on purpose")
    assert backend(torch.device("cpu")) == "native", (
        f"{reason(torch.device('cpu'))}: build them (`make venv`), or set WHERENESS_NO_KERNELS=1"
    )


def rotate(*arguments):
    from whereness.kernels import native

    return native.rotate(*arguments)


def laid_out(batch, heads, tokens, width, layout, dtype):
    """Random (B, H, S, D) whose memory is in another order."""
    if layout == "bshd":
        return torch.randn(batch, tokens, heads, width).to(dtype).transpose(1, 2)
    if layout == "fused":
        return torch.randn(batch, tokens, 3, heads, width).to(dtype)[:, :, 1].transpose(1, 2)
    if layout == "flipped":  # the last axis has not stride 1
        return torch.randn(batch, heads, width, tokens).to(dtype).transpose(2, 3)
    return torch.randn(batch, heads, tokens, width).to(dtype)


def tables_of(batch, tokens, heads, pairs, dtype):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.randn(batch, tokens, heads, pairs, dtype=wide) * 3
    return 1.25 * angles.cos(), 1.25 * angles.sin()


def oracle(x, cos, sin, start, interleaved, transposed):
    """The formula, one pair at a time, in float64; and the sizes of what was added."""
    x, cos, sin = (t.to(torch.float64).numpy() for t in (x, cos, sin))
    out, size, pairs = x.copy(), np.zeros_like(x), cos.shape[-1]
    for b, h, s, k in product(*map(range, (*x.shape[:3], pairs))):
        i = start + (2 * k if interleaved else k)
        j = i + 1 if interleaved else i + pairs
        at = (b % cos.shape[0], s, h * cos.shape[2] // x.shape[1], k)
        u, v, c, d = x[b, h, s, i], x[b, h, s, j], cos[at], sin[at] * (-1 if transposed else 1)
        out[b, h, s, i], out[b, h, s, j] = u * c - v * d, v * c + u * d
        size[b, h, s, i] = abs(u * c) + abs(v * d)
        size[b, h, s, j] = abs(v * c) + abs(u * d)
    return out, size


def assert_rounded_once(found, expected, size):
    """Half a place of the type, and what float32 (float64) arithmetic leaves before."""
    dtype = found.dtype
    places = 53 if dtype == torch.float64 else 24
    bound = 2 * size * 2.0**-places
    if PLACES[dtype] < places:
        bound += np.abs(expected) * 2.0 ** -PLACES[dtype] + SMALLEST.get(dtype, 0) / 2
    error = np.abs(found.to(torch.float64).numpy() - expected)
    assert (error <= bound).all()


@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_entry_is_the_formulas_rounded_once(dtype, interleaved, transposed):
    for shape, layout, of_batch, of_heads in product(SHAPES, LAYOUTS, (False, True), (1, 2)):
        batch, q_heads, k_heads, tokens, width, pairs, start = shape
        xs = [laid_out(batch, h, tokens, width, layout, dtype) for h in (q_heads, k_heads)]
        rows = batch if of_batch and batch else 1
        shared = [of_heads if h % of_heads == 0 else 1 for h in (q_heads, k_heads)]
        tables = [tables_of(rows, tokens, h, pairs, dtype) for h in shared]
        before = [x.clone() for x in xs]
        outs = [torch.empty_like(x).fill_(torch.nan) for x in xs]
        rotate(xs, tables, start, interleaved, transposed, outs)
        for x, was, out, (cos, sin) in zip(xs, before, outs, tables, strict=True):
            assert torch.equal(x, was)
            expected, size = oracle(was, cos, sin, start, interleaved, transposed)
            assert_rounded_once(out, expected, size)
            end = start + 2 * pairs
            assert torch.equal(out[..., :start], was[..., :start])
            assert torch.equal(out[..., end:], was[..., end:])
        rotate(xs, tables, start, interleaved, transposed, xs)
        for x, out in zip(xs, outs, strict=True):
            assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_lie_in_any_order_of_memory(dtype):
    size = 2, 3, 5, 12
    for layout, of_out in product(LAYOUTS, LAYOUTS):
        x, out = (laid_out(*size, each, dtype) for each in (layout, of_out))
        tables = tables_of(1, 5, 1, 4, dtype)
        rotate([x], [tables], 1, False, False, [out])
        (new,) = rotate([x], [tables], 1, False, False)
        assert new.stride() == torch.empty_like(x).stride()
        expected, added = oracle(x, *tables, 1, False, False)
        for found in (out, new):
            assert_rounded_once(found, expected, added)


@pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_tensors_and_any_thread_count_give_the_same_bits(dtype, interleaved):
    """Above the size from which threads share the work; the reference is torch's own arithmetic."""
    for layout in ("bhsd", "bshd"):
        xs = [laid_out(2, h, 131, 64, layout, dtype) for h in (4, 2)]
        tables = [tables_of(2, 131, h, 29, dtype) for h in (2, 1)]
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            try:
                outs = [torch.empty_like(x).fill_(torch.nan) for x in xs]
                rotate(xs, tables, 5, interleaved, False, outs)
            finally:
                torch.set_num_threads(1)
            found.append(outs)
        plain = [torch.empty_like(x) for x in xs]
        reference.rotate(xs, tables, 5, interleaved, False, plain)
        for outs in found:
            for out, expected in zip(outs, plain, strict=True):
                assert torch.equal(out, expected)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_threads_share_the_heads_of_short_sequences(tokens):
    x, tables = torch.randn(1, 512, tokens, 128), tables_of(1, tokens, 1, 64, torch.float32)
    out, plain = torch.full_like(x, torch.nan), torch.empty_like(x)
    torch.set_num_threads(2)
    try:
        rotate([x], [tables], 0, False, False, [out])
    finally:
        torch.set_num_threads(1)
    reference.rotate([x], [tables], 0, False, False, [plain])
    assert torch.equal(out, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_precision_number_is_read_and_written_as_torch_does(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    for pairs, interleaved in product((1, 16), (False, True)):  # one by one, and in vectors
        x = every.reshape(1, 1, -1, 2 * pairs)
        cos = torch.full((1, x.shape[2], 1, pairs), 1.0)
        out, again = torch.empty_like(x), torch.empty_like(x)
        rotate([x], [(cos, 0 * cos)], 0, interleaved, False, [out])
        finite = x.isfinite()
        other = finite.unflatten(-1, (-1, 2) if interleaved else (2, -1)).all(
            -1 if interleaved else -2, keepdim=True
        )
        both = other.expand(*finite.shape[:3], *((-1, 2) if interleaved else (2, -1))).flatten(-2)
        assert torch.equal(out[both], x[both])
        cos = torch.randn_like(cos) * torch.randn_like(cos).mul(6).exp()
        rotate([x], [(cos, cos.flip(1))], 0, interleaved, False, [out])
        reference.rotate([x], [(cos, cos.flip(1))], 0, interleaved, False, [again])
        assert torch.equal(out.isnan(), again.isnan())
        assert torch.equal(out[~out.isnan()], again[~again.isnan()])


def test_a_gradient_that_expand_made_is_turned():
    one = torch.ones(())
    for shape in ((2, 4, 5, 8), (1, 4, 5, 8)):
        grad, tables = one.expand(shape), tables_of(1, 5, 2, 4, torch.float32)
        out, plain = torch.empty(shape), torch.empty(shape)
        rotate([grad], [tables], 0, True, True, [out])
        reference.rotate([grad], [tables], 0, True, True, [plain])
        assert torch.equal(out, plain)


def test_strides_of_cos_and_sin_may_differ():
    x, (cos, sin) = torch.randn(2, 2, 5, 8), tables_of(1, 5, 1, 4, torch.float32)
    both = torch.stack([cos, sin], 2)
    out, plain = torch.empty_like(x), torch.empty_like(x)
    rotate([x], [(cos, both[:, :, 1])], 0, False, False, [out])
    reference.rotate([x], [(cos, sin)], 0, False, False, [plain])
    assert torch.equal(out, plain)


WRONG = {
    "four axes": lambda x, c: (x[0], c, x[0]),
    "shape and the type of its tensor": lambda x, c: (x, c, x[:, :, :-1]),
    "the shape and the type": lambda x, c: (x, c, x.double()),
    "tables must be float64": lambda x, c: (x, c.double(), x),
    "tokens of their tensor": lambda x, c: (x, c[:, :-1], x),
    "multiple of its tables' heads": lambda x, c: (x, c.expand(-1, -1, 3, -1), x),
    "inside the tensor": lambda x, c: (x, torch.cat([c, c], -1), x),
    "contiguous along": lambda x, c: (x, c.transpose(0, 3).contiguous().transpose(0, 3), x),
    "memory for every entry": lambda x, c: (x, c, x[:1].expand(2, -1, -1, -1)),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_would_touch_other_memory_is_refused(message):
    x, cos, out = WRONG[message](torch.randn(2, 4, 5, 8), torch.randn(1, 5, 1, 4))
    with pytest.raises(ValueError, match=f"(?i){message}"):
        rotate([x], [(cos, cos)], 0, False, False, [out])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the machine has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_turns_without_its_parents_threads():
    x, tables = torch.randn(1, 8, 256, 64), tables_of(1, 256, 1, 32, torch.float32)
    out, again = torch.empty_like(x), torch.empty_like(x)
    again.share_memory_()
    torch.set_num_threads(2)
    try:
        rotate([x], [tables], 0, False, False, [out])
        child = os.fork()
        if child == 0:
            rotate([x], [tables], 0, False, False, [again])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(1)
    assert torch.equal(again, out)


def test_using_forces_a_backend():
    cpu = torch.device("cpu")
    with using("reference"):
        assert backend(cpu) == "reference"
        assert "using" in reason(cpu)
    assert (backend(cpu), reason(cpu)) == ("native", "")
    with pytest.raises(ValueError, match="reference, native, triton; got 'fast'"), using("fast"):
        pass
