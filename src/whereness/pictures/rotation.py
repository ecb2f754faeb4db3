"""Door 3: how far the pairs of channels turn between a query and a key.

    R_n = Q_n^T K_0   what a key n tokens back and a query do to one another, (D, D)
    cos of the angle of the pair (c, d) at n:   R_n[c, c] / |R_n[c, (c, d)]|

Axes: H heads, N offsets, D head_dim.
"""

import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn import functional as F

from whereness.pictures.drawing import Picture, distinct, heat, panels, scale, svg
from whereness.pictures.subject import Subject, probing
from whereness.properties.rotations import matrices

TITLE = "How its pairs turn"
MOST_PANELS = 4
STILL = 1e-12
NO_COSINE = 2.0


def numbers(of: Subject) -> Tensor | None:
    """cos of the angle of every pair at offsets 0, -1, ...: (P, pairs, N), a panel an axis or head.

    None where door 3 is shut, is no linear map, or turns no pairs. Heads that turn alike count
    once; axes of fewer pairs than others are filled up with NaN.
    """
    if 3 not in of.doors:
        return None
    found: list[Tensor] = []
    with probing():
        for axis in range(of.num_axes):
            both = matrices(of.encoding, torch.arange(of.length), axis)
            if both is None or both[0].shape[-1] != both[1].shape[-2]:
                return None
            q, k = both
            turns = q.mT @ k[:, :1]  # (H, N, D, D)
            found += [t for t in map(_cosines, turns) if t is not None]
    if not found:
        return None
    most = max(map(len, found))
    filled = [F.pad(t, (0, 0, 0, most - len(t)), value=NO_COSINE) for t in found]
    shown = torch.stack(distinct(filled, 0.0)[:MOST_PANELS])
    return shown.masked_fill(shown == NO_COSINE, torch.nan)


def _cosines(turns: Tensor) -> Tensor | None:
    """(N, D, D) -> (pairs, N), pairs in the order of their first channels."""
    size = turns.abs().amax(0)
    aside = size - torch.diag(size.diagonal())
    partner = aside.argmax(-1).tolist()
    turned = (aside.amax(-1) > STILL).tolist()
    pairs = [(c, d) for c, d in enumerate(partner) if turned[c] and c < d and partner[d] == c]
    if not pairs:
        return None
    first, second = torch.tensor(pairs).T
    cos, sin = turns[:, first, first], turns[:, first, second]
    return (cos / torch.hypot(cos, sin)).T


def picture(of: Subject, name: str) -> Picture | None:
    """A heat map: tokens back to the right, pair downwards."""
    cosines = numbers(of)
    if cosines is None:
        return None

    def draw(figure: Figure) -> None:
        all_axes = panels(figure, len(cosines))
        images = [heat(a, c, Normalize(-1, 1)) for a, c in zip(all_axes, cosines, strict=True)]
        for number, axes in enumerate(all_axes):
            axes.set_xlabel("tokens back")
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if len(cosines) > 1:
                axes.set_title(f"axis {number}" if of.num_axes > 1 else f"head {number}")
        all_axes[0].set_ylabel("pair of channels")
        scale(figure, images[0], all_axes, "cos of the angle", cosines)

    return Picture(
        "rotation",
        TITLE,
        f"Cosine of the angle between a query and a key that lies so many tokens back, for each "
        f"of the {cosines.shape[1]} pairs of channels that turn. Offset 0 turns nothing.",
        svg(draw, f"Turning of the pairs of {of.seen_as} by offset", f"{name}-rotation"),
    )
