"""Which axis of a position each pair of channels reads, in the orders of `MultimodalRoPE`.

Plain Python, so that a config's sections are judged without torch. The orders, and whose they are:
`rotary.multimodal`.

Axes: n axes of a position. Sections: pairs of each axis.
"""

from collections.abc import Callable
from typing import Literal

Order = Literal["chunked", "interleaved", "ernie"]
Sections = tuple[int, ...]


def _chunked(sections: Sections) -> Sections:
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def _interleaved(sections: Sections) -> Sections:
    n, found = len(sections), [0] * sum(sections)
    for axis in range(1, n):
        mine = range(axis, n * sections[axis], n)
        if mine and mine[-1] >= len(found):
            most = len(range(axis, len(found), n))
            raise ValueError(
                f"order 'interleaved' gives axis {axis} every {n}th pair, at most {most} of "
                f"{len(found)}: got sections {sections}."
            )
        for pair in mine:
            found[pair] = axis
    return tuple(found)


def _ernie(sections: Sections) -> Sections:
    if len(sections) != 3 or sections[0] != sections[1]:
        raise ValueError(
            "order 'ernie' needs sections (height, width, time) with as many pairs for the height "
            f"as for the width, got {sections}."
        )
    return (1, 2) * sections[0] + (0,) * sections[2]


ORDERS: dict[str, Callable[[Sections], Sections]] = {
    "chunked": _chunked,
    "interleaved": _interleaved,
    "ernie": _ernie,
}
"""Sections -> the axis that each pair reads."""
