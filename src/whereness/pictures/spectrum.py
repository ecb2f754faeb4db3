"""Every encoding whose scores change: which frequencies it is made of.

    door 3            the wavelength of every pair of channels, 2 π / frequency
    doors 1 and 2     |DFT over positions|² of the codes, mean of channels, each less its mean
    else              |DFT over offsets|² of the score curve, less its mean; one a head or word

Power is divided by its sum: shares. Frequencies are in turns a token, wavelengths in tokens.
"""

import math
from typing import Literal, NamedTuple

import torch
from matplotlib import ticker
from matplotlib.figure import Figure
from torch import Tensor

from whereness.pictures import codes, offsets
from whereness.pictures.drawing import COLOURS, INK, Picture, distinct, rule, svg
from whereness.pictures.subject import Subject
from whereness.properties.rotations import frequencies_of

TITLE = "Spectrum"
SAME = 1e-9
"""Shares that agree."""
NOISE = 1e-24
"""Share of a signal's power that is rounding."""


class Spectrum(NamedTuple):
    """What the encoding is made of."""

    of: Literal["pairs", "codes", "curve"]
    x: Tensor
    """"pairs": their numbers; else frequencies in turns a token, above 0."""
    y: Tensor
    """(L, len(x)): wavelengths in tokens of an axis or head; else shares of the power."""


def numbers(of: Subject) -> Spectrum | None:
    """The spectrum; None where position changes nothing, or no pair has a frequency."""
    pairs = [f for f in frequencies_of(of.encoding) if bool((f > 0).all())]
    if pairs and len({len(f) for f in pairs}) == 1:
        y = 2 * math.pi / torch.stack(pairs)
        return Spectrum("pairs", torch.arange(y.shape[1]), y)
    rows = codes.numbers(of)
    if rows is not None:
        return _powers("codes", power(rows).mean(-1, keepdim=True), of.length)
    lines = offsets.numbers(of).lines[: offsets.MOST_LINES]
    return _powers("curve", power(lines.T), of.length)


def power(signal: Tensor) -> Tensor:
    """|DFT|² of each column (N, L) less its mean, without frequency 0: (N // 2, L)."""
    centred = signal - signal.mean(0)
    found = torch.fft.rfft(centred, dim=0)[1:].abs().square() / len(signal)
    return found.where(found > NOISE * signal.square().sum(0), 0.0)


def _powers(of: Literal["codes", "curve"], found: Tensor, num_positions: int) -> Spectrum | None:
    """(F, L) -> shares of the lines that have any power, each once."""
    total = found.sum(0)
    if not bool((total > 0).any()):
        return None
    share = distinct((found / total)[:, total > 0].T, SAME)
    return Spectrum(of, torch.arange(1, len(found) + 1) / num_positions, torch.stack(share))


def picture(of: Subject, name: str) -> Picture | None:
    """Points for pairs, lines for powers."""
    found = numbers(of)
    if found is None:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, line in enumerate(found.y):
            colour = COLOURS[i % len(COLOURS)]
            if found.of == "pairs":
                axes.plot(found.x, line, "o", color=colour, markersize=4, label=f"axis {i}")
            else:
                axes.plot(found.x, line, color=colour, linewidth=1.3)
        if found.of == "pairs":
            axes.axhline(of.length, color=INK, linewidth=0.8, dashes=(4, 3))
            axes.annotate(
                f"{of.length} positions",
                (1, of.length),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                va="bottom",
            )
            axes.set(yscale="log", xlabel="pair of channels", ylabel="wavelength in tokens")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(8, integer=True))
            if of.num_axes > 1:
                axes.legend()
        else:
            axes.set(xlabel="turns a token", ylabel="share of power")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"1/{1 / x:.0f}")
            axes.set_ylim(bottom=0)
        axes.minorticks_off()
        rule(axes)
        if found.of != "pairs":
            axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.3g} %")

    return Picture(
        "spectrum",
        TITLE,
        _caption(of, found),
        svg(draw, f"Spectrum of {of.seen_as}", f"{name}-spectrum"),
    )


def _caption(of: Subject, found: Spectrum) -> str:
    if found.of == "pairs":
        open_ = int((found.y > of.length).sum())
        return (
            "Tokens in which each pair of channels turns once. "
            f"{open_ or 'None'} of {found.y.numel()} take{'s' if open_ == 1 else ''} more than the "
            f"{of.length} positions of the dashed line."
        )
    if found.of == "codes":
        return (
            f"Power of the codes by frequency, from a Fourier transform over {of.length} "
            "positions, mean of all channels; to the left slow changes, to the right fast ones."
        )
    one = " All lines have the same." if len(found.y) == 1 else ""
    return (
        "Power of the lines of score against distance by frequency, from a Fourier transform over "
        f"{of.length} offsets; to the left slow changes, to the right fast ones.{one}"
    )
