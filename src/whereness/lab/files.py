"""Files that are whole or not there, whenever a write is interrupted."""

import os
import re
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

RUNS = "runs.sqlite"
SUMMARY = "summary.json"
REPORT = "report.html"
"""What a comparison leaves in its folder."""


@contextmanager
def whole(path: Path) -> Generator[Path, None, None]:
    """A place to write a file to; it becomes `path` if nothing goes wrong, and else is removed.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)  # whoever cleared it keeps the results
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> Path:
    """Write a text file, whole even after a power failure; its path.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    with whole(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return path


def remove_parts(path: Path) -> None:
    """Remove what writes of `path` left that were killed."""
    if path.parent.exists():
        for part in path.parent.iterdir():
            if re.fullmatch(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.part", part.name):
                part.unlink(missing_ok=True)
