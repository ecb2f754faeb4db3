"""Subjects of models, and the checks that read layers."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn

from whereness.auditor.findings import Finding, Report
from whereness.auditor.subject import Subject
from whereness.interop.config.files import read

READING = (
    "layermap",
    "spectrum",
    "tables",
    "channels",
    "bias",
    "grids",
    "windows",
    "shift",
    "warp",
)


def subject_of(model: nn.Module, config: Mapping[str, Any] | None = None) -> Subject:
    """A live model, and its config."""
    source = None if config is None else read(dict(config))
    return Subject("model", Report(target="model"), source=source, model=model)


def read_out(model: nn.Module, config: Mapping[str, Any] | None = None) -> Subject:
    """The subject after all checks that read layers."""
    subject = subject_of(model, config)
    for name in READING:
        import_module(f"whereness.auditor.checks.{name}").run(subject)
    return subject


def bad(subject: Subject) -> list[Finding]:
    """Its errors and warnings."""
    return [found for found in subject.report.findings if found.severity != "note"]


def kinds(subject: Subject) -> set[str]:
    """Their kinds."""
    return {found.kind for found in bad(subject)}


def compared(subject: Subject) -> set[str]:
    """What was compared with an expectation."""
    return {each.what for each in subject.report.compared}


def config_of(**keys: Any) -> dict[str, Any]:
    """A config like Llama's for the models of `small`."""
    return {
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "rope_theta": 1e4,
        **keys,
    }
