"""How many processors there are to use."""

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_processors() -> int:
    """Processors this process may use: fewer than the machine has in many containers."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, quota() or count))


def quota() -> int | None:
    """Processors that a container's share of time comes to; None: it has all of it."""
    try:
        share, period = map(int, QUOTA.read_text().split())
    except (OSError, ValueError):  # not Linux, or "max"
        return None
    return max(1, share // period)
