"""`whereness explain`: what a model's config makes each layer do."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

NARROWEST = 40
"""Columns below which lines are too short to read."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Say what a model's config makes each layer do: widths, bases, scalings, wavelengths."""

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """A config.json, the folder that holds it, or a .gguf file."""
    layer: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: all)")
    ] = None
    """Tell of this layer only, counted from 0."""
    part: Annotated[
        str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all)")
    ] = None
    """Tell of this part of a composite model only: text_config, vision_config, encoder, ..."""
    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the numbers as JSON to this file; - writes them to stdout instead of the text."""


def run(options: Options) -> int:
    """Print what is told, or write its numbers as JSON."""
    from whereness import __version__
    from whereness.interop.config.explain import WIDTH, as_data, render, tell

    told = tell(options.config, options.layer, options.part)
    if options.json is not None:
        numbers = {"whereness": __version__, **as_data(told)}
        text = lines_of(numbers)
        if options.json == "-":
            print(text)
            return 0
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    print(render(told, min(WIDTH, max(NARROWEST, columns))))
    return 0


def lines_of(data: dict[str, object]) -> str:
    """JSON of a line a key, a list of numbers on one line."""
    text = json.dumps(data, indent=2, allow_nan=False)
    # A string holds no line break, so no list within one is touched.
    return re.sub(r'\[\n[^][{}"]*\]', lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
