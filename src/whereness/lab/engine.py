"""A pool of processes that do runs side by side, each with one torch thread.

The pool takes one run after another from a store and brings the results back to it; workers hear
of runs and tell of them over a pipe and touch no more than the checkpoints. So another engine with
the same `execute`, on several machines, can take its place. A worker that dies costs its run and no
other. An interrupt ends the workers at once. If the pool itself is killed, its workers notice at
their next message and end.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from whereness.lab.checkpoint import Checkpoint
from whereness.lab.interrupts import interrupts_later, interrupts_not_inherited
from whereness.lab.run import failed, run_one
from whereness.lab.settings import Run

EVERY = 0.2
"""Seconds between two messages of a run, and between two looks for work of other commands."""

PATIENCE = 5.0
"""Seconds that a worker whose pipe has closed may take to end."""


@runtime_checkable
class Source(Protocol):
    """Where runs come from and results go: `whereness.lab.store.Store` does this."""

    def claim(self) -> Run | None:
        """A run to do; None if there is none now."""

    def finish(self, run: Run, result: dict[str, Any]) -> None:
        """Keep the result of a run that was claimed."""

    def unfinished(self) -> int:
        """Runs without a result, whoever does them."""

    def checkpoint(self, run: Run) -> Path | None:
        """Where the checkpoint of a run lies."""


@runtime_checkable
class Observer(Protocol):
    """Hears what happens, in the process of the pool."""

    def started(self, run: Run) -> None:
        """`run` has been given to a worker."""

    def advanced(self, run: Run, done: float, loss: float) -> None:
        """The part `done`, 0 to 1, is over; `loss` is the latest."""

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        """`run` has this result."""


def execute(source: Source, jobs: int, observer: Observer) -> None:
    """Do all runs of `source` that have no result, at most `jobs` at a time.

    Where other commands have claimed the last ones, wait for them.

    Raises:
        OSError: a result cannot be kept.
    """
    workers: list[Worker] = []
    try:
        while True:
            for worker in [w for w in workers if not w.alive]:
                worker.end()
                workers.remove(worker)
            while sum(w.busy for w in workers) < jobs:
                run = source.claim()
                if run is None:
                    break
                worker = next((w for w in workers if not w.busy), None)
                if worker is None:
                    worker = Worker()
                    workers.append(worker)
                worker.give(run, source.checkpoint(run), observer)
            busy = [w for w in workers if w.busy]
            if not busy:
                if not source.unfinished():
                    return
                time.sleep(EVERY)
                continue
            ready = wait([w.connection for w in busy])
            for worker in [w for w in busy if w.connection in ready]:
                worker.listen(source, observer)
    finally:
        for worker in workers:
            worker.end()


class Worker:
    """A process that does one run after another, and the pool's end of the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.run: Run | None = None
        self.ended = False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with interrupts_later(), interrupts_not_inherited():
            self.process.start()
        theirs.close()

    @property
    def busy(self) -> bool:
        """Has a run to do."""
        return self.run is not None

    def give(self, run: Run, checkpoint: Path | None, observer: Observer) -> None:
        """Let the worker do `run`."""
        self.run = run
        observer.started(run)
        # A worker that is dead already is noticed by listen().
        with contextlib.suppress(OSError):
            self.connection.send((run, checkpoint))

    def listen(self, source: Source, observer: Observer) -> None:
        """Hear one message; keep the result of the run if it was its last."""
        run = self.run
        assert run is not None
        try:
            message = self.connection.recv()
        except (EOFError, OSError):  # it may have ended in the midst of a message
            self.process.join(PATIENCE)  # its own status, not that of being killed
            self.end()
            message = failed(run, f"its process ended, status {self.process.exitcode}")
        if isinstance(message, tuple):
            observer.advanced(run, *message)
            return
        self.run = None
        if message["status"] == "failed" and run.recipe.device != "cpu":
            self.end()  # an error may have left the device unusable to this process
        source.finish(run, message)
        observer.finished(run, message)

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.ended = True
        self.process.kill()
        self.process.join()
        self.connection.close()

    @property
    def alive(self) -> bool:
        """Can do more runs."""
        return not self.ended and (self.busy or self.process.is_alive())


def serve(connection: Connection) -> None:
    """The life of a worker: (run, checkpoint) comes in, (done, loss) and then a result go out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    import torch

    torch.set_num_threads(1)
    # The pool is gone when the pipe is.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            run, checkpoint = connection.recv()
            try:
                result = run_one(run, Messenger(connection), Checkpoint(checkpoint))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # noqa: BLE001 (whatever it is, it costs this run only)
                if os.environ.get("WHERENESS_TRACEBACK"):
                    traceback.print_exc()
                result = failed(run, f"{type(error).__name__}: {error}")
            connection.send(result)


class Messenger:
    """Tells the pool how far a run is, not more often than anyone can read."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.last = connection, 0.0

    def __call__(self, done: float, loss: float) -> None:
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            self.connection.send((done, loss))
