"""Other people's code, imported when a row needs it."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from whereness.bench.contest import AbsentError

PEERS = {
    "numpy": "numpy",
    "transformers": "transformers",
    "rotary-embedding-torch": "rotary_embedding_torch",
    "x-transformers": "x_transformers",
    "torchtune": "torchtune",
    "timm": "timm",
}
"""Distributions and the packages that they bring."""


def peer(module: str) -> Any:
    """A module of a peer.

    Raises:
        AbsentError: it is not installed, or cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise AbsentError(f"{module.partition('.')[0]} cannot be imported: {error}") from error


def lone_file(module: str) -> ModuleType:
    """One file of a package whose own __init__ needs more than is installed.

    Raises:
        AbsentError: the package is not installed.
    """
    parents = [module.rsplit(".", n)[0] for n in range(module.count("."), 0, -1)]
    stubs = [name for name in parents if name not in sys.modules]
    spec = find_spec(parents[0])
    if spec is None or not spec.submodule_search_locations:
        raise AbsentError(f"{parents[0]} is not installed")
    root = spec.submodule_search_locations[0]
    for name in stubs:
        stub = ModuleType(name)
        stub.__path__ = ["/".join([root, *name.split(".")[1:]])]
        sys.modules[name] = stub
    try:
        return peer(module)
    finally:
        for name in stubs:
            del sys.modules[name]
