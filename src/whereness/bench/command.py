"""What `whereness bench` does: run rows, print the table as it comes, keep the results."""

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from whereness.bench import table
from whereness.bench.contest import Scale
from whereness.bench.machine import machine
from whereness.bench.registry import chosen
from whereness.bench.runner import Result, run_row


@runtime_checkable
class Request(Protocol):
    """The options of the command."""

    @property
    def only(self) -> tuple[str, ...] | None: ...
    @property
    def quick(self) -> bool: ...
    @property
    def list(self) -> bool: ...
    @property
    def repeats(self) -> int | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def json(self) -> str | None: ...
    @property
    def markdown(self) -> Path | None: ...


def run(options: Request) -> int:
    """Run the rows; 0, or 1 if a contestant gave something wrong.

    Raises:
        ValueError: an unknown row, or numbers below 1; nothing has been run then.
        OSError: a file cannot be written.
    """
    rows = chosen(options.only)
    for name in ("repeats", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    if options.list:
        _write("".join(f"{row.name:40} {row.what}\n" for row in rows))
        return 0
    threads = options.threads or torch.get_num_threads()
    facts = machine(threads) | {"quick": options.quick}
    keep = _keeper(options.json)
    keep(json.dumps(facts, ensure_ascii=False))
    tell = _ignore if options.json == "-" else _write
    tell(f"{table.about(facts)}\n\n{table.line(table.HEADINGS)}\n")
    results: list[Result] = []
    for row in rows:
        result = run_row(row, Scale(options.quick), threads, options.repeats)
        gc.collect()  # the tensors of a row are gone before the next
        results.append(result)
        keep(json.dumps(result.as_json(), ensure_ascii=False))
        tell("".join(f"{table.line(cells)}\n" for cells in table.cells(result, options.quick)))
    notes = [remark for result in results for remark in table.remarks(result)]
    tell("".join(f"\n{note}" for note in notes) + "\n" * bool(notes))
    tell(f"\n{table.tally(results)}\n")
    if options.markdown is not None:
        text = table.markdown(facts, results, options.quick)
        options.markdown.write_text(text, encoding="utf-8")
    return int(any(result.status == "red gate" for result in results))


def _keeper(path: str | None) -> Callable[[str], None]:
    """Writes lines: to stdout, to the end of a file at once, or nowhere."""
    if path is None:
        return _ignore
    if path == "-":
        return lambda line: _write(line + "\n")
    file = Path(path)
    file.write_text("", encoding="utf-8")

    def keep(line: str) -> None:
        with file.open("a", encoding="utf-8") as kept:
            kept.write(line + "\n")

    return keep


def _ignore(_: str) -> None:
    pass


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
