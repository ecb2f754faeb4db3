"""Every encoding: how the score of an identical token falls or rises with its distance.

    S(n) = mean over queries i of S[i, i - n] - S[i, i]     softmax sees differences only

Axes: H heads, R words, N offsets.
"""

from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from whereness.pictures.drawing import COLOURS, INK, Picture, count_offsets, rule, svg
from whereness.pictures.subject import Subject, probing
from whereness.properties.probes import identical_scores, is_flat, seen_by
from whereness.properties.scores import profile

TITLE = "Score against distance"
MOST_LINES = 8
SAME = 1e-9


class Curves(NamedTuple):
    """Scores of keys 0, 1, ... tokens back, less that of the query's own place."""

    lines: Tensor
    """(L, N): one a head or, where scores depend on the word, one a word."""
    mean: Tensor
    """(N,)."""
    low: Tensor
    """(N,): over the places of the query, of the mean over heads and words."""
    high: Tensor
    of: str
    """What a line stands for: "head" or "word"."""
    flat: bool
    """Position changes no score."""


def numbers(of: Subject) -> Curves:
    """The curves of identical tokens, unscaled."""
    with probing():
        scores = identical_scores(of.encoding, of.where(), of.tokens())  # (R, H, N, N)
    flat = is_flat(scores, seen_by(of.encoding, of.length))
    scores = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
    by_word = len(scores) > 1
    lines = scores.mean(1) if by_word else scores[0]
    if torch.allclose(lines, lines[:1].expand_as(lines), rtol=0, atol=SAME):
        lines = lines[:1]
    mean = scores.mean((0, 1))
    by_offset = [mean.diagonal(-n) for n in range(of.length)]
    return Curves(
        lines=torch.stack([profile(line) for line in lines]),
        mean=profile(mean),
        low=torch.stack([d.min() for d in by_offset]),
        high=torch.stack([d.max() for d in by_offset]),
        of="word" if by_word else "head",
        flat=flat,
    )


def picture(of: Subject, name: str) -> Picture:
    """Lines: tokens back to the right, score upwards."""
    curves = numbers(of)
    several = len(curves.lines) > 1
    spread = float((curves.high - curves.low).max()) > SAME

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        n = range(len(curves.mean))
        if spread and not several:
            axes.fill_between(n, curves.low, curves.high, color=COLOURS[0], alpha=0.2, linewidth=0)
        for i, line in enumerate(curves.lines[:MOST_LINES]):
            faint = several and curves.of == "word"
            axes.plot(
                n,
                line,
                color=COLOURS[i % len(COLOURS)],
                linewidth=0.9 if faint else 1.5,
                alpha=0.8 if faint else 1,
                label=None if faint or not several else f"head {i}",
            )
        if several and curves.of == "word":
            axes.plot(n, curves.mean, color=INK, linewidth=1.8, label="mean")
        if curves.flat:
            axes.set_ylim(-1, 1)
        axes.set_ylabel("score")
        count_offsets(axes)
        rule(axes)
        if several:
            axes.legend(ncols=1, handlelength=1.2, loc="upper left", bbox_to_anchor=(1, 1))

    return Picture(
        "offsets",
        TITLE,
        _caption(curves, several, spread),
        svg(draw, f"Scores of {of.seen_as} by offset", f"{name}-offsets"),
    )


def _caption(curves: Curves, several: bool, spread: bool) -> str:
    if curves.flat:
        return "Position changes no score of identical tokens: the line is flat."
    start = (
        "Query times key of identical tokens, before the scale, less the score of the query's own "
        "place, as softmax sees differences only"
    )
    if curves.of == "word":
        number = min(len(curves.lines), MOST_LINES)
        return f"{start}. Thin: {number} drawn words; thick: the mean of {len(curves.lines)}."
    if several:
        return f"{start}. One line a head."
    if spread:
        return f"{start}. Line: mean over the places of the query; band: least and most."
    return f"{start}. All heads and all places of the query agree."
