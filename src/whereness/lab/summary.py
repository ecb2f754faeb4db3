"""`summary.json`: the results of a comparison. `whereness.lab.form` checks its form.

    version     of this form: 1
    text        source, bytes, sha256, repeated (the part, 0 to 1, of the held-out windows of the
                shortest evaluated length that stand word for word in the training part)
    settings    all that the results depend on besides the text: encodings, seeds, the fields of
                `Recipe`, those of `OrderRecipe` in order_task, and in constructors by name the
                call that made the encoding of a layer of the language model
    made_with   whereness, python, torch, platform, processors, jobs, command
    encodings   by name:
        doors               where it enters the model
        properties          what `wn.measure` says of it as trained (first completed seed and first
                            layer), on as many positions as it was trained on
        order_task          accuracy (mean over seeds), by_seed, seeds (completed), solved (it is
                            at least 0.95 in every seed)
        language_model
            train_length, seeds (completed)
            loss                by length: mean, se, low, high, by_seed (the mean of each), nats a
                                byte, over whole windows
            loss_last_quarter   the same over the last quarter of each window
            above_best          by length: best (the encoding with the lowest mean) and the paired
                                difference to it, mean, low, high, by_seed; all 0 for the best
            untrained_beyond    only if entries that are read beyond this length were not trained
        cost                train_tokens_per_second (mean over seeds; on the cpu: of one processor's
                            time, with as many runs beside it as there were), relative_speed (to
                            nope's, if that was completed), parameters (of the encoding),
                            step_memory_bytes (what a training step keeps for its backward pass),
                            extra_memory_bytes (more than the same model without encoding)
        failed              only if runs failed: their task, seed and reason
    recommendation
        use, headline, because, to_know, lengths (best, ties), not_tested, would_change: see
        `whereness.lab.recommendation`

What was not completed is left out: language_model and cost together, with the properties;
order_task; the doors if neither was.

`mean` is over windows and seeds. `se`, `low` and `high` are of the block bootstrap over windows,
each window's loss being averaged over the seeds first (`whereness.lab.statistics`): they tell how
far another stretch of the same text may differ, not how far another seed may. That is in by_seed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from whereness.lab.files import SUMMARY, write_whole
from whereness.lab.model import constructor
from whereness.lab.recommendation import recommend
from whereness.lab.settings import BASELINE, SOLVED, Comparison, plain
from whereness.lab.statistics import BySeed, block_lengths, mean_loss, paired_difference

VERSION = 1

Result = dict[str, Any]
Done = dict[str, list[Result]]
"""Completed runs of one task by encoding, in the order of their seeds."""
Blocks = dict[int, int]
"""By length, the windows of a block."""


def summarise(
    comparison: Comparison,
    num_bytes: int,
    results: Sequence[Result],
    made_with: dict[str, Any],
    *,
    repeated: float,
) -> dict[str, Any]:
    """The summary of the results of all runs of `comparison` on a text of `num_bytes`."""
    models = completed(results, "language_model", comparison)
    orders = completed(results, "order_task", comparison)
    blocks = blocks_of(models)
    above = above_best(models, blocks)
    found = {
        **heading(comparison, num_bytes, made_with, repeated),
        "encodings": {
            name: {
                **what_it_is(models[name], orders[name]),
                **order_task(orders[name]),
                **language_model(models[name], above.get(name, {}), comparison, blocks),
                **cost(models[name], models.get(BASELINE, [])),
                **failed([r for r in results if r["encoding"] == name]),
            }
            for name in comparison.encodings
        },
    }
    return {**found, "recommendation": recommend(found)}


def completed(results: Sequence[Result], task: str, comparison: Comparison) -> Done:
    """The completed runs of a task; an empty list for an encoding without any."""
    done = [r for r in results if r["task"] == task and r["status"] == "done"]
    done.sort(key=lambda r: r["seed"])
    return {name: [r for r in done if r["encoding"] == name] for name in comparison.encodings}


def heading(
    comparison: Comparison, num_bytes: int, made_with: dict[str, Any], repeated: float
) -> dict[str, Any]:
    """What no run tells: version, text, settings and what it is made with."""
    text = comparison.text
    settings = {
        "encodings": list(comparison.encodings),
        "seeds": comparison.seeds,
        **plain(comparison.recipe),
        "order_task": plain(comparison.order),
        "constructors": {
            name: constructor(name, comparison.recipe) for name in comparison.encodings
        },
    }
    return {
        "version": VERSION,
        "text": {
            "source": text.source,
            "bytes": num_bytes,
            "sha256": text.sha256,
            "repeated": repeated,
        },
        "settings": settings,
        "made_with": made_with,
    }


def what_it_is(models: list[Result], orders: list[Result]) -> dict[str, Any]:
    """Doors and properties, as far as some run tells them."""
    if not models:
        return {"doors": orders[0]["doors"]} if orders else {}
    return {key: models[0][key] for key in ("doors", "properties")}


def order_task(runs: list[Result]) -> dict[str, Any]:
    """The part of the order task."""
    if not runs:
        return {}
    accuracies = {str(run["seed"]): run["accuracy"] for run in runs}
    return {
        "order_task": {
            "accuracy": fmean(accuracies.values()),
            "by_seed": accuracies,
            "seeds": len(runs),
            "solved": min(accuracies.values()) >= SOLVED,
        }
    }


def blocks_of(models: Done) -> Blocks:
    """The blocks of every length: all runs have the same windows."""
    for runs in models.values():
        if runs:
            return block_lengths({int(n): len(found) for n, found in runs[0]["losses"].items()})
    return {}


def language_model(
    runs: list[Result], above: dict[str, Any], comparison: Comparison, blocks: Blocks
) -> dict[str, Any]:
    """The part of the language model; `above` is what it has above the best."""
    if not runs:
        return {}
    model: dict[str, Any] = {
        "train_length": comparison.recipe.train_length,
        "seeds": len(runs),
        "loss": mean_losses(runs, "losses", blocks),
        "loss_last_quarter": mean_losses(runs, "last_quarter", blocks),
        "above_best": above,
    }
    limits = [run["untrained_beyond"] for run in runs if run["untrained_beyond"] is not None]
    return {"language_model": {**model, **({"untrained_beyond": min(limits)} if limits else {})}}


def mean_losses(runs: list[Result], key: str, blocks: Blocks) -> dict[str, Any]:
    """By length, the mean of the losses under `key`."""
    return {str(n): mean_loss(by_seed(runs, key, n), block) for n, block in blocks.items()}


def above_best(models: Done, blocks: Blocks) -> dict[str, dict[str, Any]]:
    """By encoding and length, the paired difference to the encoding with the lowest mean."""
    done = {name: runs for name, runs in models.items() if runs}
    found: dict[str, dict[str, Any]] = {name: {} for name in done}
    for length, block in blocks.items():
        losses = {name: by_seed(runs, "losses", length) for name, runs in done.items()}
        best = min(losses, key=lambda name: mean_loss(losses[name], block)["mean"])
        for name in done:
            difference = paired_difference(losses[name], losses[best], block)
            found[name][str(length)] = {"best": best, **difference}
    return found


def by_seed(runs: list[Result], key: str, length: int) -> BySeed:
    """The losses of all windows of a length, by seed."""
    return {run["seed"]: run[key][str(length)] for run in runs}


def cost(runs: list[Result], baseline: list[Result]) -> dict[str, Any]:
    """What the encoding costs; `baseline` has the runs without encoding."""
    if not runs:
        return {}
    first, speed = runs[0], tokens_per_second(runs)
    relative = {"relative_speed": speed / tokens_per_second(baseline)} if baseline else {}
    return {
        "cost": {
            "train_tokens_per_second": speed,
            **relative,
            "parameters": first["parameters"],
            "step_memory_bytes": first["step_memory"],
            "extra_memory_bytes": first["step_memory"] - first["nope_step_memory"],
        }
    }


def tokens_per_second(runs: list[Result]) -> float:
    """The mean over seeds."""
    return fmean(run["tokens_per_second"] for run in runs)


def failed(results: Sequence[Result]) -> dict[str, Any]:
    """The runs that failed, by task and seed: runs may end in any order."""
    failures = [
        {key: run[key] for key in ("task", "seed", "reason")}
        for run in sorted(results, key=lambda r: (r["task"], r["seed"]))
        if run["status"] == "failed"
    ]
    return {"failed": failures} if failures else {}


def write(folder: Path, summary: dict[str, Any]) -> Path:
    """Write `summary` into `folder`: the whole file, or nothing. Gives its path."""
    return write_whole(folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")
