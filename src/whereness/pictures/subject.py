"""What a picture is drawn of: an exact copy of an encoding and the positions that it has."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.checks import require_int
from whereness.encoding import PositionalEncoding, as_encoding
from whereness.properties.doors import exact_copy, sizes
from whereness.properties.lines import content_for
from whereness.properties.probes import (
    Content,
    along,
    axes_of,
    contents,
    usable_length,
    where_of,
)
from whereness.properties.traits import measured_traits
from whereness.where import Where

FEWEST = 2
"""Positions of a picture."""
SEED = 0
"""Of drawn words: every picture of an encoding shows the same ones."""


@contextmanager
def probing() -> Generator[None]:
    """Without gradients, and with a random state of its own: probes build layers, which draw."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        yield


@contextmanager
def one_thread() -> Generator[None]:
    """The tensors here are small: more threads wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class Subject:
    """An encoding in float64, without gradients, and how many positions of it are shown.

    Positions of several axes lie along the first.
    """

    encoding: PositionalEncoding
    length: int
    content: Content
    """What identical tokens hold; "gaussian" where scores depend on it."""
    doors: tuple[int, ...]
    seen_as: str
    """Class of the encoding."""

    @property
    def num_axes(self) -> int:
        return axes_of(self.encoding)

    def where(self) -> Where:
        """Positions 0 .. length - 1."""
        return where_of(self.encoding, along(self.encoding, torch.arange(self.length)))

    def tokens(self) -> Tensor:
        """The contents of identical tokens, (R, E); the same at every call."""
        with probing():
            return contents(self.content, sizes(self.encoding).dim)


def subject(encoding: PositionalEncoding, num_positions: int) -> Subject:
    """Prepare `encoding`, which is left as it is, for its pictures.

    Raises:
        ValueError: fewer than two positions are asked for, or the encoding has no more than one.
    """
    require_int("num_positions", num_positions, FEWEST)
    encoding = as_encoding(encoding)
    with probing():
        exact = exact_copy(encoding)
        length = usable_length(exact, num_positions)
        if length < FEWEST:
            raise ValueError(
                f"A picture needs at least {FEWEST} positions, {type(encoding).__name__} has "
                f"{length}."
            )
        found = measured_traits(encoding, SEED)
        content = content_for(exact, length, found)
    seen_as = "+".join(type(m).__name__ for m in encoding.members())
    return Subject(exact, length, content, found.doors, seen_as)
