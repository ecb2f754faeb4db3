"""`whereness measure`: the properties of encodings."""

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the properties of encodings: unique codes, relativity, decay, precision and more."""

    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="(default: all)"),
    ] = ()
    """Encodings to measure."""
    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the results as JSON to this file; - writes them to stdout instead of the table."""
    dim: int = 64
    """Model width, in channels."""
    heads: int = 8
    """Attention heads."""
    length: int = 128
    """Positions to measure on, in tokens."""


def run(options: Options) -> int:
    """Measure and print."""
    from whereness.properties import report

    return report.run(options)
