import io

import pytest
from rich.console import Console

from whereness.lab.progress import Bars, progress

DONE = {"task": "language_model", "status": "done", "losses": {"8": [1.0, 2.0], "16": [3.0]}}


@pytest.fixture
def tell(make_run, make_order_run):
    def tell(terminal, result=DONE):
        written = io.StringIO()
        console = Console(file=written, force_terminal=terminal, width=100)
        run = make_run("rope", seed=3)
        with progress(console, [run, make_order_run()]) as observer:
            observer.started(run)
            observer.advanced(run, 0.5, 2.345)
            if isinstance(observer, Bars):
                observer.bars.refresh()
            observer.finished(run, result)
        return written.getvalue()

    return tell


def test_elsewhere_a_finished_run_is_a_line(tell):
    assert tell(terminal=False) == "[1/2] rope, text, seed 3: loss 1.500 at 8, 3.000 at 16\n"


def test_a_failed_run_gives_its_reason(tell):
    reason = "[nan] " * 30 + "at step 3"  # longer than a line
    shown = tell(terminal=False, result={"status": "failed", "reason": reason})
    assert shown == f"[1/2] rope, text, seed 3: failed: {reason}\n"


def test_a_terminal_shows_what_runs_and_how_far_it_is(tell):
    shown = tell(terminal=True)
    for part in (
        "all runs",
        "rope, text, seed 3",
        " 50%",
        "loss 2.35",
        "0:",
        "1 of 2",
        "1.500 at 8",
    ):
        assert part in shown, part
    # Of both runs: half of 6 x 2 x 8 tokens, of those and 4 x 4 x 11.
    assert f" {48 / (96 + 176):3.0%}" in shown


def test_the_order_task_tells_its_accuracy(tell):
    result = {"task": "order_task", "status": "done", "accuracy": 0.98765}
    assert "accuracy 0.988\n" in tell(terminal=False, result=result)


def test_what_was_done_before_is_told(make_run):
    written = io.StringIO()
    runs = [make_run(), make_run("rope"), make_run("t5")]
    with progress(Console(file=written), runs, {runs[0]}) as observer:
        observer.finished(runs[1], DONE)
    first, second = written.getvalue().splitlines()
    assert first == "1 of 3 runs were done before."
    assert second.startswith("[2/3] rope, text, seed 0: ")
