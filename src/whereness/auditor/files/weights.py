"""The tensors of a checkpoint, read some rows at a time: safetensors and GGUF, nothing pickled.

Opening reads headers alone, and every header is checked against the size of its file, so that no
count in it can ask for more than the file has. `blocks` never holds more than `STEP` bytes of a
file; what is quantised is made float32.
"""

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whereness.interop.gguf import header as gguf
from whereness.interop.gguf.types import READ
from whereness.interop.gguf.types import TYPES as KINDS
from whereness.interop.strict_json import shown
from whereness.interop.weights.safetensors_file import Header, read_header
from whereness.interop.weights.source import INDEX, PICKLED, shards_in, shards_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Format = Literal["safetensors", "gguf", "live"]
STEP = 1 << 23
"""Bytes of a file that are read at a time."""
MOST_SPLITS = 2**12
TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""Names in torch of the types of both formats; those that are packed have none."""
_QUANTISED = "float32"


@dataclass(frozen=True)
class Held:
    """One tensor of a file: where it lies, and as what. dtype: the file's own word."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    begin: int
    size: int

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def table(self) -> tuple[int, ...]:
        """The shape without its first axes of length 1: what rows are counted along."""
        long = [axis for axis, length in enumerate(self.shape) if length != 1]
        return self.shape[long[0] :] if long else (1,)

    @property
    def num_rows(self) -> int:
        """Length of the first axis that is not of length 1."""
        return self.table[0]


