"""`whereness env`: what to state in a report of a fault. Never imports torch."""

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from whereness import __version__
from whereness.cli.errors import EXTRAS
from whereness.lab.processors import usable_processors


@dataclass(frozen=True, kw_only=True)
class Options:
    """Versions, processors and installed optional parts."""

    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the facts as JSON to this file; - writes them to stdout instead of the text."""


def run(options: Options) -> int:
    """Print the facts, or write them as JSON."""
    facts = environment()
    text = json.dumps(facts, indent=2)
    if options.json == "-":
        print(text)
        return 0
    if options.json is not None:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for part, state in value.items():
                print(f"  {part:11} {state or 'not installed'}")
        else:
            print(f"{name:13} {value if value is not None else 'not installed'}")
    return 0


def environment() -> dict[str, Any]:
    """The facts by name; an absent package has the version None."""
    return {
        "whereness": __version__,
        "python": platform.python_version(),
        "torch": installed("torch"),
        "platform": platform.platform(),
        "processors": usable_processors(),
        "kernels": kernels(),
        "optional": {package: installed(package) for package in EXTRAS},
    }


def kernels() -> str:
    """Whether the compiled kernels are there, without importing them, for they import torch."""
    if find_spec("whereness.kernels._native") is not None:
        return "native"
    return "none: installed without a compiler, so torch does their work"


def installed(package: str) -> str | None:
    """The version that pip recorded, without importing the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
