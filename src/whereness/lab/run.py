"""One run: from its settings alone to a plain dict."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from whereness.lab.evaluation import Losses, evaluate
from whereness.lab.model import build, doors, first_of, positional
from whereness.lab.reach import untrained_beyond
from whereness.lab.settings import Run, digest
from whereness.lab.text import split
from whereness.lab.training import DivergedError, train
from whereness.properties import measure

BACKWARD = 3
"""A token of training costs about this many tokens of evaluation."""

Notify = Callable[[float, float], None]
"""Gets the part of a run that is done, 0 to 1, and its latest loss."""


def run_one(run: Run, notify: Notify) -> dict[str, Any]:
    """Train and evaluate the model of `run`.

    The result has `run`, `encoding`, `seed` and `status`; "done": `doors`, `parameters` (those of
    the encoding), `tokens_per_second`, `untrained_beyond`, `losses` and `last_quarter` (by
    length, one number a window), `properties` (as trained, in the first layer); "failed":
    `reason`.
    """
    try:
        return {**about(run), "status": "done", **measured(run, notify)}
    except DivergedError as error:
        return failed(run, str(error))


def failed(run: Run, reason: str) -> dict[str, Any]:
    """The result of a run that could not be completed."""
    return {**about(run), "status": "failed", "reason": reason}


def about(run: Run) -> dict[str, Any]:
    """What tells a result from others."""
    return {"run": digest(run), "encoding": run.encoding, "seed": run.seed}


def measured(run: Run, notify: Notify) -> dict[str, Any]:
    """Train and evaluate.

    Raises:
        DivergedError: a loss is no longer finite.
    """
    recipe = run.recipe
    training, held_out = (as_tensor(part, recipe.device) for part in texts(run))
    model = build(run)
    training_work = BACKWARD * recipe.steps * recipe.batch * recipe.train_length
    work = training_work + (len(recipe.lengths) + 1) * len(held_out)

    def trained_to(step: int, loss: float) -> None:
        notify(training_work * step / recipe.steps / work, loss)

    trained = train(model, training, recipe, run.seed, trained_to)
    model.eval()
    losses: dict[str, Losses] = {}
    for length in recipe.lengths:
        found = evaluate(model, held_out, length, recipe.longest)
        if not all(map(math.isfinite, found.whole)):
            raise DivergedError(f"the loss at length {length} is not finite")
        losses[str(length)] = found
        notify((training_work + len(losses) * len(held_out)) / work, fmean(found.whole))
    properties = measure(first_of(model), num_positions=recipe.train_length)
    notify(1.0, fmean(losses[str(recipe.longest)].whole))
    return {
        "doors": doors(model),
        "properties": properties.as_dict(),
        "parameters": sum(p.numel() for p in positional(model)),
        "tokens_per_second": trained.tokens_per_second,
        "untrained_beyond": untrained_beyond(model, held_out, recipe, trained.reached),
        "losses": {length: found.whole for length, found in losses.items()},
        "last_quarter": {length: found.last_quarter for length, found in losses.items()},
    }


def texts(run: Run) -> tuple[bytes, bytes]:
    """(training part, held-out part) of the run's text."""
    return split(run.text.load(), run.recipe.longest)


def as_tensor(data: bytes, device: str) -> Int[Tensor, " bytes"]:
    """Bytes as token ids."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device, torch.int64)
