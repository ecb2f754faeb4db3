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
