import io

import pytest
from rich.console import Console

from whereness.lab.progress import Bars, progress

DONE = {"status": "done", "losses": {"8": [1.0, 2.0], "16": [3.0]}}


@pytest.fixture
def tell(make_run):
    def tell(terminal, result=DONE):
        written = io.StringIO()
        console = Console(file=written, force_terminal=terminal, width=100)
        run = make_run("rope", seed=3)
        with progress(console, 2) as observer:
            observer.started(run)
            observer.advanced(run, 0.5, 2.345)
            if isinstance(observer, Bars):
                observer.bars.refresh()
            observer.finished(run, result)
        return written.getvalue()

    return tell


def test_elsewhere_a_finished_run_is_a_line(tell):
    assert tell(terminal=False) == "[1/2] rope, seed 3: loss 1.500 at 8, 3.000 at 16\n"


def test_a_failed_run_gives_its_reason(tell):
    reason = "[nan] " * 30 + "at step 3"  # longer than a line
    shown = tell(terminal=False, result={"status": "failed", "reason": reason})
    assert shown == f"[1/2] rope, seed 3: failed: {reason}\n"


def test_a_terminal_shows_what_runs_and_how_far_it_is(tell):
    shown = tell(terminal=True)
    for part in ("all runs", "rope, seed 3", " 50%", "loss 2.35", "0:", "1 of 2", "1.500 at 8"):
        assert part in shown, part
    assert " 25%" in shown  # of both runs
