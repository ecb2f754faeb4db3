"""Every law on every encoding that it applies to."""

import pytest

from laws import LAWS, Law, Subject, traits
from subjects import SUBJECTS

PAIRS = [(s, law) for s in SUBJECTS for law in LAWS.values() if law.applies(traits(s))]


@pytest.mark.parametrize(("subject", "law"), PAIRS, ids=[f"{s}:{law}" for s, law in PAIRS])
def test_law(subject: Subject, law: Law) -> None:
    law.check(subject)
