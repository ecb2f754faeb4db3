"""CHK9: tables live through what happens to a model: meta device, copies, checkpoints, training.

Nothing is pickled. Severity is a warning where the fault shows only to those who do such a thing.
"""

import contextlib
import copy
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench, change, probed
from whereness.auditor.driving.rebuild import DERIVED, MOST_WEIGHTS
from whereness.auditor.driving.restore import restored
from whereness.auditor.findings import Severity
from whereness.auditor.subject import Subject

CHECK = "CHK9"
POISON = 6.9e-18
"""What fresh memory may hold: finite, so that no scan for NaN sees it."""


def run(subject: Subject) -> None:
    """Look at the life of the tables."""
    probed(subject, CHECK, _look, exact=False)


def _look(bench: Bench) -> None:
    tokens = bench.driver.sample(2, 6)
    fresh = bench.run(tokens)
    _state(bench, tokens, fresh)
    _functions(bench)
    _training(bench, tokens)
    if sum(p.numel() for p in bench.model.parameters()) > MOST_WEIGHTS:
        bench.not_checked("copies and the meta device: the model is too large to be held twice")
        return
    _copied(bench, tokens, fresh)
    _emptied(bench, tokens, fresh)


def _state(bench: Bench, tokens: Tensor, fresh: Tensor) -> None:
    """What the model saves it can load, and tables are not among it."""
    state = bench.model.state_dict()
    bench.compared("checkpoint round trip")
    with restored(bench.model) as model:
        try:
            with torch.no_grad():
                model.load_state_dict(_few(state), strict=False)
            got = bench.driver(tokens).output
        except (Refused, RuntimeError) as error:
            _found(bench, "error", "the model's own state_dict loads", f"it raised {error}", _KEYS)
            return
    if bench.differ(got, fresh):
        measured = f"the output changes by {change(got, fresh):.1e}"
        _found(bench, "error", "a state_dict that was just saved changes nothing", measured, _KEYS)
    kept = [k for k in state if k.endswith(DERIVED)]
    if kept:
        measured = f"derived: {', '.join(kept[:4])}"
        _found(
            bench, "warning", "checkpoints hold what was learned alone", measured, _KEYS, kept[0]
        )


def _few(state: dict[str, Any]) -> dict[str, Any]:
    """Copies of the entries that are small enough for that in any model.

    Quantised modules have other things than tensors among theirs.
    """
    small = {k: v for k, v in state.items() if not isinstance(v, Tensor) or v.numel() <= 1_000_000}
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in small.items()}


def _functions(bench: Bench) -> None:
    """Functions without a name: what holds one cannot be saved whole or sent to a process."""
    found = [
        f"{path}.{name}".lstrip(".")
        for path, module in bench.model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and ("<lambda>" in value.__qualname__ or "<locals>" in value.__qualname__)
    ]
    bench.compared("functions kept on modules")
    if found:
        measured = f"local functions: {', '.join(found[:4])}"
        _found(bench, "warning", "what modules hold can be pickled", measured, _COPY, found[0])


def _training(bench: Bench, tokens: Tensor) -> None:
    """A training step after inference mode."""
    weights = [p for p in bench.model.parameters() if p.requires_grad]
    if not weights or sum(p.numel() for p in weights) > MOST_WEIGHTS:
        return
    with restored(bench.model):
        try:
            with torch.enable_grad():
                bench.driver(
                    tokens[:, :5] if bench.driver.takes != "pixels" else tokens
                ).output.sum()
        except Refused:
            return
    with restored(bench.model):
        with torch.inference_mode():
            bench.driver(tokens)
        try:
            with torch.enable_grad():
                output = bench.driver(tokens).output
                if output.requires_grad:
                    torch.autograd.grad(output.sum(), weights, allow_unused=True)
        except (Refused, RuntimeError) as error:
            if "nference" in str(error):
                measured = f"after inference mode a training step raised {error}"
                _found(bench, "error", "training works after inference", measured, _INFERENCE)
            return
    bench.compared("inference, then training")


def _copied(bench: Bench, tokens: Tensor, fresh: Tensor) -> None:
    """A deep copy is the same model."""
    try:
        other = copy.deepcopy(bench.model)
    except Exception as error:  # noqa: BLE001 (whatever a model's attributes may raise)
        measured = f"copy.deepcopy raised {type(error).__name__}: {error}"
        _found(bench, "warning", "the model can be copied", measured, _COPY)
        return
    bench.compared("deep copy")
    driver = copy.copy(bench.driver)
    driver.model = other
    with contextlib.suppress(Refused):
        got = driver(tokens).output
        if bench.differ(got, fresh):
            measured = f"the copy's output differs by {change(got, fresh):.1e}"
            _found(bench, "warning", "a copy gives the same output", measured, _COPY)


def _emptied(bench: Bench, tokens: Tensor, fresh: Tensor) -> None:
    """Through the meta device and empty memory, then the weights are loaded."""
    state = {k: v.detach().clone() for k, v in bench.model.state_dict().items()}
    if bench.driver.device.type != "cpu":
        bench.not_checked("the meta device: the model is not on the CPU")
        return
    outputs = []
    for refills in (False, True):
        with restored(bench.model) as model:
            try:
                model.to(device="meta")
                model.to_empty(device="cpu")
                _poison(model, state)
                if refills:
                    _refill(model)
                model.load_state_dict(state, strict=False)
                outputs.append(bench.driver(tokens).output)
            except (Refused, RuntimeError, AttributeError, TypeError) as error:
                if not refills:
                    outputs.append(fresh * torch.nan)
                    continue
                bench.not_checked(f"the meta device: {str(error)[:200]}")
                return
    bench.compared("meta device")
    if not bench.differ(outputs[0], fresh) or not bench.differ(outputs[1], fresh):
        return
    kept = set(state)
    empty = [n for n, b in bench.model.named_buffers() if n not in kept]
    _found(
        bench,
        "warning",
        "the output of the model as it was built, after to_empty() and load_state_dict()",
        f"the output changes by {change(outputs[1], fresh):.1e}; nothing fills "
        + ", ".join(empty[:4]),
        _EMPTY,
        empty[0] if empty else "",
    )


def _poison(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Fresh memory holds anything."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name not in state and buffer.is_floating_point():
                buffer.fill_(POISON)
            elif name not in state and buffer.dtype in (torch.int64, torch.int32):
                buffer.fill_(0)


def _refill(model: nn.Module) -> None:
    """Call what is there to fill tables again: `reset_parameters`, or a model's own initialiser."""
    fill = getattr(model, "_init_weights", None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for module in model.modules():
            if callable(fill):
                fill(module)
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()


_KEYS = (
    "Tables that follow from the config are saved, or what is saved does not fit what is loaded.",
    "Make derived tables non-persistent; on load accept their old keys and compare, never require.",
)
_INFERENCE = (
    "A table that was built in inference mode is kept and saved for a backward pass.",
    "Build tables as ordinary tensors, or anew when the mode changes.",
)
_COPY = (
    "A function or a tensor that cannot be copied is stored on a module.",
    "Store settings, and make functions and tables from them.",
)
_EMPTY = (
    "A table lies in a non-persistent buffer that the constructor alone fills.",
    "Fill tables in reset_parameters (or the model's _init_weights), or derive them on demand.",
)


def _found(
    bench: Bench,
    severity: Severity,
    expected: str,
    measured: str,
    why: tuple[str, str],
    where: str = "",
) -> None:
    bench.found(
        "K07",
        severity,
        expected=expected,
        measured=" ".join(measured.split())[:300],
        cause=why[0],
        remedy=why[1],
        where=where,
    )
