"""Turning pairs of channels, one operator for a list of tensors: its backends and its derivatives.

    (u, v) at angle a  ->  (u cos a - v sin a,  u sin a + v cos a)

The operator is linear in its tensors and its transpose turns back, so the backward is the operator
itself and every higher derivative follows. The tables get no gradient: who needs one writes the
formula in torch.

Axes: B batch, H heads, S tokens, D head_dim, P pairs. Tensors are views (B, H, S, D) of any
strides; tables (B or 1, S, H or a divisor of it, P), float64 for float64 tensors, else float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

Tables = tuple[Tensor, Tensor]
Writer = Callable[[Sequence[Tensor], Sequence[Tables], int, bool, bool, Sequence[Tensor]], None]

BACKENDS = {
    "reference": "whereness.kernels.reference",
    "native": "whereness.kernels.native",
    "triton": "whereness.kernels.triton_rotary",
}

_forced: str | None = None


def rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool = False,
) -> tuple[Tensor, ...]:
    """Each x (B, H, S, D) turned by its tables, new tensors in the memory order of the xs.

    Args:
        tables: cos and sin of each x, any factor on both.
        start: first channel that turns; 2P channels do, the others pass untouched.
        interleaved: pair k is channels 2k and 2k + 1, otherwise k and k + P.
        transposed: turn by the negative angles, the factor kept: the backward.
    """
    cos, sin = [t[0] for t in tables], [t[1] for t in tables]
    return tuple(_ROTATE(list(xs), cos, sin, start, interleaved, transposed))


def rotate_(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool = False,
) -> None:
    """The same in place."""
    if torch.compiler.is_compiling() or _is_recorded(xs):
        # torch knows all about copy_: views, leaves, versions, what a compiler may leave out.
        for x, turned in zip(xs, rotate(xs, tables, start, interleaved, transposed), strict=True):
            x.copy_(turned)
        return
    cos, sin = [t[0] for t in tables], [t[1] for t in tables]
    _ROTATE_IN_PLACE(list(xs), cos, sin, start, interleaved, transposed)
    for x in xs:
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


def backend(device: torch.device) -> str:
    """What turns tensors on this device: "native", "triton" or "reference" (plain torch)."""
    return _forced or _chosen(device.type)[0]


def reason(device: torch.device) -> str:
    """Why plain torch serves this device; "" where a kernel does."""
    return "asked for by using()" if _forced else _chosen(device.type)[1]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Let the backend `name` turn everything inside: for tests and benchmarks."""
    global _forced  # noqa: PLW0603 (the operator runs below torch's dispatcher: nothing to pass it by)
    if name not in BACKENDS:
        raise ValueError(f"A backend must be one of {', '.join(BACKENDS)}; got {name!r}.")
    _writer(name)
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


@cache
def _chosen(device_type: str) -> tuple[str, str]:
    """The backend of a kind of device and, if it is plain torch, why."""
    if device_type == "cpu":
        if find_spec("whereness.kernels._native") is None:
            return "reference", "whereness was installed without its compiled kernels"
        return "native", ""
    if device_type == "cuda":
        for module in ("triton", BACKENDS["triton"]):
            if find_spec(module) is None:
                return "reference", f"{module} is not installed"
        return "triton", ""
    return "reference", f"there is no kernel for {device_type}"


@cache
def _writer(name: str) -> Writer:
    return import_module(BACKENDS[name]).rotate


def _write(
    xs: list[Tensor],
    cos: list[Tensor],
    sin: list[Tensor],
    start: int,
    interleaved: bool,
    transposed: bool,
    outs: list[Tensor],
) -> None:
    if xs:
        name = _forced or _chosen(xs[0].device.type)[0]
        tables = list(zip(cos, sin, strict=True))
        _writer(name)(xs, tables, start, interleaved, transposed, outs)


def _is_recorded(xs: Sequence[Tensor]) -> bool:
    """Whether autograd or a transform of torch.func watches these tensors."""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001 (no public name)
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in xs)


