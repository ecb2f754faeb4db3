"""`report.html`: written whole, or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whereness.encoding import PositionalEncoding
from whereness.lab.files import REPORT, write_whole
from whereness.lab.report.view import view
from whereness.pictures.subject import one_thread

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
    return write_whole(folder / REPORT, html(summary, encodings))


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
