"""`summary.json`: the results of a comparison.

    version     of this form: 1
    text        source, bytes, sha256
    settings    all that the results depend on besides the text
    encodings   by name:
        doors               where it enters the model
        properties          what `wn.measure` says of it as trained (first completed seed and first
                            layer), on as many positions as it was trained on
        language_model      absent if no run was completed
            train_length, seeds (completed runs)
            loss                by length: mean and se, nats a byte, over whole windows
            loss_last_quarter   the same over the last quarter of each window
            untrained_beyond    only if entries that are read beyond this length were not trained
        cost                train_tokens_per_second (on the cpu: of one processor's time, with as
                            many runs beside it as there were), parameters (of the encoding)
        failed              only if runs failed: their seed and reason

`mean` is over windows and seeds. `se` is the standard error over windows, each window's loss being
averaged over the seeds first: it tells how far another stretch of the same text may differ, not
how far another seed may.
"""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whereness.lab.settings import Comparison, plain

VERSION = 1
FILE = "summary.json"

Result = dict[str, Any]


def summarise(comparison: Comparison, num_bytes: int, results: Sequence[Result]) -> dict[str, Any]:
    """The summary of the results of all runs of `comparison` on a text of `num_bytes`."""
    return {
        **heading(comparison, num_bytes),
        "encodings": {
            name: summarised([r for r in results if r["encoding"] == name], comparison)
            for name in comparison.encodings
        },
    }


def heading(comparison: Comparison, num_bytes: int) -> dict[str, Any]:
    """What is known before any run: version, text and settings."""
    text = comparison.text
    settings = {
        "encodings": list(comparison.encodings),
        "seeds": comparison.seeds,
        **plain(comparison.recipe),
    }
    return {
        "version": VERSION,
        "text": {"source": text.source, "bytes": num_bytes, "sha256": text.sha256},
        "settings": settings,
    }


def summarised(results: Sequence[Result], comparison: Comparison) -> dict[str, Any]:
    """The entry of one encoding."""
    entry: dict[str, Any] = {}
    done = [r for r in results if r["status"] == "done"]
    if done:
        model: dict[str, Any] = {
            "train_length": comparison.recipe.train_length,
            "seeds": len(done),
            "loss": by_length([r["losses"] for r in done]),
            "loss_last_quarter": by_length([r["last_quarter"] for r in done]),
        }
        limits = [r["untrained_beyond"] for r in done if r["untrained_beyond"] is not None]
        if limits:
            model["untrained_beyond"] = min(limits)
        entry = {
            "doors": done[0]["doors"],
            "properties": done[0]["properties"],
            "language_model": model,
            "cost": {
                "train_tokens_per_second": statistics.fmean(r["tokens_per_second"] for r in done),
                "parameters": done[0]["parameters"],
            },
        }
    failures = [
        {"seed": r["seed"], "reason": r["reason"]} for r in results if r["status"] == "failed"
    ]
    return {**entry, "failed": failures} if failures else entry


def by_length(seeds: Sequence[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Mean and standard error at each length, of the losses of every window in every seed."""
    return {length: mean_and_error([s[length] for s in seeds]) for length in seeds[0]}


def mean_and_error(seeds: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of losses by seed and window: the mean, and the standard error over windows."""
    windows = [statistics.fmean(window) for window in zip(*seeds, strict=True)]
    error = statistics.stdev(windows) / math.sqrt(len(windows))
    return {"mean": statistics.fmean(windows), "se": error}


def prepare(folder: Path, comparison: Comparison, num_bytes: int) -> None:
    """Make `folder`, and see that it can be written and holds no other results.

    Raises:
        ValueError: it holds a summary of other settings, or one that cannot be read.
        OSError: it cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    file = folder / FILE
    if not file.exists():
        return
    wanted = heading(comparison, num_bytes)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        # The same text may lie elsewhere.
        same = found["text"]["sha256"] == wanted["text"]["sha256"]
        same = same and found["settings"] == wanted["settings"]
    except (ValueError, TypeError, KeyError):
        same = False
    if not same:
        raise ValueError(f"{file} is of other settings: give another --out, or move it away.")


def write(folder: Path, summary: dict[str, Any]) -> Path:
    """Write `summary` into `folder`: the whole file, or nothing. Gives its path."""
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)  # whoever cleared it meanwhile keeps the results
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(folder / FILE)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return folder / FILE