# The operator. Plain Library.impl: torch.library.custom_op costs a decoding step twice as much.
_SIGNATURE = "Tensor[] cos, Tensor[] sin, int start, bool interleaved, bool transposed"
_LIBRARY = torch.library.Library("whereness", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(f"rotate(Tensor[] xs, {_SIGNATURE}) -> Tensor[]", tags=_TAGS)
_LIBRARY.define(f"rotate_(Tensor(a!)[] xs, {_SIGNATURE}) -> ()", tags=_TAGS)
_ROTATE = torch.ops.whereness.rotate.default
_ROTATE_IN_PLACE = torch.ops.whereness.rotate_.default


def _rotate(xs: list[Tensor], *how: Any) -> list[Tensor]:
    outs = [torch.empty_like(x) for x in xs]
    _write(xs, *how, outs)
    return outs


def _rotate_in_place(xs: list[Tensor], *how: Any) -> None:
    _write(xs, *how, xs)


def _rotate_fake(xs: list[Tensor], *_how: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


def _rotate_in_place_fake(xs: list[Tensor], *_how: Any) -> None:
    pass


class _Turning(torch.autograd.Function):
    """The operator as autograd sees it; backward gives the operator again, transposed."""

    @staticmethod
    def forward(ctx: Any, keys: Any, how: tuple, count: int, *tensors: Tensor) -> tuple:
        xs, cos, sin = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        ctx.how, ctx.count = how, count
        ctx.save_for_backward(*cos, *sin)
        ctx.save_for_forward(*cos, *sin)
        ctx.set_materialize_grads(False)  # an output that nobody used costs nothing
        return tuple(_below(keys, xs, cos, sin, *how))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple:
        start, interleaved, transposed = ctx.how
        cos, sin = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        moved = [i for i in range(ctx.count) if tangents[3 + i] is not None]
        tables = [(cos[i], sin[i]) for i in moved]
        turned = rotate([tangents[3 + i] for i in moved], tables, start, interleaved, transposed)
        found = dict(zip(moved, turned, strict=True))
        return tuple(found.get(i) for i in range(ctx.count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        start, interleaved, transposed = ctx.how
        cos, sin = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = [i for i, g in enumerate(grads) if g is not None and ctx.needs_input_grad[3 + i]]
        tables = [(cos[i], sin[i]) for i in wanted]
        turned = rotate([grads[i] for i in wanted], tables, start, interleaved, not transposed)
        found = dict(zip(wanted, turned, strict=True))
        of_xs = [found.get(i) for i in range(ctx.count)]
        return (None, None, None, *of_xs, *[None] * (2 * ctx.count))


def _below(keys: Any, *arguments: Any) -> list[Tensor]:
    """The operator below autograd."""
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 (what torch.library itself uses)
        return _ROTATE.redispatch(keys & torch._C._after_autograd_keyset, *arguments)  # noqa: SLF001


def _rotate_autograd(
    keys: Any, xs: list[Tensor], cos: list[Tensor], sin: list[Tensor], *how: Any
) -> list[Tensor]:
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
    if recorded or forward_ad._current_level >= 0:  # noqa: SLF001 (no public name)
        # Not Function.apply: below torch.func's interpreter there is one level to record, this one.
        record = super(torch.autograd.Function, _Turning).apply
        with enable_single_level_autograd_function():
            return list(record(keys, how, len(xs), *xs, *cos, *sin))
    return _below(keys, xs, cos, sin, *how)


def _rotate_vmap(
    info: Any,
    dims: tuple,
    xs: list[Tensor],
    cos: list[Tensor],
    sin: list[Tensor],
    *how: Any,
) -> tuple[list[Tensor], list[int]]:
    """The mapped axis joins the batch."""
    size = info.batch_size
    flat = [_flat(x, dim, size) for x, dim in zip(xs, dims[0], strict=True)]
    tables = [
        [_flat(t, dim, size, True) for t, dim in zip(each, of_each, strict=True)]
        for each, of_each in zip((cos, sin), dims[1:3], strict=True)
    ]
    outs = _ROTATE(flat, *tables, *how)
    return [out.unflatten(0, (size, -1)) for out in outs], [0] * len(outs)


def _flat(t: Tensor, dim: int | None, size: int, table: bool = False) -> Tensor:
    """(B, ...), perhaps with a mapped axis, as (size * B, ...); a table for all rows as it is."""
    if dim is None and table and t.shape[0] == 1:
        return t
    t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.flatten(0, 1)


_LIBRARY.impl("rotate", _rotate, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate_", _rotate_in_place, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate", _rotate_autograd, "Autograd", with_keyset=True)
torch.library.register_fake("whereness::rotate", _rotate_fake, lib=_LIBRARY)
torch.library.register_fake("whereness::rotate_", _rotate_in_place_fake, lib=_LIBRARY)
torch.library.register_vmap("whereness::rotate", _rotate_vmap, lib=_LIBRARY)
