"""No false alarms, and not by silence: every architecture of the zoo audits without an error.

What was really compared with an expectation is counted: classification, spectrum or bias, width
and cache parity.
"""

import functools
from pathlib import Path

import pytest

from auditor import zoo
from auditor.faults.table import audited

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"

TRUE_FAULTS: dict[str, tuple[set[str], str]] = {
    "bamba": ({"K08"}, "transformers-bamba-chunks"),
    "falcon_alibi": ({"K06"}, "transformers-falcon-alibi"),
    "led": ({"K09"}, "transformers-led-step-mask"),
    "m2m_100": ({"K09"}, "transformers-m2m100-left-pads"),
}
"""Kinds of errors that are faults of an architecture's code, and the page in docs/findings."""

WANTED = ({"classification"}, {"spectrum", "bias"}, {"width"}, {"cache"})
"""Groups of things; something of each must have been compared."""


@functools.cache
def report(name):
    return audited(zoo.with_inputs(name, zoo.build(name)[0]))


@pytest.mark.parametrize("name", zoo.names())
def test_an_architecture_audits_without_an_error(name):
    errors = report(name).of("error")
    known, _ = TRUE_FAULTS.get(name, (set(), ""))
    assert {found.kind for found in errors} == known, errors


@pytest.mark.parametrize("name", sorted(TRUE_FAULTS))
def test_a_fault_of_an_architecture_has_its_page(name):
    assert (FINDINGS / f"{TRUE_FAULTS[name][1]}.md").is_file()


def test_on_seventy_architectures_everything_was_really_compared():
    complete = [
        name
        for name in zoo.names()
        if all(group & {said.what for said in report(name).compared} for group in WANTED)
    ]
    assert len(complete) >= 70
