"""The same positions as `multimodal` gives, from what a processor hands a model: token types.

Every token knows its number inside its image from a running count, and where the image starts from
a running sum of what came before: no loop and no look at a value, so that it compiles.

Axes: B batch, S tokens, M images or videos.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from whereness.checks import require, require_choice, require_device, require_int, require_number
from whereness.positions.grids import Times, ticks
from whereness.positions.multimodal import After, Placed
from whereness.positions.rows import next_position
from whereness.where import NOWHERE, as_mask

IMAGE, VIDEO = 1, 2
KNOWN = (0, IMAGE, VIDEO, 3)
"""Text, image, video, sound. Sound without a rate counts as text does."""


class Media(NamedTuple):
    """The tokens of one kind, (B, S) each, 0 elsewhere; `local` is (B, S, 3)."""

    local: Tensor
    """Positions from 0 inside the image."""
    advance: Tensor
    """At an image's last token: how far what follows starts beyond the image's start."""


def from_token_types(
    token_types: Tensor,
    image_grids: Tensor | None = None,
    video_grids: Tensor | None = None,
    *,
    seconds_per_frame: Tensor | None = None,
    ticks_per_second: float = 1.0,
    times: Times = "exact",
    merge: int = 1,
    after: After = "farthest",
    attention_mask: Tensor | None = None,
) -> Placed:
    """Positions of a batch of text, images and video, (B, S, 3), from the type of every token.

    Args:
        token_types: (B, S), 0 text, 1 image, 2 video, 3 sound (one position a token).
        image_grids, video_grids: (M, 3) time, height and width of every image and of every video,
            in the order in which they stand in the batch, one row after the other. For models that
            give every frame of a video as an image of its own (Qwen3-VL, GLM-4V), one row a frame.
        seconds_per_frame: (M,) of every video; None: time is the number of the frame.
        merge: patches that a side of a token has, where grids count patches (`grid_thw`).
        attention_mask: (B, S), 1 at real tokens. Pads are nowhere.
        ticks_per_second, times, after: as for `multimodal`.

    Raises:
        ValueError: tokens of a type that its grids do not account for, an image that is not in one
            piece.

    >>> types = torch.tensor([[0, 1, 1, 0]])
    >>> from_token_types(types, torch.tensor([[1, 1, 2]])).positions[0].tolist()
    [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]]
    """
    merge = require_int("merge", merge, 1)
    require_number("ticks_per_second", ticks_per_second, 0.0)
    require_choice("times", times, ("exact", "floor"))
    require_choice("after", after, ("farthest", "side"))
    types = _checked_types(token_types)
    real = torch.ones_like(types, dtype=torch.bool)
    if attention_mask is not None:
        real = as_mask(attention_mask, "attention_mask")
        if real.shape != types.shape:
            raise ValueError(
                f"attention_mask must be as token_types: needed {tuple(types.shape)}, got "
                f"{tuple(real.shape)}."
            )
        require_device("attention_mask", real, types.device)
    text = (real & ((types == 0) | (types == 3))).long()
    local, advance = torch.zeros(*types.shape, 3, dtype=torch.int64, device=types.device), text
    for kind, name, grids in ((IMAGE, "image", image_grids), (VIDEO, "video", video_grids)):
        here = real & (types == kind)
        if grids is None:
            require(~here, f"token_types has {name} tokens: give {name}_grids.")
            continue
        sizes = _checked_grids(f"{name}_grids", grids, merge, types)
        interval = None
        if kind == VIDEO and seconds_per_frame is not None:
            interval = _checked_seconds(seconds_per_frame, len(grids), types) * ticks_per_second
        media = _media(here, sizes, interval, times, after, name)
        local, advance = local + media.local, advance + media.advance
    ids = (advance.cumsum(-1) - advance)[..., None] + local
    ids = ids.masked_fill(~real[..., None], torch.nan if ids.is_floating_point() else NOWHERE)
    following = next_position(ids, 3)
    return Placed(ids, following, following - real.sum(-1))


def _media(
    here: Tensor,
    sizes: Tensor,
    interval: Tensor | None,
    times: Times,
    after: After,
    name: str,
) -> Media:
    """Positions inside images and videos, `here` being their tokens and `sizes` (M, 3)."""
    counts = sizes.prod(-1)
    require(
        here.sum() == counts.sum(),
        lambda: (
            f"{name} tokens must be those of {name}_grids: needed {int(counts.sum())}, got "
            f"{int(here.sum())}. Grids of patches need merge=."
        ),
    )
    if not len(sizes):
        zeros = torch.zeros_like(here, dtype=torch.int64)
        return Media(zeros[..., None].expand(*here.shape, 3), zeros)
    ends = counts.cumsum(0)
    number = here.flatten().cumsum(0).view(here.shape) - 1
    item = torch.searchsorted(ends, number.clamp(min=0), right=True).clamp(max=len(sizes) - 1)
    inside = number - (ends - counts)[item]
    before = torch.nn.functional.pad(here, (1, 0))[..., :-1]
    require(~here | (inside == 0) | before, f"The tokens of one {name} must be in one piece.")

    frames, height, width = sizes[item].unbind(-1)
    time, rest = inside // (height * width), inside % (height * width)
    row, column = rest // width, rest % width
    last_time = frames - 1
    if interval is not None:
        time = ticks(time.double() * interval[item], times)
        last_time = ticks(last_time.double() * interval[item], times)
    row, column = row.to(time.dtype), column.to(time.dtype)
    side = torch.maximum(height, width)
    farthest = torch.maximum(last_time, (side - 1).to(time.dtype)) + 1
    ends_here = here & (inside == counts[item] - 1)
    advance = (side.to(time.dtype) if after == "side" else farthest) * ends_here
    return Media(torch.stack([time, row, column], -1) * here[..., None], advance)


def _checked_types(token_types: Tensor) -> Tensor:
    if not isinstance(token_types, Tensor):
        raise TypeError(f"token_types must be a tensor, got {type(token_types).__name__}.")
    if token_types.is_floating_point() or token_types.dtype == torch.bool:
        raise TypeError(f"token_types must hold integers, got {token_types.dtype}.")
    if token_types.dim() != 2:
        raise ValueError(f"token_types must be (B, S), got {tuple(token_types.shape)}.")
    types = token_types.long()
    require(
        (types >= KNOWN[0]) & (types <= KNOWN[-1]),
        "token_types must be 0 (text), 1 (image), 2 (video) or 3 (sound).",
        types,
    )
    return types


def _checked_grids(name: str, grids: Tensor, merge: int, types: Tensor) -> Tensor:
    """Sizes in tokens, (M, 3)."""
    if not isinstance(grids, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(grids).__name__}.")
    if grids.is_floating_point() or grids.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {grids.dtype}.")
    if grids.dim() != 2 or grids.shape[1] != 3:
        raise ValueError(f"{name} must be (M, 3): time, height, width; got {tuple(grids.shape)}.")
    require_device(name, grids, types.device)
    grids = grids.long()
    require(grids >= 1, f"{name} must be at least 1.", grids)
    require(grids[:, 1:] % merge == 0, f"merge={merge} must divide height and width of {name}.")
    return torch.cat([grids[:, :1], grids[:, 1:] // merge], 1)


def _checked_seconds(seconds: Tensor, count: int, types: Tensor) -> Tensor:
    if not isinstance(seconds, Tensor):
        raise TypeError(f"seconds_per_frame must be a tensor, got {type(seconds).__name__}.")
    if seconds.shape != (count,):
        raise ValueError(
            f"seconds_per_frame must be one a video: needed ({count},), got {tuple(seconds.shape)}."
        )
    require_device("seconds_per_frame", seconds, types.device)
    require((seconds > 0) & (seconds < torch.inf), "seconds_per_frame must be positive.", seconds)
    return seconds.double()
