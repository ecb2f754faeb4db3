"""CHK11, by running: the live model is what its config says, and every setting does something.

The model is made anew from its config and compared; then each position-related setting is changed
by itself. A setting that the config reader takes for part of the formula must move the output.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import Bench, change, probed
from whereness.auditor.driving.rebuild import NotRebuilt, derived, rebuilt
from whereness.auditor.reading.capture import observe
from whereness.auditor.subject import Subject
from whereness.interop.config.files import read
from whereness.interop.config.parts import parts_of
from whereness.interop.config.reader import layers_of

CHECK = "CHK11"
LENGTH, FAR = 24, 5000
"""Tokens of a run, and the last id: far apart, so that slow pairs turn and scalings begin."""
KEYS = (
    "rope_theta",
    "rotary_emb_base",
    "rope_base",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_dim",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "alibi",
    "alibi_bias_max",
    "position_embedding_type",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "no_rope_layers",
    "no_rope_layer_interval",
    "layer_types",
    "sliding_window",
)
BLOCKS = ("rope_parameters", "rope_scaling")
SCALING = ("rope_theta", "factor", "partial_rotary_factor", "attention_factor")
"""Settings of a block that show whatever the others are; bounds of a ramp may show in no pair."""


def run(subject: Subject) -> None:
    """Look at what the config's settings do."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    try:
        twin = rebuilt(bench.model)
    except NotRebuilt as error:
        bench.not_checked(f"settings by running: {error}")
        return
    base = _output(bench, bench.model)
    if base is None:
        bench.not_checked("settings by running: the model refused the probe's input")
        return
    same = _output(bench, twin)
    if same is None:
        bench.not_checked("settings by running: the model made anew refused the probe's input")
        return
    bench.compared("model made from its config")
    if bench.differ(base, same):
        _not_its_config(bench, twin, change(base, same))
        return
    _settings(bench, same)


