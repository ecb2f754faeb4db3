"""Encodings by name, for tools: one line an encoding. Imports nothing heavy until one is made."""

import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whereness.encoding import PositionalEncoding


@dataclass(frozen=True)
class Sizes:
    """What a model tells of itself."""

    dim: int
    num_heads: int
    length: int
    causal: bool

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def far(self) -> int:
        """The farthest offset in a text of `length` tokens."""
        return self.length - 1


@dataclass(frozen=True)
class Entry:
    """Where an encoding lives and how its sizes follow from those of a model."""

    path: str
    options: Callable[[Sizes], dict[str, Any]]


ENTRIES: dict[str, Entry] = {
    "nope": Entry("encoding:NoPE", lambda _: {}),
    "integer": Entry("absolute.integer:Integer", lambda s: {"dim": s.dim}),
    "binary": Entry(
        "absolute.binary:Binary",
        lambda s: {"dim": s.dim, "num_bits": max(min(s.dim, 16), s.far.bit_length())},
    ),
    "sinusoidal": Entry("absolute.sinusoidal:Sinusoidal", lambda s: {"dim": s.dim}),
    "learned": Entry(
        "absolute.learned:LearnedAbsolute", lambda s: {"dim": s.dim, "num_positions": s.length}
    ),
    "relative_add": Entry(
        "relative.learned:LearnedRelative",
        lambda s: {"num_heads": s.num_heads, "max_distance": s.far},
    ),
    "relative_multiply": Entry(
        "relative.learned:LearnedRelative",
        lambda s: {"num_heads": s.num_heads, "max_distance": s.far, "operation": "multiply"},
    ),
    "shaw": Entry(
        "relative.shaw:Shaw", lambda s: {"head_dim": s.head_dim, "max_distance": min(16, s.far)}
    ),
    "t5": Entry(
        "relative.t5:T5", lambda s: {"num_heads": s.num_heads, "bidirectional": not s.causal}
    ),
    "alibi": Entry("relative.alibi:ALiBi", lambda s: {"num_heads": s.num_heads}),
    "rope": Entry("rotary.rope:RoPE", lambda s: {"head_dim": s.head_dim}),
    "xpos": Entry("rotary.xpos:XPos", lambda s: {"head_dim": s.head_dim}),
    "lerope": Entry("rotary.learned:LeRoPE", lambda s: {"head_dim": s.head_dim}),
    "fope": Entry(
        "rotary.fope:FoPE", lambda s: {"head_dim": s.head_dim, "length": max(s.length, 7)}
    ),
    "axial_rope": Entry("rotary.axial:AxialRoPE", lambda s: {"head_dim": s.head_dim}),
    "mixed_rope": Entry(
        "rotary.mixed:MixedRoPE", lambda s: {"head_dim": s.head_dim, "num_heads": s.num_heads}
    ),
    "multimodal_rope": Entry(
        "rotary.multimodal:MultimodalRoPE", lambda s: {"head_dim": s.head_dim}
    ),
    "kerple": Entry("relative.kerple:KERPLE", lambda s: {"num_heads": s.num_heads}),
    "sandwich": Entry("relative.sandwich:Sandwich", lambda s: {"num_heads": s.num_heads}),
}


def encodings() -> tuple[str, ...]:
    """The names that `create` knows."""
    return tuple(ENTRIES)


def create(
    name: str,
    *,
    dim: int,
    num_heads: int,
    length: int = 2048,
    causal: bool = True,
    **options: Any,
) -> "PositionalEncoding":
    """The encoding `name` for a model of width `dim` with `num_heads` heads.

    Args:
        length: tokens of the longest text, for encodings that have a table.
        causal: a decoder's; False: an encoder's, for encodings that differ there (T5).
        options: replace or add to what follows from the sizes, by the constructor's names.

    Raises:
        ValueError: an unknown name, or sizes that do not fit one another.
        TypeError: an option that the encoding does not have.
    """
    from whereness.checks import require_bool, require_int  # here, not above: it brings torch

    if not isinstance(name, str):
        raise TypeError(f"The name of an encoding must be a string, got {name!r}.")
    if name not in ENTRIES:
        raise ValueError(unknown(name))
    dim = require_int("dim", dim, 1)
    num_heads = require_int("num_heads", num_heads, 1)
    length = require_int("length", length, 1)
    require_bool("causal", causal)
    if dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}.")
    entry = ENTRIES[name]
    return _class_of(entry)(**{**entry.options(Sizes(dim, num_heads, length, causal)), **options})


def described(
    name: str, *, dim: int, num_heads: int, length: int = 2048, causal: bool = True
) -> str:
    """The call that `create` makes, with the defaults that it leaves: "RoPE(head_dim=64, ...)".

    Args are those of `create`. An option that is None by default and stays so is left out.
    """
    entry = ENTRIES[name]
    encoding = _class_of(entry)
    given = entry.options(Sizes(dim, num_heads, length, causal))
    parameters = inspect.signature(encoding).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    values = {p.name: given.get(p.name, p.default) for p in named}
    told = [f"{n}={value!r}" for n, value in values.items() if value is not None]
    return f"{encoding.__name__}({', '.join(told)})"


def _class_of(entry: Entry) -> "type[PositionalEncoding]":
    module, _, attribute = entry.path.partition(":")
    return getattr(importlib.import_module(f"whereness.{module}"), attribute)


def unknown(name: str) -> str:
    """What to say of a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name.lower(), ENTRIES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"Unknown encoding {name!r}: {hint}The names are {', '.join(ENTRIES)}."
