"""Rows of start-up: fresh processes, seconds.

The gate is that the process ends as it should.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from whereness.bench.contest import OURS, AbsentError, Bar, Contestant, Row, Scale, Verdict

PYTHON = sys.executable
CLI = (PYTHON, "-m", "whereness")
TORCH = "import torch"
TOUCH_ALL = "import torch, whereness as wn; [getattr(wn, name) for name in wn.__all__]"
CHECKOUT = Path(__file__).resolve().parents[3]
REPEATS = 7


def process(name: str, command: Sequence[str], status: int = 0) -> Contestant:
    """A command that ends with `status`."""

    def run() -> int:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode

    def gate() -> Verdict:
        found = run()
        return Verdict(found == status, note=f"ends with status {found}")

    return Contestant(name, run, gate)


def command(*arguments: str, status: int = 0) -> Callable[[Scale], list[Contestant]]:
    """One command of ours."""
    return lambda _: [process(OURS, (*CLI, *arguments), status)]


def beside_torch(code: str) -> Callable[[Scale], list[Contestant]]:
    """Python code beside the import of torch alone."""
    return lambda _: [
        process(OURS, (PYTHON, "-c", code)),
        process(TORCH, (PYTHON, "-c", "import torch")),
    ]


def bare(_: Scale) -> list[Contestant]:
    """`import whereness` alone, beside an empty program."""
    return [
        process(OURS, (PYTHON, "-c", "import whereness")),
        process("python", (PYTHON, "-c", "pass")),
    ]


def make_venv(_: Scale) -> list[Contestant]:
    """`make venv` where there is nothing to do."""
    if not (CHECKOUT / "Makefile").exists() or not (CHECKOUT / ".venv/.stamp").exists():
        raise AbsentError("whereness does not run from a checkout with its .venv")
    return [process(OURS, ("make", "venv"))]


ROWS = (
    Row(
        "startup/import",
        "import torch, whereness over import torch",
        (Bar("over", 0.3, TORCH),),
        beside_torch("import torch, whereness"),
        REPEATS,
    ),
    Row(
        "startup/every-name",
        "import of every public name over import torch",
        (Bar("over", None, TORCH),),
        beside_torch(TOUCH_ALL),
        REPEATS,
    ),
    Row("startup/alone", "import whereness alone", (Bar("over", None, "python"),), bare, REPEATS),
    Row(
        "startup/help",
        "whereness --help",
        (Bar("time", 0.5),),
        command("--help"),
        REPEATS,
    ),
    Row("startup/env", "whereness env", (Bar("time", 0.5),), command("env"), REPEATS),
    Row(
        "startup/compare-help",
        "whereness compare --help",
        (Bar("time", 0.5),),
        command("compare", "--help"),
        REPEATS,
    ),
    Row(
        "startup/usage-error",
        "whereness compare --widht 3",
        (Bar("time", 0.5),),
        command("compare", "--widht", "3", status=2),
        REPEATS,
    ),
    Row("startup/make", "make venv, nothing to do", (Bar("time", 3.0),), make_venv, REPEATS),
)