def _output(bench: Bench, model: nn.Module) -> torch.Tensor | None:
    """Output at ids far apart, where the model takes any."""
    driver = bench.driver
    try:
        other = driver if model is driver.model else _driver(driver, model)
        tokens = driver.sample(1, LENGTH)
        given: dict[str, Any] = {}
        if driver.takes != "pixels" and driver.first is not None:
            ids = bench.natural(1, LENGTH)
            given["mask"] = driver.ones(torch.ones_like(ids))
            most = (driver.max_tokens or FAR) - 1 - driver.first
            for stride in (FAR // LENGTH, max(1, most // LENGTH)):
                given["positions"] = (ids - driver.first) * stride + driver.first
                with contextlib.suppress(Refused):  # a table ends where turning goes on
                    return replace(bench, driver=other).run(tokens, **given)
        return replace(bench, driver=other).run(tokens, **given)
    except Refused:
        return None


def _driver(driver: Driver, model: nn.Module) -> Driver:
    """The same way of feeding, for another model of the same class."""
    other = copy.copy(driver)
    other.model = model
    return other


def _not_its_config(bench: Bench, twin: nn.Module, gap: float) -> None:
    ours, theirs = derived(bench.model), derived(twin)
    tables = [
        name
        for name, table in ours.items()
        if name not in theirs
        or table.shape != theirs[name].shape
        or bench.differ(table, theirs[name])
    ]
    rounded = [n for n in tables if n in theirs and _is_rounded(ours[n], theirs[n])]
    if tables and rounded == tables:
        bench.found(
            "K06",
            "error",
            expected="tables as this class makes them from the config, in float32 or better",
            measured=f"the output changes by {gap:.1e}; rounded to half precision: "
            + ", ".join(tables[:4]),
            cause="Frequencies or slopes were rounded to half precision, for good.",
            remedy="Make the tables again after any cast.",
            where=tables[0],
        )
        return
    bench.found(
        _kind(bench, {name: ours[name] for name in tables}),
        "error",
        expected="the output of a model made from this config, with these weights",
        measured=f"the output changes by {gap:.1e}"
        + (f"; tables that differ: {', '.join(tables[:4])}" if tables else ""),
        cause="The config was changed after the model was built, or the model was: tables are"
        " computed once, by the constructor.",
        remedy="Set the config first, then build; to change a live model, rebuild its tables.",
        where=tables[0] if tables else "",
    )


def _kind(bench: Bench, tables: dict[str, torch.Tensor]) -> str:
    """What kind of fault it is if these tables are others: of frequencies, unless all are alike."""
    kinds = {_kind_of(bench, name, table) for name, table in tables.items()}
    return kinds.pop() if len(kinds) == 1 else "K02"


def _kind_of(bench: Bench, name: str, table: torch.Tensor) -> str:
    if any(_begins_with(table, each.rows) for each in observe(bench.subject).tables):
        return "K24"  # it is added to the embeddings, and follows from a formula
    if name.endswith("position_ids"):
        return "K14"
    if name.endswith("relative_position_index"):
        return "K18"
    square = table.dim() >= 2 and table.shape[-1] == table.shape[-2]
    return "K19" if square and table.dtype == torch.bool else "K02"


def _begins_with(table: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether the first rows of a table are these."""
    if table.dim() != 2 or table.shape[1] != rows.shape[1] or len(table) < len(rows):
        return False
    return bool((table[: len(rows)].cpu() - rows.cpu()).abs().max() <= 1e-5)


def _is_rounded(table: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a table is the right one, rounded to a half type."""
    if table.shape != right.shape or not table.is_floating_point():
        return False
    halves = (right.to(half).double() for half in (torch.bfloat16, torch.float16))
    return any(torch.equal(table.double(), half) for half in halves)


def _settings(bench: Bench, base: torch.Tensor) -> None:
    """Change each setting that the config gives, and see whether the output moves."""
    for path, config in variants(bench.driver.config):
        expected = _expected_to_move(bench.driver.config, config)
        if expected is None:
            continue
        try:
            model = rebuilt(bench.model, config)
        except NotRebuilt:
            continue
        got = _output(bench, model)
        if got is None:
            continue
        moved = got.shape != base.shape or change(got, base) > 1e-9
        bench.compared("setting", where=path)
        if moved or not expected:
            continue
        bench.found(
            "K02",
            "error",
            expected=f"another {path} changes what the layers do, by the family's formula",
            measured="the output stays the same",
            cause="The setting is read nowhere in this class, or another one wins.",
            remedy="Make the model read it, or take it out of the config.",
            where=path,
        )


def variants(config: Any) -> Iterator[tuple[str, Any]]:
    """(name of the setting, a config in which it alone is changed)."""
    for key in KEYS:
        value = getattr(config, key, None)
        other = _other(key, value)
        if other is not None:
            changed = copy.deepcopy(config)
            setattr(changed, key, other)
            yield key, changed
    for block in BLOCKS:
        inner = getattr(config, block, None)
        if not isinstance(inner, dict) or any(isinstance(v, dict) for v in inner.values()):
            continue
        for key, value in inner.items():
            other = _other(key, value)
            if other is not None and key in SCALING:
                changed = copy.deepcopy(config)
                getattr(changed, block)[key] = other
                yield f"{block}.{key}", changed
        break  # the second is another name of the first


def _other(key: str, value: Any) -> Any:
    """Another value of the same kind; None where none is known to be legal."""
    if key in ("layer_types", "position_embedding_type", "no_rope_layers", "sliding_window"):
        return None  # words and lists: another one is another architecture
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        fraction = key in ("partial_rotary_factor", "rotary_pct")
        return (0.5 if value == 1.0 else 1.0) if fraction else value * 1.5 + 0.25
    if isinstance(value, int) and value > 0:
        return 2 * value
    return None


def _expected_to_move(before: Any, after: Any) -> bool | None:
    """Whether the config reader sees other layers; None where it cannot read one of the two."""
    try:
        return _read(before) != _read(after)
    except (ValueError, TypeError):
        return None


def _read(config: Any) -> list[Any]:
    return [layers_of(part).each for part in parts_of(read(config)).values()]
