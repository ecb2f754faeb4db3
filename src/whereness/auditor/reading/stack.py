"""Which modules are being run: the path of the innermost one, what it was given, what it made.

Global hooks follow, so the model's own hooks are not touched.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as modules


@dataclass
class Frame:
    """A module that is running."""

    path: str
    module: nn.Module
    owns: bool
    """Has parameters, itself or below it."""
    made: list[Tensor] = field(default_factory=list)
    """What projections and submodules within it have given so far, the latest last."""


@dataclass
class Stack:
    """Modules that run, the root first."""

    model: nn.Module
    reduce: Callable[[Tensor], Tensor | None] | None = None
    """What to keep of the output of a projection (rows by channels), if any."""
    wanted: frozenset[str] = frozenset()
    """Paths of the modules for which it is kept."""
    frames: list[Frame] = field(default_factory=list)
    paths: dict[int, tuple[str, bool]] = field(default_factory=dict)
    left: Callable[[str, Any], None] | None = None
    """Called with the path and the output of a module that is left."""

    def __post_init__(self) -> None:
        for path, module in self.model.named_modules():
            self.paths[id(module)] = (path, next(module.parameters(), None) is not None)

    def innermost(self) -> str:
        """Path of the module that is running."""
        return self.frames[-1].path if self.frames else ""

    def owner_frame(self) -> Frame | None:
        """The innermost module on the stack that owns parameters."""
        return next((f for f in reversed(self.frames) if f.owns), None)

    def owner(self) -> str:
        """Its path."""
        found = self.owner_frame()
        return "" if found is None else found.path

    def note(self, out: Any) -> None:
        """Keep what a projection made, for the modules around it."""
        if self.reduce is None or not isinstance(out, Tensor) or not out.is_floating_point():
            return
        frames = [frame for frame in self.frames if frame.path in self.wanted]
        kept = self.reduce(out.detach()) if frames else None
        if kept is not None:
            for frame in frames:
                frame.made.append(kept)

    @contextmanager
    def following(self) -> Generator[None]:
        """Follow the modules that run in the block."""
        handles = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.frames.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if id(module) in self.paths:
            path, owns = self.paths[id(module)]
            self.frames.append(Frame(path, module, owns))

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if id(module) not in self.paths:
            return
        while self.frames:
            if self.frames.pop().module is module:
                break
        self.note(out)
        if self.left is not None:
            self.left(self.paths[id(module)][0], out)
