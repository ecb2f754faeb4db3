"""Ctrl-C, held where it must not strike: modules half imported, processes half started."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def interrupts_later() -> Generator[None, None, None]:
    """A Ctrl-C meanwhile is a KeyboardInterrupt at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def interrupts_not_inherited() -> Generator[None, None, None]:
    """Processes that are started meanwhile never get a Ctrl-C: whoever starts them ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
