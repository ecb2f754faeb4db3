"""`whereness convert`: a checkpoint from one pairing of rotary channels to the other."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from whereness.interop.weights.checkpoint import Plan

LARGE = 1 << 30
"""Bytes from which on the progress is told."""


def _number(hint: str) -> object:
    return tyro.conf.arg(metavar="INT", help_behavior_hint=f"(default: {hint})")


def _names(hint: str) -> object:
    return tyro.conf.arg(metavar="PATTERN [PATTERN ...]", help_behavior_hint=f"(default: {hint})")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Move the rows of queries and keys, so that code with the other pairing gives the same model.

    Weights that the pairing does not concern are copied bit by bit. The numbers of heads and the
    names come from config.json where its family is known; the options below are for the others.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """A .safetensors file, or a folder as Hugging Face has it."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
    """The file or folder to write."""
    to: Literal["half", "interleaved"]
    """The pairing to convert to: half (i with i + D/2), or interleaved (2i with 2i + 1)."""
    before: Annotated[
        Literal["half", "interleaved"] | None,
        tyro.conf.arg(
            name="from",
            metavar="{half,interleaved}",
            help_behavior_hint="(default: as the files, the config or the family say)",
        ),
    ] = None
    """The pairing that the weights have."""
    overwrite: bool = False
    """Replace DST if it is there."""
    num_heads: Annotated[int | None, _number("the config's")] = None
    """Query heads."""
    num_kv_heads: Annotated[int | None, _number("the config's, else as many as queries")] = None
    """Key heads."""
    head_dim: Annotated[int | None, _number("the config's")] = None
    """Channels of a head."""
    rotary_dim: Annotated[int | None, _number("the config's, else all")] = None
    """Channels of a head that turn."""
    side: Annotated[
        Literal["leading", "trailing"] | None,
        tyro.conf.arg(metavar="{leading,trailing}", help_behavior_hint="(default: leading)"),
    ] = None
    """Which of its channels turn, where not all do."""
    queries: Annotated[tuple[str, ...] | None, _names("the family's")] = None
    """Modules that make queries; * stands for anything, as in '*.attention.wq'."""
    keys: Annotated[tuple[str, ...] | None, _names("the family's")] = None
    """Modules that make keys."""
    norms: Annotated[tuple[str, ...] | None, _names("the family's")] = None
    """Norms of queries and keys."""
    fused: Annotated[tuple[str, ...] | None, _names("the family's")] = None
    """Modules that make queries, keys and values in one."""
    layout: Annotated[
        Literal["stacked", "grouped", "codegen"] | None,
        tyro.conf.arg(metavar="{stacked,grouped,codegen}", help_behavior_hint="(default: stacked)"),
    ] = None
    """How those lie: all q, all k, all v; or of every group its q, k and v; or as CodeGen's."""
    json: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Write what was done as JSON to this file; - writes it to stdout instead of the text."""


def run(options: Options) -> int:
    """Convert, and tell what was done."""
    from whereness.interop.weights.checkpoint import convert_checkpoint
    from whereness.interop.weights.projections import Given

    given = Given(
        num_heads=_positive("--num-heads", options.num_heads),
        num_kv_heads=_positive("--num-kv-heads", options.num_kv_heads),
        head_dim=_positive("--head-dim", options.head_dim),
        rotary_dim=_positive("--rotary-dim", options.rotary_dim),
        side=options.side,
        queries=options.queries or (),
        keys=options.keys or (),
        norms=options.norms or (),
        fused=options.fused or (),
        layout=options.layout,
    )
    plan = convert_checkpoint(
        options.source,
        options.target,
        options.to,
        options.before,
        given,
        options.overwrite,
        Progress(),
    )
    for line in notes(plan):
        print(f"whereness: {line}", file=sys.stderr)
    told = done(plan, options.target)
    if options.json != "-":
        print(
            f"{options.target}: {plan.to}, was {plan.before}. {len(plan.moves)} tensors "
            f"converted, {told['unchanged']} unchanged."
        )
    if options.json == "-":
        print(json.dumps(told, indent=2))
    elif options.json is not None:
        Path(options.json).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0


def done(plan: "Plan", target: Path) -> dict[str, object]:
    """What was done, for --json."""
    count = sum(len(header.entries) for header in plan.source.shards)
    return {
        "source": str(plan.source.path),
        "target": str(target),
        "from": plan.before,
        "to": plan.to,
        "converted": sorted(plan.moves),
        "unchanged": count - len(plan.moves),
        "left_out": list(plan.source.left_out),
    }


def notes(plan: "Plan") -> list[str]:
    """What the user must know beside the result."""
    from whereness.interop.strict_json import shown
    from whereness.interop.weights.projections import is_known, key_of, part_of, usual_of

    part, told = part_of(plan.source.config), []
    key = key_of(part)
    if key and not plan.source.is_folder:
        value = str(plan.to == "interleaved").lower()
        told.append(f"the config of this file must have {key} set to {value} now.")
    if part and is_known(part) and not key and usual_of(part) != plan.to:
        told.append(
            f"transformers turns {usual_of(part)} pairs in a {part.model_type}: "
            f"these weights are for code that turns {plan.to} ones."
        )
    if plan.source.left_out:
        told.append(f"not copied: {', '.join(map(shown, plan.source.left_out))}.")
    return told


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
    return value


class Progress:
    """A line on stderr while much is written."""

    def __init__(self) -> None:
        self.next = 0.0

    def __call__(self, done: int, size: int) -> None:
        """Told after every tensor."""
        now = time.monotonic()
        if size < LARGE or sys.stderr is None or (now < self.next and done < size):
            return
        self.next = now + (1 if sys.stderr.isatty() else 30)
        end = "\r" if sys.stderr.isatty() and done < size else "\n"
        print(f"{done / 1e9:.1f} of {size / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)
