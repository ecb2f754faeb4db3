"""Running code that is not ours: what it prints, raises and leaves running stays apart.

A named target may print, fork, exit or raise anything. Its output goes to stderr, since stdout may
be the report; a process that it forked ends when it comes back to us, since each would audit on,
fork again, and report; and what it raises is one line.
"""

import contextlib
import ctypes
import importlib
import inspect
import io
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType

LONGEST = 300
PR_SET_PDEATHSIG = 1
"""Linux: of prctl(2), the signal that a process gets when its parent ends."""
OURS = str(Path(__file__).parents[1])
_inside: list[int] = []
"""Process ids, one for each time that `aside` is entered: a fork is the target's then."""


def told(error: BaseException) -> str:
    """What was raised, in one line."""
    said = " ".join(str(error).split())
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextlib.contextmanager
def aside() -> Generator[None]:
    """Send what is printed to stderr, and end the processes that were forked meanwhile here.

    Where stdout is the process's own, the descriptor is sent there too: compiled code and processes
    write to that.
    """
    _flush()  # what waits in a buffer would be written by a forked process, too
    _inside.append(os.getpid())
    try:
        with _descriptor_aside(), contextlib.redirect_stdout(sys.stderr or io.StringIO()):
            yield
    finally:
        if _inside.pop() != os.getpid():
            os._exit(0)


def _end_on_return() -> None:
    """In a process that was just forked: end it as soon as it returns to code of ours.

    Workers that a target forks never return that far, and go on, until this process ends: one that
    hangs (threads of compiled code are lost in a fork) would hold our output open for ever.
    """
    if not _inside:
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    ours = set()
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        if frame.f_code.co_filename.startswith(OURS):
            ours.add(frame)

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_back in ours:
            os._exit(0)

    sys.setprofile(watch)


os.register_at_fork(after_in_child=_end_on_return)


@contextlib.contextmanager
def _descriptor_aside() -> Generator[None]:
    if _number(sys.stdout) != 1 or _number(sys.stderr) != 2:
        yield
        return
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _number(stream: object) -> int | None:
    try:
        return stream.fileno()  # type: ignore[missing-attribute]
    except (AttributeError, OSError, ValueError):
        return None


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)  # compiled code prints into a buffer of its own
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


@contextlib.contextmanager
def importable_here() -> Generator[None]:
    """Let modules of the current directory be imported, as `python -m` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def called(name: str) -> object:
    """What "package.module:callable" returns, or the module itself where it names one.

    Raises:
        ValueError: it cannot be imported, is not there, or raises.
        TypeError: it cannot be called.
    """
    module_name, _, path = name.partition(":")
    with aside(), importable_here():
        try:
            found: object = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{name}: {module_name} cannot be imported: {told(error)}") from error
        for word in path.split("."):
            if not hasattr(found, word):
                raise ValueError(f"{name}: {module_name} has no {path}.")
            found = getattr(found, word)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(found, torch.nn.Module):
            return found
        if not callable(found):
            raise TypeError(f"{name}: {path} is a {type(found).__name__}, not a callable.")
        try:
            return found()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{name}: raised {told(error)}") from error
