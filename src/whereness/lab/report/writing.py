"""`report.html`: written whole, or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whereness.encoding import PositionalEncoding
from whereness.lab.report.view import view
from whereness.pictures.subject import one_thread

FILE = "report.html"
HERE = Path(__file__).parent


def write(
    folder: Path, summary: Mapping[str, Any], encodings: Mapping[str, PositionalEncoding]
) -> Path:
    """Write the report of `summary` into `folder` and give its path.

    Args:
        encodings: by name, what to draw: the trained encoding of a model's first layer. One that is
            not there has no pictures.

    Raises:
        OSError: the folder cannot be made or written.
    """
    text = html(summary, encodings)
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(folder / FILE)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return folder / FILE


def html(summary: Mapping[str, Any], encodings: Mapping[str, PositionalEncoding]) -> str:
    """The text of the report. Whatever stands in `summary` is shown as text, never as markup."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {
        name: Markup((HERE / file).read_text(encoding="utf-8"))  # noqa: S704 (ours)
        for name, file in (("css", "report.css"), ("js", "chart.js"))
    }
    with one_thread():
        shown = view(summary, encodings)
    return environment.get_template("template.html.j2").render(shown, **own)


def _umask() -> int:
    """What mkstemp ignores: it makes files that only their owner reads."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
