"""Turning pairs of channels, one operator for a list of tensors: its backends and its derivatives.

    (u, v) at angle a  ->  (u cos a - v sin a,  u sin a + v cos a)

The operator is linear in its tensors and its transpose turns back, so the backward is the operator
itself and every higher derivative follows. The tables get no gradient: who needs one writes the
formula in torch.

Axes: B batch, H heads, S tokens, D head_dim, P pairs. Tensors are views (B, H, S, D) of any
strides; tables (B or 1, S, H or a divisor of it, P), float64 for float64 tensors, else float32.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# ruff: noqa: SLF001 (private names alone tell who must see an operator; a list is faster)
import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from whereness.kernels.compiled import NATIVE
from whereness.kernels.reference import turned_part

Tables = tuple[Tensor, Tensor]
Writer = Callable[..., Sequence[Tensor]]
"""(xs, tables, start, interleaved, transposed, outs or None), as `reference.rotate` has them."""

BACKENDS = {
    "reference": "whereness.kernels.reference",
    "native": "whereness.kernels.native",
    "triton": "whereness.kernels.triton_rotary",
}

_forced: str | None = None
NOBODY, AUTOGRAD, OTHERS = range(3)
"""Who must see the operator."""


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
    if not xs:
        return ()
    seen = _seen_by(xs)
    if seen == NOBODY:
        return _rotate(xs, tables, start, interleaved, transposed)
    if seen == AUTOGRAD:
        return _record(_rotate, xs, tables, (start, interleaved, transposed))
    return tuple(_ROTATE(list(xs), *_split(tables), start, interleaved, transposed))


def rotate_(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool = False,
) -> None:
    """The same in place."""
    if not xs:
        return
    if _seen_by(xs) != NOBODY:
        # torch knows all about copy_: views, leaves, versions, what a compiler may leave out.
        for x, turned in zip(xs, rotate(xs, tables, start, interleaved, transposed), strict=True):
            x.copy_(turned)
        return
    _rotate_in_place(xs, tables, start, interleaved, transposed)


def backend(device: torch.device) -> str:
    """What turns tensors on this device: "native", "triton" or "reference" (plain torch)."""
    return _forced or _chosen(device.type)[0]


def reason(device: torch.device) -> str:
    """Why plain torch serves this device; "" where a kernel does."""
    return "asked for by using()" if _forced else _chosen(device.type)[1]


@contextmanager
def using(name: str) -> Generator[None]:
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
        if NATIVE is None:
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


@cache
def _usual_writer(device: torch.device) -> Writer:
    return _writer(_chosen(device.type)[0])


def _rotate(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    start: int,
    interleaved: bool,
    transposed: bool,
) -> tuple[Tensor, ...]:
    write = _writer(_forced) if _forced else _usual_writer(xs[0].device)
    return tuple(write(xs, tables, start, interleaved, transposed, None))


def _rotate_in_place(xs: Sequence[Tensor], tables: Sequence[Tables], *how: Any) -> None:
    write = _writer(_forced) if _forced else _usual_writer(xs[0].device)
    write(xs, tables, *how, xs)
    for x in xs:
        if not x.is_inference():
            increment_version(x)


def _split(tables: Sequence[Tables]) -> tuple[list[Tensor], list[Tensor]]:
    """All cos, all sin: operators take lists of tensors only."""
    return [t[0] for t in tables], [t[1] for t in tables]


def _seen_by(xs: Sequence[Tensor]) -> int:
    """Who must see the operator: OTHERS than autograd are a compiler, a transform, a subclass.

    Where nobody must, torch's dispatcher is gone around: it costs a decoding step as much again as
    the step.
    """
    if (
        is_compiling()
        or peek_interpreter_stack() is not None
        or _len_torch_dispatch_stack() > 0
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0
    ):
        return OTHERS
    seen = NOBODY
    for x in xs:
        if type(x) is not Tensor or x.is_neg():
            return OTHERS
        if x.requires_grad:
            seen = AUTOGRAD
    return seen if torch.is_grad_enabled() else NOBODY


def _is_recorded(xs: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in xs)


# The operator. Plain Library.impl: what torch.library.custom_op adds costs twice as much.
_SIGNATURE = "Tensor[] cos, Tensor[] sin, int start, bool interleaved, bool transposed"
_LIBRARY = torch.library.Library("whereness", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(f"rotate(Tensor[] xs, {_SIGNATURE}) -> Tensor[]", tags=_TAGS)
_LIBRARY.define(f"rotate_(Tensor(a!)[] xs, {_SIGNATURE}) -> ()", tags=_TAGS)
_ROTATE = torch.ops.whereness.rotate.default
_ROTATE_IN_PLACE = torch.ops.whereness.rotate_.default


def _rotate_op(xs: list[Tensor], cos: list[Tensor], sin: list[Tensor], *how: Any) -> list[Tensor]:
    return list(_rotate(xs, list(zip(cos, sin, strict=True)), *how))


def _rotate_in_place_op(xs: list[Tensor], cos: list[Tensor], sin: list[Tensor], *how: Any) -> None:
    _rotate_in_place(xs, list(zip(cos, sin, strict=True)), *how)


def _rotate_fake(xs: list[Tensor], *_how: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


def _rotate_in_place_fake(xs: list[Tensor], *_how: Any) -> None:
    pass


class _Turning(torch.autograd.Function):
    """The operator as autograd sees it; backward gives the operator again, transposed.

    The tables are kept as they are and not as saved tensors, which the first of two separate
    backward passes, from the queries and from the keys, would free for the second.
    """

    @staticmethod
    def forward(
        ctx: Any, below: Callable, how: tuple, tables: Sequence[Tables], *xs: Tensor
    ) -> tuple:
        ctx.how, ctx.tables = how, tables
        ctx.set_materialize_grads(False)  # an output that nobody used costs nothing
        outs = tuple(below(xs, tables, *how))
        fixed = [y for x, y in zip(xs, outs, strict=True) if not x.requires_grad]
        ctx.mark_non_differentiable(*fixed)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        start, interleaved, transposed = ctx.how
        there = {i: g for i, g in enumerate(grads) if g is not None and ctx.needs_input_grad[3 + i]}
        of_those = [ctx.tables[i] for i in there]
        turned = rotate(list(there.values()), of_those, start, interleaved, not transposed)
        found = dict(zip(there, turned, strict=True))
        return (None, None, None, *(found.get(i) for i in range(len(grads))))


def _record(below: Callable, xs: Sequence[Tensor], tables: Sequence[Tables], how: tuple) -> tuple:
    # Not Function.apply: this is one level of autograd, torch.func's or the only one.
    apply: Callable = super(torch.autograd.Function, _Turning).apply  # type: ignore[missing-attribute]
    return apply(below, how, tables, *xs)


def _rotate_autograd(
    keys: Any, xs: list[Tensor], cos: list[Tensor], sin: list[Tensor], *how: Any
) -> list[Tensor]:
    def below(xs: Sequence[Tensor], tables: Sequence[Tables], *how: Any) -> list[Tensor]:
        with torch._C._AutoDispatchBelowAutograd():  # what torch.library itself uses
            rest = keys & torch._C._after_autograd_keyset
            return _ROTATE.redispatch(rest, list(xs), *_split(tables), *how)

    tables = list(zip(cos, sin, strict=True))
    if forward_ad._current_level >= 0:  # tangents, which torch carries through its own formulas
        return [_formula(x, pair, *how) for x, pair in zip(xs, tables, strict=True)]
    if _is_recorded(xs):
        with enable_single_level_autograd_function():
            return list(_record(below, xs, tables, how))
    return below(xs, tables, *how)


def _formula(x: Tensor, tables: Tables, start: int, interleaved: bool, transposed: bool) -> Tensor:
    turned = turned_part(x, *tables, start, interleaved, transposed)
    return torch.cat([x[..., :start], turned, x[..., start + turned.shape[-1] :]], -1)


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
        [_flat_table(t, dim, size, len(x)) for t, dim, x in zip(each, of_each, flat, strict=True)]
        for each, of_each in zip((cos, sin), dims[1:3], strict=True)
    ]
    outs = _ROTATE(flat, *tables, *how)
    return [out.unflatten(0, (size, -1)) for out in outs], [0] * len(outs)


def _flat(t: Tensor, dim: int | None, size: int) -> Tensor:
    """(B, ...), perhaps with a mapped axis, as (size * B, ...)."""
    return (t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)


def _flat_table(t: Tensor, dim: int | None, size: int, rows: int) -> Tensor:
    """The same for a table: `rows` of them, or the one that serves all."""
    if dim is None and t.shape[0] == 1:
        return t
    t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.expand(-1, rows // size, *[-1] * (t.dim() - 2)).flatten(0, 1)


_LIBRARY.impl("rotate", _rotate_op, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate_", _rotate_in_place_op, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate", _rotate_autograd, "Autograd", with_keyset=True)
torch.library.register_fake("whereness::rotate", _rotate_fake, lib=_LIBRARY)
torch.library.register_fake("whereness::rotate_", _rotate_in_place_fake, lib=_LIBRARY)
torch.library.register_vmap("whereness::rotate", _rotate_vmap, lib=_LIBRARY)
