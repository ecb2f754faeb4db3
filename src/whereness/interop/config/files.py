"""A config as a dict: from a dict, a config object, a JSON file, a folder or a GGUF file.

Files come from anywhere, so nothing in them is trusted: sizes are bounded, duplicate keys, NaN and
Infinity are refused, and whatever is wrong is a ValueError of one line.
"""

import errno
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whereness.interop.config.keys import mapping, shown
from whereness.interop.gguf import header as gguf
from whereness.interop.strict_json import parse_object

LARGEST_JSON = 16 * 2**20
"""Bytes. The largest config.json of a released model, with two LongRoPE lists, has below 2^16."""
NAMES = ("config.json", "params.json")
"""What is looked for in a folder: Hugging Face's file, then Meta's."""


@dataclass(frozen=True)
class Source:
    """A config's keys and where they came from."""

    keys: dict[str, Any]
    weak: frozenset[str] = frozenset()
    """Top-level keys whose value is only the default of the config's class."""
    tensors: frozenset[str] | None = None
    """Names of a GGUF file's tensors; None where they are not known."""
    name: str = ""
    factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """A GGUF file's divisors of the frequencies, by the tensor's name."""


def read(config: object) -> Source:
    """The keys of a config.

    Raises:
        ValueError: a file that is no config.
        TypeError: something that cannot be a config.
        OSError: a file that cannot be read.
    """
    if isinstance(config, (str, os.PathLike)):
        return _read_path(config)
    if isinstance(config, Mapping):
        return Source(mapping("The config", config))
    if callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        return _read_object(config)
    if hasattr(config, "__dict__") and type(config).__name__ == "Namespace":  # Megatron's args
        return Source(mapping("The config", vars(config)))
    raise TypeError(
        "from_config needs a dict, a path, or a config object with to_dict(), got "
        f"{type(config).__name__}."
    )


def _read_object(config: Any) -> Source:
    keys = mapping("The config's to_dict()", config.to_dict())
    defaults = _defaults(type(config), keys)
    weak = {key for key, value in keys.items() if _repeats(value, defaults.get(key))}
    return Source(keys, frozenset(weak))


def _defaults(cls: type, keys: Iterable[str]) -> dict[str, Any]:
    """What the class of a config object fills in for these keys by itself."""
    found = {key: getattr(cls, key) for key in keys if hasattr(cls, key)}
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return found
    empty = inspect.Parameter.empty
    return found | {p.name: p.default for p in parameters if p.default is not empty}


def _repeats(value: object, default: object) -> bool:
    """Whether a value is that of the class; 1 and True are not the same."""
    plain = isinstance(value, (bool, int, float, str))
    return plain and type(default) is type(value) and default == value


def _read_path(given: "str | os.PathLike[str]") -> Source:
    name = os.fsdecode(given)
    if "\0" in name:
        raise ValueError(f"{shown(name)} is no path.")
    path = Path(name)
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        if not path.exists():
            raise FileNotFoundError(
                errno.ENOENT, "no such file or folder, and nothing is downloaded", name
            )
        # A pipe or a device could be read for ever.
        raise ValueError(f"{path} is not a file.")
    with path.open("rb") as file:
        if file.read(4) == gguf.MAGIC:
            header = gguf.read_header(file, str(path))
            whole = header.metadata.get("split.count", 1) in (0, 1)  # others may hold divisors
            tensors = header.tensors if whole or header.factors else None
            return Source(header.metadata, tensors=tensors, name=str(path), factors=header.factors)
        file.seek(0)
        text = file.read(LARGEST_JSON + 1)
    if len(text) > LARGEST_JSON:
        raise ValueError(f"{path} is no config: it is larger than {LARGEST_JSON // 2**20} MiB.")
    return Source(parse_object(text, str(path)), name=str(path))


def _in_folder(folder: Path) -> Path:
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    several = f" and {len(found)} .gguf files: name one" if found else ""
    raise ValueError(f"{folder} has no {' or '.join(NAMES)}{several}.")
