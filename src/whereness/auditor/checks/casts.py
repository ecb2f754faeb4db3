"""CHK8: casts and autocast change no angle, slope or position.

Apart from one another: what `model.to(bfloat16)` does to tables (seen in float64, after the same
rounding of the weights alone), and what a forward pass computes in half precision (every cos and
sin of it against those of a float64 run). Only rounded results are allowed, not rounded angles.

Axes: S tokens.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.operations import Watch
from whereness.auditor.driving.probing import Bench, change, probed
from whereness.auditor.driving.rebuild import MOST_WEIGHTS, NotRebuilt, derived, rebuilt
from whereness.auditor.driving.restore import in_float64, restored
from whereness.auditor.subject import Subject

CHECK = "CHK8"
LENGTH = 300
"""More tokens than bfloat16 can number: 257 is its first that is lost."""
ROUNDED = 2**-6
"""A cos or sin further off than this was not rounded at the end: bfloat16 rounds by 2^-9."""
RECOMPUTE = "Form angles in float32 or better from the settings, whatever the module's type."


def run(subject: Subject) -> None:
    """Look at what casts do."""
    probed(subject, CHECK, _look, exact=False)


def _look(bench: Bench) -> None:
    driver, model = bench.driver, bench.model
    if not any(p.is_floating_point() for p in model.parameters()):
        bench.not_checked("the model has no weights to cast")
        return
    if not bench.subject.shared.get("float64"):
        bench.not_checked("casts of the module: it does not run in float64, where rounding shows")
    else:
        _module(bench)
    length = LENGTH if driver.max_tokens is None else min(LENGTH, driver.max_tokens - 2)
    _passes(bench, driver.sample(1, max(1, length)))
    _built(bench)


# Casts of the module ---------------------------------------------------------------------------


def _module(bench: Bench) -> None:
    """`.to(bfloat16)` and back, against rounded weights with the tables as they were."""
    tokens = bench.driver.sample(1, 24)
    how: dict[str, Any] = {}
    if bench.driver.takes == "tokens" and bench.driver.first is not None:
        most = bench.driver.max_tokens or 1000
        stride = max(1, min(40, (most - 1) // 25))
        ids = bench.natural(1, 24)
        how["positions"] = (ids - ids[:, :1]) * stride + ids[:, :1]
        how["mask"] = bench.driver.ones(torch.ones_like(ids))
    outputs, changed = [], []
    for whole in (False, True):
        with restored(bench.model) as model:
            before = {n: b.detach().clone() for n, b in _tables(model)}
            if whole:
                model.bfloat16()
                changed = [n for n, b in _tables(model) if not _same(b, before[n])]
            else:
                _round_weights(model)
            model.double()
            try:
                outputs.append(bench.driver(tokens, **how).output)
            except Refused as error:
                bench.not_checked(f"casts of the module: the model raised {error}")
                return
    bench.compared("casts of the module")
    gap = change(outputs[1], outputs[0])
    if not gap <= 1e-6:
        named = ", ".join(changed[:4]) or "a tensor that is no buffer"
        bench.found(
            "K06",
            "warning",
            expected="model.to(torch.bfloat16) rounds weights alone",
            measured=f"beside that it changes the output by {gap:.1e}: {named}",
            cause="Frequencies, slopes or a table lie in a float buffer, which every cast of the"
            " module rounds.",
            remedy=f"{RECOMPUTE} Until then load with the wanted type instead of casting, or put"
            " the tables back in float32 after the cast.",
            where=changed[0] if changed else "",
        )


def _tables(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Float buffers that may hold a table: more than one number, and no statistics of a norm."""
    for name, buffer in model.named_buffers():
        statistics = name.endswith(("running_mean", "running_var"))
        if buffer.is_floating_point() and buffer.numel() > 1 and not statistics:
            yield name, buffer


def _round_weights(model: nn.Module) -> None:
    """Round what a cast rounds, tables excepted."""
    tables = {id(b) for _, b in _tables(model)}
    for tensor in [*model.parameters(), *(b for b in model.buffers() if id(b) not in tables)]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.bfloat16().to(tensor.dtype)


def _same(after: Tensor, before: Tensor) -> bool:
    return after.shape == before.shape and torch.equal(after.double(), before.double())


# What a forward pass computes in half precision ------------------------------------------------


def _passes(bench: Bench, tokens: Tensor) -> None:
    """Run with half weights (tables as they are), under autocast, and with products as TF32."""
    try:
        with _exact(bench):
            right = _watched(bench, tokens)
    except (Refused, TypeError, RuntimeError, ValueError) as error:
        bench.not_checked(f"angles in half precision: {error}")
        return
    single = _watched(bench, tokens)
    if single.halves and bench.driver.dtype == torch.float32:
        ops = ", ".join(sorted(single.halves))
        _angles(bench, "float32", f"something becomes half precision on the way ({ops})", "warning")
    base = _worst(single.waves, right.waves)
    for name, setting in (("bfloat16 weights", _half), ("autocast to bfloat16", _autocast)):
        try:
            with setting(bench):
                seen = _watched(bench, tokens, name)
        except (Refused, TypeError, RuntimeError) as error:
            try:  # with its tables cast as well, as users do it
                with restored(bench.model):
                    bench.model.bfloat16()
                    _watched(bench, tokens, name)
            except (Refused, TypeError, RuntimeError):
                _refuses(bench, name, str(error))
            else:
                bench.not_checked(
                    f"angles under {name}: tables in float32 meet weights that are not"
                )
            continue
        bench.compared(f"angles under {name}")
        worst = _worst(seen.waves, right.waves)
        if worst is not None and worst[0] > ROUNDED and (base is None or worst[0] > 4 * base[0]):
            _angles(
                bench, name, f"a cos or sin is off by {worst[0]:.2g} at place {worst[1]}", "warning"
            )
        elif seen.rounded:
            ops = ", ".join(dict.fromkeys(seen.rounded))
            _angles(
                bench,
                name,
                f"positions up to {tokens.shape[1] - 1} become bfloat16 ({ops})",
                "warning",
            )
    with _tf32():
        seen = _watched(bench, tokens)
    worst = _worst(seen.waves, single.waves)
    if worst is not None and worst[0] > ROUNDED:
        _angles(
            bench,
            "products with 10-bit mantissas (TF32)",
            f"a cos or sin is off by {worst[0]:.2g}: angles are formed by a matrix product",
            "warning",
        )


