"""Runs single checks on a model, for the tests of the probes."""

import importlib
from typing import Any

from torch import nn

from auditor.faults.own import own
from auditor.faults.planting import attentions, override
from whereness.auditor.findings import Finding, Report
from whereness.auditor.subject import Subject
from whereness.interop.config.files import read

__all__ = ["PROBES", "attentions", "bad", "looked", "numbered", "override", "own", "said"]

PROBES = (
    "state",
    "cache",
    "masks",
    "pads",
    "packs",
    "shards",
    "paths",
    "backward",
    "bounds",
    "deadkeys",
    "casts",
    "life",
    "trace",
    "cost",
)
"""Checks of whole outputs, in their order."""


def looked(model: nn.Module, *checks: str, inputs: Any = None) -> Report:
    """What these checks say of a model."""
    subject = Subject(name="model", report=Report(target="model"), model=model, inputs=inputs)
    config = getattr(model, "config", None)
    if config is not None:
        subject.source = read(config)
    for check in checks:
        importlib.import_module(f"whereness.auditor.checks.{check}").run(subject)
    return subject.report


def bad(report: Report) -> list[Finding]:
    """Errors and warnings."""
    return report.of("error") + report.of("warning")


def said(report: Report) -> set[tuple[str, str]]:
    """(kind, severity) of all that is bad."""
    return {(found.kind, found.severity) for found in bad(report)}


def numbered(model: nn.Module, rule: Any) -> nn.Module:
    """Number tokens that come without ids by `rule(own numbers, tokens, past)`."""

    def number(before: Any, self: nn.Module, input_ids: Any, mask: Any, past: int) -> Any:
        del self
        return rule(before(input_ids, mask, past), input_ids.shape[1], past)

    override(model, "number", number)
    return model
