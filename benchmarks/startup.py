"""Start-up times: medians of fresh processes, in seconds.

    python benchmarks/startup.py [--repeats 5]

"Aim" is what the design asks for. Times are bars here and not in the tests, because other load on
the machine moves them.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
CLI = (PYTHON, "-m", "whereness")
TOUCH_ALL = "import torch, whereness as wn; [getattr(wn, name) for name in wn.__all__]"

# name, command, aim in seconds
CASES: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("python", (PYTHON, "-c", "pass"), None),
    ("import whereness", (PYTHON, "-c", "import whereness"), None),
    ("whereness --help", (*CLI, "--help"), 0.5),
    ("whereness env", (*CLI, "env"), 0.5),
    ("whereness compare --help", (*CLI, "compare", "--help"), 0.5),
    ("whereness compare --widht 3", (*CLI, "compare", "--widht", "3"), 0.5),
    ("import torch", (PYTHON, "-c", "import torch"), None),
    ("import torch, every public name", (PYTHON, "-c", TOUCH_ALL), None),
    ("make venv, nothing to do", ("make", "venv"), 3.0),
)


def seconds(command: tuple[str, ...]) -> float:
    """Wall time of one run of `command`, output dropped."""
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - start


def main() -> None:
    """Print the machine, then the median, spread and aim of each case."""
    parser = argparse.ArgumentParser(description="Start-up times: medians of fresh processes.")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: 5)")
    repeats = parser.parse_args().repeats
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    print(f"{'case':32} {'median':>8} {'min':>8} {'max':>8} {'aim':>6}   ({repeats} runs, seconds)")
    for name, command, aim in CASES:
        seconds(command)  # fills the file cache and __pycache__
        times = [seconds(command) for _ in range(repeats)]
        shown = f"{aim:6.1f}" if aim is not None else ""
        median = statistics.median(times)
        print(f"{name:32} {median:8.3f} {min(times):8.3f} {max(times):8.3f} {shown:>6}")


if __name__ == "__main__":
    main()
