"""Rows of the lab: training steps of `whereness compare`, each encoding beside none.

Its own model, text and recipe, one thread, as its workers have. The oracle is the same model in
float64.
"""

import copy
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from whereness.bench.contest import OURS, Bar, Contestant, Row, Scale
from whereness.bench.gate import compare

BARS = {"rope": 0.85, "alibi": 0.85, "sinusoidal": 0.85, "learned": 0.85}
OTHERS = (
    "integer",
    "binary",
    "relative_add",
    "relative_multiply",
    "shaw",
    "t5",
    "kerple",
    "sandwich",
)
NOPE = "NoPE"


@cache
def _training_text() -> Tensor:
    from whereness.lab import text
    from whereness.lab.run import as_tensor

    _, data = text.find(())
    return as_tensor(data[: 2**18], "cpu")


def trainee(name: str, encoding: str, scale: Scale) -> Contestant:
    """Training steps of a fresh model."""
    from whereness.lab import language
    from whereness.lab.model import build, stream
    from whereness.lab.settings import Recipe, Run
    from whereness.lab.training import Trainee

    # Steps without end: the rate stays at its warm-up and the work of a step is the same.
    recipe = Recipe(steps=10_000, batch=scale.of(Recipe.batch, 2))
    training = _training_text()
    model = build(Run(encoding=encoding, seed=0, recipe=recipe)).train()
    learner = Trainee(model, recipe, stream(0, "batches"))
    ids, _ = language.draw(training, recipe, torch.Generator().manual_seed(0))
    before = copy.deepcopy(model)

    def step() -> float:
        return learner.advance(
            lambda generator: language.loss_of(model, *language.draw(training, recipe, generator))
        )

    def expected() -> Tensor:
        return copy.deepcopy(before).double()(ids)

    tolerance = 2.0**-24 * recipe.width * 16
    return Contestant(name, step, compare(lambda: before(ids), expected, tolerance))


def beside_nope(encoding: str) -> Callable[[Scale], list[Contestant]]:
    """The encoding and NoPE."""

    def make(scale: Scale) -> list[Contestant]:
        return [trainee(OURS, encoding, scale), trainee(NOPE, "nope", scale)]

    return make


ROWS = tuple(
    Row(
        f"lab/{encoding}",
        f"lab training, tokens/s, {encoding}",
        (Bar("speedup", BARS.get(encoding), NOPE),),
        beside_nope(encoding),
        threads=1,
    )
    for encoding in (*BARS, *OTHERS)
)
