"""Single definitions out of a package's files, without importing the package.

diffusers and timm import much that their positional code does not use (torchvision, among it). What
is taken from a file is run in a namespace of its own; a package that is installed with --no-deps
will do.
"""

import ast
import importlib.util
import math
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def definitions(package: str, file: str, *names: str, **given: Any) -> dict[str, Any]:
    """Functions, classes and constants `names` of a file, by their names, undecorated.

    Args:
        file: path inside the package.
        given: what they use from other files.
    """
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations, f"{package} is not installed"
    path = Path(found.submodule_search_locations[0]) / file
    wanted, missing = [], set(names)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in missing:
            _undecorate(node)
            wanted.append(node)
            missing.remove(node.name)
    assert not missing, f"{file} of {package} has no {sorted(missing)}"
    space: dict[str, Any] = {
        "math": math,
        "np": np,
        "torch": torch,
        "nn": nn,
        "F": F,
        "List": list,
        "Optional": Optional,
        "Tuple": tuple,
        "Union": Union,
        "_assert": torch._assert,
        "maybe_adjust_dtype_for_device": lambda dtype, _: dtype,
        **given,
    }
    module = ast.Module(wanted, type_ignores=[])
    exec(compile(module, str(path), "exec"), space)
    return {name: space[name] for name in names}


def _undecorate(node: ast.FunctionDef | ast.ClassDef) -> None:
    kept = ("property", "staticmethod", "classmethod")
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            inner.decorator_list = [
                d for d in inner.decorator_list if isinstance(d, ast.Name) and d.id in kept
            ]
