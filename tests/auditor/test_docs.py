"""docs/audit.md says what the code says."""

import re
from dataclasses import fields

import pytest

import whereness as wn
from processes import ROOT
from whereness.auditor.findings import (
    CHECKS,
    KINDS,
    Compared,
    Finding,
    LayerFacts,
    NotChecked,
    Report,
)
from whereness.auditor.kinds import TEACHING
from whereness.auditor.telling.terminal import text
from whereness.cli.audit import Options

PAGE = (ROOT / "docs/audit.md").read_text(encoding="utf-8")


def test_every_kind_is_explained_as_the_report_does():
    table = PAGE.partition("<!-- kinds -->")[2].partition("<!-- /kinds -->")[0]
    rows = [line.split(" | ", 2) for line in table.strip().splitlines()[2:]]
    told = {kind.strip("| "): (title, text.strip("| ")) for kind, title, text in rows}
    assert told == {kind: (KINDS[kind], " ".join(TEACHING[kind])) for kind in KINDS}


def test_every_check_is_described_with_what_it_is_blind_to():
    rows = re.findall(r"^\| (CHK\d+) (\w+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert {check: name for check, name, _, _ in rows} == CHECKS
    assert all(does and blind for _, _, does, blind in rows)


@pytest.mark.parametrize("kind", [Finding, Compared, NotChecked, LayerFacts])
def test_every_key_of_the_data_is_described(kind):
    for field in fields(kind):
        assert f"`{field.name}`" in PAGE
    for key in Report(target="x").to_dict():
        assert f"`{key}`" in PAGE


def test_every_option_is_described():
    for field in fields(Options):
        if field.name != "target":
            assert f"`--{field.name.replace('_', '-')}" in PAGE


BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.untyped
def test_what_is_shown_is_what_the_command_prints():
    """The model of the page, in the README's words as well."""
    names = {}
    source = next(text for _, text in BLOCK.findall(PAGE) if "class Model" in text)
    exec(compile(source, "docs/audit.md", "exec"), names)
    printed = text(wn.audit(names["Model"](10_000.0), config=names["config"]))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Check a model")[2].partition("\n## ")[0]
    shown = [block for page in (PAGE, section) for kind, block in BLOCK.findall(page) if not kind]
    assert len(shown) == 2
    for paragraph in "\n".join(shown).split("\n\n"):
        assert paragraph.strip() in printed
