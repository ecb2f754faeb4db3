"""Loss of a language model on held-out text, window by window.

Windows do not overlap and a model sees nothing before its window. Early bytes of a window have
little context, so longer windows look better for free: the last quarter of each is told apart.

Axes: N windows, S bytes of a window. Losses are in nats a byte.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

TOKENS_A_CALL = 1024
"""Windows go through the model in groups of about this many tokens."""


class Losses(NamedTuple):
    """Mean loss of each window, and of the last quarter of each."""

    whole: list[float]
    last_quarter: list[float]


def windows(
    held_out: Int[Tensor, " bytes"], length: int, longest: int
) -> tuple[Int[Tensor, "N S"], Int[Tensor, "N S"]]:
    """(inputs, targets) of all windows of `length`; a target is the byte after its input.

    All lengths that divide `longest` cover the same bytes.
    """
    stretch = (len(held_out) - 1) // longest * longest
    used = stretch // length * length
    return held_out[:used].view(-1, length), held_out[1 : used + 1].view(-1, length)


@torch.no_grad()
def evaluate(
    model: Callable[[Tensor], Tensor], held_out: Int[Tensor, " bytes"], length: int, longest: int
) -> Losses:
    """Losses of a model in eval mode, ids (N, S) -> logits (N, S, 256), at one length."""
    inputs, targets = windows(held_out, length, longest)
    at_once = max(1, TOKENS_A_CALL // length)
    whole: list[float] = []
    last_quarter: list[float] = []
    for ids, wanted in zip(inputs.split(at_once), targets.split(at_once), strict=True):
        losses = F.cross_entropy(model(ids).transpose(1, 2), wanted, reduction="none").double()
        whole += losses.mean(-1).tolist()
        last_quarter += losses[:, length - length // 4 :].mean(-1).tolist()
    return Losses(whole, last_quarter)
