"""No false alarms, and not by silence: every architecture of the zoo audits without an error.

What was really compared with an expectation is counted: classification, spectrum or bias, width
and cache parity.
"""

import functools

import pytest

from auditor import zoo
from auditor.faults.table import audited

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

TRUE_FAULTS: dict[str, set[str]] = {}
"""Kinds of errors that are faults of an architecture's code, each with a page in docs/findings."""

WANTED = ({"classification"}, {"spectrum", "bias"}, {"width"}, {"cache"})
"""Groups of things; something of each must have been compared."""


@functools.cache
def report(name):
    return audited(zoo.with_inputs(name, zoo.build(name)[0]))


@pytest.mark.parametrize("name", zoo.names())
def test_an_architecture_audits_without_an_error(name):
    errors = report(name).of("error")
    unexpected = [found for found in errors if found.kind not in TRUE_FAULTS.get(name, set())]
    assert not unexpected


def test_on_seventy_architectures_everything_was_really_compared():
    complete = [
        name
        for name in zoo.names()
        if all(group & {said.what for said in report(name).compared} for group in WANTED)
    ]
    assert len(complete) >= 70
