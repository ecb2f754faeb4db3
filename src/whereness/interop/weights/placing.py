"""Files and folders that appear whole or not at all, whenever a run is ended."""

import os
import re
import shutil
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(target: Path, names: Iterable[str] | None, overwrite: bool) -> Generator[Path]:
    """A new place beside `target` that becomes `target` if nothing goes wrong, else is removed.

    Args:
        names: what will be in it, relative, if it is a folder. One that is overwritten may hold
            nothing else, so that nobody's files are lost.

    Raises:
        ValueError: the target is there, and must not or cannot be overwritten.
    """
    check_target(target, names, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_parts(target)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        check_target(target, names, overwrite)
        _put(part, target)
    finally:
        _remove(part)


def check_target(target: Path, names: Iterable[str] | None, overwrite: bool) -> None:
    """Raise a ValueError if `target` is there and must not or cannot be overwritten."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or target.is_dir() != (names is not None):
        wanted = "a file" if names is None else "a folder"
        raise ValueError(f"{target}: is there and is not {wanted}.")
    if not overwrite:
        raise ValueError(f"{target}: is there. Give --overwrite to replace it.")
    if names is None:
        return
    known = set(names)
    for found in sorted(target.rglob("*")):
        name = str(found.relative_to(target))
        if name not in known and (found.is_symlink() or not found.is_dir()):
            raise ValueError(
                f"{target}: has {name}, which the conversion would not write: it is not replaced. "
                "Give another folder."
            )


def _put(part: Path, target: Path) -> None:
    if not target.is_dir():
        part.replace(target)
        return
    # A folder that is not empty cannot be replaced in one step.
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        old.rename(target)
        raise
    _remove(old)


def _remove_parts(target: Path) -> None:
    """Remove what runs left that were killed."""
    for path in target.parent.iterdir():
        if re.fullmatch(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.part", path.name):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
