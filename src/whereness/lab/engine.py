"""A pool of processes that do runs side by side, each with one torch thread.

The pool hands out one run at a time and hears of it over a pipe; it stores nothing, so another
engine with the same `execute` can take its place. A worker that dies costs its run and no other.
An interrupt ends the workers at once. If the pool itself is killed, its workers notice at their
next message and end.
"""

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

from whereness.lab.run import failed, run_one
from whereness.lab.settings import Run

EVERY = 0.2
"""Seconds between two messages of a run."""

PATIENCE = 5.0
"""Seconds that a worker whose pipe has closed may take to end."""


@runtime_checkable
class Observer(Protocol):
    """Hears what happens, in the process of the pool."""

    def started(self, run: Run) -> None:
        """`run` has been given to a worker."""

    def advanced(self, run: Run, done: float, loss: float) -> None:
        """The part `done`, 0 to 1, is over; `loss` is the latest."""

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        """`run` has this result."""


def execute(runs: Sequence[Run], jobs: int, observer: Observer) -> list[dict[str, Any]]:
    """Do all runs, at most `jobs` at a time; the results, in the order of `runs`."""
    waiting = deque(enumerate(runs))
    results: dict[int, dict[str, Any]] = {}
    workers: list[Worker] = []
    try:
        while len(results) < len(runs):
            workers = [w for w in workers if w.alive]
            while waiting and sum(w.busy for w in workers) < jobs:
                worker = next((w for w in workers if not w.busy), None)
                if worker is None:
                    worker = Worker()
                    workers.append(worker)
                worker.give(*waiting.popleft(), observer)
            ready = wait([w.connection for w in workers if w.busy])
            for worker in [w for w in workers if w.connection in ready]:
                done = worker.listen(observer)
                if done is not None:
                    results.update([done])
    finally:
        for worker in workers:
            worker.end()
    return [results[i] for i in range(len(runs))]


class Worker:
    """A process that does one run after another, and the pool's end of the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.task: tuple[int, Run] | None = None
        self.alive = True
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with interrupts_held():
            self.process.start()
        theirs.close()

    @property
    def busy(self) -> bool:
        """Has a run to do."""
        return self.task is not None

    def give(self, index: int, run: Run, observer: Observer) -> None:
        """Let the worker do `run`."""
        self.task = (index, run)
        observer.started(run)
        # A worker that is dead already is noticed by listen().
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(run)

    def listen(self, observer: Observer) -> tuple[int, dict[str, Any]] | None:
        """Hear one message; (index, result) of the run if it was its last."""
        assert self.task is not None
        index, run = self.task
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.alive = False
            self.process.join(PATIENCE)  # its own status, not that of being killed
            self.end()
            message = failed(run, f"its process ended, status {self.process.exitcode}")
        if isinstance(message, tuple):
            observer.advanced(run, *message)
            return None
        self.task = None
        observer.finished(run, message)
        return index, message

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextlib.contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Ctrl-C waits until the end; processes started meanwhile never get it: the pool ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: Connection) -> None:
    """The life of a worker: runs come in, (done, loss) and then a result go out."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # The pool is gone when the pipe is.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            run = connection.recv()
            try:
                result = run_one(run, Messenger(connection))
            except (ValueError, OSError, RuntimeError, MemoryError) as error:
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
