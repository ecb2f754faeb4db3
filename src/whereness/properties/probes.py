"""The two probes: codes P and scores S, float64, through the public doors.

    P  codes, (N, m)      what the encoding makes of one fixed vector at each position:
                          doors 1 and 2: of a token of zeros;  door 3: of a query of ones
    S  scores, (H, N, N)  q.k of identical tokens after all doors, unscaled and unmasked

An encoding of door 4 alone has no code of a position: its codes are those of offsets.

Source: identical-word probing is Wang et al. 2021, On Position Embeddings in BERT. Codes of doors 3
and 4 are ours: the literature has a table for added vectors only.

Axes: H heads, N tokens, E model dim, R contents, n axes of a position.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whereness.encoding import PositionalEncoding
from whereness.properties.doors import folded, sizes, through
from whereness.where import Where

Content = Literal["zero", "ones", "gaussian"]

NUM_CONTENTS = 64
"""Contents over which Gaussian scores are averaged."""


def axes_of(encoding: PositionalEncoding) -> int:
    """Coordinates of the positions that the encoding is given here."""
    return encoding.num_axes if encoding.reads == "positions" else 1


def where_of(
    encoding: PositionalEncoding,
    positions: Tensor,
    length: int | None = None,
    *,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
) -> Where:
    """`positions` (N,) or (N, n) as a Where; `length` for encodings that depend on it."""
    length = positions.shape[0] if length is None else length
    return Where(
        positions,
        segments=segments,
        key_mask=key_mask,
        lengths=length if encoding.needs_lengths else None,
        num_axes=axes_of(encoding),
    )


def along(encoding: PositionalEncoding, coordinates: Tensor, axis: int = 0) -> Tensor:
    """Positions on a line: `coordinates` (N,) on one axis, 0 on the others -> (N,) or (N, n)."""
    n = axes_of(encoding)
    if n == 1:
        return coordinates
    positions = coordinates.new_zeros(len(coordinates), n)
    positions[:, axis] = coordinates
    return positions


def scattered(encoding: PositionalEncoding, coordinates: Tensor) -> Tensor:
    """Positions that differ on every axis: axis a has `coordinates` (N,), rolled by a."""
    n = axes_of(encoding)
    if n == 1:
        return coordinates
    return torch.stack([coordinates.roll(axis) for axis in range(n)], -1)


def usable_length(encoding: PositionalEncoding, wanted: int, axis: int = 0) -> int:
    """The largest N up to `wanted` for which positions 0 .. N-1 on `axis` are defined."""

    def defined(length: int) -> bool:
        last = torch.tensor([0, length - 1])
        return is_defined(encoding, along(encoding, last, axis))

    if wanted < 1 or defined(wanted):
        return wanted
    low, high = 0, wanted  # defined(low), not defined(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if defined(middle) else (low, middle)
    return low


def is_defined(encoding: PositionalEncoding, positions: Tensor) -> bool:
    """The encoding takes these positions, and what it makes of them is finite."""
    s = sizes(encoding)
    x = torch.ones(1, positions.shape[0], s.dim, dtype=torch.float64)
    length = max(positions.shape[0], math.ceil(positions.max()) + 1)
    try:
        passage = through(encoding, x, where_of(encoding, positions, length))
    except ValueError:
        return False
    seen = passage.allowed
    parts = (passage.after["q"], passage.after["k"], passage.after["logits"][seen], passage.out)
    return all(bool(part.isfinite().all()) for part in parts)


# P and S


def position_codes(encoding: PositionalEncoding, where: Where) -> Tensor | None:
    """P of the float64 copy `encoding`, (N, m): one row a position; None without such a row."""
    if any(m.site is not None for m in encoding.members()):
        return joined_rows(encoding, where)
    s = sizes(encoding)
    ones = torch.ones(1, where.num_queries, s.dim, dtype=torch.float64)
    passage = through(encoding, ones, where)
    q, turned = passage.before["q"], passage.after["q"]
    if q.shape == turned.shape and torch.equal(q, turned):
        return None
    # The factor that undoes the scale is on q: taken off again. Heads side by side.
    factor = s.head_dim**0.5 / encoding.logit_scale(s.head_dim)
    return turned[0].transpose(0, 1).flatten(1) / factor


def joined_rows(encoding: PositionalEncoding, where: Where) -> Tensor:
    """The rows of Π that tokens of zeros become at doors 1 and 2, (N, m)."""
    s = sizes(encoding)
    zeros = torch.zeros(1, where.num_queries, s.dim, dtype=torch.float64)
    for member in encoding.members():
        if member.site is not None:
            at = member.prepare(where)
            joined = member.inputs(zeros, zeros, at)[0]
            if member.site == "tokens":
                joined = member.tokens(zeros, at)
            return folded(joined, s.dim)[0]
    raise AssertionError("no member joins the tokens")


def contents(kind: Content, dim: int) -> Tensor:
    """Tokens to probe with, (R, E): one of zeros, one of ones, or many drawn ones."""
    if kind == "gaussian":
        return torch.randn(NUM_CONTENTS, dim, dtype=torch.float64)
    return torch.full((1, dim), float(kind == "ones"), dtype=torch.float64)


def identical_scores(
    encoding: PositionalEncoding,
    where: Where,
    tokens: Tensor,
) -> Tensor:
    """S for each content of `tokens` (R, E): (R, H, N, N).

    Where an encoding changes weights after softmax, S is the weights, times the keys that a query
    sees: 1 is attention that position does not change.
    """
    x = tokens[:, None].expand(-1, where.num_queries, -1)
    passage = through(encoding, x, where)
    before, after = passage.before["weights"], passage.after["weights"]
    if torch.equal(before, after):
        return passage.after["logits"]
    return after * passage.allowed.sum(-1, keepdim=True)


def offset_codes(scores: Tensor) -> Tensor:
    """Scores of the last query in (R, H, N, N) -> codes of offsets (N, R H).

    Row n is the score of the key n tokens back, less that of the query's own place.
    """
    back = scores[..., -1, :].flatten(0, 1).flip(-1).T
    return back - back[:1]


def seen_by(encoding: PositionalEncoding, length: int) -> Tensor:
    """(N, N) bool: all pairs, or those of a causal mask for an encoding that needs it."""
    seen = torch.ones(length, length, dtype=torch.bool)
    return seen.tril() if encoding.causal_only else seen


def is_flat(scores: Tensor, seen: Tensor) -> bool:
    """All scores that are seen are the same: position changes none of them."""
    values = scores[..., seen].flatten(0, -2)
    spread = values.amax(-1) - values.amin(-1)
    return bool((spread <= 1e-12 * values.abs().amax(-1).clamp(min=1.0)).all())


def first_defined(
    encoding: PositionalEncoding, candidates: Sequence[Tensor], shift: int = 0
) -> Tensor | None:
    """The first candidate (N,) whose scattered positions are defined, moved by `shift` as well."""
    for coordinates in candidates:
        positions = scattered(encoding, coordinates)
        if is_defined(encoding, positions) and is_defined(encoding, positions + shift):
            return positions
    return None
