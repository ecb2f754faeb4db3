"""The model of a run: a small byte-level decoder with one encoding.

For one seed every encoding meets the same model: the encoding is made first and from a random
stream of its own, so all other weights begin with the same values whatever it drew.

Who has parameters of their own in every layer follows the literature: learned relative encodings
(Shaw et al. 2018 and those after them) have, T5 shares one table among all layers (Raffel et al.
2020, section 2.1), and what joins the tokens at the input is there once. Encodings without
parameters are shared. Tables are built for the longest evaluated length.
"""

import hashlib

import torch
from torch import nn

from whereness.encoding import PositionalEncoding
from whereness.lab.settings import Recipe, Run
from whereness.registry import create
from whereness.schedules import Schedule, listed
from whereness.transformer import Transformer

VOCABULARY = 256
"""Token ids: bytes."""

SHARED = ("t5",)
"""Encodings with parameters that all layers share."""


def build(run: Run) -> Transformer:
    """The model of `run` at its start, on its device.

    Raises:
        ValueError: sizes that do not fit the encoding.
    """
    recipe = run.recipe
    # Drawn on the CPU and then moved: the same values on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(run.seed, "encoding"))
        encoding = make_encoding(run.encoding, recipe)
        torch.manual_seed(stream(run.seed, "model"))
        model = Transformer(VOCABULARY, recipe.width, recipe.depth, recipe.heads, encoding)
    return model.to(recipe.device)


def make_encoding(name: str, recipe: Recipe) -> PositionalEncoding | Schedule:
    """The encoding `name`, or a list of one a layer.

    Raises:
        ValueError: sizes that do not fit it, or an encoding of positions of several axes.
    """

    def make() -> PositionalEncoding:
        return create(name, dim=recipe.width, num_heads=recipe.heads, length=recipe.longest)

    first = make()
    if first.reads == "positions" and first.num_axes != 1:
        raise ValueError(
            f"it reads positions of {first.num_axes} axes, a text has 1. Leave it out."
        )
    if name in SHARED or first.site == "tokens" or not first.learned:
        return first
    return listed([first, *(make() for _ in range(recipe.depth - 1))])


def encodings_of(model: Transformer) -> list[PositionalEncoding]:
    """Its encodings, each once."""
    return [model.inputs, *model.encodings]


def first_of(model: Transformer) -> PositionalEncoding:
    """What joins its tokens, or else the encoding of its first layer."""
    inputs, first = encodings_of(model)[:2]
    return first if inputs.site is None else inputs


def positional(model: Transformer) -> list[nn.Parameter]:
    """The parameters of its encodings."""
    return [p for e in encodings_of(model) for p in e.parameters()]


def doors(model: Transformer) -> list[int]:
    """The doors that its encodings open."""
    return sorted({d for e in encodings_of(model) for d in e.doors})


def stream(seed: int, name: str) -> int:
    """A seed for one use, unrelated to those for other uses."""
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:8], "big") >> 1
