"""The command line: `whereness COMMAND [options]`, one command a file.

A command is a module here with a frozen dataclass `Options` and `run(options) -> exit status`.
Options are read and checked before anything heavy is imported: torch is imported by what a `run`
calls, so help and usage errors come at once.

Exit status: what the command returns (0: done), 2: wrong usage or input, 130: interrupted.
"""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from whereness import __version__
from whereness.cli.errors import one_line, reported
from whereness.cli.usage import parse, unknown

COMMANDS = {
    "audit": "find positional faults in a checkpoint, a config or a live model",
    "bench": "measure speed and memory against torch and other libraries",
    "compare": "train small models with each encoding on your text and compare them",
    "convert": "a checkpoint between the two pairings of rotary channels",
    "env": "versions, processors and installed optional parts",
    "explain": "what a model's config makes each layer do, in words and numbers",
    "measure": "measure the properties of encodings",
    "story": "from attention without order to rotary encoding, step by step, in numbers",
}

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; errors of the user are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # rather that than lose results
    try:
        status = dispatch(arguments)
        print(end="", flush=True)  # sys.stdout is None where it is closed
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would flush again at exit, and complain.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        message = reported(error)
        if message is None or os.environ.get("WHERENESS_TRACEBACK"):
            raise
        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                print(f"whereness: {one_line(message)}", file=sys.stderr, flush=True)
        return 2
    return status


def dispatch(arguments: list[str]) -> int:
    """Run the command that the first argument names."""
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help"):
        print(help_text())
        return 0
    if first == "--version":
        print(f"whereness {__version__}")
        return 0
    if first not in COMMANDS:
        if first.startswith("-"):
            raise unknown("option", first, ("--help", "--version"))
        raise unknown("command", first, tuple(COMMANDS))
    module = import_module(f"{__name__}.{first}")
    options = parse(module.Options, f"whereness {first}", arguments[1:])
    return 0 if options is None else module.run(options)


def help_text() -> str:
    """What `whereness` and `whereness --help` print."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: whereness COMMAND [options]",
            "",
            "Positional encodings for transformers.",
            "",
            "commands:",
            *(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()),
            "",
            "options:",
            "  -h, --help  show this text; after a command, its options",
            "  --version   show the version",
        ]
    )
