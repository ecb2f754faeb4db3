"""Doors 1 and 2: the rows of Π that join the tokens.

Axes: N positions, E model dim.
"""

from torch import Tensor

from whereness.pictures.drawing import Picture, channels, svg
from whereness.pictures.subject import Subject, probing
from whereness.properties.probes import joined_rows

TITLE = "Its codes"


def numbers(of: Subject) -> Tensor | None:
    """The code of every position, (N, E); None where the encoding joins no tokens."""
    if not {1, 2} & set(of.doors):
        return None
    with probing():
        return joined_rows(of.encoding, of.where())


def picture(of: Subject, name: str) -> Picture | None:
    """A heat map: position to the right, channel downwards."""
    codes = numbers(of)
    if codes is None:
        return None

    draw = channels(codes, "position", "channel", "code")
    reader = "all that a layer reads" if 1 in of.doors else "what queries and keys read"
    return Picture(
        "codes",
        TITLE,
        f"What is added to the token at each of {len(codes)} positions, in {codes.shape[1]} "
        f"channels: it becomes part of {reader}.",
        svg(draw, f"Codes of {of.seen_as} by position and channel", f"{name}-codes"),
    )
