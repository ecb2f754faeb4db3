"""`whereness.audit`: resolve a target, run the checks that it can serve, and report.

Nothing is passed over in silence: a check that did not run is listed with the reason. What the
target's own code raises ends the check that met it; a fault of ours is told as one, with a warning.
"""

import contextlib
import difflib
import os
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whereness.auditor.aside import aside, importable_here, told
from whereness.auditor.checks import CHECKS as TABLE
from whereness.auditor.checks import Check
from whereness.auditor.findings import CHECKS, Finding, Report
from whereness.auditor.subject import Subject
from whereness.auditor.targets import resolve

if TYPE_CHECKING:
    from torch import nn

    from whereness.auditor.driving.drive import Driver

Progress = Callable[[int, int, str], None]
"""Called with (checks done, checks in all, the name of the next one)."""
OURS = str(Path(__file__).parents[1])
ABSENT = {
    "config": "there is no config to expect anything by",
    "weights": "there are no weights",
    "model": "the target is no live model",
    "text": "no text was given",
}
OTHER_SHAPES = {"warp", "cache", "pads", "packs", "shards", "paths", "masks", "grids", "bounds"}
"""Checks that compare runs of different sizes: random numbers are not the same in both."""
SMALL = 5_000_000
"""Parameters of a model that one thread runs as soon as several."""
UNASKED = "not asked for"
NO_PROBE = "there is no probe for this target"


