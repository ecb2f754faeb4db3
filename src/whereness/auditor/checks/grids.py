"""CHK13: positions of several axes."""

from whereness.auditor.subject import Subject

CHECK = "CHK13"


def run(subject: Subject) -> None:
    """Nothing yet."""
    subject.not_checked(CHECK, "not written")