@dataclass(frozen=True)
class Weights:
    """All tensors of a checkpoint by name, in the order of the files.

    metadata: GGUF's keys, or what stands beside the tensors of safetensors files.
    """

    path: Path
    format: Format
    tensors: Mapping[str, Held]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> "Tensor":
        """A whole tensor.

        Raises:
            ValueError: of a type that cannot be read.
            OSError: the file cannot be read.
        """
        return self.rows(name).reshape(self.tensors[name].shape)

    def rows(self, name: str, first: int = 0, count: int | None = None) -> "Tensor":
        """Rows of a tensor, first axes of length 1 dropped; quantised numbers become float32.

        Raises:
            ValueError: rows that it does not have, or a type that cannot be read.
            OSError: the file cannot be read.
        """
        import torch

        held = self.tensors[name]
        count = held.num_rows - first if count is None else count
        if first < 0 or count < 0 or first + count > held.num_rows:
            raise ValueError(
                f"{shown(name)} has {held.num_rows} rows, asked for {count} from {first} on."
            )
        out = torch.empty((count, *held.table[1:]), dtype=_dtype(held))
        flat, reached = out.view(-1), 0
        for part in self._read(held, first, count):
            flat[reached : reached + part.numel()] = part
            reached += part.numel()
        return out

    def blocks(self, name: str) -> "Iterator[Tensor]":
        """All rows of a tensor in order, some at a time, first axes of length 1 dropped.

        Raises:
            ValueError: of a type that cannot be read.
            OSError: the file cannot be read.
        """
        held = self.tensors[name]
        for part in self._read(held, 0, held.num_rows):
            yield part.reshape(-1, *held.table[1:])

    def _read(self, held: Held, first: int, count: int) -> "Iterator[Tensor]":
        """Whole rows, flat, in pieces of about STEP bytes."""
        _dtype(held)
        if not held.count:
            return
        row = held.size // held.num_rows
        at_once = max(1, STEP // row)
        with held.path.open("rb") as file:
            file.seek(held.begin + first * row)
            while count:
                taken = min(at_once, count)
                data = bytearray(taken * row)
                if file.readinto(data) != len(data):
                    raise ValueError(f"{held.path}: ended early: it was changed while it was read.")
                yield _numbers(held, data)
                count -= taken


def _dtype(held: Held) -> "torch.dtype":
    """What its numbers are when they have been read."""
    import torch

    name = _QUANTISED if held.dtype in READ else TYPES.get(held.dtype)
    if name is None or not hasattr(torch, name):
        raise ValueError(f"{shown(held.name)}: numbers of type {held.dtype} cannot be read.")
    return getattr(torch, name)


def _numbers(held: Held, data: bytearray) -> "Tensor":
    import torch

    raw = torch.frombuffer(data, dtype=torch.uint8)
    if held.dtype in READ:
        from whereness.interop.gguf.quants import dequantised

        return dequantised(raw, held.dtype)
    return raw.view(_dtype(held))


def has_weights(path: Path) -> bool:
    """Whether a folder has files of weights that can be read; a file is taken for one."""
    if not path.is_dir():
        return path.name.endswith((".safetensors", ".gguf", INDEX))
    return (path / INDEX).is_file() or any(
        each.suffix in (".safetensors", ".gguf") for each in path.iterdir()
    )


def open_weights(path: "str | os.PathLike[str]", keep: frozenset[str] = frozenset()) -> Weights:
    """The tensors of a .safetensors file, an index of several, a folder of them, or a .gguf file.

    Args:
        keep: keys of GGUF's metadata whose long values are wanted, as a vocabulary.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none of these, or a damaged one.
    """
    path = Path(path)
    path.stat()  # tells why it cannot be read, links in a circle among the reasons
    if path.is_dir():
        if not any(each.suffix == ".safetensors" for each in path.iterdir()):
            found = sorted(path.glob("*.gguf"))
            if found:
                return _opened_gguf(found, keep)
        return _of_shards(path, shards_in(path))
    if path.name.endswith(".index.json"):
        return _of_shards(path, shards_of(path))
    if path.suffix in PICKLED:
        raise ValueError(
            f"{path}: pickled weights are refused, they run code: save as safetensors."
        )
    if path.suffix == ".gguf":
        return _opened_gguf([path], keep)
    return _of_shards(path, (read_header(path),))


def _of_shards(path: Path, shards: tuple[Header, ...]) -> Weights:
    held = {
        entry.name: _possible(
            Held(
                entry.name,
                entry.shape,
                entry.dtype,
                shard.path,
                shard.start + entry.begin,
                entry.size,
            )
        )
        for shard in shards
        for entry in shard.entries
    }
    metadata: dict[str, str] = {}
    for shard in shards:
        metadata |= shard.metadata
    return Weights(path, "safetensors", held, metadata)


def _possible(held: Held) -> Held:
    """The same, if torch can have a tensor of this shape."""
    if math.prod(max(length, 1) for length in held.shape) >= 2**63:
        raise ValueError(
            f"{held.path}: tensor {shown(held.name)} of shape {held.shape} is larger than any "
            "tensor can be."
        )
    return held


# GGUF


def _opened_gguf(found: list[Path], keep: frozenset[str]) -> Weights:
    first = found[0]
    header, held = _one_gguf(first, keep)
    names = _splits(first, header.metadata.get("split.count", 1))
    if set(found) - set(names):
        raise ValueError(f"{first.parent}: has {len(found)} .gguf files: name one.")
    if first != names[0]:  # the first alone has the model's metadata
        return _opened_gguf(names, keep)
    for path in names[1:]:
        _, more = _one_gguf(path, frozenset())
        if twice := held.keys() & more.keys():
            raise ValueError(f"{path}: has {shown(min(twice))}, as another part of it.")
        held |= more
    return Weights(first, "gguf", held, header.metadata)


def _splits(first: Path, count: object) -> list[Path]:
    """The files of a model that was split, `name-00001-of-00003.gguf`."""
    if type(count) is not int or not 0 <= count <= MOST_SPLITS:
        raise ValueError(f"{first}: split.count must be 0 .. {MOST_SPLITS}, got {shown(count)}.")
    if count < 2:
        return [first]
    found = re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.gguf", first.name)
    if found is None or int(found[2]) != count:
        raise ValueError(
            f"{first}: is of {count} files, which must be named NAME-00001-of-{count:05}.gguf."
        )
    return [first.with_name(f"{found[1]}-{i + 1:05}-of-{found[2]}.gguf") for i in range(count)]


def _one_gguf(path: Path, keep: frozenset[str]) -> tuple[gguf.Header, dict[str, Held]]:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: is no file.")  # a pipe would be waited for
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        if file.read(len(gguf.MAGIC)) != gguf.MAGIC:
            raise ValueError(f"{path}: not a GGUF file: it does not begin with 'GGUF'.")
        header = gguf.read_header(file, str(path), keep)
    held, reached = {}, 0
    for each in sorted(header.stored, key=lambda each: each.offset):
        found = _possible(_held(path, header.begin, each))
        if each.offset < reached:
            raise ValueError(f"{path}: tensor {shown(each.name)} lies upon the one before it.")
        reached = each.offset + found.size
        if header.begin + reached > total:
            raise ValueError(
                f"{path}: tensor {shown(each.name)} would end at byte {header.begin + reached}, "
                f"the file has {total}: truncated or damaged."
            )
        held[each.name] = found
    return header, held


def _held(path: Path, begin: int, each: gguf.Stored) -> Held:
    shape = tuple(reversed(each.sizes))
    kind = KINDS.get(each.kind)
    if kind is None:  # newer than this reader: its size is not known, nor needed
        return Held(each.name, shape, f"type {each.kind}", path, begin + each.offset, 0)
    row = each.sizes[0] if each.sizes else 1
    if row % kind.numbers:
        raise ValueError(
            f"{path}: tensor {shown(each.name)} has rows of {row} numbers, {kind.name} needs a "
            f"multiple of {kind.numbers}."
        )
    size = math.prod(shape) // kind.numbers * kind.size
    return Held(each.name, shape, kind.name, path, begin + each.offset, size)


# Live models


@dataclass(frozen=True)
class Living(Weights):
    """The parameters and buffers of a live model: nothing is copied but what is read."""

    live: Mapping[str, "Tensor"] = field(default_factory=dict)

    def _read(self, held: Held, first: int, count: int) -> "Iterator[Tensor]":
        table = self.live[held.name].detach().reshape(held.table)
        at_once = max(1, STEP // max(1, held.size // max(1, held.num_rows)))
        for i in range(first, first + count, at_once):
            if held.count:
                yield table[i : min(i + at_once, first + count)].cpu().flatten()


def weights_of(model: "nn.Module") -> Living:
    """What a live model holds, buffers that no file would have among it, each tensor once."""
    import torch

    types = {getattr(torch, name): word for word, name in TYPES.items() if hasattr(torch, name)}
    live: dict[str, Tensor] = {}
    held: dict[str, Held] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta or tensor.layout != torch.strided or tensor.dtype not in types:
            continue
        live[name] = tensor
        size = tensor.numel() * tensor.element_size()
        held[name] = Held(name, tuple(tensor.shape), types[tensor.dtype], Path(), 0, size)
    return Living(Path(), "live", held, live=live)
