"""`whereness bench`: how fast, against whom, after a check that it is right."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed and memory against torch and other libraries, correctness first.

    Every contestant is compared with a float64 oracle before it is timed. Exit status 0: every gate
    is green, also where a row falls short of its bar; 1: something gave wrong numbers.
    """

    only: Annotated[
        tuple[str, ...] | None,
        tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint="(default: all)"),
    ] = None
    """Rows to run, or the first parts of their names: rotary/in-place."""
    list: bool = False
    """Print the names of the rows and run none."""
    quick: bool = False
    """Small sizes and few repeats, to see whether rows work; no bar is judged."""
    repeats: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Samples of each contestant; otherwise as many as fit a few seconds."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Threads of torch; otherwise torch's own choice."""
    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write results as lines of JSON to this file; - writes them to stdout instead of the table."""
    markdown: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the table to this file as well, in Markdown."""


def run(options: Options) -> int:
    """Measure and print."""
    from whereness.bench import command

    return command.run(options)
