"""Sees every attention layer of a model: rotation, bias, tables at the input, by three runs.

Layers are given random contents of their own (`injecting`), and read one by one.

Axes: B rows, H heads, S slots, T keys, D channels.
"""

import torch
from torch import nn

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import driver_of
from whereness.auditor.driving.restore import in_float64, restored, written
from whereness.auditor.findings import Class
from whereness.auditor.reading.facts import fill
from whereness.auditor.reading.placing import place
from whereness.auditor.reading.runs import BIASED_SLOTS, LONG_SLOTS, NEAR_SLOTS, SILENT_SLOTS, Runs
from whereness.auditor.reading.views import TOEPLITZ, LayerView, Observed
from whereness.auditor.subject import Subject


def observe(subject: Subject) -> Observed:
    """What is to be seen of the subject's model; made once and kept."""
    if "observed" not in subject.shared:
        subject.shared["observed"] = _observed(subject)
    return subject.shared["observed"]


def seen(subject: Subject, check: str) -> Observed | None:
    """The same for a check, which is told as not done where no layer was seen."""
    observed = observe(subject)
    if observed.layers:
        return observed
    subject.not_checked(check, "; ".join(observed.why) or "no attention was found")
    return None


def _observed(subject: Subject) -> Observed:
    model = subject.model
    if model is None:
        return Observed(why=("there is no live model",))
    driver = driver_of(subject)
    if isinstance(driver, str):
        return Observed(why=(driver,))
    try:
        with in_float64(model):
            found = _read(model, driver, exact=True)
    except Refused:
        try:
            with restored(model):
                found = _read(model, driver, exact=False)
        except Refused as error:
            return Observed(why=(str(error),), exact=False)
    place(subject, found)
    fill(subject, found)
    return found


def _read(model: nn.Module, driver: Driver, *, exact: bool) -> Observed:
    model.eval()
    runs = Runs(model, driver)
    empty = [p for p in model.parameters() if p.dim() >= 2 and not p.is_meta and not bool(p.any())]
    with torch.no_grad(), written(*empty):
        _fill(empty)
        runs.discover()
        near = runs.first_that_works(NEAR_SLOTS, runs.near)
        silent_far = None
        silent = runs.first_that_works(SILENT_SLOTS, runs.silent)
        if silent is not None and any(bias.present for bias in silent.events.values()):
            longer = runs.first_that_works(BIASED_SLOTS, runs.silent, needed=False)
            silent, silent_far = longer or silent, runs.silent_far()
        far = runs.far()
        if near is not None and (
            near.tables or far is None or near.sides.keys() > far.sides.keys()
        ):
            near = runs.first_that_works(LONG_SLOTS, runs.near)
    layers = runs.views(near, silent, far, silent_far)
    tables = tuple(near.tables if near is not None else ())
    paths = {view.where for view in layers}
    for view in layers:
        view.tabled = any(reaches(table.where, view.where, paths) for table in tables)
        view.classified = _class(view)
    return Observed(
        layers=layers,
        tables=tables,
        ids=() if far is None else far.positions,
        unseen=runs.unseen,
        exact=exact,
        why=tuple(runs.why),
    )


def _fill(tables: list[nn.Parameter]) -> None:
    """Numbers for tables of zeros: a bias that has not been trained would look like none."""
    generator = torch.Generator().manual_seed(0)
    for table in tables:
        noise = torch.randn(table.shape, generator=generator, dtype=torch.float64)
        table.copy_(0.1 * noise.to(table.dtype))


def _class(view: LayerView) -> Class:
    """How a layer knows where its tokens are."""
    if view.odd or view.best is None:
        return "unknown"
    if view.content_aware:
        return "content-aware"
    if view.tabled or any(bool(side.turning.shifted.any()) for side in view.best):
        return "absolute"
    if view.turns or view.biased:
        even = view.uneven is None or view.uneven <= TOEPLITZ
        return "relative" if even else "absolute"
    return "none"


def reaches(table: str, layer: str, paths: set[str]) -> bool:
    """Whether a table added in the module `table` is in the input of `layer`.

    It is added within the part that holds the layers: the nearest module around that has any.
    """
    home = table
    while True:
        prefix = f"{home}." if home else ""
        if any(path.startswith(prefix) for path in paths):
            return layer.startswith(prefix)
        if not home:
            return False
        home = home.rpartition(".")[0]
