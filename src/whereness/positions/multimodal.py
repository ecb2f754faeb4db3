"""Positions of text, images, video and sound in one row: (time, row, column) of every token.

    text      one number on all three axes, one more each token
    image     start + (0, row, column)
    video     start + (time, row, column)
    sound     start + time, on all three axes

What follows starts one beyond the largest number so far, on whatever axis that is.

Source: Wang et al. 2024 (Qwen2-VL), arXiv:2409.12191, section 2.1 (M-RoPE); Bai et al. 2025
(Qwen2.5-VL), arXiv:2502.13923, section 2.1 (time in seconds); Xu et al. 2025 (Qwen2.5-Omni),
arXiv:2503.20215, section 2.2 (TMRoPE: 25 ticks a second, sound and picture in turns). Qwen3-VL and
GLM-4V write times as text and give every frame as an image of its own: do so with `Text` and
`Image`.

Sizes are in tokens, after a model's merging of patches. Axes: B batch, S tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from whereness.checks import require_choice, require_int, require_number
from whereness.positions.grids import Times, frame_times, grid, video
from whereness.positions.rows import next_position
from whereness.where import NOWHERE

After = Literal["farthest", "side"]
Device = torch.device | str | None


@dataclass(frozen=True)
class Clock:
    """How seconds become positions."""

    ticks_per_second: float
    times: Times
    device: Device = None


@dataclass(frozen=True)
class Text:
    """So many tokens of text. step=0 puts all of them at one position."""

    tokens: int
    step: int = 1

    def local(self, clock: Clock) -> Tensor:
        """Positions from 0, (tokens, 3)."""
        tokens, step = require_int("tokens", self.tokens, 0), require_int("step", self.step, 0)
        return (torch.arange(tokens, device=clock.device) * step)[:, None].expand(-1, 3)

    def side(self) -> int | None:
        """What a peer goes on by after this, where that is not the farthest position."""
        return None


@dataclass(frozen=True)
class Image:
    """A still image: its time is 0. Sizes count tokens, *after* a model merges patches.

    Qwen2-VL merges 2 x 2: 4 x 6 patches are Image(2, 3).
    """

    height: int
    width: int

    def local(self, clock: Clock) -> Tensor:
        """Positions from 0, (tokens, 3)."""
        return grid(1, self.height, self.width, device=clock.device)

    def side(self) -> int | None:
        """The longer side."""
        return max(self.height, self.width)


@dataclass(frozen=True)
class Video:
    """Frames of one size, `seconds_per_frame` apart; None: time is the number of the frame.

    All three sizes count tokens, as those of `Image`; Qwen2-VL merges two frames of the film.
    """

    frames: int
    height: int
    width: int
    seconds_per_frame: float | None = None

    def local(self, clock: Clock) -> Tensor:
        """Positions from 0, (tokens, 3)."""
        return video(
            self.frames,
            self.height,
            self.width,
            seconds_per_frame=self.seconds_per_frame,
            ticks_per_second=clock.ticks_per_second,
            times=clock.times,
            device=clock.device,
        )

    def side(self) -> int | None:
        """The longer side of a frame."""
        return max(self.height, self.width)


@dataclass(frozen=True)
class Audio:
    """Tokens of sound, `seconds_per_token` apart; None: one position each."""

    tokens: int
    seconds_per_token: float | None = None

    def local(self, clock: Clock) -> Tensor:
        """Positions from 0, (tokens, 3)."""
        times = frame_times(
            self.tokens, self.seconds_per_token, clock.ticks_per_second, clock.times, clock.device
        )
        return times[:, None].expand(-1, 3)

    def side(self) -> int | None:
        """None: sound has no sides."""
        return None


@dataclass(frozen=True)
class Film:
    """A video and its sound, in turns of `seconds_per_chunk`: first picture, then sound.

    Both start at the same position. A token belongs to the chunk that its time lies in.
    """

    video: Video
    audio: Audio
    seconds_per_chunk: float = 2.0

    def local(self, clock: Clock) -> Tensor:
        """Positions from 0, (tokens, 3), in the order of the chunks."""
        require_number("seconds_per_chunk", self.seconds_per_chunk, 0.0)
        parts = self.video.local(clock), self.audio.local(clock)
        both = torch.cat(parts)
        chunk = (both[:, 0] / (self.seconds_per_chunk * clock.ticks_per_second)).floor()
        # Stable: inside a chunk the picture stays before the sound.
        return both[chunk.argsort(stable=True)]

    def side(self) -> int | None:
        """None: the sound may go on longer."""
        return None


Segment = Text | Image | Video | Audio | Film


class Placed(NamedTuple):
    """What `multimodal` and `from_token_types` give: attention takes its `positions`."""

    positions: Tensor
    """(B, S, 3): time, row, column. Pads are nowhere."""
    next_position: Tensor
    """(B,) where the next token of text stands, on all axes."""
    delta: Tensor
    """(B,) next_position less the number of tokens, pads not counted ("rope delta"): number of the
    next token + delta is its position."""


def multimodal(
    rows: Sequence[Segment] | Sequence[Sequence[Segment]],
    *,
    ticks_per_second: float = 1.0,
    times: Times = "exact",
    after: After = "farthest",
    total: int | None = None,
    padding_side: Literal["right", "left"] = "right",
    device: Device = None,
) -> Placed:
    """Positions of rows of text, images, video and sound: (time, height, width) of every token.

    A layer takes them as Where(placed.positions, num_axes=3), and a cache goes on from there.

    Args:
        rows: the segments of every row, or those of a single row: `Text`, `Image`, `Video`,
            `Audio`, `Film`.
        ticks_per_second: positions that a second of video or sound has.
        times: "exact" keeps parts of a tick (positions are then float64), "floor" rounds down to
            whole ticks, as Qwen2.5-VL and Qwen2.5-Omni do.
        after: where what follows an image or video starts: "farthest", one beyond the largest
            position on any axis, as the papers have it; or "side", the longer side beyond its
            start: a long video's times then overlap with what follows. Take "farthest" for
            Qwen2.5-Omni and Qwen3-Omni, and for Qwen2-VL and Qwen2.5-VL as they were published;
            "side" to get what transformers 5 gives Qwen2-VL, Qwen2.5-VL and ERNIE-4.5-VL. For
            images both are the same, so for Qwen3-VL and GLM-4V, whose frames are images, too.
        total: pad rows to this length; None: to the longest.
        padding_side: where the pads of shorter rows stand; they are nowhere, and `key_mask` hides
            them.

    Returns:
        positions (B, S, 3); next_position (B,), what the first token to be decoded has on all
        axes; and delta (B,), next_position less the tokens so far.

    Raises:
        ValueError: sizes below 1, a row longer than `total`.

    >>> placed = multimodal([Text(2), Image(1, 2), Text(1)])
    >>> placed.positions[0].tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4]]
    """
    require_number("ticks_per_second", ticks_per_second, 0.0)
    require_choice("times", times, ("exact", "floor"))
    require_choice("after", after, ("farthest", "side"))
    require_choice("padding_side", padding_side, ("right", "left"))
    clock = Clock(float(ticks_per_second), times, device)
    ids = [_row(row, clock, after) for row in _nested(rows)]
    longest = max(len(row) for row in ids)
    total = longest if total is None else require_int("total", total, 0)
    if longest > total:
        raise ValueError(f"total must hold every row: needed {longest}, got {total}.")
    real = any(row.is_floating_point() for row in ids)
    ids = [row.double() if real else row for row in ids]
    nowhere = torch.nan if real else NOWHERE
    padded = []
    for row in ids:
        pads = row.new_full((total - len(row), 3), nowhere)
        padded.append(torch.cat([row, pads] if padding_side == "right" else [pads, row]))
    counts = torch.tensor([len(row) for row in ids], device=device)
    return _placed(torch.stack(padded), counts)


def _placed(positions: Tensor, counts: Tensor) -> Placed:
    following = next_position(positions, 3)
    return Placed(positions, following, following - counts)


def _nested(rows: Any) -> list[list[Segment]]:
    rows = list(rows)
    if not rows:
        raise ValueError("multimodal needs at least one segment.")
    nested = [list(r) for r in rows] if isinstance(rows[0], (list, tuple)) else [rows]
    for segment in (s for row in nested for s in row):
        if not isinstance(segment, Segment):
            raise TypeError(
                "A row holds Text, Image, Video, Audio or Film segments, got "
                f"{type(segment).__name__}."
            )
    return nested


def _row(row: list[Segment], clock: Clock, after: After) -> Tensor:
    """Positions of one row, (S, 3). A loop over segments, not over tokens."""
    pieces = [torch.zeros(0, 3, dtype=torch.int64, device=clock.device)]
    start: Tensor | int = 0
    for segment in row:
        piece = segment.local(clock) + start
        if not len(piece):
            continue
        pieces.append(piece)
        side = segment.side() if after == "side" else None
        start = piece.amax() + 1 if side is None else start + side
    return torch.cat(pieces)
