"""Giving every attention layer contents of our choice: one random vector a row, at every slot.

Each layer is then read by itself: no error comes from the layers below, and what differs between
slots is position.

Axes: B rows, S slots.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.reading.marks import CONTENT, MARK, Marks, marks_of, tensors_in

NO_CONTENT = ("position", "mask", "cache", "type_ids", "segment", "index", "past")
"""Parts of the names of a model's arguments that are not what it reads."""


@contextmanager
def told_inputs(model: nn.Module) -> Generator[None]:
    """Mark the model's own input as content, a number an argument, so that origins can be told."""
    marked: list[Tensor] = []

    def mark_them(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = [(str(i), each) for i, each in enumerate(args)] + list(kwargs.items())
        for number, (name, value) in enumerate(given):
            if any(word in name for word in NO_CONTENT):
                continue
            for tensor in tensors_in(value):
                if tensor.dtype != torch.bool:
                    setattr(tensor, MARK, frozenset({CONTENT, -2 - number}))
                    marked.append(tensor)

    handle = model.register_forward_pre_hook(mark_them, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        for tensor in marked:
            tensor.__dict__.pop(MARK, None)


@dataclass
class Injection:
    """What to give the modules, and how the axes of their inputs are told."""

    rows: int
    slots: frozenset[int]
    """Numbers of slots that an input may have."""
    seed: int = 0
    drawn: int = field(default=0, init=False)

    @contextmanager
    def into(self, modules: list[nn.Module]) -> Generator[None]:
        """Replace all contents that these modules are given."""
        with ExitStack() as stack:
            for module in modules:
                handle = module.register_forward_pre_hook(self._replace, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def _replace(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
        known: dict[int, Tensor] = {}
        return self._in(args, known), self._in(kwargs, known)

    def _in(self, value: Any, known: dict[int, Tensor]) -> Any:
        if isinstance(value, Tensor):
            if CONTENT not in marks_of(value) or not value.is_floating_point() or value.dim() < 2:
                return value
            if id(value) not in known:
                known[id(value)] = self._drawn(value, marks_of(value))
            return known[id(value)]
        if type(value) in (tuple, list):
            return type(value)(self._in(each, known) for each in value)
        if type(value) is dict:
            return {name: self._in(each, known) for name, each in value.items()}
        return value

    def _drawn(self, value: Tensor, marks: Marks) -> Tensor:
        """Random, and the same along the axis of slots."""
        self.drawn += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.drawn)
        shape = list(value.shape)
        flat = value.dim() == 2 and shape[0] % self.rows == 0
        if flat:  # rows and slots in one axis
            shape = [self.rows, shape[0] // self.rows, shape[1]]
        axis = self._slot_axis(shape)
        once = [1 if i == axis else n for i, n in enumerate(shape)]
        made = torch.randn(once, generator=generator, dtype=torch.float64)
        made = made.expand(shape).to(value.device, value.dtype).reshape(value.shape).clone()
        setattr(made, MARK, frozenset(m for m in marks if m <= -2) | {CONTENT})
        return made

    def _slot_axis(self, shape: list[int]) -> int:
        for i, n in enumerate(shape):
            if n in self.slots and n != self.rows:
                return i
        if shape[0] == self.rows or len(shape) == 2:
            return 1 if len(shape) > 2 else 0
        return 0 if len(shape) > 2 and shape[1] == self.rows else 1
