"""Figures as SVG text that can stand in any page, many in one, on light and on dark grounds.

Text, axes and frames are drawn in `currentColor`, the ground is transparent, heat maps are small
images inside. The same numbers give the same bytes: no dates, no random ids, and no settings of the
user's own matplotlib. Every id begins with the name of the picture.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib import ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    *("#2f7ed8", "#d1651a", "#1f9469", "#d5435a"),
    *("#8f63d2", "#9a7416", "#158fa3", "#c04fa4"),
)
"""Of lines: 3 to 1 and more against white and against near black."""
MASKED = "#9b9b98"
"""Of cells that a query never sees."""
INK = "#010203"
"""Stands for currentColor while a figure is drawn."""
DIVERGING: Colormap = LinearSegmentedColormap.from_list(
    "whereness", ["#0a3a7a", "#2f7ed8", "#f3f1ec", "#de7a2c", "#7a3203"]
)
"""Blue below 0, orange above."""
NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")
NAMESPACE = re.compile(r"\{[^}]*\}")

STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
    "font.size": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "whereness",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}


@dataclass(frozen=True)
class Picture:
    """One picture of an encoding."""

    kind: str
    """Which: "codes", "rotation", "scores", "values", "offsets" or "spectrum"."""
    title: str
    caption: str
    """What is shown, in units."""
    svg: str


def named(*parts: str) -> str:
    """Parts of a name as an id."""
    return NOT_NAME.sub("-", "-".join(part for part in parts if part))


def svg(
    draw: Callable[[Figure], None],
    title: str,
    name: str,
    *,
    size: tuple[float, float] = (4.4, 2.7),
    layout: Literal["constrained", "compressed"] = "constrained",
) -> str:
    """What `draw` draws, as an SVG of `size` inches that says `title` to those who cannot see it.

    Args:
        name: ids begin with it; pictures in one page need different ones.
        layout: "compressed" for panels of a fixed shape.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=size, layout=layout)
        FigureCanvasSVG(figure)
        draw(figure)
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return cleaned(written.getvalue(), title, named(name))


def cleaned(source: str, title: str, name: str) -> str:
    """An SVG of matplotlib made fit to stand inside a page."""
    root = ET.fromstring(source)  # noqa: S314 (our own)
    for parent in list(root.iter()):
        for child in list(parent):
            # Its style would reach the whole page; its metadata are empty.
            if NAMESPACE.sub("", child.tag) in ("metadata", "style"):
                parent.remove(child)
    referred = {word for e in root.iter() for v in e.attrib.values() for word in references(v)}
    for element in root.iter():
        element.tag = NAMESPACE.sub("", element.tag)
        element.attrib = _attributes(element.attrib, referred, name)
        element.text = (element.text or "").strip() or None
        element.tail = None
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": root.attrib["viewBox"],
        "width": width,
        "height": height,
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    label = ET.Element("title")
    label.text = title
    root.insert(0, label)
    return ET.tostring(root, encoding="unicode").replace(INK, "currentColor")


def references(value: str) -> list[str]:
    """The ids that the value of an attribute refers to."""
    return re.findall(r"url\(#([^)]*)\)", value) + re.findall(r"^#(.*)", value)


def _attributes(found: dict[str, str], referred: set[str], name: str) -> dict[str, str]:
    """Ids get a name of their own, and are dropped where nothing refers to them."""
    kept = {}
    for long, value in found.items():
        key = NAMESPACE.sub("", long)
        if key == "id":
            if value in referred:
                kept[key] = f"{name}-{value}"
        elif key == "href" and value.startswith("#"):
            kept[key] = f"#{name}-{value[1:]}"
        else:
            mine = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", value)
            kept[key] = re.sub(r"'DejaVu Sans'[^;]*|sans-serif", "sans-serif", mine)
    return kept


def signed(values: Tensor) -> Normalize:
    """Equal colours for equal sizes on both sides of 0; logarithmic where a few values tower."""
    sizes = values[values.isfinite()].abs()
    largest = float(sizes.max()) if sizes.numel() else 0.0
    typical = float(sizes[sizes > 0].median()) if bool((sizes > 0).any()) else 0.0
    largest = largest or 1.0
    if typical and largest > 50 * typical:
        return SymLogNorm(typical, vmin=-largest, vmax=largest)
    return Normalize(-largest, largest)


def heat(axes: "Axes", values: Tensor, norm: Normalize, *, square: bool = False) -> Any:
    """A heat map of `values` (rows, columns), NaN masked."""
    image = axes.imshow(
        values.numpy(),
        cmap=DIVERGING.with_extremes(bad=MASKED),
        norm=norm,
        aspect="equal" if square else "auto",
        interpolation="none",
    )
    for side in ("right", "top"):
        axes.spines[side].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(2 if square else 5, integer=True))
    return image


def channels(table: Tensor, across: str, down: str, unit: str) -> Callable[[Figure], None]:
    """Draws a heat map of a table (N, channels): its rows to the right, channels downwards."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        image = heat(axes, table.T, signed(table))
        axes.set(xlabel=across, ylabel=down)
        scale(figure, image, axes, unit, table)

    return draw


def scale(
    figure: Figure, image: Any, axes: "Axes | Sequence[Axes]", label: str, values: Tensor
) -> None:
    """The colours of `values` beside their heat map; of one side of 0 if they have one."""
    bar = figure.colorbar(image, ax=axes, label=label, fraction=0.05, pad=0.02, aspect=24)
    bar.outline.set_linewidth(0.6)
    seen = values[values.isfinite()]
    if float(seen.min()) >= 0 or float(seen.max()) <= 0:
        low, high = min(float(seen.min()), 0.0), max(float(seen.max()), 0.0)
        if low < high:
            bar.ax.set_ylim(low, high)
    if isinstance(image.norm, SymLogNorm):
        bar.minorticks_off()
    else:
        bar.locator = ticker.MaxNLocator(5)
        bar.formatter = ticker.FuncFormatter(short)
        bar.update_ticks()


def short(value: float, _: object = None) -> str:
    """A tick in few characters: 250000 -> 250k."""
    text = f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{round(value, 9):g}"
    return text.replace("-", "\N{MINUS SIGN}")


def count_offsets(axes: "Axes") -> None:
    """Tokens back to the right."""
    axes.set_xlabel("tokens back")
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))


def rule(axes: "Axes") -> None:
    """Faint lines to read values by, and few ticks."""
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.5)
    axes.set_axisbelow(True)
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(short))


def distinct(lines: Iterable[Tensor], tolerance: float) -> list[Tensor]:
    """Each of several equal tensors once."""
    kept: list[Tensor] = []
    for line in lines:
        if not any((line - other).abs().max() <= tolerance for other in kept):
            kept.append(line)
    return kept


def panels(figure: Figure, count: int, **options: Any) -> "list[Axes]":
    """Axes side by side on common scales: up to three in a row, four in a square, else fours."""
    columns = count if count < 4 else 2 if count == 4 else 4
    rows = -(-count // columns)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True, **options)
    flat = list(grid.flat)
    for axes in flat[count:]:
        axes.set_visible(False)
    return flat[:count]
