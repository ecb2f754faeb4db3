"""A model's positions as a test of one line."""

from typing import Any, Literal

from whereness.auditor.findings import Report

READABLE = 100


def assert_sound(
    model: object, *, fail_on: Literal["error", "warning"] = "error", **options: Any
) -> Report:
    """Audit a model in a test: an AssertionError tells all findings and what was not checked.

    The report is returned: a test that must not pass because nothing could be compared asks it.

    Args:
        model: what `whereness.audit` takes; `options` are its own: config, inputs, checks, ...
        fail_on: the least that is an error.

    Raises:
        AssertionError: something as bad as `fail_on` was found.
        ValueError, TypeError, OSError: the model or the config cannot be used.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, not this one
    if fail_on not in ("error", "warning"):
        raise ValueError(f'fail_on must be "error" or "warning", got {fail_on!r}.')
    from whereness.auditor.run import audit

    report = audit(model, **options)
    if report.exit_status(fail_on):
        from whereness.auditor.telling.terminal import text

        raise AssertionError(
            f"the positions of this model are not sound.\n{text(report, READABLE)}"
        )
    return report
