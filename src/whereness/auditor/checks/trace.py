"""CHK17: what keeps positions from being traced, exported or moved to another device.

Lints over one forward pass (complex numbers, float64 made on the way, attributes that it replaces,
tables that are no buffers), and if asked for by name an export with a length that is left open.
"""

import contextlib
import copy
import logging
import warnings
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.operations import Watch
from whereness.auditor.driving.probing import Bench, change, probed, teller
from whereness.auditor.driving.restore import restored
from whereness.auditor.subject import Subject

CHECK = "CHK17"
LENGTH = 7


def run(subject: Subject) -> None:
    """Look for what cannot be traced."""
    probed(subject, CHECK, _look, exact=False)


def _look(bench: Bench) -> None:
    tokens = bench.driver.sample(2, LENGTH)
    with bench.alone(), Watch() as watch:
        bench.driver(tokens)
    bench.compared("lints of a forward pass")
    if watch.seen.complex:
        ops = ", ".join(sorted(watch.seen.complex)[:4])
        _found(bench, f"complex tensors ({ops})", "real tensors alone", _COMPLEX)
    if watch.seen.read:
        measured = f"{watch.seen.read} times the largest or smallest position is read back"
        _found(bench, measured, "no branch on a value of a tensor", _BRANCH)
    if watch.seen.double and bench.driver.dtype != torch.float64:
        ops = ", ".join(sorted(watch.seen.double)[:4])
        _found(bench, f"float64 tensors ({ops})", "float32 at most on the device", _DOUBLE)
    _one_row(bench, tokens)
    _replaced(bench, tokens)
    _unregistered(bench)
    _elsewhere(bench, tokens)
    _exported(bench, tokens)


def _one_row(bench: Bench, tokens: Tensor) -> None:
    """Ids (1, S) for a batch, as exporters make them."""
    driver = bench.driver
    if driver.takes == "pixels" or driver.first is None:
        return
    ids = bench.natural(2, LENGTH)
    mask = driver.ones(torch.ones_like(ids))
    try:
        right = bench.run(tokens, positions=ids, mask=mask)
        got = bench.run(tokens, positions=ids[:1], mask=mask)
    except Refused as error:
        _found(
            bench, f"ids (1, S) for a batch: the model raised {error}", "broadcast ids", _BROADCAST
        )
        return
    bench.compared("ids of one row")
    if bench.differ(got, right):
        measured = f"ids (1, S) for a batch change the output by {change(got, right):.1e}"
        _found(bench, measured, "broadcast ids", _BROADCAST)


def _replaced(bench: Bench, tokens: Tensor) -> None:
    """Attributes and buffers that a forward pass sets."""
    driver = bench.driver
    with bench.alone():
        before = _held(bench.model)
        try:
            driver(tokens)
            if driver.takes != "pixels":
                driver(driver.sample(1, 40))
        except Refused:
            return
        after = _held(bench.model)
    changed = [
        k
        for k, v in after.items()
        if before.get(k) is not v and (isinstance(v, Tensor) or before.get(k) != v)
    ]
    if changed:
        _found(
            bench,
            f"a forward pass sets {', '.join(changed[:4])}",
            "a forward pass that writes no attribute",
            _WRITES,
            where=changed[0],
        )


def _held(model: nn.Module) -> dict[str, Any]:
    """Attributes of all modules by path."""
    found = {}
    for path, module in model.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items()):  # noqa: SLF001
            if not name.startswith("_"):
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def _unregistered(bench: Bench) -> None:
    """Float tensors that are plain attributes: they stay where they were made."""
    plain = [
        name
        for name, value in _held(bench.model).items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1
    ]
    owned = {n for n, _ in bench.model.named_buffers()}
    plain = [n for n in plain if n not in owned]
    moves = [n for n in plain if _moves(bench.model, n)]
    wrong = [n for n in plain if n not in moves]
    if wrong:
        _found(
            bench,
            f"tensors that are no buffers: {', '.join(wrong[:4])}",
            "tables that go to another device with their module",
            _STAYS,
            where=wrong[0],
        )


def _moves(model: nn.Module, name: str) -> bool:
    """Whether a plain tensor follows its module by the module's own doing."""
    path, _, attribute = name.rpartition(".")
    with restored(model):
        module = model.get_submodule(path)
        try:
            module.to(device="meta")
        except RuntimeError:
            return False
        value = getattr(module, attribute, None)
        return not isinstance(value, Tensor) or value.is_meta


