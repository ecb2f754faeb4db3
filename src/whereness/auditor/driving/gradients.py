"""Gradients of a model's weights by one scalar, to be held against those of another run."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MOST_WEIGHTS = 20_000_000
"""Weights up to which gradients are compared: each run keeps one of their size."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The weights to take gradients of; none where they are too many."""
    found = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    return found if sum(p.numel() for p in found) <= MOST_WEIGHTS else []


def gradient(output: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The gradient of sum(sin(output)), all weights in one row; 0 for those that are not used.

    A plain sum would not do: what turns or normalises may leave it as it is.
    """
    found = torch.autograd.grad(output.sin().sum(), list(weights), allow_unused=True)
    both = zip(found, weights, strict=True)
    return torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for g, w in both])


def apart(a: Tensor, b: Tensor) -> float:
    """How far apart two gradients are, of the largest: small ones are sums that cancel."""
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
