"""Plots of a layer as SVG text, drawn by hand: small, without a script, coloured by the page's CSS.

A plot is 360 units wide and stands in a column of about as many pixels, so its text keeps its size
on a phone. Scales are logarithmic where values span decades. Every point says its numbers when
pointed at.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from whereness.auditor.telling.grouping import SAME
from whereness.auditor.telling.words import number

WIDTH, HEIGHT = 360, 232
LEFT, RIGHT, TOP, BOTTOM = 50, 350, 22, 194
STILL = 14
"""Height of the strip at the bottom where what a logarithm cannot show lies."""
SMALLEST = 1e-9
"""Differences below are drawn at it: float64 has nothing to say there."""
LARGEST = 1e30
"""Values beyond are masks or rubbish, and are not drawn."""
AMPLITUDES = (0.01, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0, 100.0)
"""Marks on the scale of amplitudes."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_TICKS = 6

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Axis:
    """Where values lie, and the marks along it."""

    place: Scale
    ticks: list[tuple[float, str]]


def speeds(measured: Sequence[float], config: Sequence[float] | None, title: str) -> Markup:
    """Turning speed of each pair, and the config's, on a logarithmic scale."""
    values = [abs(value) for value in (*measured, *(config or ()))]
    y, floor = logarithmic(values)
    x = pairs(max(len(measured), len(config or ())))
    parts = frame(x, y, "pair of channels", "radians a token")
    if floor:
        word = "still" if all(map(math.isfinite, values)) else "other"
        parts.append(label(LEFT - 6, BOTTOM + 3, word, "tick", "end"))

    def height(value: float) -> float:
        return y.place(abs(value)) if abs(value) >= 1 / LARGEST and drawable(value) else BOTTOM

    if config is not None:
        parts.append(line(((x.place(i), height(v)) for i, v in enumerate(config)), "config"))
        parts += [
            dot(x.place(i), height(v), "config", 3.4, f"pair {i}: {number(v)} in the config")
            for i, v in enumerate(config)
        ]
    for i, value in enumerate(measured):
        its = config[i] if config is not None and i < len(config) else None
        said = f"pair {i}: {number(value)} measured"
        said = said if its is None else f"{said}, {number(its)} in the config"
        kind = "off" if differs(value, its) else "measured"
        parts.append(dot(x.place(i), height(value), kind, 2.1, said))
    return svg(parts, title)


def differences(measured: Sequence[float], config: Sequence[float], title: str) -> Markup:
    """How far measured speeds are from the config's, as a share of those."""
    shares = [share(m, c) for m, c in zip(measured, config, strict=False)]
    most = max([1.0, *finite(shares)])
    y = decades(SMALLEST, most)
    x = pairs(len(shares))
    parts = frame(x, y, "pair of channels", "difference, as a share")
    for i, found in enumerate(shares):
        shown = min(max(found, SMALLEST), most)
        kind = "off" if found > SAME else "measured"
        where = x.place(i)
        parts.append(line([(where, BOTTOM), (where, y.place(shown))], f"stem {kind}"))
        parts.append(dot(where, y.place(shown), kind, 2.1, f"pair {i}: differs by {found:.2g}"))
    return svg(parts, title)


def amplitudes(measured: Sequence[float], config: float | None, title: str) -> Markup:
    """The factor on cos and sin of each pair, on a logarithmic scale about 1."""
    values = finite([*measured, *([] if config is None else [config])])
    values = [abs(value) for value in values if abs(value) > 1 / LARGEST]
    low, high = min([0.8, *values]) / 1.1, max([1.25, *values]) * 1.1
    y = Axis(
        between(math.log(low), math.log(high), lambda value: math.log(max(value, low))),
        [(t, number(t)) for t in AMPLITUDES if low < t < high],
    )
    x = pairs(len(measured))
    parts = frame(x, y, "pair of channels", "amplitude")
    if config is not None and drawable(config):
        height = y.place(abs(config))
        parts.append(line([(LEFT, height), (RIGHT, height)], "config"))
    for i, value in enumerate(measured):
        kind = "off" if differs(value, config) else "measured"
        height = y.place(abs(value)) if drawable(value) else BOTTOM
        parts.append(dot(x.place(i), height, kind, 2.1, f"pair {i}: amplitude {number(value)}"))
    return svg(parts, title)


def biases(
    offsets: Sequence[int],
    measured: Sequence[Sequence[float]],
    config: Sequence[Sequence[float]] | None,
    title: str,
) -> Markup:
    """What each head adds to its logits, by offset; the config's below it."""
    values = finite([value for curve in (*measured, *(config or ())) for value in curve]) or [0.0]
    low, high = min(values), max(values)
    if high - low < 1 / LARGEST:
        low, high = low - 1, high + 1
    y = Axis(between(low, high), linear_ticks(low, high))
    first, last = offsets[0], offsets[-1]
    span = (first - 1, last + 1) if first == last else (first, last)
    x = Axis(across(*span), linear_ticks(*span))
    parts = frame(x, y, "key minus query, in tokens", "added to the logits")
    for curve in config or ():
        parts.append(line(points(x, y, offsets, curve), "config"))
    for head, curve in enumerate(measured):
        ends = [(number(curve[i]), offsets[i]) for i in (0, -1)]
        said = f"head {head}: " + ", ".join(f"{value} at {at}" for value, at in ends)
        off = config is not None and head < len(config) and curve_differs(curve, config[head])
        parts.append(line(points(x, y, offsets, curve), "curve off" if off else "curve", said))
    return svg(parts, title)


