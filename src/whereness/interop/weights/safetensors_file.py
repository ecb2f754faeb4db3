"""The safetensors format, read and written in a stream: no tensor is ever held in memory.

    8 bytes   N, little-endian
    N bytes   JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
    the rest  the tensors, row-major, without gaps, begin and end counted from here

Source: the format's description at github.com/huggingface/safetensors. A file that breaks any of
its rules is refused.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeGuard

from whereness.interop.strict_json import LARGEST, parse_object, shown

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of one entry of each type."""

CHUNK = 1 << 22


@dataclass(frozen=True)
class Entry:
    """One tensor: begin and end are counted from the first byte after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """What stands before the tensors; `entries` in the order of their bytes."""

    path: Path
    start: int
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return self.entries[-1].end if self.entries else 0


def read_header(path: Path) -> Header:
    """The header of a file, every rule of the format checked.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no safetensors file, or a damaged one.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: is no file.")  # a pipe would be waited for
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > total - 8:
            raise ValueError(
                f"{path}: not a safetensors file, or a truncated one: its header has {length} "
                f"bytes by its own account, the file {total}."
            )
        if length > LARGEST:
            raise ValueError(f"{path}: its header has {length} bytes; the format allows {LARGEST}.")
        data = file.read(length)
    fields = parse_object(data, f"{path}, header")
    metadata = _metadata(path, fields.pop("__metadata__", {}))
    entries = tuple(
        sorted(
            (_entry(path, name, field) for name, field in fields.items()),
            key=lambda entry: (entry.begin, entry.end),
        )
    )
    reached = 0
    for entry in entries:
        if entry.begin != reached:
            raise ValueError(
                f"{path}: tensor {shown(entry.name)} must begin at byte {reached}, got "
                f"{entry.begin}."
            )
        reached = entry.end
    if 8 + length + reached != total:
        raise ValueError(
            f"{path}: its header tells of {8 + length + reached} bytes, the file has {total}: "
            "truncated or damaged."
        )
    return Header(path, 8 + length, entries, metadata)


def _metadata(path: Path, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{path}: __metadata__ must be an object of strings.")
    return found


def _entry(path: Path, name: str, field: Any) -> Entry:
    told = f"{path}: tensor {shown(name)}"
    field = field if isinstance(field, dict) else {}
    dtype, shape, offsets = (field.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{told} must have a dtype, a shape and two offsets.")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{told} has an unknown dtype, {shown(dtype)}.")
    begin, end = offsets
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8 or bits // 8 != end - begin:
        raise ValueError(
            f"{told} of {dtype} {shown(shape)} must have {bits / 8:g} bytes, its offsets tell of "
            f"{end - begin}."
        )
    return Entry(name, dtype, tuple(shape), begin, end)


def _counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)


def write_header(file: IO[bytes], header: Header, metadata: Mapping[str, str]) -> None:
    """Write the header of a file with the same tensors and this metadata."""
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for entry in header.entries:
        fields[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
    data = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    data += b" " * (-len(data) % 8)  # the tensors begin at a multiple of 8
    if len(data) > LARGEST:
        raise ValueError(f"{header.path}: its header would be larger than the format allows.")
    file.write(len(data).to_bytes(8, "little"))
    file.write(data)


def read_exactly(file: IO[bytes], count: int, path: Path) -> bytes:
    """The next `count` bytes.

    Raises:
        ValueError: the file ends before.
    """
    data = file.read(count)
    if len(data) != count:
        raise ValueError(f"{path}: ended early: it was changed while it was read.")
    return data


def copy_bytes(source: IO[bytes], target: IO[bytes], count: int, path: Path) -> None:
    """Copy the next `count` bytes, some at a time."""
    while count:
        data = read_exactly(source, min(count, CHUNK), path)
        target.write(data)
        count -= len(data)
