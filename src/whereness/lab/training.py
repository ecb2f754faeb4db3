"""Training of one model: AdamW, a warm-up and then a cosine, gradients clipped, float32.

    rate(i) = peak min(1, (i + 1) / w) (1 + cos(pi i / steps)) / 2,   w = max(1, warm_up steps)

Every encoding of a seed gets the same batches.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from whereness.lab.checkpoint import Checkpoint
from whereness.lab.model import positional
from whereness.lab.settings import Training
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


StepLoss = Callable[[torch.Generator], Float[Tensor, ""]]
"""Draws a batch and gives its mean loss."""


class Trainee:
    """A model in training, with all that decides its next step.

    Args:
        stream: a seed for the batches.
    """

    def __init__(self, model: Transformer, recipe: Training, stream: int) -> None:
        self.model, self.recipe = model, recipe
        self.tables = positional(model)
        self.optimizer = make_optimizer(model, recipe)
        self.generator = torch.Generator().manual_seed(stream)
        self.reached = [torch.zeros_like(t, dtype=torch.bool) for t in self.tables]
        self.step = 0
        self.seconds, self.timed_steps = 0.0, 0

    def state(self) -> dict[str, Tensor]:
        """Everything that the rest of the training depends on."""
        kept = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        for i, values in self.optimizer.state_dict()["state"].items():
            kept |= {f"optimizer.{i}.{name}": t for name, t in values.items()}
        kept |= {f"reached.{i}": r for i, r in enumerate(self.reached)}
        clock = [self.step, self.seconds, self.timed_steps]
        return kept | {
            "generator": self.generator.get_state(),
            "clock": torch.tensor(clock, dtype=torch.float64),
        }

    def restore(self, kept: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "reached": {}}
        for key, tensor in kept.items():
            part, _, name = key.partition(".")
            if part in parts:
                parts[part][name] = tensor
        self.model.load_state_dict(parts["model"])
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in parts["optimizer"].items():
            i, _, name = key.partition(".")
            state.setdefault(int(i), {})[name] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        device = self.recipe.device
        self.reached = [parts["reached"][str(i)].to(device) for i in range(len(self.tables))]
        self.generator.set_state(kept["generator"])
        step, self.seconds, timed_steps = kept["clock"].tolist()
        self.step, self.timed_steps = int(step), int(timed_steps)

    def advance(self, step_loss: StepLoss) -> float:
        """Train one step; its loss.

        Raises:
            DivergedError: the loss became NaN or infinite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.recipe)
        loss = step_loss(self.generator)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"the training loss became {value} at step {self.step + 1}")
        self.optimizer.zero_grad()
        loss.backward()
        self.reached = [
            r | touched(t, t.grad) for r, t in zip(self.reached, self.tables, strict=True)
        ]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.step += 1
        return value


def train(
    model: Transformer,
    recipe: Training,
    stream: int,
    step_loss: StepLoss,
    notify: Callable[[int, float], None],
    checkpoint: Checkpoint,
) -> Trained:
    """Train `model` in place, from its checkpoint if there is one.

    Args:
        stream: a seed for the batches.
        notify: gets the number of steps done and the last loss.

    Raises:
        DivergedError: the loss became NaN or infinite.
        OSError: a checkpoint cannot be written.
        ValueError: the checkpoint is of another training.
    """
    model.train()
    trainee = Trainee(model, recipe, stream)
    kept = checkpoint.load()
    if kept is not None:
        try:
            trainee.restore(kept)
        except (KeyError, ValueError, RuntimeError) as error:
            checkpoint.remove()
            raise ValueError(
                "the checkpoint does not fit and was removed; the same command begins again"
            ) from error
    clock = clock_of(recipe.device)
    first = trainee.step
    while trainee.step < recipe.steps:
        begin = clock()
        loss = trainee.advance(step_loss)
        # The first step, which also loads code, counts only if it is alone.
        if trainee.step > first + 1 or recipe.steps == 1:
            trainee.seconds += clock() - begin
            trainee.timed_steps += 1
        if checkpoint.due(trainee.step):
            checkpoint.save(trainee.state())
        notify(trainee.step, loss)
    tokens = max(1, trainee.timed_steps) * recipe.tokens // recipe.steps
    return Trained(tokens_per_second=tokens / max(trainee.seconds, 1e-6), reached=trainee.reached)


def make_optimizer(model: Transformer, recipe: Training) -> torch.optim.Optimizer:
    """AdamW. The encoding's parameters do not decay: entries out of reach keep their values."""
    tables = positional(model)
    own = {id(t) for t in tables}
    others = [p for p in model.parameters() if id(p) not in own]
    groups = [
        {"params": others, "weight_decay": recipe.weight_decay},
        {"params": tables, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=recipe.betas, fused=True)


def learning_rate(step: int, recipe: Training) -> float:
    """The rate of step 0, 1, ..., steps - 1."""
    rising = (step + 1) / max(1.0, recipe.warm_up * recipe.steps)
    falling = (1 + math.cos(math.pi * step / recipe.steps)) / 2
    return recipe.learning_rate * min(1.0, rising) * falling


def touched(table: Tensor, gradient: Tensor | None) -> Bool[Tensor, "..."]:
    """Which entries of `table` have a gradient; none if there is no gradient at all."""
    return torch.zeros_like(table, dtype=torch.bool) if gradient is None else gradient != 0


def clock_of(device: str) -> Callable[[], float]:
    """Seconds that training takes: on the cpu those of this process, whatever runs beside it."""
    return time.process_time if device == "cpu" else time.perf_counter
