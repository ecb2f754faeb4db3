"""The rotary operator as torch sees it: derivatives, transforms, compile, memory in place."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import whereness as wn
from whereness.kernels import rotary
from whereness.kernels.rotary import backend, rotate, rotate_, using

OPERATORS = {
    "new": torch.ops.whereness.rotate.default,
    "in place": torch.ops.whereness.rotate_.default,
}
HOW = (1, True, False)


@pytest.fixture(autouse=True, params=["reference", "chosen"])
def served(request):
    """Every test with plain torch, and with what this machine runs (see test_native.py)."""
    if request.param == "chosen":
        yield backend(torch.device("cpu"))
        return
    with using("reference"):
        yield "reference"


def inputs(dtype=torch.float64, tokens=5, batch=2):
    """Queries of four heads and keys of two; their tables."""
    xs = [torch.randn(batch, h, tokens, 8, dtype=dtype) for h in (4, 2)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = [torch.randn(b, tokens, h, 3, dtype=wide) for b, h in ((1, 1), (batch, 2))]
    return xs, [(1.5 * a.cos(), 1.5 * a.sin()) for a in angles]


def matrix(cos, sin, heads, interleaved):
    """(B or 1, H, S, 8, 8): what multiplies the channels: pairs, and ones beside them."""
    batch, tokens, of_heads, pairs = cos.shape
    whole = torch.eye(8, dtype=cos.dtype).repeat(batch, heads, tokens, 1, 1)
    for h in range(heads):
        for k in range(pairs):
            i, j = (1 + 2 * k, 2 + 2 * k) if interleaved else (1 + k, 1 + k + pairs)
            c, s = (t[:, :, h * of_heads // heads, k] for t in (cos, sin))
            whole[:, h, :, i, i], whole[:, h, :, i, j] = c, -s
            whole[:, h, :, j, i], whole[:, h, :, j, j] = s, c
    return whole


def by_matrix(x, tables, interleaved, transposed=False):
    turned = matrix(*tables, x.shape[1], interleaved)
    return ((turned.mT if transposed else turned) @ x[..., None])[..., 0]


@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
def test_it_is_a_product_with_a_matrix_or_its_transpose(interleaved, transposed):
    xs, tables = inputs()
    before = [x.clone() for x in xs]
    found = rotate(xs, tables, 1, interleaved, transposed)
    assert isinstance(found, tuple)
    for x, was, y, table in zip(xs, before, found, tables, strict=True):
        assert torch.equal(x, was)
        torch.testing.assert_close(y, by_matrix(x, table, interleaved, transposed))
    rotate_(xs, tables, 1, interleaved, transposed)
    for x, y in zip(xs, found, strict=True):
        assert torch.equal(x, y)


def test_nothing_to_turn_is_nothing():
    assert rotate([], [], *HOW) == ()
    rotate_([], [], *HOW)


def test_new_tensors_lie_in_memory_as_the_inputs_do():
    xs, tables = inputs()
    xs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in xs]
    for x, y in zip(xs, rotate(xs, tables, *HOW), strict=True):
        assert x.stride() == y.stride()
        assert x.data_ptr() != y.data_ptr()


def test_first_and_second_derivatives_are_those_of_the_function():
    xs, tables = inputs(tokens=2, batch=1)
    for x in xs:
        x.requires_grad_()
    for how in (HOW, (2, False, True)):
        assert torch.autograd.gradcheck(
            lambda q, k, how=how: rotate([q, k], tables, *how), xs, check_forward_ad=True
        )
        assert torch.autograd.gradgradcheck(lambda q, k, how=how: rotate([q, k], tables, *how), xs)


def test_gradients_of_some_outputs_or_to_some_inputs():
    (q, k), tables = inputs()
    q.requires_grad_()
    turned_q, turned_k = rotate([q, k], tables, *HOW)
    assert not turned_k.requires_grad
    (found,) = torch.autograd.grad(turned_q.sum(), q)  # its gradient has strides of 0
    torch.testing.assert_close(found, by_matrix(torch.ones_like(q), tables[0], True, True))


def test_queries_and_keys_go_back_in_passes_of_their_own():
    rope = wn.RoPE(8)
    q, k = (torch.randn(1, heads, 3, 8, requires_grad=True) for heads in (2, 1))
    ones = [torch.ones_like(x) for x in (q, k)]
    turned = rope(q, k)
    for out, one in zip(turned, ones, strict=True):
        out.backward(one)
    for x, one in zip((q, k), ones, strict=True):
        assert torch.equal(x.grad, rope.rotate(one, inverse=True))


def test_half_precision_gradients_are_rounded_once():
    for dtype in (torch.bfloat16, torch.float16):
        (q, _), tables = inputs(dtype)
        q.requires_grad_()
        weight = torch.randn(q.shape).to(dtype)
        (out,) = rotate([q], tables[:1], *HOW)
        (found,) = torch.autograd.grad(out, q, weight)
        wide = tuple(t.double() for t in tables[0])
        expected = by_matrix(weight.double(), wide, True, True)
        torch.testing.assert_close(
            found.double(), expected, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=1e-6
        )


@pytest.mark.untyped
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_finds_the_operator_well_registered(name):
    xs, tables = inputs()
    cos, sin = [t[0] for t in tables], [t[1] for t in tables]
    torch.library.opcheck(OPERATORS[name], (xs, cos, sin, *HOW))
    if name == "new":
        xs = [x.requires_grad_() for x in xs]
        torch.library.opcheck(OPERATORS[name], (xs, cos, sin, *HOW))


def test_vmap_over_tensors_tables_or_both():
    xs, tables = inputs()
    rows = torch.randn(3, *xs[0].shape, dtype=torch.float64)
    angles = torch.randn(3, 1, 5, 1, 3, dtype=torch.float64)

    def one(x, cos, sin):
        return rotate([x, xs[1]], [(cos, sin), tables[1]], *HOW)

    for dims in ((0, None, None), (None, 0, 0), (0, 0, 0)):
        given = [
            rows if dims[0] == 0 else rows[0],
            *(f(angles) if dims[1] == 0 else f(angles)[0] for f in (torch.cos, torch.sin)),
        ]
        found = torch.vmap(one, dims)(*given)
        for i in range(3):
            each = [t[i] if d == 0 else t for t, d in zip(given, dims, strict=True)]
            for y, expected in zip(found, one(*each), strict=True):
                assert torch.equal(y[i], expected)
    last = torch.vmap(one, (4, None, None))(
        rows.movedim(0, 4), *(t[0] for t in (angles.cos(), angles.sin()))
    )
    assert torch.equal(
        last[0], torch.vmap(one, (0, None, None))(rows, angles.cos()[0], angles.sin()[0])[0]
    )


def test_transforms_nest():
    xs, tables = inputs(tokens=2, batch=1)
    rows = torch.randn(3, *xs[0].shape, dtype=torch.float64)

    def energy(x):
        return rotate([x], tables[:1], *HOW)[0].square().sum()

    found = torch.vmap(torch.func.grad(energy))(rows)
    size = tables[0][0].square() + tables[0][1].square()
    turned = torch.ones(1, 1, 2, 8, dtype=torch.float64)
    turned[..., 1:7] = size.repeat_interleave(2, -1).transpose(1, 2)
    torch.testing.assert_close(found, 2 * turned * rows)
    hessian = torch.func.hessian(energy)(rows[0]).reshape(64, 64)
    expected = torch.diag(2 * turned.expand_as(rows[0]).flatten())
    torch.testing.assert_close(hessian, expected)
    out, tangent = torch.func.jvp(
        lambda x: rotate([x], tables[:1], *HOW)[0], (rows[0],), (rows[1],)
    )
    torch.testing.assert_close(out, by_matrix(rows[0], tables[0], True))
    torch.testing.assert_close(tangent, by_matrix(rows[1], tables[0], True))


def test_in_place_under_a_transform():
    xs, tables = inputs()

    def doubled(x):
        y = 2 * x
        rotate_([y], tables[:1], *HOW)
        return y

    rows = torch.randn(3, *xs[0].shape, dtype=torch.float64)
    found = torch.vmap(doubled)(rows)
    for x, y in zip(rows, found, strict=True):
        torch.testing.assert_close(y, by_matrix(2 * x, tables[0], True))


def test_in_place_gradients_flow_through_views_and_bases():
    (q, k), tables = inputs()
    joined = torch.cat([q, k], 1).requires_grad_()
    weight = torch.randn_like(joined)

    def in_place(x):
        y = x * 1
        rotate_([y[:, :4], y[:, 4:]], tables, *HOW)
        return y

    (found,) = torch.autograd.grad(in_place(joined), joined, weight)
    expected = [
        by_matrix(w, t, True, True)
        for w, t in zip((weight[:, :4], weight[:, 4:]), tables, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_autograd_notices_a_tensor_that_was_changed_after_it_was_kept():
    (q, _), tables = inputs()
    x = q.requires_grad_()
    kept = x * 1
    loss = kept.square().sum()
    rotate_([kept.detach()], tables[:1], *HOW)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_written_in_place_counts_as_a_change_of_its_base():
    (q, _), tables = inputs()
    before = q._version
    rotate_([q[:, 1:3]], tables[:1], *HOW)
    assert q._version > before


def test_a_leaf_cannot_be_turned_in_place():
    (q, _), tables = inputs()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        rotate_([q.requires_grad_()], tables[:1], *HOW)


def test_inference_mode():
    xs, tables = inputs()
    expected = rotate(xs, tables, *HOW)
    with torch.inference_mode():
        inside = [x.clone() for x in xs]
        found = rotate(inside, tables, *HOW)
        assert all(y.is_inference() for y in found)
        rotate_(inside, tables, *HOW)
    for y, x, e in zip(found, inside, expected, strict=True):
        assert torch.equal(y, e)
        assert torch.equal(x, e)


def test_negative_views_are_read_as_what_they_are():
    _, tables = inputs()
    x = torch.randn(2, 4, 5, 8, dtype=torch.complex128).conj().imag
    assert x.is_neg()
    (found,) = rotate([x], tables[:1], *HOW)
    torch.testing.assert_close(found, by_matrix(x.resolve_neg(), tables[0], True))


def test_meta_tensors_have_no_numbers_to_turn():
    xs, tables = inputs()
    found = rotate(
        [x.to("meta") for x in xs], [tuple(t.to("meta") for t in pair) for pair in tables], *HOW
    )
    assert [y.shape for y in found] == [x.shape for x in xs]
    assert all(y.is_meta for y in found)


def test_checkpointing_turns_again_and_gives_the_same_gradients():
    (q, _), tables = inputs()
    q.requires_grad_()

    def block(x):
        return rotate([x.sin()], tables[:1], *HOW)[0].cos().sum()

    (plain,) = torch.autograd.grad(block(q), q)
    again = torch.utils.checkpoint.checkpoint(block, q, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, q)[0], plain)


@pytest.mark.untyped
def test_one_compiled_graph_serves_every_length(served):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def turned(q, k, cos, sin):
        q, k = rotate([q * 1, k * 1], [(cos, sin)] * 2, *HOW)
        rotate_([k], [(cos, sin)], *HOW)
        return q, k

    compiled = torch.compile(turned, backend=counter, fullgraph=True, dynamic=True)
    for tokens in (9, 33, 64):  # not 8, the number of channels: torch would hold them equal
        (q, k), ((cos, sin), _) = inputs(torch.float32, tokens)
        for each in (q, k):
            each.requires_grad_()
        found, expected = compiled(q, k, cos, sin), turned(q, k, cos, sin)
        weights = [torch.randn_like(y) for y in expected]
        grads = torch.autograd.grad(found, (q, k), weights)
        for y, e in zip(
            (*found, *grads),
            (*expected, *torch.autograd.grad(expected, (q, k), weights)),
            strict=True,
        ):
            assert torch.equal(y, e)
    assert counter.frame_count == 1
    names = {str(node.target) for node in counter.graphs[0].graph.nodes}
    assert "whereness.rotate.default" in names


def test_a_device_without_a_kernel_says_so():
    assert rotary.backend(torch.device("meta")) == "reference"
    if rotary._forced is None:
        assert "meta" in rotary.reason(torch.device("meta"))
