"""`whereness explain`: what a model's config makes each layer do."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


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
    from whereness.interop.explain import as_data, render, tell

    told = tell(options.config, options.layer, options.part)
    if options.json is not None:
        numbers = {"whereness": __version__, **as_data(told)}
        text = json.dumps(numbers, indent=2, allow_nan=False)
        if options.json == "-":
            print(text)
            return 0
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    print(render(told))
    return 0
