"""Turning pairs of channels: the one place that knows which two channels a pair has.

    (u, v) at angle a  ->  (u cos a - v sin a,  u sin a + v cos a)

    half         pair k is channels k and k + R/2 (GPT-NeoX; Llama in Hugging Face)
    interleaved  pair k is channels 2k and 2k + 1 (Su et al. 2021; GPT-J)

Axes: R rotated channels, P = R/2 pairs.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Pairing = Literal["half", "interleaved"]
PAIRINGS = ("half", "interleaved")


def split(
    x: Shaped[Tensor, "*B R"], pairing: Pairing
) -> tuple[Shaped[Tensor, "*B P"], Shaped[Tensor, "*B P"]]:
    """(..., R) -> first and second channel of every pair, views of (..., R/2)."""
    if pairing == "half":
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    pairs = x.unflatten(-1, (-1, 2))
    return pairs[..., 0], pairs[..., 1]


def join(
    u: Float[Tensor, "*B P"], v: Float[Tensor, "*B P"], pairing: Pairing
) -> Float[Tensor, "*B R"]:
    """The inverse of split."""
    return torch.cat([u, v], -1) if pairing == "half" else torch.stack([u, v], -1).flatten(-2)


def turn(
    x: Float[Tensor, "*#B R"],
    cos: Float[Tensor, "*#B P"],
    sin: Float[Tensor, "*#B P"],
    pairing: Pairing,
) -> Float[Tensor, "*#B R"]:
    """Every pair of x (..., R) turned by its angle, given cos and sin (..., R/2) of x's dtype."""
    u, v = split(x, pairing)
    return join(u * cos - v * sin, v * cos + u * sin, pairing)
