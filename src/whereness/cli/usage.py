"""Command-line arguments to an options dataclass, with usage errors of one line."""

import contextlib
import difflib
import io
import os
import re
from collections.abc import Generator, Sequence
from typing import TypeVar, get_type_hints

from whereness.cli.errors import CommandError, one_line

Options = TypeVar("Options")

# Wide enough that tyro never breaks a line of an error.
WIDE = "10000"


def parse(options: type[Options], prog: str, arguments: Sequence[str]) -> Options | None:
    """The options in `arguments`, or None if they asked for help and it has been printed.

    Raises:
        CommandError: the arguments do not fit; the message is one line.
    """
    import tyro

    given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    for name, hint in get_type_hints(options).items():
        flag = f"--{name.replace('_', '-')}"
        if "tuple[" in str(hint) and given.count(flag) > 1:  # tyro would drop the first values
            raise CommandError(f"{flag} is given twice: give all its values once.")
    if "" in arguments or any(word.startswith("--") and word[-1:] == "=" for word in arguments):
        raise CommandError(f"an option has an empty value. See: {prog} --help")

    errors, output = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as around:
        around.enter_context(contextlib.redirect_stderr(errors))
        if not {"-h", "--help"} & set(arguments):
            # Where stdout has no encoding tyro draws its boxes in ASCII.
            around.enter_context(contextlib.redirect_stdout(output))
            around.enter_context(_columns(WIDE))
        try:
            return tyro.cli(
                options, prog=prog, args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,)
            )
        except SystemExit as end:
            failed = bool(end.code)
    if failed:
        raise CommandError(
            f"{shortened(reduce_box(errors.getvalue()), options)} See: {prog} --help"
        )
    print(output.getvalue(), end="")
    return None


NEEDED = {"--json": "a path, or - for stdout"}
"""What an option needs, where that is not a value or a number."""


def shortened(message: str, options: type) -> str:
    """tyro's commonest complaints in fewer words: what is missing, or must be a number."""
    if message.startswith("missing from "):
        entries = message.partition(": ")[2].split("(required)")
        names = [entry.split()[0] for entry in entries if entry.strip(" .")]
        return f"missing {', '.join(names)}."
    found = re.match(r"(missing value for argument|error parsing) '?(--[\w-]+)", message)
    if found is None:
        return message
    flag = found[2]
    hint = str(get_type_hints(options).get(flag[2:].replace("-", "_"), ""))
    several, numeric = "tuple[" in hint, re.search(r"\b(int|float)\b", hint)
    what = ("numbers" if several else "a number") if numeric else "a value"
    if found[1].startswith("missing"):
        return f"{flag} needs {NEEDED.get(flag, what)}."
    return f"{flag} must be {what}." if numeric else message


def reduce_box(text: str) -> str:
    """One line with what matters in the box that tyro draws around a usage error.

    The box has a title and then parts, divided by rules: what is wrong, hints, a reference to
    --help. A text of another form is kept whole.
    """
    parts = _box_parts(text)
    if len(parts) < 2:
        return one_line(text)
    message = one_line(" ".join(parts[0])).rstrip(".")
    message = message[:1].lower() + message[1:]
    what, _, words = message.partition(": ")
    if what == "unrecognized options":
        # tyro lists the values after an unknown option as well.
        options = [word for word in words.split(", ") if word.startswith("-") and word != "-"]
        message = f"unknown option {', '.join(options)}" if options else f"unexpected {words}"
    for part in parts[1:]:
        flags = [row.split()[0] for row in part[1:] if row.startswith("--")]
        if flags and part[0].startswith(("Perhaps you meant", "Arguments similar")):
            return f"{message}; did you mean {flags[0]}?"
        if part[0] == "Argument helptext:" and len(part) > 1:
            return f"{message}; expected {part[1]}."
    return f"{message}."


def _box_parts(text: str) -> list[list[str]]:
    """The lines between the rules of a box; its title is dropped."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines()[1:]:
        inner = line.strip(" │")
        if inner.strip("─-╭╮╰╯"):
            parts[-1].append(inner)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def unknown(kind: str, word: str, known: Sequence[str]) -> CommandError:
    """The error for a word that is none of the known ones."""
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return CommandError(f"unknown {kind} {word}{hint} See: whereness --help")


@contextlib.contextmanager
def _columns(width: str) -> Generator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = width
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
