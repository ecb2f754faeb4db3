"""The language model: byte by byte, trained at one length, evaluated at longer ones.

Every encoding of a seed gets the same batches: sequences that begin anywhere in the training part.
The loss on the held-out part is told window by window. Windows do not overlap and a model sees
nothing before its window. Early bytes of a window have little context, so longer windows look
better for free: the last quarter of each is told apart.

Axes: B sequences of a batch, N windows, S bytes of one. Losses are in nats a byte.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import functional as F

from whereness.lab.settings import Recipe

TOKENS_A_CALL = 1024
"""Windows go through the model in groups of about this many tokens."""


class Losses(NamedTuple):
    """Mean loss of each window, and of the last quarter of each."""

    whole: list[float]
    last_quarter: list[float]


def draw(
    text: Integer[Tensor, " bytes"], recipe: Recipe, generator: torch.Generator
) -> tuple[Integer[Tensor, "B S"], Integer[Tensor, "B S"]]:
    """A batch: (inputs, targets), a target being the byte after its input."""
    length = recipe.train_length
    starts = torch.randint(len(text) - length, (recipe.batch, 1), generator=generator)
    sequences = text[(starts + torch.arange(length + 1)).to(text.device)].long()
    return sequences[:, :-1], sequences[:, 1:]


def loss_of(
    model: Callable[[Tensor], Tensor], ids: Integer[Tensor, "B S"], targets: Integer[Tensor, "B S"]
) -> Float[Tensor, ""]:
    """Mean loss, nats a byte."""
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def windows(
    held_out: Integer[Tensor, " bytes"], length: int, longest: int
) -> tuple[Integer[Tensor, "N S"], Integer[Tensor, "N S"]]:
    """(inputs, targets) of all windows of `length`; a target is the byte after its input.

    All lengths that divide `longest` cover the same bytes.
    """
    stretch = (len(held_out) - 1) // longest * longest
    used = stretch // length * length
    return held_out[:used].view(-1, length), held_out[1 : used + 1].view(-1, length)


@torch.no_grad()
def evaluate(
    model: Callable[[Tensor], Tensor],
    held_out: Integer[Tensor, " bytes"],
    length: int,
    longest: int,
) -> Losses:
    """Losses of a model in eval mode, ids (N, S) -> logits (N, S, 256), at one length."""
    inputs, targets = windows(held_out, length, longest)
    at_once = max(1, TOKENS_A_CALL // length)
    whole: list[float] = []
    last_quarter: list[float] = []
    for ids, wanted in zip(inputs.split(at_once), targets.split(at_once), strict=True):
        logits = model(ids.long()).transpose(1, 2)
        losses = F.cross_entropy(logits, wanted.long(), reduction="none").double()
        whole += losses.mean(-1).tolist()
        last_quarter += losses[:, length - length // 4 :].mean(-1).tolist()
    return Losses(whole, last_quarter)
