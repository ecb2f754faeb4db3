"""JSON that others wrote: an object without doubles, or one line that says what is wrong."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 100_000_000
"""Bytes. The largest header that the safetensors format allows; configs are far below."""
MOST = 2**22
"""Commas and brackets. A checkpoint of 100,000 tensors has about a fifth of that in its header. An
empty list takes 20 times as much memory as text, so a limit of bytes alone bounds little."""


class TwiceError(ValueError):
    """An object has a key twice, with two values: readers differ in which of them they take."""


def read_object(path: Path, largest: int = LARGEST) -> dict[str, Any]:
    """The object in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than `largest` bytes or not one JSON object.
    """
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"{path}: needed a file of at most {largest} bytes, got a larger one.")
    return parse_object(data, str(path))


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The object in `data`; `name` is what errors call it.

    Raises:
        ValueError: not JSON, not an object, NaN, nested too deep, too large.
        TwiceError: a key twice.
    """
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST:
        raise ValueError(f"{name}: the JSON has more than {MOST} entries, too many to be read.")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_without_doubles, parse_constant=_no_number
        )
    except RecursionError:
        raise ValueError(f"{name}: the JSON is nested too deep.") from None
    except TwiceError as error:
        raise TwiceError(f"{name}: not valid JSON: {error}") from None
    except ValueError as error:  # also what cannot be decoded
        raise ValueError(f"{name}: not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 (what a file holds is a value)
            f"{name}: needed a JSON object, got {type(value).__name__}."
        )
    return value


def _without_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise TwiceError(f"the key {shown(key)} stands there twice")
        found[key] = value
    return found


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def shown(text: object) -> str:
    """What others wrote, as it may stand in a message: quoted, escaped and not too long."""
    quoted = repr(text)
    return quoted if len(quoted) <= 100 else f"{quoted[:100]}..."
