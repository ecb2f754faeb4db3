"""Multimodal RoPE: one spectrum, whose pairs read different coordinates of a position.

    pair k turns by p[axis(k)] w_k,   w_k as in RoPE of the whole width

A text token has the same number on every axis, and is then turned as plain RoPE turns it; a patch
of an image or video has its own time, row and column. The orders of the axes, for 3 axes:

    order          axis of pair 0, 1, 2, ...   sections
    "chunked"      t t .. h h .. w w ..        t, h, w    Qwen2-VL, Qwen2.5-Omni, PaddleOCR-VL;
                                                          GLM-4V with rotary_dim; on 4 axes
                                                          HunYuan's XD-RoPE as vLLM has it
    "interleaved"  t h w t h w .. t t          t, h, w    Qwen3-VL, Qwen3.5, Cosmos 3, Ideogram 4
    "ernie"        h w h w .. t t              h, w, t    ERNIE-4.5-VL

ERNIE-4.5-VL and GLM-4V have pairing "interleaved", the others "half".
"interleaved" gives axis a > 0 the pairs a, a + n, a + 2n, ... and axis 0 what is left. "ernie"
lists sections as that model's configs do; positions are (t, h, w) as ever.

Sources: Wang et al. 2024, arXiv:2409.12191, section 2.1 (chunked); the Qwen3-VL report, 2025,
arXiv:2511.21631 (interleaved); Baidu 2025, the ERNIE 4.5 technical report. TMRoPE of Qwen-Omni is
"chunked" with times in steps of 40 ms: a matter of positions.

Axes: n axes of a position, P = rotary_dim/2 pairs. Units: as RoPE.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import require_choice, require_int
from whereness.rotary.base import Side
from whereness.rotary.pairing import Pairing
from whereness.rotary.rope import RoPE
from whereness.rotary.scaling.spectrum import Scaling
from whereness.rotary.sections import ORDERS, Order, Sections


class MultimodalRoPE(RoPE):
    """RoPE for positions (time, height, width), or of any number of axes.

    Args:
        sections: pairs of each axis, adding up to rotary_dim/2; their number is that of the axes.
            None: a third (rounded down) for height and for width, the rest for time; no released
            model's, whose config has its own.
        order: "chunked", "interleaved" or "ernie"; see the file.
        head_dim, base, pairing, rotary_dim, rotary_side, scaling: as for RoPE.

    Raises:
        ValueError: sections that do not add up or do not fit the order; as RoPE.

    >>> rope = MultimodalRoPE(16, (4, 2, 2), "interleaved")
    >>> rope.axis_of_pair
    (0, 1, 2, 0, 1, 2, 0, 0)
    """

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        order: Order = "chunked",
        base: float = 10_000.0,
        pairing: Pairing = "half",
        rotary_dim: int | None = None,
        rotary_side: Side = "leading",
        scaling: Scaling | None = None,
        compat: Literal["huggingface"] | None = None,
    ) -> None:
        super().__init__(head_dim, base, pairing, rotary_dim, rotary_side, scaling, compat)
        require_choice("order", order, tuple(ORDERS))
        self.order: Order = order
        self.sections = self._checked(sections)
        self.num_axes = len(self.sections)
        self.axis_of_pair = ORDERS[order](self.sections)

    def _checked(self, sections: Sequence[int] | None) -> Sections:
        pairs = self.rotary_dim // 2
        if sections is None:
            third = pairs // 3
            if not third:
                raise ValueError(f"Three axes need at least 3 pairs of channels, got {pairs}.")
            rest = pairs - 2 * third
            return (third, third, rest) if self.order == "ernie" else (rest, third, third)
        if not isinstance(sections, (tuple, list)):
            raise TypeError(f"sections must be a tuple of int, got {sections!r}.")
        found = tuple(require_int("every entry of sections", s, 1) for s in sections)
        if len(found) < 2 or sum(found) != pairs:
            raise ValueError(
                f"sections must be at least two numbers of pairs that add up to rotary_dim/2 = "
                f"{pairs}, got {found}, which make {sum(found)}."
            )
        return found

    def _coordinates(self, positions: Tensor) -> Tensor:
        of_pair = torch.tensor(self.axis_of_pair, device=positions.device)
        return positions.index_select(-1, of_pair)
