"""The compiled module, if whereness was installed with it: the one place that imports it."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Before the module: it then shares torch's OpenMP library, and its threads.
import torch  # noqa: F401

_NAME = "whereness.kernels._native"

# One that is there and does not load is an error to see, and nothing to work around.
NATIVE: Any = import_module(_NAME) if find_spec(_NAME) is not None else None
"""None where it was not built: torch does the work."""
