"""The findings in docs/findings: their form, and the index of them."""

import re
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT

FOLDER = ROOT / "docs" / "findings"
INDEX = FOLDER / "README.md"

FORM = re.compile(
    r"""\#\ (?P<title>[^\n]+)\n
\n
-\ Peer:\ (?P<peer>\S+)\ (?P<version>\S+)\n
-\ Place:\ (?P<place>[^\n]+)\n
-\ Kind:\ (?P<kind>K\d\d)\n
\n
(?P<what>.+?)\n
\n
```python\n(?P<code>.+?)\n```\n
\n
It\ prints\n
\n
```text\n(?P<output>.+?\n)```\n
\n
\*\*Right\.\*\*\ (?P<right>.+?)\n
\n
\*\*Here\.\*\*\ (?P<here>.+?)\n""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Finding:
    """One file, read."""

    path: Path
    title: str
    peer: str
    version: str
    kind: str
    code: str
    output: str


def read(path: Path) -> Finding:
    """The finding in a file of the form that README.md describes."""
    found = FORM.fullmatch(path.read_text(encoding="utf-8"))
    assert found, f"{path.name} has not the form that {INDEX.name} describes"
    names = ("title", "peer", "version", "kind", "code", "output")
    return Finding(path, *(found[name] for name in names))


def findings() -> list[Path]:
    """The files, sorted by name."""
    return sorted(path for path in FOLDER.glob("*.md") if path != INDEX)


def index() -> str:
    """The table of README.md."""
    rows = [read(path) for path in findings()]
    lines = ["| Finding | Peer | Kind |", "| --- | --- | --- |"]
    lines += [f"| [{f.title}]({f.path.name}) | {f.peer} {f.version} | {f.kind} |" for f in rows]
    return "\n".join(lines) + "\n"
