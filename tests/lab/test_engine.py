import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from whereness.lab.engine import Worker, execute, serve


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


def test_the_number_of_jobs_changes_no_bit_and_one_failure_no_other_run(
    make_run, make_order_run, in_memory
):
    runs = [
        make_run("shaw"),
        make_run("nope", learning_rate=1e30),
        replace(make_run("t5"), text=replace(make_run().text, sha256="0" * 64)),
        make_run("rope", seed=1),
        make_order_run("alibi"),
    ]
    alone, beside = Recorder(), Recorder()
    sources = in_memory(runs), in_memory(runs)
    execute(sources[0], 1, alone)
    execute(sources[1], 2, beside)
    first, second = (source.results() for source in sources)
    assert without_times(first) == without_times(second)
    assert [(r["encoding"], r["task"], r["status"]) for r in first] == [
        ("shaw", "language_model", "done"),
        ("nope", "language_model", "failed"),
        ("t5", "language_model", "failed"),
        ("rope", "language_model", "done"),
        ("alibi", "order_task", "done"),
    ]
    assert "nan" in first[1]["reason"]
    assert first[1]["diverged"]
    assert first[2]["reason"].startswith("ValueError: The text")
    assert "diverged" not in first[2]

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
def test_a_worker_that_is_killed_costs_its_run_only(make_run, in_memory):
    source = in_memory([make_run("rope", steps=100_000), make_run("nope")])
    execute(source, 1, Killer())
    first, second = source.results()
    assert (first["status"], first["reason"]) == ("failed", "its process ended, status -9")
    assert second["status"] == "done"


def test_an_interrupt_ends_the_workers_at_once(make_run, in_memory):
    class Interrupter(Recorder):
        def advanced(self, run, done, loss):
            self.begin = time.monotonic()
            raise KeyboardInterrupt

    observer = Interrupter()
    with pytest.raises(KeyboardInterrupt):
        execute(in_memory([make_run(steps=1_000_000)]), 1, observer)
    assert time.monotonic() - observer.begin < 5
    assert not multiprocessing.active_children()


def test_runs_in_other_hands_are_waited_for(make_run, in_memory):
    class Elsewhere(in_memory):
        """Another command has the second run, and is done with it at the third look."""

        looks = 0

        def claim(self):
            return super().claim() if len(self.waiting) == 2 else None

        def unfinished(self):
            self.looks += 1
            if self.looks == 3:
                self.finish(self.runs[1], {"status": "done"})
            return super().unfinished()

    source = Elsewhere([make_run(), make_run("rope")])
    execute(source, 2, Recorder())
    assert source.looks == 3
    assert [r["status"] for r in source.results()] == ["done", "done"]


def test_a_result_that_cannot_be_kept_ends_everything(make_run, in_memory):
    class Full(in_memory):
        def finish(self, run, result):
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        execute(Full([make_run(), make_run("rope", steps=1_000_000)]), 2, Recorder())
    assert not multiprocessing.active_children()


@pytest.mark.untyped
def test_any_error_of_a_run_is_its_reason_on_one_line(make_run, in_memory, capfd):
    source = in_memory([make_run(learning_rate="fast"), make_run("rope")])
    execute(source, 1, Recorder())
    first, second = source.results()
    assert (first["status"], second["status"]) == ("failed", "done")
    assert first["reason"].startswith("TypeError: ")
    assert "\n" not in first["reason"]
    assert capfd.readouterr().err == ""


@pytest.mark.untyped
def test_a_traceback_is_shown_where_asked_for(make_run, in_memory, capfd, monkeypatch):
    monkeypatch.setenv("WHERENESS_TRACEBACK", "1")
    execute(in_memory([make_run(learning_rate="fast")]), 1, Recorder())
    assert "Traceback" in capfd.readouterr().err


class Pids(Recorder):
    """Who is alive when a run begins."""

    def started(self, run):
        (process,) = multiprocessing.active_children()
        self.events.append(("pid", process.pid))


def test_a_failure_on_another_device_ends_its_process(make_run, in_memory):
    # A process of its own for the second run, since the device may be unusable to the first.
    source, pids = in_memory([make_run(device="meta"), make_run(), make_run(seed=1)]), Pids()
    execute(source, 1, pids)
    assert [r["status"] for r in source.results()] == ["failed", "done", "done"]
    (first,), (second,), (third,) = pids.of("pid")
    assert first != second == third


def test_a_worker_that_ends_in_the_midst_of_a_message_costs_its_run_only(make_run, in_memory):
    class Torn:
        def recv(self):
            raise OSError("got end of file during message")

        def close(self):
            pass

    source, run = in_memory([make_run()]), make_run()
    worker = Worker()
    worker.give(run, None, Recorder())
    worker.process.kill()
    worker.connection.close()
    worker.connection = Torn()
    worker.listen(source, Recorder())
    assert not worker.alive
    (result,) = source.kept.values()
    assert result["reason"] == "its process ended, status -9"


def test_an_idle_worker_that_has_died_costs_no_run(make_run, in_memory):
    class KillsIdle(Recorder):
        def finished(self, run, result):
            super().finished(run, result)
            for process in multiprocessing.active_children():
                process.kill()
                process.join()

    source = in_memory([make_run(), make_run("rope"), make_run("alibi")])
    execute(source, 1, KillsIdle())
    assert [r["status"] for r in source.results()] == ["done", "done", "done"]
