"""`whereness audit`: positional faults in a checkpoint, a config or a live model."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from whereness.cli.errors import CommandError


def _path(hint: str = "") -> object:
    return tyro.conf.arg(metavar="PATH", help_behavior_hint=hint)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Find positional faults in a checkpoint, a config or a live model.

    Exit status 0: no fault found in what could be checked; 1: faults found; 2: the target cannot be
    used. No code of a target is run unless it is named as package.module:callable, and nothing is
    written to it. What could not be checked is listed as such.
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """A folder as Hugging Face has it, a config.json, a .safetensors or .gguf file, or
    package.module:callable, which is imported and called and gives a torch.nn.Module."""
    config: Annotated[Path | None, _path("(default: the target's)")] = None
    """The config that the target should agree with: a config.json or its folder."""
    text: Annotated[Path | None, _path()] = None
    """A text to compare losses on: under both pairings, and at short and long windows."""
    check: Annotated[
        tuple[str, ...] | None,
        tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint="(default: all)"),
    ] = None
    """Run these checks only: spectrum or CHK1, cache or CHK4, ..."""
    layers: Annotated[
        str | None, tyro.conf.arg(metavar="RANGES", help_behavior_hint="(default: all)")
    ] = None
    """Look at these layers only: 0,3-5."""
    fail_on: Literal["error", "warning"] = "error"
    """The least that makes the exit status 1."""
    json: Annotated[str | None, _path()] = None
    """Write the report as JSON to this file; - writes it to stdout instead of the text."""
    html: Annotated[Path | None, _path()] = None
    """Write the report with its plots to this file, a page that needs no other."""


def run(options: Options) -> int:
    """Audit, and tell what was found."""
    layers = None if options.layers is None else numbers(options.layers)
    files = [options.html, None if options.json in (None, "-") else Path(options.json)]
    for path in filter(None, files):
        writable(path)
    from whereness.auditor.run import audit

    with progress() as advanced:
        report = audit(
            options.target,
            config=options.config,
            text=options.text,
            checks=options.check,
            layers=layers,
            progress=advanced,
        )
    if options.html is not None:
        from whereness.auditor.telling.page import html

        options.html.write_text(html(report), encoding="utf-8")
    if options.json is not None:
        written = json.dumps(report.to_dict(), indent=2, allow_nan=False)
        if options.json == "-":
            print(written)
            return report.exit_status(options.fail_on)
        Path(options.json).write_text(f"{written}\n", encoding="utf-8")
    from whereness.auditor.telling.terminal import show
    from whereness.lab.progress import Output

    show(report, Output())
    return report.exit_status(options.fail_on)


def numbers(ranges: str) -> frozenset[int]:
    """The layers that "0,3-5" names.

    Raises:
        CommandError: it is something else.
    """
    found: set[int] = set()
    for part in ranges.split(","):
        match = re.fullmatch(r" *([0-9]{1,6})(?:-([0-9]{1,6}))? *", part)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise CommandError(f"--layers must be numbers and ranges as 0,3-5, got {ranges!r}.")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def writable(path: Path) -> None:
    """See to it now that a result can be written later: an audit may take a while.

    Raises:
        CommandError: it cannot.
    """
    if path.is_dir():
        raise CommandError(f"{path}: needed a file to write to, got a folder.")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"{path}: there is no folder {path.absolute().parent}.")


@contextlib.contextmanager
def progress() -> Generator[Callable[[int, int, str], None] | None]:
    """A bar on stderr if that is a terminal; told how many checks ran, of all, and the next one."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        auto_refresh=False,  # it takes a thread, and a target may fork
    )
    with bars:
        task = bars.add_task("reading", total=None)

        def advanced(done: int, total: int, check: str) -> None:
            bars.update(task, description=check, completed=done, total=total, refresh=True)

        bars.refresh()
        yield advanced
