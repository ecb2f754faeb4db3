"""How exact the rotations of this library and of others are, measured against mpmath.

    python benchmarks/exactness.py [--write]

Every library turns the pair (1, 0) at sampled positions of each octave from 4k to 16M, in float32,
bfloat16 and float16: what comes out should be (cos, sin) of p base^(-2k/128). The worst error of an
octave counts. --write puts the table into docs/exactness.md and draws docs/exactness.svg; needs the
peers (`make test-more` installs them) and matplotlib.

Axes: S sampled positions, D channels, P = D/2 pairs.
"""

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import mpmath
import numpy as np
import torch
from torch import Tensor

import whereness as wn
from whereness.kernels import tables

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs/exactness.md", ROOT / "docs/exactness.svg"
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
BASE, DIM = 10_000, 128
OCTAVES = tuple(range(12, 24))
SHOWN = (12, 15, 18, 20, 23)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"float32": 2.0**-25, "bfloat16": 2.0**-9, "float16": 2.0**-12}
"""What one rounding to the type may add to a cosine: half of the last place below 1."""

Turned = tuple[Tensor, Tensor]
Turner = Callable[[list[int], torch.dtype], Turned]


def pairs_one_zero(count: int, dtype: torch.dtype, interleaved: bool, dim: int = DIM) -> Tensor:
    """(1, 1, S, D): every pair is (1, 0), so that a rotation makes (cos, sin) of it."""
    x = torch.zeros(1, 1, count, dim, dtype=dtype)
    x[..., slice(0, None, 2) if interleaved else slice(0, dim // 2)] = 1
    return x


def apart(x: Tensor, interleaved: bool) -> Turned:
    """(1, 1, S, D) -> what became of the ones and of the zeros, (S, P) each."""
    x = x[0, 0]
    return (x[:, 0::2], x[:, 1::2]) if interleaved else tuple(x.chunk(2, -1))  # type: ignore[bad-return]


def ours(positions: list[int], dtype: torch.dtype) -> Turned:
    """`wn.RoPE`."""
    x = pairs_one_zero(len(positions), dtype, interleaved=False)
    return apart(wn.RoPE(DIM, BASE).to(dtype).rotate(x, torch.tensor(positions)), False)


def ours_in_torch(positions: list[int], dtype: torch.dtype) -> Turned:
    """The same where nothing is compiled."""
    with mock.patch.object(tables, "NATIVE", None):
        return ours(positions, dtype)


def transformers_llama(positions: list[int], dtype: torch.dtype, cast: bool = True) -> Turned:
    """Llama of Hugging Face. A model that is loaded in half precision keeps its frequencies."""
    llama: Any = importlib.import_module("transformers.models.llama.modeling_llama")
    config = importlib.import_module("transformers").LlamaConfig(
        hidden_size=DIM,
        num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": float(BASE)},
    )
    rotary = llama.LlamaRotaryEmbedding(config)
    x = pairs_one_zero(len(positions), dtype, interleaved=False)
    cos, sin = (rotary.to(dtype) if cast else rotary)(x, torch.tensor([positions]))
    return apart(llama.apply_rotary_pos_emb(x, x, cos, sin)[0], False)


def transformers_loaded(positions: list[int], dtype: torch.dtype) -> Turned:
    """The same after from_pretrained(dtype=...)."""
    return transformers_llama(positions, dtype, cast=False)


def rotary_embedding_torch(positions: list[int], dtype: torch.dtype) -> Turned:
    """`RotaryEmbedding.rotate_queries_or_keys`, a token at a time, as in decoding."""
    module: Any = importlib.import_module("rotary_embedding_torch")
    rotary = module.RotaryEmbedding(DIM, theta=BASE).to(dtype)
    x = pairs_one_zero(1, dtype, interleaved=True)
    turned = [rotary.rotate_queries_or_keys(x, offset=p) for p in positions]
    return apart(torch.cat(turned, 2), True)


def x_transformers(positions: list[int], dtype: torch.dtype) -> Turned:
    """`RotaryEmbedding` and `apply_rotary_pos_emb`."""
    module: Any = importlib.import_module("x_transformers.x_transformers")
    freqs, _ = module.RotaryEmbedding(DIM, base=BASE).to(dtype)(torch.tensor(positions))
    x = pairs_one_zero(len(positions), dtype, interleaved=True)
    return apart(module.apply_rotary_pos_emb(x, freqs), True)


def torchtune(positions: list[int], dtype: torch.dtype) -> Turned:
    """`RotaryPositionalEmbeddings`. Its cache of 16M positions would take 8 GB: it gets ours alone.

    So where it counts positions, 0 to the longest, it is handed those that are measured.
    """
    module: Any = peers("support").file_of_package("torchtune", "modules/position_embeddings.py")
    given = iter([torch.arange(0, DIM, 2), torch.tensor(positions, dtype=torch.float32)])
    module.torch = SimpleNamespace(**{**vars(torch), "arange": lambda *_, **__: next(given)})
    rotary = module.RotaryPositionalEmbeddings(DIM, len(positions), BASE).to(dtype)
    x = pairs_one_zero(len(positions), dtype, interleaved=True)
    return apart(rotary(x.transpose(1, 2)).transpose(1, 2), True)


TIMM = (
    *("freq_bands", "swap_shape_xy", "_build_bands", "_build_grid", "_rope_layout", "rot"),
    *("_coord_aug_config", "_apply_coord_augs", "_freq_buffer_dtype", "build_fourier_pos_embed"),
    *("rope_rotate_half", "apply_rot_embed", "apply_rot_embed_cat", "build_rotary_pos_embed"),
    *("_RotaryEmbeddingBase", "RotaryEmbeddingCat"),
)


def timm(positions: list[int], dtype: torch.dtype) -> Turned:
    """`RotaryEmbeddingCat` on a grid of one cell, at an offset; the channels of its first axis.

    Of twice the width these have the spectrum of the others.
    """
    space = peers("extracted").definitions("timm", "layers/pos_embed_sincos.py", *TIMM, Real=Real)
    x, turned = pairs_one_zero(1, dtype, interleaved=True, dim=2 * DIM)[0], []
    for p in positions:
        rotary = space["RotaryEmbeddingCat"](
            2 * DIM, in_pixels=False, temperature=BASE, grid_offset=float(p)
        )
        turned.append(space["apply_rot_embed_cat"](x, rotary.to(dtype).get_embed([1, 1])))
    return apart(torch.stack(turned, 2)[..., :DIM], True)


def peers(file: str) -> Any:
    """How the tests get at libraries that cannot be imported whole."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    return importlib.import_module(f"peers.{file}")


# Name in the table, what turns, and the distribution that must be there.
LIBRARIES: tuple[tuple[str, Turner, str], ...] = (
    ("whereness", ours, "whereness"),
    ("whereness, nothing compiled", ours_in_torch, "whereness"),
    ("transformers", transformers_llama, "transformers"),
    ("transformers, loaded in the type", transformers_loaded, "transformers"),
    ("rotary-embedding-torch", rotary_embedding_torch, "rotary-embedding-torch"),
    ("x-transformers", x_transformers, "x-transformers"),
    ("torchtune", torchtune, "torchtune"),
    ("timm", timm, "timm"),
)


def sampled(octave: int, count: int) -> list[int]:
    """The first and the last position of an octave, and others between them."""
    first, last = 2**octave, 2 ** (octave + 1) - 1
    drawn = np.random.default_rng(octave).integers(first, last, count - 2)
    return [first, *sorted(drawn.tolist()), last]


def exact(positions: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, (S, P), by mpmath, to the nearest float64."""
    with mpmath.workdps(50):
        spectrum = [mpmath.mpf(BASE) ** (mpmath.mpf(-2 * k) / DIM) for k in range(DIM // 2)]
        both = [[mpmath.cos_sin(p * w) for w in spectrum] for p in positions]
    found = np.array([[(float(c), float(s)) for c, s in row] for row in both])
    return found[..., 0], found[..., 1]


class Error(NamedTuple):
    """Of an octave: the worst absolute one, and in units of the last place of a float32."""

    absolute: float
    ulps: float


def error(found: Turned, true: tuple[np.ndarray, np.ndarray]) -> Error:
    """NaN where a result is none or infinite."""
    worst = []
    for ours, theirs in zip(found, true, strict=True):
        off = np.abs(ours.detach().double().numpy() - theirs)
        worst.append((off.max(), (off / np.spacing(np.abs(theirs).astype(np.float32))).max()))
    return Error(*(float(x) for x in np.max(worst, 0)))


Measured = dict[str, dict[str, dict[int, Error]]]
"""By dtype, library and octave."""


def measure(octaves: tuple[int, ...], count: int) -> Measured:
    """All libraries that are installed; the others are named on stderr."""
    found: Measured = {name: {} for name in TYPES}
    samples = {n: sampled(n, count) for n in octaves}
    true = {n: exact(positions) for n, positions in samples.items()}
    for library, turn, distribution in LIBRARIES:
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            print(f"not measured: {library}, it is not installed", file=sys.stderr)
            continue
        for name, dtype in TYPES.items():
            if name == "float32" and turn is transformers_loaded:
                continue  # nothing is cast
            with torch.no_grad():
                each = {n: error(turn(samples[n], dtype), true[n]) for n in octaves}
            found[name][library] = each
    return found


def short(position: int) -> str:
    """4096 -> "4k", 2^20 -> "1M"."""
    return f"{position >> 20}M" if position >= 2**20 else f"{position >> 10}k"


def table(found: Measured, octaves: tuple[int, ...]) -> Iterator[str]:
    """Lines of Markdown: a table for every dtype."""
    for name, libraries in found.items():
        spans = [f"{short(2**n)} to {short(2 ** (n + 1))}" for n in octaves]
        yield from ("", f"| {name}: positions | {' | '.join(spans)} |")
        yield f"| --- |{' ---: |' * len(octaves)}"
        rounding = " | ".join([f"{ROUNDING[name]:.1e}"] * len(octaves))
        yield f"| *one rounding of a number near 1* | {rounding} |"
        for library, errors in libraries.items():
            cells = (errors[n].absolute for n in octaves)
            yield f"| {library} | {' | '.join(map(cell, cells))} |"
        for library in ("whereness", "whereness, nothing compiled") if name == "float32" else ():
            ulps = " | ".join(f"{libraries[library][n].ulps:.2f}" for n in octaves)
            yield f"| {library}, in units of the last place | {ulps} |"


def cell(value: float) -> str:
    """An error as in the table."""
    return "no number" if np.isnan(value) else f"{value:.1e}"


def versions() -> str:
    """What was measured, in a sentence."""
    names = dict.fromkeys(d for _, _, d in LIBRARIES if d != "whereness")
    each = ", ".join(f"{d} {importlib.metadata.version(d)}" for d in names)
    kernels = "compiled kernels" if tables.NATIVE is not None else "nothing compiled"
    return f"whereness {wn.__version__} ({kernels}), {each}; torch {torch.__version__}, on the CPU."


def draw(found: Measured, path: Path) -> None:
    """Error against position, a panel a dtype, on logarithmic scales; equal curves are one."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "whereness", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 4), sharey=True, layout="constrained")
    for ax, (name, libraries) in zip(axes, found.items(), strict=True):
        height = {"fails": 3.0, "float32 angles": 20.0 if name == "float32" else 0.9}
        for names, errors in alike(libraries):
            kind = kind_of(names, errors)
            ends = [2.0 ** (n + 1) for n in errors]
            ax.plot(ends, list(errors.values()), color=COLOURS[kind], marker="o", markersize=3)
            text = "\n".join(names) + (
                "\n(then no number)" if np.isnan(list(errors.values())).any() else ""
            )
            lines, below = text.count("\n") + 1, kind != "fails"
            y = height.get(kind, 0.6 * ROUNDING[name])
            ax.text(2.0**12.7, y, text, color=COLOURS[kind], va="top" if below else "bottom")
            if not below:
                height[kind] *= 4.0**lines
        ax.set(xscale="log", yscale="log", title=name, ylim=(3e-10, 2000), xlabel="positions up to")
        ticks = [2**n for n in (13, 16, 20, 24)]
        ax.set_xticks(ticks, [short(t) for t in ticks])
        ax.set_yticks([1e-8, 1e-6, 1e-4, 1e-2, 1])
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("worst error of cos and sin")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


Curve = tuple[list[str], dict[int, float]]


def alike(libraries: dict[str, dict[int, Error]]) -> list[Curve]:
    """Libraries whose errors are the same but for a twentieth, with the first one's."""
    curves: list[Curve] = []
    for library, errors in libraries.items():
        values = {n: e.absolute for n, e in errors.items()}
        for names, others in curves:
            if np.allclose(list(values.values()), list(others.values()), 0.05, 0, equal_nan=True):
                names.append(library)
                break
        else:
            curves.append(([library], values))
    return curves


COLOURS = {"exact": "#0072b2", "float32 angles": "#b35900", "fails": "#a50f15"}


def kind_of(names: list[str], errors: dict[int, float]) -> str:
    """Which of COLOURS a curve has."""
    if any("whereness" in name for name in names):
        return "exact"
    return "float32 angles" if next(iter(errors.values())) < 0.1 else "fails"


def written(page: str, lines: list[str]) -> str:
    """The page with `lines` between its marks."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return "\n".join([before + MARKS[0], *lines, "", MARKS[1] + after])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description="Errors of rotations, against mpmath.")
    parser.add_argument("--samples", type=int, default=48, help="positions an octave (default: 48)")
    parser.add_argument("--write", action="store_true", help="write the table and the picture")
    parser.add_argument("--picture", type=Path, help="draw into this file (.png or .svg) as well")
    arguments = parser.parse_args()
    found = measure(OCTAVES, arguments.samples)
    lines = list(table(found, SHOWN))
    print("\n".join(lines))
    if arguments.picture:
        draw(found, arguments.picture)
    if arguments.write:
        if missing := {name for name, _, _ in LIBRARIES} - set(found["bfloat16"]):
            sys.exit(f"--write needs all libraries; not installed: {', '.join(sorted(missing))}")
        page = written(PAGE.read_text(encoding="utf-8"), [*lines, "", versions()])
        PAGE.write_text(page, encoding="utf-8")
        draw(found, PICTURE)


if __name__ == "__main__":
    main()
