"""What is said to be wrong in other libraries is so: every example is run."""

import contextlib
import io
import warnings
from importlib.metadata import version

import pytest

from findings import INDEX, findings, index, read

FILES = findings()
MARK = "<!-- index -->\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_finding_has_the_form(path):
    finding = read(path)
    assert path.stem.startswith(finding.peer)
    compile(finding.code, path.name, "exec")
    longest = max(len(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert longest <= 100


def test_the_index_lists_every_finding():
    text = INDEX.read_text(encoding="utf-8")
    assert text.count(MARK) == 1
    assert text.partition(MARK)[2] == index(), f"write this below {MARK}:\n{index()}"


@pytest.mark.more
@pytest.mark.untyped
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_prints_what_its_file_says(path):
    """A peer that has mended it fails here: then the finding goes, or tells of the last version."""
    finding = read(path)
    assert version(finding.peer) == finding.version
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the peer
        exec(compile(finding.code, path.name, "exec"), {"__name__": "finding"})
    assert printed.getvalue() == finding.output
