"""The model of a run: a small decoder (of bytes) or encoder (of words) with one encoding.

For one seed every encoding meets the same model: the encoding is made first and from a random
stream of its own, so all other weights begin with the same values whatever it drew.

Who has parameters of their own in every layer follows the literature: learned relative encodings
(Shaw et al. 2018 and those after them) have, T5 shares one table among all layers (Raffel et al.
2020, section 2.1) as KERPLE does its parameters (Chi et al. 2022), and what joins the
tokens at the input is there once. Encodings without parameters are shared. Tables are built for
the longest sequence that is evaluated.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from whereness.encoding import PositionalEncoding
from whereness.lab import order
from whereness.lab.settings import LENGTH, OrderRecipe, Recipe, Run
from whereness.registry import create, described
from whereness.schedules import Schedule, listed
from whereness.transformer import Transformer

BYTES = 256

SHARED = ("t5", "kerple")
"""Encodings with parameters that all layers share."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a task asks of its model."""

    vocabulary: int
    longest: int
    """Tokens of the longest sequence."""
    causal: bool


def form_of(recipe: Recipe | OrderRecipe) -> Form:
    """The form of the model for a task."""
    if isinstance(recipe, OrderRecipe):
        return Form(vocabulary=len(order.WORDS), longest=LENGTH, causal=False)
    return Form(vocabulary=BYTES, longest=recipe.longest, causal=True)


def build(run: Run) -> Transformer:
    """The model of `run` at its start, on its device.

    Raises:
        ValueError: sizes that do not fit the encoding.
    """
    recipe, form = run.recipe, form_of(run.recipe)
    # Drawn on the CPU and then moved: the same values on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(run.seed, "encoding"))
        encoding = make_encoding(run.encoding, recipe)
        torch.manual_seed(stream(run.seed, "model"))
        model = Transformer(
            form.vocabulary, recipe.width, recipe.depth, recipe.heads, encoding, causal=form.causal
        )
    return model.to(recipe.device)


def make_encoding(name: str, recipe: Recipe | OrderRecipe) -> PositionalEncoding | Schedule:
    """The encoding `name`, or a list of one a layer.

    Raises:
        ValueError: sizes that do not fit it, or an encoding of positions of several axes.
    """
    first = make_one(name, recipe)
    if name in SHARED or first.site == "tokens" or not first.learned:
        return first
    return listed([first, *(make_one(name, recipe) for _ in range(recipe.depth - 1))])


def make_one(name: str, recipe: Recipe | OrderRecipe) -> PositionalEncoding:
    """The encoding `name` of one layer, or of the input.

    Raises:
        ValueError: sizes that do not fit it, or an encoding of positions of several axes.
    """
    made = create(name, **sizes_of(recipe))
    if made.reads == "positions" and made.num_axes != 1:
        raise ValueError(f"it reads positions of {made.num_axes} axes, a text has 1. Leave it out.")
    return made


def constructor(name: str, recipe: Recipe | OrderRecipe) -> str:
    """The call that `make_one` makes."""
    return f"wn.{described(name, **sizes_of(recipe))}"


def sizes_of(recipe: Recipe | OrderRecipe) -> dict[str, Any]:
    """What `create` is told of the model."""
    form = form_of(recipe)
    return {
        "dim": recipe.width,
        "num_heads": recipe.heads,
        "length": form.longest,
        "causal": form.causal,
    }


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


def packed(encoding: PositionalEncoding) -> bytes:
    """The parameters of an encoding as a safetensors file."""
    return save({name: t.detach().cpu().contiguous() for name, t in encoding.state_dict().items()})


def unpacked(run: Run, data: bytes) -> PositionalEncoding:
    """The encoding of the first layer of `run`, or of its input, with packed parameters."""
    encoding = make_one(run.encoding, run.recipe)
    encoding.load_state_dict(load(data))
    return encoding
