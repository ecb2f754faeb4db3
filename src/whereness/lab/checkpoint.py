"""The state of a training on disk, so that one that was killed goes on where it was.

A file is whole or absent: it is written beside its place and then moved there. Nothing else is
needed against a kill at any moment. (A power failure may leave a file that cannot be read; then
the training begins again, with the same result.)
"""

import contextlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from whereness.lab.files import whole

EVERY = 50
"""Steps between two checkpoints."""

State = dict[str, Tensor]


class Checkpoint:
    """The checkpoint of one run. Without a path it keeps nothing.

    Args:
        every: steps between two checkpoints.
    """

    def __init__(self, path: Path | None = None, every: int = EVERY) -> None:
        self.path, self.every = path, every

    def due(self, step: int) -> bool:
        """Whether to save after so many steps."""
        return self.path is not None and step % self.every == 0

    def save(self, state: State) -> None:
        """Keep `state` instead of what was kept before.

        Raises:
            OSError: it cannot be written; what was kept before still is.
        """
        if self.path is None:
            return
        try:
            with whole(self.path) as part:
                save_file({k: v.contiguous() for k, v in state.items()}, part)
        except SafetensorError as error:
            raise OSError(f"{self.path} cannot be written: {error}") from error

    def load(self) -> State | None:
        """What was kept, on the CPU; None if there is nothing."""
        if self.path is None:
            return None
        with contextlib.suppress(FileNotFoundError, SafetensorError):
            return load(self.path.read_bytes())  # not mapped: the file will be replaced
        return None

    def remove(self) -> None:
        """Keep nothing."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
