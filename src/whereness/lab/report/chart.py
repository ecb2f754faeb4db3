"""The curves of loss against length.

A series has, for each length, [mean, low, high], or None where it has no value there.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from whereness.pictures.drawing import COLOURS, INK, rule, svg

MARKERS = "os^DvPX"
"""As many as have no divisor in common with the colours: 56 pairs before one comes again."""

Series = dict[str, Any]


def data(
    names: Sequence[str], entries: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What the script draws: `names` in the order of the legend."""
    lengths = list(settings["lengths"])
    return {
        "lengths": lengths,
        "trained": settings["train_length"],
        "colours": list(COLOURS),
        "series": [series(name, entries[name]["language_model"], lengths) for name in names],
    }


def series(name: str, model: Mapping[str, Any], lengths: Sequence[int]) -> Series:
    """The curves of one encoding."""
    above = model["above_best"]
    return {
        "name": name,
        "untrained": model.get("untrained_beyond"),
        "whole": [_interval(model["loss"].get(str(n))) for n in lengths],
        "quarter": [_interval(model["loss_last_quarter"].get(str(n))) for n in lengths],
        "above": [_interval(above.get(str(n))) for n in lengths],
        "best": [above.get(str(n), {}).get("best") for n in lengths],
    }


def _interval(found: Mapping[str, Any] | None) -> list[float] | None:
    return None if found is None else [found["mean"], found["low"], found["high"]]


def still(of: Mapping[str, Any]) -> str:
    """The curves as a picture, for readers without a script."""
    lengths = of["lengths"]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, line in enumerate(of["series"]):
            style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            known = [(n, v) for n, v in zip(lengths, line["whole"], strict=True) if v is not None]
            x, y = [n for n, _ in known], [v for _, v in known]
            # Of many bands all but the best one's stay behind.
            alpha = 0.12 if i == 0 or len(of["series"]) <= 5 else 0.035
            low, high = [v[1] for v in y], [v[2] for v in y]
            axes.fill_between(x, low, high, color=style["color"], alpha=alpha, lw=0)
            beyond = line["untrained"] or math.inf
            axes.plot(x, [v[0] for v in y], markersize=4.5, label=line["name"], lw=0, **style)
            for (n, a), (m, b) in pairwise(known):
                dashes = "--" if m > beyond else "-"
                axes.plot([n, m], [a[0], b[0]], dashes, color=style["color"])
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.minorticks_off()
        axes.axvline(of["trained"], color=INK, linewidth=0.8, alpha=0.5, dashes=(1, 2))
        axes.set(xlabel="length in bytes", ylabel="loss in nats a byte")
        rule(axes)
        columns = 1 if len(of["series"]) <= 16 else 2
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), ncols=columns)

    return svg(draw, "Loss against length", "still", size=(8.6, 4.4))
