"""Every public case is tested on the auditor by its id, or listed here with why it is not seen."""

import ast
from importlib import import_module
from pathlib import Path

from cases.support import AUDITED, CASES

NOT_SEEN = {
    "P126": "a collator made ids of another length than its tokens, before any model",
    "P149": "missed: at later steps CHK4 gives no other ids than a count would make",
    "P165": "a caller took pixels for patches: no target says what its caller will give",
    "P187": "missed: no check compares the gradients of a bias",
    "P202": "an exporter lacked an operator",
    "P206": "which numbers of heads a kernel serves: a model has one number of heads",
    "P209": "a test covered one rank",
    "P231": "positions of real numbers, whose range no target states",
    "P234": "which of two equal kernels ran leaves no trace in the model's results",
    "P236": "a slow path of a kernel, right but for its speed",
}
"""Case -> why no test of the auditor can speak of it, or that the auditor misses it."""

LISTS = ("PLANTS", "PLANTED", "NOTED")
"""What the parametrised tests of a file go through; each entry is, or begins with, an id."""


def carried(path: Path) -> set[str]:
    """The cases that tests of this file carry: by `@case(...)`, or as a parameter."""
    module = import_module(f"auditor.{path.stem}")
    found = {
        each if isinstance(each, str) else each[0]
        for name in LISTS
        for each in getattr(module, name, ())
    }
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "case":
                    found |= {ast.literal_eval(argument) for argument in call.args}
    return found


def test_every_case_is_tested_or_said_not_to_be_seen():
    files = sorted(Path(__file__).parent.glob("test_cases_*.py"))
    every = set(CASES | AUDITED)
    seen = set().union(*map(carried, files))
    assert len(files) == 5 and len(every) == 141
    assert not seen - every
    assert not seen & set(NOT_SEEN)
    assert seen | set(NOT_SEEN) == every, every - seen - set(NOT_SEEN)


def test_most_cases_are_seen():
    """The list above is no way out."""
    assert len(NOT_SEEN) <= 10
    assert sum(why.startswith("missed") for why in NOT_SEEN.values()) <= 2
