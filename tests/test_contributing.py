"""The worked example of CONTRIBUTING.md, run as it stands in a copy of the checkout."""

import re
from pathlib import Path

import pytest

from processes import ROOT, copy_checkout, python

pytestmark = pytest.mark.untyped

BLOCK = re.compile(r"<!-- (file|line): (\S+) -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.timeout(240)
def test_the_example_of_an_encoding_is_one_file_one_line_and_one_test_file(tmp_path: Path) -> None:
    copy = copy_checkout(tmp_path / "copy")
    blocks = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    kinds = [kind for kind, _, _ in blocks]
    assert kinds == ["file", "line", "file"]
    for kind, name, text in blocks:
        path = copy / name
        if kind == "file":
            assert not path.exists()
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            before = path.read_text(encoding="utf-8")
            last = '    "axial_rope": Entry('
            assert before.count(last) == 1
            path.write_text(before.replace(last, text + last), encoding="utf-8")
    options = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
    )
    own = python(*options, "tests/relative/test_well.py", cwd=copy)
    assert own.returncode == 0, own.stdout
    by_name = python(*options, "tests/test_laws.py", "-k", "well", cwd=copy)
    assert by_name.returncode == 0, by_name.stdout
    assert int(re.search(r"(\d+) passed", by_name.stdout)[1]) > 20