def _elsewhere(bench: Bench, tokens: Tensor) -> None:
    """The model on the meta device, which every machine has: what stays behind meets the rest."""
    if bench.driver.device.type != "cpu" or bench.driver.inputs or bench.driver.decodes:
        bench.not_checked("another device: only models on the CPU that take tokens alone")
        return
    with restored(bench.model) as model:
        driver = copy.copy(bench.driver)
        driver.extra = {
            k: v.to("meta") if isinstance(v, Tensor) else v for k, v in driver.extra.items()
        }
        try:
            model.to(device="meta")
            driver(tokens.to("meta"))
        except (Refused, RuntimeError) as error:
            said = str(error)
            if "copy out of meta" in said:
                _found(bench, "a pass copies positions to the host", "a pass on one device", _STAYS)
            elif "cpu" in said and "meta" in said and "device" in said:
                measured = f"with the model on another device a pass raised {said[:160]}"
                _found(bench, measured, "tables where their input is", _STAYS)
            else:
                bench.not_checked(f"another device: {said[:160]}")
            return
    bench.compared("another device")


def _exported(bench: Bench, tokens: Tensor) -> None:
    """Export with S left open, then run other lengths."""
    driver, model = bench.driver, bench.model
    if driver.takes == "pixels" or driver.decodes or not driver.rows_first or driver.inputs:
        bench.not_checked("export: only models that take tokens alone are exported")
        return
    if CHECK not in bench.subject.shared.get("asked", ()):
        bench.not_checked("export: tracing takes seconds, and is done if asked for by name alone")
        return
    names = {driver.argument: tokens}
    given = driver._base(2, LENGTH) | names  # noqa: SLF001 (the same arguments as a run)
    if driver.names.use_cache:
        given[driver.names.use_cache] = False
    axis = torch.export.Dim.DYNAMIC
    shapes = {n: ({1: axis} if n in names else None) for n in given}
    with bench.alone(), warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # torch's own, about what it traces
        try:
            made = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
            program = made.module()
        except Exception as error:  # noqa: BLE001 (whatever tracing may raise)
            said = " ".join(str(error).split())[:160]
            _found(
                bench, f"torch.export raised {type(error).__name__}: {said}", "an export", _EXPORT
            )
            return
        bench.compared("export")
        other = driver.sample(2, LENGTH + 6, seed=3)
        wanted = driver(other).output
        try:
            result = program(**(given | {driver.argument: other}))
        except Exception as error:  # noqa: BLE001 (the same)
            said = " ".join(str(error).split())[:160]
            _found(bench, f"another length: {said}", "an export for every length", _EXPORT)
            return
    from whereness.auditor.driving.outputs import main_output

    got = main_output(result, 2, LENGTH + 6, rows_first=True)
    if got is not None and got.shape == wanted.shape and change(got, wanted) > 1e-3:
        gap = f"exported at {LENGTH} tokens, the output at {LENGTH + 6} changes by"
        _found(bench, f"{gap} {change(got, wanted):.1e}", "the same at every length", _EXPORT)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep the graphs to itself that torch logs when an export fails."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


_BROADCAST = (
    "Ids with a batch axis of 1, which exporters make, are not broadcast.",
    "Expand ids to the batch before they index a table.",
)
_COMPLEX = (
    "Rotations are complex products, which exporters and some devices do not have.",
    "Keep cos and sin as two real tensors.",
)
_BRANCH = (
    "A table is chosen, or a length found, by looking at a tensor's value: tracers cannot follow.",
    "Take lengths from shapes, and choose by tensor arithmetic (where).",
)
_DOUBLE = (
    "Angles are formed in float64 on the device; some devices have none.",
    "Form them in float64 on the host and cast before the move, or in float32.",
)
_WRITES = (
    "A table is replaced while the model runs: a tracer keeps one of the two.",
    "Choose between tables by arithmetic on tensors, or before the pass.",
)
_STAYS = (
    "A plain tensor attribute does not follow .to(device), and is not saved.",
    "Register it as a non-persistent buffer, or make it from the ids on the spot.",
)
_EXPORT = (
    "Positions or masks depend on a value, a branch or a size that was fixed while tracing.",
    "Derive positions from shapes by tensor operations.",
)


_found = teller("K20", "warning")
