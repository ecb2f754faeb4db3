"""`whereness compare`: which encoding suits this text and these lengths."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from whereness.lab.settings import DEFAULT_ENCODINGS, Comparison, OrderRecipe, Recipe


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train small models with each encoding, on one text and on word order, and compare them."""

    text: Annotated[
        tuple[Path, ...] | None,
        tyro.conf.arg(
            metavar="FILE [FILE ...]", help_behavior_hint="(default: Python's documentation)"
        ),
    ] = None
    """Files to train and evaluate on, read as bytes."""
    encodings: Annotated[
        tuple[str, ...] | None,
        tyro.conf.arg(
            metavar="NAME [NAME ...]",
            help_behavior_hint=f"(default: {' '.join(DEFAULT_ENCODINGS)})",
        ),
    ] = None
    """Encodings to compare."""
    train_length: int = Recipe.train_length
    """Length of the training sequences, in bytes."""
    lengths: Annotated[
        tuple[int, ...] | None,
        tyro.conf.arg(
            metavar="INT [INT ...]",
            help_behavior_hint="(default: 1, 2, 4 and 8 times the training length)",
        ),
    ] = None
    """Lengths to evaluate at, in bytes."""
    steps: int = Recipe.steps
    """Training steps of each language model."""
    batch: int = Recipe.batch
    """Sequences in one of its training steps."""
    order_steps: int = OrderRecipe.steps
    """Training steps of each model that learns who acts on whom."""
    seeds: int = Comparison.seeds
    """Models of each kind to train with each encoding."""
    width: int = Recipe.width
    """Model width, in channels."""
    depth: int = Recipe.depth
    """Layers."""
    heads: int = Recipe.heads
    """Attention heads."""
    jobs: Annotated[
        int | None,
        tyro.conf.arg(
            metavar="INT", help_behavior_hint="(default: one a processor; not on the cpu: 1)"
        ),
    ] = None
    """Models to train at the same time."""
    device: str = Recipe.device
    """Where to train, as torch names it: cpu, cuda, cuda:1."""
    out: Annotated[
        Path | None,
        tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: a folder in runs/)"),
    ] = None
    """Folder for the results. Given again with the same settings, the work goes on there."""
    open: bool = False
    """Open the report in a browser."""


def run(options: Options) -> int:
    """Train, compare, print the table and the recommendation, and write the files."""
    from whereness.lab import compare

    return compare.run(options)
