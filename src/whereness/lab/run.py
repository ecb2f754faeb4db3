"""One run: from its settings alone to a plain dict."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from whereness.lab import language, order
from whereness.lab.checkpoint import Checkpoint
from whereness.lab.language import Losses
from whereness.lab.memory import kept_for_backward
from whereness.lab.model import build, doors, first_of, packed, positional, stream
from whereness.lab.reach import untrained_beyond
from whereness.lab.settings import OrderRecipe, Recipe, Run, digest
from whereness.lab.text import printable, split
from whereness.lab.training import DivergedError, train
from whereness.properties import measure

BACKWARD = 3
"""A token of training costs about this many tokens of evaluation."""

LONGEST_REASON = 400
"""Characters."""

TEST = "test sentences"
"""The stream that every model's test sentences are drawn from."""

Notify = Callable[[float, float], None]
"""Gets the part of a run that is done, 0 to 1, and its latest loss."""


def run_one(run: Run, notify: Notify, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    """Train and evaluate the model of `run`; go on from its checkpoint if there is one.

    The result has `run`, `task`, `encoding`, `seed` and `status`. "failed": `reason`, and
    `diverged` if it would fail again. "done": `doors` and `parameters` (those of the encoding), and
    by task

        order_task      `accuracy`, of `pairs` sentences and their mirrors
        language_model  `tokens_per_second`, `step_memory` and `nope_step_memory` (bytes that a
                        training step keeps for its backward pass, with this encoding and without),
                        `untrained_beyond`, `losses` and `last_quarter` (by length, one number a
                        window), `properties` and `weights` (as trained, of the first layer)

    Raises:
        ValueError: the text has changed.
        OSError: the text cannot be read, or a checkpoint not written.
    """
    checkpoint = checkpoint or Checkpoint()
    try:
        if isinstance(run.recipe, OrderRecipe):
            found = order_task(run, run.recipe, notify, checkpoint)
        else:
            found = language_model(run, run.recipe, notify, checkpoint)
    except DivergedError as error:
        return {**failed(run, str(error)), "diverged": True}
    return {**about(run), "status": "done", **found}


def failed(run: Run, reason: str) -> dict[str, Any]:
    """The result of a run that could not be completed."""
    # torch tells where in its own code an error arose: for nobody here.
    line = " ".join(reason.partition("Exception raised from")[0].split())
    told = shorten(printable(line), LONGEST_REASON)
    return {**about(run), "status": "failed", "reason": told}


def shorten(line: str, length: int) -> str:
    """At most so many characters of a line."""
    return line if len(line) <= length else f"{line[: length - 1]}…"


def about(run: Run) -> dict[str, Any]:
    """What tells a result from others."""
    return {"run": digest(run), "task": run.task, "encoding": run.encoding, "seed": run.seed}


def order_task(
    run: Run, recipe: OrderRecipe, notify: Notify, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Train and test on sentences.

    Raises:
        DivergedError: a loss is no longer finite.
    """
    model = build(run)
    train(
        model,
        recipe,
        stream(run.seed, "sentences"),
        lambda generator: order.loss_of(
            model, order.draw(recipe.batch, generator).to(recipe.device)
        ),
        lambda step, loss: notify(step / (recipe.steps + 1), loss),
        checkpoint,
    )
    test = order.draw(recipe.pairs, torch.Generator().manual_seed(stream(0, TEST)))
    score = order.score(model.eval(), test)
    if not math.isfinite(score.loss):
        raise DivergedError("the loss on test sentences is not finite")
    notify(1.0, score.loss)
    return {
        "doors": doors(model),
        "parameters": sum(p.numel() for p in positional(model)),
        "accuracy": score.accuracy,
        "pairs": recipe.pairs,
    }


def language_model(
    run: Run, recipe: Recipe, notify: Notify, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Train at one length and evaluate at all.

    Raises:
        DivergedError: a loss is no longer finite.
        ValueError, OSError: the text cannot be had.
    """
    training, held_out = (as_tensor(part, recipe.device) for part in texts(run))
    model = build(run)
    training_work = BACKWARD * recipe.steps * recipe.batch * recipe.train_length
    work = training_work + (len(recipe.lengths) + 1) * len(held_out)

    def trained_to(step: int, loss: float) -> None:
        notify(training_work * step / recipe.steps / work, loss)

    def step_loss(generator: torch.Generator) -> Tensor:
        return language.loss_of(model, *language.draw(training, recipe, generator))

    trained = train(
        model,
        recipe,
        stream(run.seed, "batches"),
        step_loss,
        trained_to,
        checkpoint,
    )
    model.eval()
    losses: dict[str, Losses] = {}
    for length in recipe.lengths:
        found = language.evaluate(model, held_out, length, recipe.longest)
        if not all(map(math.isfinite, found.whole)):
            raise DivergedError(f"the loss at length {length} is not finite")
        losses[str(length)] = found
        notify((training_work + len(losses) * len(held_out)) / work, fmean(found.whole))
    first = first_of(model)
    properties = measure(first, num_positions=recipe.train_length)
    notify(1.0, fmean(losses[str(recipe.longest)].whole))
    return {
        "doors": doors(model),
        "properties": properties.as_dict(),
        "parameters": sum(p.numel() for p in positional(model)),
        "tokens_per_second": trained.tokens_per_second,
        "step_memory": step_memory(run, recipe),
        "nope_step_memory": step_memory(replace(run, encoding="nope"), recipe),
        "untrained_beyond": untrained_beyond(model, held_out, recipe, trained.reached),
        "losses": {length: found.whole for length, found in losses.items()},
        "last_quarter": {length: found.last_quarter for length, found in losses.items()},
        "weights": packed(first),
    }


def step_memory(run: Run, recipe: Recipe) -> int:
    """Bytes that a training step of a model like that of `run` keeps for its backward pass."""
    model = build(run).eval()  # without dropout the same as in training
    ids = torch.zeros(recipe.batch, recipe.train_length, dtype=torch.int64, device=recipe.device)
    return kept_for_backward(model, lambda: language.loss_of(model, ids, ids))


def texts(run: Run) -> tuple[bytes, bytes]:
    """(training part, held-out part) of the run's text."""
    assert run.text is not None
    assert isinstance(run.recipe, Recipe)
    return split(run.text.load(), run.recipe.longest, run.recipe.evaluated_bytes)


def as_tensor(data: bytes, device: str) -> UInt8[Tensor, " bytes"]:
    """Bytes as they are: token ids are made of a batch at a time."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
