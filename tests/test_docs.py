"""The Python blocks of README and docs run as they stand, one page in one namespace."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes does not stay here
    text = page.read_text(encoding="utf-8")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        # Empty lines before it: a traceback shows the line of the page.
        source = "\n" * line + block.group(1)
        exec(compile(source, str(page), "exec"), names)


def test_there_are_blocks():
    assert sum(len(BLOCK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) >= 5
