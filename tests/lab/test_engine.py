import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from whereness.lab.engine import execute, serve


class Recorder:
    """Keeps what an engine tells."""

    def __init__(self):
        self.events = []

    def started(self, run):
        self.events.append(("started", run.name))

    def advanced(self, run, done, loss):
        self.events.append(("advanced", run.name, done))

    def finished(self, run, result):
        self.events.append(("finished", run.name, result["status"]))

    def of(self, kind):
        return [e[1:] for e in self.events if e[0] == kind]


class Killer(Recorder):
    """Kills the first worker when it has begun."""

    def advanced(self, run, done, loss):
        super().advanced(run, done, loss)
        if run.encoding == "rope":
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)


def without_times(results):
    return [{k: v for k, v in r.items() if k != "tokens_per_second"} for r in results]


def test_the_number_of_jobs_changes_no_bit_and_one_failure_no_other_run(make_run):
    runs = [
        make_run("shaw"),
        make_run("nope", learning_rate=1e30),
        replace(make_run("t5"), text=replace(make_run().text, sha256="0" * 64)),
        make_run("rope", seed=1),
    ]
    alone, beside = Recorder(), Recorder()
    first, second = execute(runs, 1, alone), execute(runs, 2, beside)
    assert without_times(first) == without_times(second)
    assert [(r["encoding"], r["status"]) for r in first] == [
        ("shaw", "done"),
        ("nope", "failed"),
        ("t5", "failed"),
        ("rope", "done"),
    ]
    assert "nan" in first[1]["reason"]
    assert first[2]["reason"].startswith("ValueError: The text")

    names = [run.name for run in runs]
    assert [n for n, _ in alone.of("finished")] == names
    assert [n for (n,) in beside.of("started")] == names
    assert alone.events.index(("started", names[1])) > alone.events.index(
        ("finished", names[0], "done")
    )
    assert beside.events[:2] == [("started", names[0]), ("started", names[1])]
    told = [done for name, done in alone.of("advanced") if name == names[0]]
    assert told
    assert told == sorted(told)
    assert not multiprocessing.active_children()


def test_a_worker_has_one_thread_and_ends_with_its_pool():
    before = signal.getsignal(signal.SIGINT)
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    torch.set_num_threads(2)
    try:
        serve(theirs)
        assert torch.get_num_threads() == 1
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, before)


@pytest.mark.untyped
def test_a_worker_that_is_killed_costs_its_run_only(make_run):
    runs = [make_run("rope", steps=100_000), make_run("nope")]
    first, second = execute(runs, 1, Killer())
    assert (first["status"], first["reason"]) == ("failed", "its process ended, status -9")
    assert second["status"] == "done"


def test_an_interrupt_ends_the_workers_at_once(make_run):
    class Interrupter(Recorder):
        def advanced(self, run, done, loss):
            self.begin = time.monotonic()
            raise KeyboardInterrupt

    observer = Interrupter()
    with pytest.raises(KeyboardInterrupt):
        execute([make_run(steps=1_000_000)], 1, observer)
    assert time.monotonic() - observer.begin < 5
    assert not multiprocessing.active_children()
