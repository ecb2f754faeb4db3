"""What a result must be read with: the machine, the versions, what the kernels are."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from whereness import __version__
from whereness.bench.peers import PEERS
from whereness.lab.processors import usable_processors


def machine(threads: int) -> dict[str, Any]:
    """The facts, for the first line of the results."""
    return {
        "kind": "machine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "whereness": __version__,
        "processor": processor(),
        "processors": usable_processors(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": threads,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "compiler": compiler(),
        "rotary": rotary_backend(),
        "peers": {name: installed(name) for name in PEERS},
    }


def processor() -> str:
    """The model of the processor."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def compiler() -> str | None:
    """The C++ compiler of the machine, which torch.compile uses, too."""
    path = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return told.stdout.splitlines()[0] if told.stdout else path


def rotary_backend() -> str:
    """What turns pairs on the CPU: "native", or "reference", which is plain torch."""
    from whereness.kernels import rotary

    return rotary.backend(torch.device("cpu"))


def installed(distribution: str) -> str | None:
    """Its version, None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
