"""Door 4: what is done to the scores.

Axes: H heads, N positions; queries are rows, keys are columns.
"""

from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from whereness.pictures.drawing import Picture, heat, panels, scale, signed, svg
from whereness.pictures.subject import Subject, probing
from whereness.properties.probes import identical_scores

TITLE = "What it does to scores"
MOST_PANELS = 8


class Scores(NamedTuple):
    """By query and key."""

    values: Tensor
    """(H, N, N)."""
    content_free: bool
    """A bias or factor; else scores of identical tokens, less that of the query's own place."""


def numbers(of: Subject) -> Scores | None:
    """The bias (or factor) of every head, or the scores of one word where they depend on words.

    None where door 4 is shut.
    """
    if 4 not in of.doors:
        return None
    with probing():
        bias = of.encoding.prepare(of.where()).bias()
        if bias is not None:
            return Scores(bias[0].expand(-1, of.length, of.length), content_free=True)
        values = identical_scores(of.encoding, of.where(), of.tokens()[:1])[0]
        return Scores(values - values.diagonal(dim1=-2, dim2=-1)[..., None], content_free=False)


def picture(of: Subject, name: str, *, causal: bool = True) -> Picture | None:
    """A heat map for each head: key to the right, query downwards; the future is grey."""
    found = numbers(of)
    if found is None:
        return None
    multiplies = of.encoding.operation == "multiply"
    shown = found.values[:MOST_PANELS] - float(multiplies)  # the factor 1 changes nothing
    if causal or of.encoding.causal_only:
        shown.masked_fill_(~torch.ones(of.length, of.length).tril().bool(), torch.nan)
    norm = signed(shown)
    what = ("bias", "factor")[multiplies] if found.content_free else "score"

    def draw(figure: Figure) -> None:
        all_axes = panels(figure, len(shown))
        images = [heat(a, s, norm, square=True) for a, s in zip(all_axes, shown, strict=True)]
        for head, axes in enumerate(all_axes):
            axes.set(xlabel="key", ylabel="query")
            axes.label_outer()
            if len(shown) > 1:
                axes.set_title(f"head {head}")
        scale(figure, images[0], all_axes, f"{what} − 1" if multiplies else what, shown)

    grey = " Grey: keys after the query." if bool(shown.isnan().any()) else ""
    return Picture(
        "scores",
        TITLE,
        _caption(of, found, multiplies) + grey,
        svg(
            draw, f"Scores of {of.seen_as} by query and key", f"{name}-scores", layout="compressed"
        ),
    )


def _caption(of: Subject, found: Scores, multiplies: bool) -> str:
    heads = len(found.values)
    some = f" (the first {MOST_PANELS} of {heads} heads)" if heads > MOST_PANELS else ""
    if not found.content_free:
        return (
            "Scores of one drawn word in all places, unscaled, less that of the query with its own "
            f"place, per head{some}: another word gets other scores."
        )
    if multiplies:
        return f"The factor on {of.encoding.on}, less 1, per head{some}."
    return f"The bias that is added to {of.encoding.on}, per head{some}."
