"""Which errors are the user's to mend, and how they are told."""

EXTRAS = {
    "filelock": "lab",
    "jinja2": "lab",
    "matplotlib": "lab",
    "rich": "lab",
    "safetensors": "lab",
    "tyro": "lab",
}
"""The packages that only an extra installs, and that extra."""


class CommandError(Exception):
    """A command cannot do what was asked. The message is shown on one line; exit status 2."""


def reported(error: Exception) -> str | None:
    """The message for an error that the user can mend; None for a fault in the program.

    An ImportError is the user's only if a package of an extra is missing.
    """
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            return None
        extra = EXTRAS[package]
        return f'this needs {package}, which is not installed. pip install "whereness[{extra}]"'
    if isinstance(error, MemoryError):
        return "not enough memory: give less text, or smaller sizes."
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (CommandError, ValueError, TypeError, OSError)):
        return str(error) or type(error).__name__
    return None


def one_line(message: str) -> str:
    """`message` without line breaks, runs of blanks and what would steer a terminal."""
    words = " ".join(message.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
