"""Looks over a forward pass's shoulder: sees every operation that torch runs."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

HALF = (torch.bfloat16, torch.float16)
EXACT_UP_TO = {torch.bfloat16: 256, torch.float16: 2048}
"""The largest integer below which every one has its own number in a type."""


@dataclass
class Seen:
    """What a forward pass did that matters for positions."""

    waves: list[Tensor] = field(default_factory=list)
    """Results of cos, sin and polar, in order, float64 on the CPU."""
    rounded: list[str] = field(default_factory=list)
    """Operations that put integers into a type that cannot tell them apart."""
    complex: set[str] = field(default_factory=set)
    double: set[str] = field(default_factory=set)
    """Operations that made float64 from something else."""
    syncs: int = 0
    """Times that the host waited for a value."""
    read: int = 0
    """Those of them that waited for the largest or smallest of some integers: positions."""
    halves: set[str] = field(default_factory=set)
    """Operations that made half precision from something else."""
    long: tuple[int, ...] = ()
    """Shape of the largest tensor without an axis of tokens or of a known size."""
    squares: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Shapes of float tensors (..., S, S) with no axis for the batch -> how often one was made."""


class Watch(TorchDispatchMode):
    """Records into `seen` while it is on.

    Args:
        batch: rows of the batch; tokens: S. Both to be unlike other sizes of the model.
        waves: keep the results of cos and sin.
        sizes: lengths of the axes of weights and buffers.
    """

    def __init__(
        self,
        batch: int = 0,
        tokens: int = 0,
        *,
        waves: bool = False,
        sizes: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.seen, self.batch, self.tokens, self.waves = Seen(), batch, tokens, waves
        self._scalars: dict[int, Tensor] = {}  # extremes of integers; held, so that ids stay theirs

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").split(".")[0]
        if name == "_local_scalar_dense":
            self.seen.syncs += 1
            self.seen.read += id(args[0]) in self._scalars
        if isinstance(result, Tensor):
            given = [a for a in args if isinstance(a, Tensor)]
            extreme = name in EXTREMES and given and given[0].dtype in (torch.int64, torch.int32)
            if result.numel() == 1 and (extreme or any(id(g) in self._scalars for g in given)):
                self._scalars[id(result)] = result
            self._note(name, given, result)
        return result

    def _note(self, name: str, given: list[Tensor], result: Tensor) -> None:
        seen = self.seen
        if name in ("cos", "sin", "polar") and self.waves:
            values = torch.view_as_real(result.detach()) if result.is_complex() else result.detach()
            seen.waves.append(values.double().cpu())
        if result.is_complex():
            seen.complex.add(name)
        made_double = result.dtype == torch.float64 and result.dtype not in {g.dtype for g in given}
        if made_double and not _by_us():
            seen.double.add(name)
        if result.dtype in HALF:
            if not any(g.dtype in HALF for g in given):
                seen.halves.add(name)
            self._integers(name, given, result)
        square = result.dim() >= 2 and result.shape[-2:] == (self.tokens, self.tokens)
        if self.tokens and result.is_floating_point() and name not in VIEWS:
            self._rows(result)
        if self.tokens and square and result.is_floating_point() and name not in VIEWS:
            shape = tuple(result.shape)
            if math.prod(shape[:-2]) % self.batch:  # heads may be folded into the batch
                seen.squares[shape] = seen.squares.get(shape, 0) + 1

    def _rows(self, result: Tensor) -> None:
        """Remember a tensor with an axis as long as no input, weight or buffer is."""
        foreign = [n for n in result.shape if n >= MANY and n not in self.sizes and n % self.tokens]
        if foreign and result.numel() > math.prod(self.seen.long or (0,)):
            self.seen.long = tuple(result.shape)

    def _integers(self, name: str, given: list[Tensor], result: Tensor) -> None:
        most = EXACT_UP_TO[result.dtype]
        if name == "arange":
            if result.numel() and float(result.abs().max()) > most:
                self.seen.rounded.append(name)
        elif name in ROUNDING:
            whole = (g for g in given if not g.is_floating_point() and g.dtype != torch.bool)
            if any(g.numel() and int(g.abs().max()) > most for g in whole if not g.is_complex()):
                self.seen.rounded.append(name)


def _by_us() -> bool:
    """Whether whereness itself asked for it: its encodings look for devices without float64."""
    frame = sys._getframe(1)  # noqa: SLF001 (inspect.stack reads files)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("whereness.") and not name.startswith("whereness.auditor"):
            return True
        frame = frame.f_back
    return False


MANY = 1000
"""Rows from which on a table that is made in a pass is worth a word."""
EXTREMES = ("max", "min", "amax", "amin")
VIEWS = ("view", "expand", "_unsafe_view", "slice", "unsqueeze", "squeeze", "transpose", "permute",
         "t", "alias", "detach", "select", "as_strided", "clone", "_reshape_alias")  # fmt: skip
ROUNDING = ("_to_copy", "mul", "add", "sub", "div", "mm", "bmm", "copy_", "pow")
