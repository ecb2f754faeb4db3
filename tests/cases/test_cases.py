"""Every public case of these kinds is tested, or said not to be a library's matter."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from cases.support import CASES, case

KINDS = {
    "K01": 9,
    "K02": 14,
    "K03": 6,
    "K04": 4,
    "K05": 4,
    "K06": 9,
    "K07": 6,
    "K08": 13,
    "K09": 7,
    "K10": 5,
    "K12": 5,
    "K13": 4,
    "K14": 3,
    "K15": 8,
    "K17": 4,
    "K18": 7,  # P191 waits for DeBERTa
    "K19": 1,
    "K21": 6,
    "K22": 3,
    "K23": 2,
    "K24": 5,
    "K25": 4,
}

# Case -> why no test of the library can speak of it.
NOT_OF_THE_LIBRARY: dict[str, str] = {}


def marked() -> dict[str, set[str]]:
    """Case -> kinds of the files with a test that carries its id, read from their source."""
    found = defaultdict(set)
    for path in sorted(Path(__file__).parent.glob("test_k*.py")):
        kind = path.name[5:8].upper()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "case":
                        for argument in call.args:
                            found[ast.literal_eval(argument)].add(kind)
    return found


def test_every_case_is_tested_in_the_file_of_its_kind_or_is_not_the_librarys():
    tested = marked()
    assert not set(tested) - set(CASES)
    assert not set(tested) & set(NOT_OF_THE_LIBRARY)
    missing = set(CASES) - set(tested) - set(NOT_OF_THE_LIBRARY)
    assert not missing
    elsewhere = {i for i, kinds in tested.items() if CASES[i]["kind"] not in kinds}
    assert not elsewhere


def test_the_cases_are_all_of_these_kinds():
    assert Counter(c["kind"] for c in CASES.values()) == KINDS
    assert sum(KINDS.values()) == len(CASES) == 129


def test_every_file_tests_cases_alone():
    """A test without an id would not be found again when its case is looked up."""
    for path in sorted(Path(__file__).parent.glob("test_k*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named = [ast.unparse(d) for d in node.decorator_list]
                assert any(re.match(r"case\('P\d{3}'", n) for n in named), (path.name, node.name)


def test_a_failure_names_its_case():
    @case("P062")
    def fails() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        fails()
    (note,) = caught.value.__notes__
    assert note.startswith("P062: ")
    assert note.endswith(CASES["P062"]["sources"][0]["url"])
    with pytest.raises(KeyError):
        case("P000")
