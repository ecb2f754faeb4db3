"""Up to which length every parameter that an encoding reads was trained.

A table that is longer than the training texts has entries that training never touches: they keep
their initial values and are read all the same when the text is longer. Not declared but measured:
an entry is read at a length if the loss there has a gradient for it.
"""

import torch
from jaxtyping import Bool, Integer
from torch import Tensor, nn

from whereness.lab.language import loss_of, windows
from whereness.lab.model import positional
from whereness.lab.settings import Recipe
from whereness.lab.training import touched
from whereness.transformer import Transformer


def untrained_beyond(
    model: Transformer,
    held_out: Integer[Tensor, " bytes"],
    recipe: Recipe,
    reached: list[Bool[Tensor, "..."]],
) -> int | None:
    """The longest length without untrained entries; None if no evaluated length has any.

    Args:
        reached: for each parameter of the encoding, which entries training touched.
    """
    tables = positional(model)
    trained = recipe.train_length
    for length in recipe.lengths if tables else ():
        read = entries_read(model, tables, held_out, length)
        if any((r & ~t).any() for r, t in zip(read, reached, strict=True)):
            return trained
        trained = length
    return None


def entries_read(
    model: Transformer, tables: list[nn.Parameter], held_out: Integer[Tensor, " bytes"], length: int
) -> list[Bool[Tensor, "..."]]:
    """For each table, which entries the loss of one window depends on."""
    inputs, targets = windows(held_out, length, length)
    loss = loss_of(model, inputs[:1].long(), targets[:1].long())
    gradients = torch.autograd.grad(loss, tables, allow_unused=True)
    return [touched(t, g) for t, g in zip(tables, gradients, strict=True)]