# Numbers


def finite(values: Iterable[float]) -> list[float]:
    """Those that can be drawn."""
    return [value for value in values if drawable(value)]


def drawable(value: float) -> bool:
    """Whether it can be drawn."""
    return abs(value) < LARGEST  # NaN is not


def share(measured: float, config: float) -> float:
    """The difference to what the config has, as a share of it."""
    if not (math.isfinite(measured) and math.isfinite(config)):
        return math.inf
    if config == 0:
        return 0.0 if measured == 0 else math.inf
    return abs(measured / config - 1)


def differs(measured: float, config: float | None) -> bool:
    """Whether it is drawn as off."""
    return config is not None and share(measured, config) > SAME


def curve_differs(measured: Sequence[float], config: Sequence[float]) -> bool:
    """Whether a curve is drawn as off: by more than a small share of the config's largest value."""
    both = [pair for pair in zip(measured, config, strict=False) if all(map(drawable, pair))]
    size = max((abs(its) for _, its in both), default=0.0)
    return any(abs(mine - its) > SAME * size for mine, its in both)


# Scales


def between(low: float, high: float, of: Scale = float) -> Scale:
    """From values to heights, `low` at the bottom."""
    return lambda value: BOTTOM - (of(value) - low) / (high - low) * (BOTTOM - TOP)


def across(low: float, high: float) -> Scale:
    """From values to places from left to right."""
    return lambda value: LEFT + (value - low) / (high - low) * (RIGHT - LEFT)


def pairs(count: int) -> Axis:
    """Pairs of channels from left to right, half a pair free on both sides."""
    last = max(count - 1, 1)
    step = max(1, 2 ** math.ceil(math.log2(last / 4))) if last > 4 else 1
    ticks = [(float(i), str(i)) for i in range(0, count, step)]
    return Axis(across(-0.5, max(count, 1) - 0.5), ticks)


def logarithmic(values: Sequence[float]) -> tuple[Axis, bool]:
    """Decades about positive values, and whether there are others: these lie below them all."""
    shown = [value for value in values if 1 / LARGEST <= value < LARGEST]
    floor = len(shown) < len(values)
    low, high = (min(shown), max(shown)) if shown else (0.1, 1.0)
    return decades(low, high, STILL if floor else 0), floor


def decades(low: float, high: float, lift: float = 0) -> Axis:
    """A logarithmic axis from the decade below `low` to that above `high`."""
    bottom, top = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    top = max(top, bottom + 1)
    step = max(1, math.ceil((top - bottom) / MOST_TICKS))
    ticks = [(10.0**n, power(n)) for n in range(top, bottom - 1, -step)]

    def place(value: float) -> float:
        inside = (math.log10(value) - bottom) / (top - bottom)
        return BOTTOM - lift - inside * (BOTTOM - lift - TOP)

    return Axis(place, ticks)


def power(n: int) -> str:
    """As in 10⁻³; 1 and 10 as they are."""
    return str(10**n) if n in (0, 1) else f"10{str(n).translate(SUPERSCRIPTS)}"


def linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two."""
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(n * step, number(float(f"{n * step:.6g}"))) for n in range(first, last + 1)]


def points(
    x: Axis, y: Axis, at: Sequence[float], values: Sequence[float]
) -> list[tuple[float, float]]:
    """Where a curve goes; values that cannot be drawn are left out."""
    return [(x.place(a), y.place(v)) for a, v in zip(at, values, strict=False) if drawable(v)]


# Marks


def svg(parts: Iterable[Markup], title: str) -> Markup:
    """A picture of these parts, which `title` stands for where it cannot be seen."""
    inside = Markup("").join(parts)
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, title, inside)


def frame(x: Axis, y: Axis, across_: str, up: str) -> list[Markup]:
    """Grid, marks and names of both axes."""
    parts = []
    for value, text in y.ticks:
        height = y.place(value)
        parts.append(line([(LEFT, height), (RIGHT, height)], "grid"))
        parts.append(label(LEFT - 6, height + 3.5, text, "tick", "end"))
    for value, text in x.ticks:
        parts.append(label(x.place(value), BOTTOM + 15, text, "tick", "middle"))
    parts.append(line([(LEFT, BOTTOM), (RIGHT, BOTTOM)], "axis"))
    parts.append(label((LEFT + RIGHT) / 2, HEIGHT - 6, across_, "name", "middle"))
    parts.append(label(4, 11, up, "name", "start"))
    return parts


def line(at: Iterable[tuple[float, float]], kind: str, said: str = "") -> Markup:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    inside = Markup("<title>{}</title>").format(said) if said else ""
    return Markup('<polyline class="{}" points="{}">{}</polyline>').format(kind, path, inside)


def dot(x: float, y: float, kind: str, radius: float, said: str) -> Markup:
    """A point that says its numbers."""
    return Markup('<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>').format(
        kind, f"{x:.1f}", f"{y:.1f}", radius, said
    )


def label(x: float, y: float, text: str, kind: str, anchor: str) -> Markup:
    """A word in a picture."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        kind, f"{x:.1f}", f"{y:.1f}", anchor, escape(text)
    )
