import signal
import threading

import pytest

from whereness.lab.interrupts import interrupts_later


def test_an_interrupt_comes_at_the_end():
    before, done = signal.getsignal(signal.SIGINT), []

    def work():
        with interrupts_later():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) == before


def test_without_an_interrupt_nothing_happens():
    before = signal.getsignal(signal.SIGINT)
    with interrupts_later():
        pass
    assert signal.getsignal(signal.SIGINT) == before


def test_an_error_goes_on():
    with pytest.raises(ValueError, match="mine"), interrupts_later():
        raise ValueError("mine")


def test_other_threads_have_no_handlers():
    found = []

    def work():
        with interrupts_later():
            found.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
