"""Training of one model: AdamW, a warm-up and then a cosine, gradients clipped, float32.

    rate(i) = peak min(1, (i + 1) / w) (1 + cos(pi i / steps)) / 2,   w = max(1, warm_up steps)

Every encoding of a seed gets the same batches: sequences that begin anywhere in the text.

Axes: B sequences of a batch, S bytes of one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from whereness.lab.model import positional, stream
from whereness.lab.settings import Recipe
from whereness.transformer import Transformer


class DivergedError(ArithmeticError):
    """A loss is no longer a finite number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """What training tells besides the weights.

    Args:
        reached: for each parameter of the encoding, which entries ever had a gradient.
    """

    tokens_per_second: float
    reached: list[Bool[Tensor, "..."]]


def train(
    model: Transformer,
    text: Int[Tensor, " bytes"],
    recipe: Recipe,
    seed: int,
    notify: Callable[[int, float], None],
) -> Trained:
    """Train `model` in place; `notify` gets the number of steps done and the last loss.

    Raises:
        DivergedError: the loss became NaN or infinite.
    """
    model.train()
    optimizer = make_optimizer(model, recipe)
    generator = torch.Generator().manual_seed(stream(seed, "batches"))
    tables = positional(model)
    reached = [torch.zeros_like(t, dtype=torch.bool) for t in tables]
    clock, begin = clock_of(recipe.device), 0.0
    for step in range(recipe.steps):
        if step < 2:
            begin = clock()  # the first step, which also loads code, counts only if it is alone
        ids, targets = draw(text, recipe, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        loss = loss_of(model, ids, targets)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"the training loss became {value} at step {step + 1}")
        optimizer.zero_grad()
        loss.backward()
        reached = [r | touched(t, t.grad) for r, t in zip(reached, tables, strict=True)]
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        notify(step + 1, value)
    seconds = max(clock() - begin, 1e-6)
    tokens = max(1, recipe.steps - 1) * recipe.batch * recipe.train_length
    return Trained(tokens_per_second=tokens / seconds, reached=reached)


def make_optimizer(model: Transformer, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW. The encoding's parameters do not decay: entries out of reach keep their values."""
    tables = positional(model)
    own = {id(t) for t in tables}
    others = [p for p in model.parameters() if id(p) not in own]
    groups = [
        {"params": others, "weight_decay": recipe.weight_decay},
        {"params": tables, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=recipe.betas)


def learning_rate(step: int, recipe: Recipe) -> float:
    """The rate of step 0, 1, ..., steps - 1."""
    rising = (step + 1) / max(1.0, recipe.warm_up * recipe.steps)
    falling = (1 + math.cos(math.pi * step / recipe.steps)) / 2
    return recipe.learning_rate * min(1.0, rising) * falling


def draw(
    text: Int[Tensor, " bytes"], recipe: Recipe, generator: torch.Generator
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """A batch: (inputs, targets), a target being the byte after its input."""
    length = recipe.train_length
    starts = torch.randint(len(text) - length, (recipe.batch, 1), generator=generator)
    sequences = text[(starts + torch.arange(length + 1)).to(text.device)]
    return sequences[:, :-1], sequences[:, 1:]


def loss_of(
    model: Callable[[Tensor], Tensor], ids: Int[Tensor, "B S"], targets: Int[Tensor, "B S"]
) -> Float[Tensor, ""]:
    """Mean loss, nats a byte."""
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def touched(table: Tensor, gradient: Tensor | None) -> Bool[Tensor, "..."]:
    """Which entries of `table` have a gradient; none if there is no gradient at all."""
    return torch.zeros_like(table, dtype=torch.bool) if gradient is None else gradient != 0


def clock_of(device: str) -> Callable[[], float]:
    """Seconds that training takes: on the cpu those of this process, whatever runs beside it."""
    return time.process_time if device == "cpu" else time.perf_counter