def _watched(bench: Bench, tokens: Tensor, name: str = "") -> Any:
    """What a forward pass does; NaN in its output is told of."""
    with restored(bench.model), Watch(waves=True) as watch:
        kinds = bench.driver.dtype
        given = tokens.to(kinds) if tokens.is_floating_point() else tokens
        output = bench.driver(given).output
    if name and not bool(output.isfinite().all()):
        bench.found(
            "K06",
            "warning",
            expected="finite outputs",
            measured=f"NaN or infinity under {name}",
            cause="A mask's floor or a table overflows the type.",
            remedy="Use the type's own minimum as the floor, and keep tables in float32.",
        )
    return watch.seen


@contextlib.contextmanager
def _exact(bench: Bench) -> Generator[None]:
    with in_float64(bench.model):
        bench.model.eval()
        yield


@contextlib.contextmanager
def _half(bench: Bench) -> Generator[None]:
    """Weights in bfloat16, float tables as they are."""
    with restored(bench.model) as model:
        tables = {id(b) for _, b in _tables(model)}
        for tensor in [*model.parameters(), *(b for b in model.buffers() if id(b) not in tables)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.bfloat16()
        yield


@contextlib.contextmanager
def _autocast(bench: Bench) -> Generator[None]:
    with torch.autocast(bench.driver.device.type, dtype=torch.bfloat16):
        yield


class _tf32(TorchFunctionMode):  # noqa: N801 (a context manager)
    """Rounds the operands of float32 products to 10 bits, as TF32 units do."""

    PRODUCTS = (torch.matmul, torch.bmm, torch.mm, torch.einsum, torch.outer, torch.baddbmm,
                Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm, Tensor.outer)  # fmt: skip

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.PRODUCTS:
            args = tuple(_ten_bits(a) for a in args)
        return func(*args, **(kwargs or {}))


def _ten_bits(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        bits = value.contiguous().view(torch.int32)
        return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
    return value


def _worst(got: list[Tensor], right: list[Tensor]) -> tuple[float, int] | None:
    """(largest error, place on the axis of tokens) of the tables; None if they do not match."""
    if not got or [g.shape for g in got] != [r.shape for r in right]:
        return None
    errors = [(g - r).abs() for g, r in zip(got, right, strict=True)]
    worst = max(errors, key=lambda e: float(e.max()) if e.numel() else 0.0)
    if not worst.numel():
        return None
    axis = max(range(worst.dim()), key=lambda i: worst.shape[i]) if worst.dim() else 0
    place = (
        int(worst.argmax())
        if worst.dim() < 2
        else int(torch.unravel_index(worst.argmax(), worst.shape)[axis])
    )
    return float(worst.max()), place


def _refuses(bench: Bench, name: str, said: str) -> None:
    """Mixed types are a fault of tables that set the type of what they turn; others are not."""
    words = ("dtype", "scalar type", "same type", "data type")
    if any(word in said for word in words) and "not implemented" not in said:
        bench.found(
            "K06",
            "warning",
            expected=f"the model runs under {name}",
            measured=f"it raised {said[:160]}",
            cause="What a table turns leaves in the table's type, and meets tensors of another.",
            remedy="Give q and k back in the type they came in.",
        )
    else:
        bench.not_checked(f"{name}: the model raised {said}")


def _angles(bench: Bench, name: str, measured: str, severity: Any) -> None:
    bench.found(
        "K06",
        severity,
        expected="angles and positions as in float32; only cos and sin may be rounded",
        measured=f"under {name} {measured}",
        cause="Positions, frequencies or their product are held in a type of 8 to 11 bits.",
        remedy=f"{RECOMPUTE} Multiply element by element, outside autocast.",
    )


# Types at construction -------------------------------------------------------------------------


def _built(bench: Bench) -> None:
    """A model that is made while the default type is bfloat16, as loaders do."""
    if sum(p.numel() for p in bench.model.parameters()) > MOST_WEIGHTS:
        return
    default = torch.get_default_dtype()
    try:
        plain = derived(rebuilt(bench.model))
        torch.set_default_dtype(torch.bfloat16)
        low = derived(rebuilt(bench.model))
    except NotRebuilt:
        return
    finally:
        torch.set_default_dtype(default)
    bench.compared("tables made under a low default type")
    wrong = [
        n
        for n, t in plain.items()
        if t.is_floating_point() and t.numel() > 1 and n in low and not _close(low[n], t)
    ]
    if wrong:
        bench.found(
            "K06",
            "warning",
            expected="the same tables, whatever the default type when the model is made",
            measured=f"under a default of bfloat16 they change: {', '.join(wrong[:4])}",
            cause="Positions or frequencies are made by constructors without a type.",
            remedy="Make positions as int64, and name float32 or float64 for the rest.",
            where=wrong[0],
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7)
