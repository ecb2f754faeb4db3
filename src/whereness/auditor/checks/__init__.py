"""The checks, one file each: `run(subject)` measures, compares and tells the subject's report.

A check is run if the subject has what it `needs`; one that needs nothing that is there says
"not checked".
"""

from dataclasses import dataclass
from typing import Literal

Need = Literal["config", "weights", "model", "text"]


@dataclass(frozen=True)
class Check:
    """A check's module here, its id, what a subject must have, other checks that it serves."""

    module: str
    id: str
    needs: Need
    also: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """Every check that its findings may be of."""
        return (self.id, *self.also)


CHECKS: tuple[Check, ...] = (
    Check("config", "CHK11", "config"),
    Check("buffers", "CHK9", "weights", ("CHK1", "CHK8", "CHK10", "CHK15")),
    Check("rows", "CHK10", "weights", ("CHK1", "CHK9", "CHK15", "CHK16")),
    Check("pairing", "CHK12", "weights"),
    Check("text", "CHK12", "text", ("CHK1",)),
    Check("state", "CHK19", "model"),
    Check("layermap", "CHK20", "model"),
    Check("spectrum", "CHK1", "model"),
    Check("tables", "CHK1", "model"),
    Check("channels", "CHK12", "model"),
    Check("bias", "CHK15", "model"),
    Check("grids", "CHK13", "model"),
    Check("windows", "CHK16", "model"),
    Check("shift", "CHK2", "model"),
    Check("warp", "CHK3", "model"),
    Check("cache", "CHK4", "model"),
    Check("masks", "CHK16", "model"),
    Check("pads", "CHK5", "model"),
    Check("packs", "CHK6", "model"),
    Check("shards", "CHK7", "model"),
    Check("paths", "CHK18", "model"),
    Check("backward", "CHK18", "model"),
    Check("bounds", "CHK10", "model"),
    Check("deadkeys", "CHK11", "model"),
    Check("casts", "CHK8", "model"),
    Check("life", "CHK9", "model"),
    Check("trace", "CHK17", "model"),
    Check("cost", "CHK21", "model"),
)
"""In the order in which they run: static first; those that leave a state behind last."""
