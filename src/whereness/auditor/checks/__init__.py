"""The checks, one file each: `run(subject)` measures, compares and tells the subject's report.

A check is run if the subject has what it `needs`; one that needs nothing that is there says
"not checked".
"""

from dataclasses import dataclass
from typing import Literal

Need = Literal["config", "weights", "model", "text"]


@dataclass(frozen=True)
class Check:
    """A check's module here, its id, and what a subject must have."""

    module: str
    id: str
    needs: Need


CHECKS: tuple[Check, ...] = (
    Check("config", "CHK11", "config"),
    Check("buffers", "CHK9", "weights"),
    Check("rows", "CHK10", "weights"),
    Check("pairing", "CHK12", "weights"),
    Check("text", "CHK12", "text"),
)
"""In the order in which they run: static first; those that leave a state behind last."""
