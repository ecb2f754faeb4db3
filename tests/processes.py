"""Other processes and copies of the checkout, for the tests of the project itself."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def clean_environment(**more: str) -> dict[str, str]:
    """PATH and `more` alone: nothing that pytest, make or the user's shell has set."""
    return {"PATH": os.environ["PATH"], "HOME": os.devnull, "OMP_NUM_THREADS": "1", **more}


def run(*command: object, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a clean environment, without input.

    Nothing that it started outlives this call, not even when the test's time is over.
    """
    words = [str(part) for part in command]
    with subprocess.Popen(
        words,
        cwd=cwd,
        env=clean_environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def python(*arguments: object, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with the package of the checkout `cwd`."""
    return run(sys.executable, *arguments, cwd=cwd, PYTHONPATH=str(cwd / "src"), **more)


def checkout_files() -> list[Path]:
    """The files of the checkout, relative: those git tracks, or all but the ignored without git."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = run("git", "-c", f"safe.directory={ROOT}", "ls-files", "-z")
        assert listed.returncode == 0, listed.stderr
        tracked = [Path(name) for name in listed.stdout.split("\0") if name]
        return [path for path in tracked if (ROOT / path).is_file()]
    return sorted(_walk(ROOT, _ignored_patterns()))


def copy_checkout(target: Path) -> Path:
    """Copy the checkout to `target`, without what is not part of it."""
    for path in checkout_files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target / path)
    return target


def _ignored_patterns() -> list[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    return [".git", *(line.strip("/") for line in lines if line and not line.startswith("#"))]


def _walk(folder: Path, ignored: list[str]) -> Iterator[Path]:
    for entry in folder.iterdir():
        if any(fnmatch(entry.name, pattern) for pattern in ignored):
            continue
        if entry.is_dir():
            yield from _walk(entry, ignored)
        else:
            yield entry.relative_to(ROOT)
