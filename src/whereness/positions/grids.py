"""Grids: images, video, any number of axes. Sizes are counted in tokens, never in pixels.

Axes: n axes of a grid, the first one slowest.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from whereness.checks import require_choice, require_int, require_number
from whereness.where import NOWHERE

Order = Literal["row", "column"]
Origin = Literal["corner", "centre", "whole_centre"]
Times = Literal["exact", "floor"]

HAIR = 2.0**-30
"""Ticks. A time that lies less than this before a tick is on it: 0.29 s are 29 ticks of 10 ms,
while the product of the two floats is 28.999999999999996."""


def grid(
    *sizes: int,
    prefix: int = 0,
    order: Order = "row",
    origin: Origin = "corner",
    merge: int = 1,
    tokens: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Coordinates of a grid's cells, one a token: (prefix + product of sizes, n).

    `prefix` tokens without a place (CLS, registers) come first. The first coordinate is that of
    the first size: rows, for `grid(height, width)`.

    Args:
        sizes: in tokens. An image of 224 pixels in patches of 16 has 14, and 7 if the model
            merges 2 x 2 patches into one token.
        order: which way the tokens run, whatever their coordinates: "row", the last size fastest,
            or "column", the last but one fastest.
        origin: "corner": 0 .. size-1. "centre": minus (size-1)/2, float64, symmetric around 0.
            "whole_centre": int64, from -ceil(size/2), as Qwen-Image and its kin count.
        merge: side of the square blocks that a model merges later: the tokens of a block are
            neighbours, and blocks run in row order, as Qwen2-VL's vision tower has them.
        tokens: how many tokens there are, prefix included, if that is known: it is checked.

    Raises:
        ValueError: no size, sizes that `merge` does not divide, another number of tokens.

    >>> grid(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> grid(2, 4, merge=2)[:4].tolist()  # one block
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if not sizes:
        raise ValueError("grid needs at least one size, as in grid(height, width).")
    sizes = tuple(require_int(f"size {i} of the grid", s, 1) for i, s in enumerate(sizes))
    prefix = require_int("prefix", prefix, 0)
    merge = require_int("merge", merge, 1)
    require_choice("order", order, ("row", "column"))
    require_choice("origin", origin, ("corner", "centre", "whole_centre"))
    check_tokens(sizes, prefix, tokens)
    axes = torch.meshgrid(*(_axis(s, origin, device) for s in sizes), indexing="ij")
    cells = _ordered(torch.stack(axes, -1), order, merge)
    nowhere = torch.nan if cells.is_floating_point() else NOWHERE
    return torch.cat([cells.new_full((prefix, len(sizes)), nowhere), cells])


def video(
    frames: int,
    height: int,
    width: int,
    *,
    seconds_per_frame: float | None = None,
    ticks_per_second: float = 1.0,
    times: Times = "exact",
    merge: int = 1,
    tokens: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """(time, row, column) of every token of a video, (frames x height x width, 3), from 0.

    Args:
        frames, height, width: in tokens. A "frame" is what one grid of tokens stands for, often
            several frames of the film; `seconds_per_frame` is how long that lasts.
        seconds_per_frame: None: time is the number of the frame. Else it is frame x
            seconds_per_frame x ticks_per_second.
        ticks_per_second: positions that a second has; 2 in Qwen2.5-VL's configs, 25 in
            Qwen2.5-Omni's.
        times: "exact": float64, frames never share a time. "floor": int64, down to whole ticks, as
            Qwen2.5-VL and Qwen2.5-Omni do; frames less than a tick apart then share a time.

    >>> video(4, 1, 1, seconds_per_frame=0.5, ticks_per_second=2, times="floor")[:, 0]
    tensor([0, 1, 2, 3])
    """
    moments = frame_times(frames, seconds_per_frame, ticks_per_second, times, device)
    cells = grid(frames, height, width, merge=merge, tokens=tokens, device=device)
    return torch.cat([moments[cells[:, :1]], cells[:, 1:].to(moments.dtype)], -1)


def frame_times(
    frames: int,
    seconds_per_frame: float | None,
    ticks_per_second: float,
    times: Times,
    device: torch.device | str | None = None,
) -> Tensor:
    """Time of every frame in ticks, (frames,); the number of the frame without a rate."""
    frames = require_int("frames", frames, 1)
    require_choice("times", times, ("exact", "floor"))
    require_number("ticks_per_second", ticks_per_second, 0.0)
    numbers = torch.arange(frames, device=device)
    if seconds_per_frame is None:
        return numbers
    require_number("seconds_per_frame", seconds_per_frame, 0.0)
    return ticks(numbers.double() * (seconds_per_frame * ticks_per_second), times)


def ticks(exact: Tensor, times: Times) -> Tensor:
    """Times in ticks, float64: as they are, or down to whole ones, int64."""
    return exact if times == "exact" else (exact + HAIR).floor().long()


def check_tokens(sizes: tuple[int, ...], prefix: int, tokens: int | None) -> None:
    """Raise unless a grid of these sizes has that many tokens."""
    if tokens is None:
        return
    tokens = require_int("tokens", tokens, 0)
    found = math.prod(sizes) + prefix
    if found != tokens:
        shape = " x ".join(map(str, sizes)) + (f" and a prefix of {prefix}" if prefix else "")
        raise ValueError(
            f"A grid of {shape} has {found} tokens, the input has {tokens}. Sizes are counted in "
            "tokens: divide pixels by the patch size, and by the merge size if patches are merged."
        )


def _axis(size: int, origin: Origin, device: torch.device | str | None) -> Tensor:
    cells = torch.arange(size, device=device)
    if origin == "centre":
        return cells.double() - (size - 1) / 2
    return cells - (size + 1) // 2 if origin == "whole_centre" else cells


def _ordered(cells: Tensor, order: Order, merge: int) -> Tensor:
    """(*sizes, n) -> (tokens, n), in the order in which tokens run."""
    sizes = cells.shape[:-1]
    if len(sizes) < 2 and (order == "column" or merge > 1):
        raise ValueError(f"Columns and blocks need two sizes or more, got {len(sizes)}.")
    if order == "column":
        if merge > 1:
            raise ValueError("Blocks run in row order: merge with order='column' is not defined.")
        return cells.transpose(-2, -3).flatten(0, -2)
    if merge == 1:
        return cells.flatten(0, -2)
    height, width = sizes[-2:]
    if height % merge or width % merge:
        raise ValueError(f"merge={merge} must divide height and width, got {height} and {width}.")
    blocks = cells.unflatten(-2, (width // merge, merge)).unflatten(-4, (height // merge, merge))
    return blocks.transpose(-3, -4).flatten(0, -2)
