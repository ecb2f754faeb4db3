"""Where tensors come from: marks that `watch` keeps on them as a Python attribute."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

MARK = "_whereness_mark"
CONTENT, WEIGHTS = 0, -1
"""Marks beside the numbers of products: comes from the input; is what a softmax made of scores."""
Marks = frozenset[int]
NOTHING: Marks = frozenset()


def marks_of(tensor: Tensor) -> Marks:
    """What is known of where a tensor comes from."""
    return tensor.__dict__.get(MARK, NOTHING)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


def origin(marks: Marks) -> Marks:
    """Only where it comes from: products that went in are done with."""
    return frozenset(m for m in marks if m <= -2) | {CONTENT}
