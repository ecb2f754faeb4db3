"""Every law has teeth: a planted fault breaks it."""

import pytest

from laws import LAWS, Subject
from planted import PLANTED

CASES = [
    pytest.param(name, subject, id=f"{name}:{subject}", marks=[pytest.mark.untyped])
    for name, subjects in PLANTED.items()
    for subject in subjects
]


def test_every_law_has_a_planted_fault() -> None:
    assert set(PLANTED) == set(LAWS)


@pytest.mark.parametrize(("name", "subject"), CASES)
def test_a_planted_fault_breaks_the_law(name: str, subject: Subject) -> None:
    with pytest.raises(AssertionError):
        LAWS[name].check(subject)
