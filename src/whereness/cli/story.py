"""`whereness story`: the derivation, executable."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """From attention without order to rotary encoding, step by step, in numbers."""

    step: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: all)")] = (
        None
    )
    """Tell only this step, counted from 1."""
    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the numbers as JSON to this file; - writes them to stdout instead of the text."""


def run(options: Options) -> int:
    """Print the story, or write its numbers as JSON."""
    from whereness import __version__, story

    if options.json is not None:
        numbers = {"whereness": __version__, **story.as_json(options.step)}
        text = json.dumps(numbers, indent=2, allow_nan=False)
        if options.json == "-":
            print(text)
            return 0
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.step is None:
        story.show()
    else:
        story.show(options.step)
    return 0
