"""The header of a GGUF file: metadata, where tensors lie, and of all the RoPE divisors alone.

    magic "GGUF", version u32, number of tensors u64, number of entries u64,
    entries: key, type u32, value
    tensors: name, number of axes u32, sizes u64, type u32, offset u64
    padding to a multiple of general.alignment (32), from which offsets count

A string is its length (u64) and bytes; an array its type (u32), length (u64) and values. Every
count and size is bounded before anything is read or allocated. Long arrays (a vocabulary) are not
kept unless they are asked for.

Source: the format's description in the ggml repository, docs/gguf.md, versions 2 and 3.
"""

import math
import os
import struct
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

from whereness.interop.config.keys import shown

MAGIC = b"GGUF"
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
MOST_ENTRIES = 2**14
MOST_TENSORS = 2**17
LONGEST_STRING = 2**20
LONGEST_VALUE = 2**12
"""Longer arrays, and longer strings in metadata, are not kept: no positional key needs them."""
LONGEST_KEPT = 2**20
"""Of those that are asked for. The largest vocabulary of a released model has below 2^19."""
MOST_ITEMS = 2**23
LARGEST_HEADER = 2**29
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of divisors, one a pair: Llama 3's scaling and LongRoPE are there, in no key."""
MOST_FACTORS = 2**12
F32 = 0
ALIGNMENT = 32
LARGEST_FILE = 2**50


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: sizes with the fastest axis first, offset counted from the first."""

    name: str
    sizes: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says before its weights, and the divisors among them."""

    metadata: dict[str, Any]
    stored: tuple[Stored, ...]
    begin: int
    """The byte from which offsets count, where the file was opened at its magic."""
    factors: dict[str, tuple[float, ...]]
    """Numbers of the tensors named in `FACTORS`."""

    @property
    def tensors(self) -> frozenset[str]:
        """Names of the tensors."""
        return frozenset(each.name for each in self.stored)


def read_header(file: BufferedIOBase, name: str, keep: frozenset[str] = frozenset()) -> Header:
    """Metadata, tensors and divisors of an open file that stands behind its magic.

    Args:
        keep: metadata whose long values are kept as well, as a vocabulary.

    Raises:
        ValueError: another version, a count or size beyond the bounds, a file that ends too early,
            divisors that are no positive float32 numbers.
    """
    reader = _Reader(file, name)
    version = reader.scalar("I")
    if version not in (2, 3):
        raise reader.wrong(f"version {version} of the format; 2 and 3 can be read")
    num_tensors = reader.count("tensors", MOST_TENSORS)
    num_entries = reader.count("metadata entries", MOST_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = reader.string()
        if key in metadata:
            raise reader.wrong(f"the key {shown(key)} twice")
        longest = LONGEST_KEPT if key in keep else LONGEST_VALUE
        metadata[key] = reader.value(reader.scalar("I"), longest)
    stored: dict[str, Stored] = {}
    for _ in range(num_tensors):
        tensor = reader.tensor()
        if tensor.name in stored:
            raise reader.wrong(f"the tensor {shown(tensor.name)} twice")
        stored[tensor.name] = tensor
    begin = reader.begin(metadata.get("general.alignment", ALIGNMENT))
    factors = {name: reader.numbers(stored[name], begin) for name in FACTORS if name in stored}
    return Header(metadata, tuple(stored.values()), begin, factors)


class _Reader:
    def __init__(self, file: BufferedIOBase, name: str) -> None:
        self.file, self.name, self.taken = file, name, 0

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.name} is no GGUF file that can be read: it has {what}.")

    def take(self, size: int) -> bytes:
        self.taken += size
        if self.taken > LARGEST_HEADER:
            raise self.wrong("a header that is too large")
        data = self.file.read(size)
        if len(data) != size:
            raise self.wrong("an end within its header")
        return data

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, most: int) -> int:
        found = self.scalar("Q")
        if found > most:
            raise self.wrong(f"{found} {what}; at most {most} are read")
        return found

    def string(self) -> str:
        data = self.take(self.count("bytes in a string", LONGEST_STRING))
        return data.decode("utf-8", "replace")

    def value(self, kind: int, longest: int) -> Any:
        """A metadata value; None for one that is too long to matter."""
        if kind == STRING:
            found = self.string()
            return found if len(found) <= longest else None
        if kind == ARRAY:
            return self._array(longest)
        if kind not in SCALARS:
            raise self.wrong(f"a value of unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def _array(self, longest: int) -> list[Any] | None:
        kind = self.scalar("I")
        length = self.count("items in an array", MOST_ITEMS)
        if kind == STRING:
            kept = length <= longest
            texts = [self.string() if kept else self._skip() for _ in range(length)]
            return texts if kept else None
        if kind not in SCALARS:  # arrays of arrays are in the format, and in no released file
            raise self.wrong(f"an array of type {kind}")
        size = struct.calcsize(f"<{SCALARS[kind]}")
        data = self.take(size * length)
        if length > longest:
            return None
        return list(struct.unpack(f"<{length}{SCALARS[kind]}", data))

    def _skip(self) -> str:
        self.take(self.count("bytes in a string", LONGEST_STRING))
        return ""

    def tensor(self) -> Stored:
        name = self.string()
        axes = self.scalar("I")
        if axes > 8:
            raise self.wrong(f"a tensor of {axes} axes")
        sizes = struct.unpack(f"<{axes}Q", self.take(8 * axes))
        return Stored(name, sizes, self.scalar("I"), self.scalar("Q"))

    def begin(self, alignment: object) -> int:
        """The byte behind the header and its padding."""
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            raise self.wrong(f"the general.alignment {shown(alignment)}")
        return self.file.tell() + -(len(MAGIC) + self.taken) % alignment

    def numbers(self, tensor: Stored, begin: int) -> tuple[float, ...]:
        """What a tensor of divisors holds, read from behind the header."""
        count = math.prod(tensor.sizes)
        if tensor.kind != F32:
            raise self.wrong(f"{tensor.name} of type {tensor.kind}; float32, type {F32}, is read")
        if not 0 < count <= MOST_FACTORS:
            raise self.wrong(f"{tensor.name} of {count} numbers; 1 .. {MOST_FACTORS} are read")
        if tensor.offset > LARGEST_FILE:
            raise self.wrong(f"{tensor.name} at {tensor.offset}, beyond any file")
        self.file.seek(begin + tensor.offset, os.SEEK_SET)
        data = self.file.read(4 * count)
        if len(data) != 4 * count:
            raise self.wrong(f"an end within {tensor.name}")
        found = struct.unpack(f"<{count}f", data)
        for number in found:
            if not (math.isfinite(number) and number > 0):
                raise self.wrong(f"{number:g} in {tensor.name}; divisors are finite and above 0")
        return found
