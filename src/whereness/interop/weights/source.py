"""What a checkpoint consists of: shards, config, the files beside them. Nothing is trusted.

A checkpoint is one .safetensors file, or a folder as transformers saves it: `model.safetensors`, or
shards and `model.safetensors.index.json`. Pickled weights are refused: to unpickle runs code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whereness.interop.strict_json import read_object, shown
from whereness.interop.weights.safetensors_file import Header, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
PICKLED = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
OTHER_WEIGHTS = (".gguf", ".h5", ".msgpack", ".npz", ".onnx", ".ot", ".safetensors", ".tflite")


@dataclass(frozen=True)
class Source:
    """A checkpoint that was found whole.

    others: files that a copy of the folder needs, relative. left_out: what it must not have,
    weights that are not converted before all, or what is no file.
    """

    path: Path
    shards: tuple[Header, ...]
    config: dict[str, Any]
    others: tuple[Path, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder and not one file."""
        return self.path.is_dir()


def read_source(path: Path) -> Source:
    """Find the parts of a checkpoint and read all headers.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no checkpoint, or a damaged one.
    """
    path.stat()  # tells why it cannot be read, links in a circle among the reasons
    if path.is_dir():
        return _read_folder(path)
    if path.suffix in PICKLED:
        raise ValueError(
            f"{path}: pickled weights are refused, they run code: save as safetensors."
        )
    if not path.is_file() or path.suffix != ".safetensors":
        raise ValueError(f"{path}: needed a .safetensors file, or a folder that has them.")
    config = path.with_name(CONFIG)
    return Source(path, (read_header(path),), read_object(config) if config.is_file() else {})


def _read_folder(path: Path) -> Source:
    shards = shards_in(path)
    config = path / CONFIG
    taken = {header.path.name for header in shards} | {CONFIG}
    others, left_out = [], []
    for name, copied in _listed(path):
        if str(name) not in taken:
            (others if copied else left_out).append(name)
    return Source(
        path,
        shards,
        read_object(config) if config.is_file() else {},
        tuple(others),
        tuple(sorted(map(str, left_out))),
    )


def _listed(root: Path, folder: Path = Path()) -> Iterator[tuple[Path, bool]]:
    """Everything below, relative, and whether a copy of the checkpoint should have it."""
    for entry in sorted((root / folder).iterdir()):
        name = folder / entry.name
        if entry.name.startswith(".") or (entry.is_symlink() and entry.is_dir()):
            yield name, False
        elif entry.is_dir():
            yield from _listed(root, name)
        else:
            foreign = entry.name.endswith(".index.json") and name != Path(INDEX)
            weights = entry.suffix in (*PICKLED, *OTHER_WEIGHTS)
            yield name, entry.is_file() and not foreign and not weights


def shards_in(folder: Path) -> tuple[Header, ...]:
    """Headers of the .safetensors files that a folder's weights consist of.

    Raises:
        OSError: one cannot be read.
        ValueError: there are none, too many to tell, or damaged ones.
    """
    index = folder / INDEX
    if index.is_file():
        return shards_of(index)
    found = sorted(p for p in folder.iterdir() if p.suffix == ".safetensors")
    single = folder / SINGLE
    if single in found:
        return (read_header(single),)
    if len(found) == 1:
        return (read_header(found[0]),)
    if found:
        raise ValueError(f"{folder}: has {len(found)} .safetensors files and no {INDEX}.")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED)
    if pickled:
        raise ValueError(
            f"{folder}: has no .safetensors file, and pickled weights ({pickled[0]}) are refused, "
            "they run code: save as safetensors."
        )
    raise ValueError(f"{folder}: has no .safetensors file.")


def shards_of(index: Path) -> tuple[Header, ...]:
    """Headers of the files beside it that an index names, which must agree with it.

    Raises:
        OSError: one cannot be read.
        ValueError: the index or a shard is damaged, or they do not agree.
    """
    where = read_object(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ValueError(
            f"{index}: weight_map must be an object that names a file for each tensor."
        )
    for file in where.values():
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or Path(file).suffix != ".safetensors"
        ):
            raise ValueError(
                f"{index}: a shard must be a .safetensors file beside it, got {shown(file)}."
            )
    headers = tuple(read_header(index.with_name(file)) for file in sorted(set(where.values())))
    found = {entry.name: header.path.name for header in headers for entry in header.entries}
    if sum(len(header.entries) for header in headers) != len(found):
        raise ValueError(f"{index}: two of its shards have a tensor of the same name.")
    for name in sorted(where.keys() | found.keys()):
        if where.get(name) != found.get(name):
            raise ValueError(
                f"{index}: says that tensor {shown(name)} is in {where.get(name)}, it is in "
                f"{found.get(name)}."
            )
    return headers
