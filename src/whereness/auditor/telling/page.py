"""The report as a page: one HTML file that fetches nothing and runs no script.

What comes from a target is shown as text, never as markup. The only markup that is not in the
template are the plots, which are our own.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whereness import __version__
from whereness.auditor.findings import KINDS, Report
from whereness.auditor.kinds import TEACHING
from whereness.auditor.telling import plots
from whereness.auditor.telling.grouping import (
    FindingGroup,
    LayerGroup,
    compared_groups,
    finding_groups,
    layer_groups,
    not_checked_groups,
)
from whereness.auditor.telling.words import (
    amplitude_said,
    check_name,
    encoding_measured,
    headline,
    plain,
    reach,
    short_name,
    speeds_said,
    width,
)

HERE = Path(__file__).parent
OPEN = 6
"""Groups of layers whose plots are open from the start; those with a finding always are."""


def html(report: Report) -> str:
    """The text of the page."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    css = Markup((HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704 (ours)
    return environment.get_template("page.html.j2").render(view(report), css=css)


def shown(value: object) -> object:
    """Text as it may stand in a page: no control characters, not even escaped ones."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def view(report: Report) -> dict[str, Any]:
    """Everything that the template names."""
    groups = layer_groups(report)
    found = finding_groups(report)
    rows = [row(i, group) for i, group in enumerate(groups)]
    kinds = dict.fromkeys(group.first.kind for group in found)
    return {
        "version": __version__,
        "target": report.target,
        "what": report.what,
        "verdict": report.verdict.replace(" ", "-"),
        "headline": headline(report),
        "reach": reach(report),
        "findings": [finding(group) for group in found],
        "kinds": [(kind, KINDS[kind], TEACHING[kind]) for kind in sorted(kinds)],
        "layers": rows,
        "columns": [name for name in COLUMNS if any(made["cells"][name] for made in rows)],
        "short": SHORT,
        "spectra": [made for made in rows if made["plots"]],
        "compared": [(check_name(check), things) for check, things in compared_groups(report)],
        "not_checked": [
            (", ".join(map(short_name, checks)), why, layers)
            for checks, why, layers in not_checked_groups(report)
        ],
    }


SHORT = ("class", "width")
"""Columns of our own words and numbers, which are never broken."""
COLUMNS = ("class", "measured", "in the config", "pairing", "width", "speed")


def row(i: int, group: LayerGroup) -> dict[str, Any]:
    """Layers that are alike: what the table says of them, and their plots."""
    facts = group.facts
    word = "" if facts.index is None else "layers" if len(group.layers) > 1 else "layer"
    return {
        "id": f"layers-{i}",
        "layers": group.label,
        "word": word,
        "state": group.state,
        "cells": {
            "class": "" if facts.classified == "unknown" else facts.classified,
            "measured": encoding_measured(facts),
            "in the config": facts.expected or "",
            "pairing": facts.pairing or "",
            "width": width(facts),
            "speed": ", ".join(filter(None, (speeds_said(facts.speeds), amplitude_said(facts)))),
        },
        "plots": drawn(group),
        "open": i < OPEN or group.state in ("error", "warning"),
    }


def drawn(group: LayerGroup) -> list[tuple[str, Markup]]:
    """The plots of a group with their titles."""
    facts, of = group.facts, plain(group.label)
    found = []
    measured, config = facts.speeds or (), facts.expected_speeds
    if measured or config:
        title = f"Turning speed of each pair, {of}"
        found.append(("Turning speed of each pair", plots.speeds(measured, config, title)))
    if measured and config:
        title = f"Difference of each pair's speed to the config's, {of}"
        plot = plots.differences(measured, config, title)
        found.append(("Its difference to the config's", plot))
    if facts.amplitudes:
        title = f"Amplitude of each pair, {of}"
        plot = plots.amplitudes(facts.amplitudes, facts.expected_amplitude, title)
        found.append(("Amplitude of each pair", plot))
    if facts.bias_curves and facts.bias_offsets:
        title = f"Bias of each head by offset, {of}"
        plot = plots.biases(
            facts.bias_offsets, facts.bias_curves, facts.expected_bias_curves, title
        )
        found.append(("Bias of each head by offset", plot))
    return found


def finding(group: FindingGroup) -> dict[str, Any]:
    """A finding, in all layers that have it."""
    first = group.first
    return {
        "severity": first.severity,
        "kind": first.kind,
        "title": KINDS[first.kind],
        "check": check_name(first.check),
        "layers": group.layers,
        "where": group.where,
        "expected": group.values("expected"),
        "measured": group.values("measured"),
        "cause": first.cause,
        "remedy": first.remedy,
    }