def audit(
    target: "str | os.PathLike[str] | nn.Module | tuple[nn.Module, Any] | Mapping[str, Any] | Any",
    *,
    config: object = None,
    inputs: "Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]] | None" = None,
    text: "str | os.PathLike[str] | bytes | None" = None,
    checks: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Find positional faults in a checkpoint, a config or a live model.

    A target is only read, and run if it is a model; a model's weights, buffers and modes are as
    before when this returns. What a model prints goes to stderr.

    Args:
        target: a Hugging Face folder or config.json, a .safetensors or .gguf file, the name
            "package.module:callable" of code that returns a module, a module itself, or
            (module, inputs); a dict or config object.
        config: expected instead of the target's own: what `from_config` takes.
        inputs: what the model needs beside tokens; or a callable, (batch, tokens) -> dict.
        text: a file of text, or its bytes: losses are compared on it.
        checks: the only ones to run: "CHK1" or "spectrum", as `findings.CHECKS` names them.
        layers: the only ones to look at, counted from 0 in each part.
        progress: called before each check and after the last one.

    Raises:
        ValueError, TypeError, OSError: in one line, why the target cannot be used.
    """
    wanted = chosen(checks)
    with importable_here(), contextlib.ExitStack() as threads:
        with aside():
            subject = resolve(target, config=config, inputs=inputs, text=text, layers=layers)
        _exist(subject)
        subject.shared["asked"] = wanted if checks is not None else frozenset()
        threads.enter_context(_few_threads(subject.model))
        runnable = [each for each in TABLE if wanted & set(each.ids) and _has(subject, each.needs)]
        if any(each.needs == "model" for each in runnable):
            if not _answers(subject):
                runnable = [each for each in runnable if each.needs != "model"]
            elif subject.shared["driver"].draws:
                runnable = [each for each in runnable if each.module not in OTHER_SHAPES]
                subject.missing["model"] = "its output depends on random numbers in eval mode"
                subject.found(_random())
        for done, check in enumerate(runnable):
            if progress is not None:
                progress(done, len(runnable), CHECKS[check.id])
            _run(check, subject)
        if progress is not None:
            progress(len(runnable), len(runnable), "")
    _keep(subject.report, wanted)
    _tell_others(subject, wanted, runnable)
    return subject.report


def _exist(subject: Subject) -> None:
    """See that the config has the layers that were asked for: of others nothing would be found.

    Raises:
        ValueError: it has none of that number.
    """
    counted = [len(each.each) for each in subject.expected.values() if each.counted]
    absent = {layer for layer in subject.layers or () if counted and layer >= max(counted)}
    if absent:
        raise ValueError(
            f"{subject.name}: there is no layer {min(absent)}; the last one is {max(counted) - 1}."
        )


def chosen(names: Iterable[str] | None) -> frozenset[str]:
    """The ids of these checks, given by id or short name in any case.

    Raises:
        ValueError: a name that is none; the nearest one is named.
        TypeError: a single string.
    """
    if names is None:
        return frozenset(CHECKS)
    if isinstance(names, str):
        raise TypeError(f"checks must be a list of names, got the string {names!r}.")
    ids = {name: id_ for id_, short in CHECKS.items() for name in (id_.lower(), short)}
    found = set()
    for name in map(str, names):
        if name.lower() not in ids:
            near = difflib.get_close_matches(name.lower()[:60], sorted(ids), n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(f"{id_} {short}" for id_, short in CHECKS.items())
            raise ValueError(f"There is no check {name[:60]!r}.{hint} Checks: {known}.")
        found.add(ids[name.lower()])
    if not found:
        raise ValueError("checks is empty: name at least one, or leave it out.")
    return frozenset(found)


def _keep(report: Report, wanted: frozenset[str]) -> None:
    """Leave out what a module that serves several checks said of those that nobody wants."""
    report.findings = [said for said in report.findings if said.check in wanted]
    report.compared = [said for said in report.compared if said.check in wanted]
    report.not_checked = [said for said in report.not_checked if said.check in wanted]


@contextlib.contextmanager
def _few_threads(model: "nn.Module | None") -> Generator[None]:
    """One thread for the products of a small model.

    To wake others takes longer than they save: on two cores beside another process an audit of 19
    seconds took 3.
    """
    if model is None or sum(p.numel() for p in model.parameters()) > SMALL:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _has(subject: Subject, need: str) -> bool:
    if need == "config":
        return subject.source is not None
    return getattr(subject, need) is not None


def _answers(subject: Subject) -> bool:
    """See that the model can be run, and that its output can be compared; what forbids it is told.

    Raises:
        ValueError: it raises on a plain forward pass.
    """
    from whereness.auditor.driving.drive import Driver, Refused
    from whereness.auditor.driving.restore import restored, unwritten

    assert subject.model is not None
    with aside(), restored(subject.model), unwritten(subject.model) as wrote:
        try:
            subject.shared["driver"] = driver = Driver(subject.model, subject.inputs)
            with restored(subject.model):
                output = driver(driver.sample(1, 4)).output
            with restored(subject.model):
                subject.model.eval()
                driver.draws = _draws(driver)
        except Refused as error:
            raise ValueError(
                f"{subject.name}: a plain forward pass fails (if it needs arguments beside tokens, "
                f"give them as inputs). {error}"
            ) from error
        written, unknown = wrote(), bool(output.isnan().any())
    if written is not None:
        subject.found(_writes(written))
        subject.missing["model"] = "a forward pass changes the model's own weights"
    elif unknown:
        subject.found(_nan())
        subject.missing["model"] = "its output is NaN, which nothing can be compared with"
    return "model" not in subject.missing


def _draws(driver: "Driver") -> bool:
    """Whether the output depends on random numbers, though dropout is to be off."""
    import torch

    tokens, before = driver.sample(1, 4), torch.get_rng_state()
    with torch.no_grad():
        first = driver(tokens).output
        if torch.equal(before, torch.get_rng_state()):
            return False
        return not torch.equal(first, driver(tokens).output)


def _random() -> Finding:
    return Finding(
        check="CHK19",
        kind="K05",
        severity="note",
        expected="an output that depends on the input alone in eval mode",
        measured="it depends on random numbers as well; here every run drew the same",
        cause="Dropout that does not ask for self.training, or sampling within the forward pass.",
        remedy="If it is dropout, hand it self.training. Runs of other sizes were not compared.",
    )


def _writes(name: str) -> Finding:
    return Finding(
        check="CHK19",
        kind="K05",
        severity="error",
        where=name,
        expected="a forward pass in eval mode leaves the weights as they are",
        measured="it writes into this one",
        cause="A step that belongs to training is part of the forward pass.",
        remedy="Write into weights where self.training alone, or in the training loop.",
    )


def _nan() -> Finding:
    return Finding(
        check="CHK9",
        kind="K07",
        severity="error",
        expected="numbers, for four ordinary tokens",
        measured="NaN in the output",
        cause="Weights or tables are NaN or were never filled, or a step of the pass overflows.",
        remedy="Look for the first module whose output is NaN; then audit again.",
    )


def _run(check: Check, subject: Subject) -> None:
    """Run one check; what it cannot do is told."""
    error = _caught(check, subject)
    if error is None:
        return
    if of_target(error):
        subject.not_checked(check.id, f"the target raised {told(error)}")
        return
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = f"a fault of whereness, {told(error)}"
    where = f"{Path(place.filename).name}:{place.lineno}"
    subject.not_checked(check.id, f"{said} at {where}; please report it")
    text = f"The check {CHECKS[check.id]!r} failed: {said} at {where}. Please report it."
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _caught(check: Check, subject: Subject) -> Exception | None:
    module = import_module(f"whereness.auditor.checks.{check.module}")
    with aside(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a target's own words on its own code, at every pass
        try:
            module.run(subject)
        except Exception as error:
            if os.environ.get("WHERENESS_TRACEBACK"):
                raise
            return error
    return None


def of_target(error: BaseException) -> bool:
    """Whether an error came out of the target's own code, and not out of ours."""
    if type(error).__name__ == "Refused":  # of the driver, which tells what a model raises
        return True
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(frames) and _owner(frames) == "target"


def _owner(frames: list[str]) -> str:
    """Whose the innermost frame is, that of torch and Python's library left out."""
    for file in reversed(frames):
        if file.startswith(OURS):
            return "ours"
        if not _of_library(file):
            return "target"
    return "ours"


def _of_library(file: str) -> bool:
    import torch

    homes = (str(Path(torch.__file__).parent), str(Path(os.__file__).parent))
    return file.startswith("<frozen") or (
        file.startswith(homes) and ("site-packages" not in file or file.startswith(homes[0]))
    )


def _tell_others(subject: Subject, wanted: frozenset[str], ran: list[Check]) -> None:
    """List the checks that did not run, with the reason."""
    for id_ in CHECKS:
        if id_ not in wanted:
            subject.not_checked(id_, UNASKED)
            continue
        probes = [check for check in TABLE if id_ in check.ids]
        reasons = [_why(subject, check) for check in probes if check not in ran]
        for why in dict.fromkeys(reasons if probes else [NO_PROBE]):
            subject.not_checked(id_, why)


def _why(subject: Subject, check: Check) -> str:
    return subject.missing.get(check.needs, ABSENT[check.needs])
