"""Rows of the memory that attention takes besides its output, each in a process of its own.

How far the resident size of a fresh process rises while one call runs, by the kernel's own count,
less the output: scratch of threads and what allocators keep are all in it. Address space is
limited, so that a dense bias fails in that process instead of taking the machine's memory.

    python -m whereness.bench.memory KIND TOKENS     prints one line of JSON
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import whereness as wn
from whereness.bench.attention import (
    HEADS,
    allowed,
    drawn,
    exact_rows,
    ours_for,
    sampled,
    strip,
    table_of,
)
from whereness.bench.contest import OURS, AbsentError, Bar, Contestant, Row, Scale, Verdict

MIB = 2**20
MOST = 3 * 2**30
"""Bytes of address space that a call may add."""

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status(field: str) -> int:
    """A size of this process in bytes, as Linux tells it."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def measure(kind: str, tokens: int, threads: int) -> dict[str, Any]:
    """Extra bytes of one forward pass, and what the gate says; `failed` where it cannot be done."""
    torch.set_num_threads(threads)
    made, chosen, note = ours_for(kind, drawn(8))
    small = drawn(64)
    inputs = drawn(tokens)
    with torch.no_grad():
        wn.attention(*small[:3], made, causal=True, implementation=chosen)  # starts the threads
        limit = status("VmSize") + MOST
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        CLEAR.write_text("5", encoding="ascii")  # the highest size begins anew
        before = status("VmRSS")
        try:
            out = wn.attention(*inputs[:3], made, causal=True, implementation=chosen)
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            return {"failed": f"it needs more than {MOST // MIB:,} MiB", "note": note}
        risen = status("VmHWM") - before
    rows = sampled(tokens, 8)
    by_distance = strip(kind, table_of(made), tokens)
    exact = exact_rows(inputs, by_distance, rows)
    error = float((out[0][:, rows].double() - exact).abs().max())
    extra = risen - out.numel() * out.element_size()
    return {"extra": max(0, extra), "error": error, "tolerance": allowed(inputs), "note": note}


@cache
def measured(kind: str, tokens: int, threads: int) -> dict[str, Any]:
    """The same in a fresh process."""
    if not (STATUS.exists() and CLEAR.exists()):
        raise AbsentError("the highest resident size of a process is read from Linux's /proc")
    command = [sys.executable, "-m", __name__, kind, str(tokens), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip() or f"ended with status {done.returncode}").splitlines()[-1]
        return {"failed": f"the process that measures it failed: {last}", "note": ""}
    return json.loads(done.stdout)


def extra(kind: str, full: int) -> Callable[[Scale], list[Contestant]]:
    """Ours alone: the bar is in bytes."""

    def make(scale: Scale) -> list[Contestant]:
        tokens, threads = scale.of(full, 256), torch.get_num_threads()
        found = measured(kind, tokens, threads)

        def gate() -> Verdict:
            if "failed" in found:
                return Verdict(None, note=found["failed"])
            passed = found["error"] <= found["tolerance"]
            return Verdict(passed, found["error"], found["tolerance"])

        def sample() -> float:
            return float(found.get("extra", "inf"))

        note = "; ".join(filter(None, [found.get("failed", ""), found["note"]]))
        return [Contestant(OURS, lambda: None, gate, sample, note)]

    return make


ROWS = (
    Row(
        "attention/memory/alibi-4096",
        "ALiBi, S = 4096, forward, extra memory",
        (Bar("memory", 24 * MIB),),
        extra("alibi", 4096),
        repeats=1,
    ),
    *(
        Row(
            f"attention/memory/{kind}-32768",
            f"{name}, S = 32,768, H = {HEADS}, extra memory",
            (Bar("memory", 64 * MIB),),
            extra(kind, 32_768),
            repeats=1,
        )
        for kind, name in (("alibi", "ALiBi"), ("t5", "T5"))
    ),
)

if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))) + "\n")
