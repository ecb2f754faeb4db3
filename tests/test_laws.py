"""Every law on every encoding that it applies to.

Encodings that the registry knows are here by themselves; subjects.py adds settings and
combinations.
"""

import pytest

from laws import Law, Subject, on
from subjects import SUBJECTS


@pytest.mark.parametrize(("subject", "law"), on(*SUBJECTS))
def test_law(subject: Subject, law: Law) -> None:
    law.check(subject)
