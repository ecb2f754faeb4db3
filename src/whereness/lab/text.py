"""The text that models learn: where it is, its bytes, and the part that is held out.

The first nine tenths train, the last tenth is held out. Loss is measured from the start of the
held-out part, as far as whole windows of the longest length go.
"""

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HELD_OUT = 10
"""One part in this many, the last, is held out."""

SEARCHED = 2**28
"""Bytes to search for repeated windows: a second or two."""

MIN_WINDOWS = 2
"""Fewer windows have no standard error."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text by the hash of its bytes, and where to read them.

    Args:
        paths: files, read in order and joined as they are; none: Python's own documentation.
    """

    paths: tuple[str, ...] = field(compare=False)
    sha256: str

    @property
    def source(self) -> str:
        """What to call it."""
        if self.paths:
            return printable(", ".join(self.paths))
        return f"pydoc_data.topics of Python {platform.python_version()}"

    def load(self) -> bytes:
        """The bytes.

        Raises:
            ValueError: they are no longer those of the hash.
            OSError: a file cannot be read.
        """
        data = read(self.paths)
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"The text {self.source} has changed: needed sha256 {self.sha256}, got {found}. "
                "Start again."
            )
        return data


def find(paths: Sequence[str | Path]) -> tuple[Text, bytes]:
    """The text in `paths` as it is now, and its bytes."""
    names = tuple(str(p) for p in paths)
    data = read(names)
    return Text(paths=names, sha256=hashlib.sha256(data).hexdigest()), data


def read(paths: Sequence[str]) -> bytes:
    """The bytes of the files, joined; without files, of the English documentation in Python.

    Raises:
        ValueError: not a regular file; or none are given and this Python comes without its
            documentation.
        OSError: a file cannot be read.
    """
    for path in map(Path, paths):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError(
                f"--text needs regular files, since every model reads them again; {path} is none."
            )
    if paths:
        return b"".join(Path(p).read_bytes() for p in paths)
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ValueError(
            "This Python comes without pydoc_data.topics, the default text: give --text FILE."
        ) from error
    return "\n".join(topics.values()).encode()


def printable(name: str) -> str:
    """Words that may hold a file name, as text: what no terminal or file can show is replaced."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def split(data: bytes, longest: int, at_most: int) -> tuple[bytes, bytes]:
    """(training part, what is evaluated of the held-out part).

    Args:
        longest: the longest evaluated length, in bytes.
        at_most: bytes of the held-out part to evaluate, but no fewer than the fewest windows.

    Raises:
        ValueError: the held-out part is too short for windows of that length.
    """
    needed = HELD_OUT * (MIN_WINDOWS * longest + 1)  # + 1: the last window's last target
    if len(data) < needed:
        raise ValueError(
            f"The text is too short: needed {needed} bytes, so that its last tenth holds "
            f"{MIN_WINDOWS} windows of {longest}; got {len(data)}. Give more text, or shorter "
            "--lengths."
        )
    cut = len(data) - len(data) // HELD_OUT
    evaluated = max(at_most, MIN_WINDOWS * longest) + 1
    return data[:cut], data[cut : cut + evaluated]


def repeated(training: bytes, held_out: bytes, length: int) -> float:
    """The part of held-out windows of `length` that stand word for word in the training part.

    Of long texts, a part of the windows is looked for.
    """
    windows = [held_out[i : i + length] for i in range(0, len(held_out) - length + 1, length)]
    looked_for = windows[:: max(1, len(windows) * len(training) // SEARCHED)]
    return sum(window in training for window in looked_for) / len(looked_for)
