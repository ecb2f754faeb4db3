"""Measures of door 3: the matrix that a position puts on queries and keys, and its frequencies.

    R_p   matrix on queries at position p;   R_a^T R_b = R_{b-a} makes scores depend on b - a alone

Source: Su et al. 2021, arXiv:2104.09864, section 3.4 (the rotation, and the bound on decay);
Men et al. 2024, arXiv:2405.14591 (the context that a base bounds); Peng et al. 2023,
arXiv:2309.00071 (pairs that never complete a turn). Frequencies are in radians per token.

Axes: H heads, P positions, D head_dim.
"""

import math
from typing import Any

import torch
from torch import Tensor

from whereness.encoding import PositionalEncoding
from whereness.properties.doors import sizes, through
from whereness.properties.probes import along, axes_of, is_defined, where_of

POSITIONS = (0, 1, 17, 1000, 4096)
"""Where the matrices are compared: near, odd, and far."""
FAR = 2**17
"""Offsets up to which a negative sum of cosines is looked for."""


def matrices(
    encoding: PositionalEncoding, positions: Tensor, axis: int = 0
) -> tuple[Tensor, Tensor] | None:
    """R_p of queries and of keys at `positions` (P,) on one axis, each (H, P, D', D).

    None if door 3 is shut or is no linear map. One basis vector a batch row goes through the door.
    """
    s = sizes(encoding)
    where = where_of(encoding, along(encoding, positions, axis))
    basis = torch.eye(s.head_dim, dtype=torch.float64).repeat(1, s.num_heads)[:, None]
    passage = through(encoding, basis.expand(-1, len(positions), -1), where, scaled=True)
    before, after = passage.before["q"], passage.after["q"]
    if before.shape == after.shape and torch.equal(before, after):
        return None
    both = through(
        encoding, basis.sum(0, keepdim=True).expand(-1, len(positions), -1), where, scaled=True
    )
    if not torch.allclose(both.after["q"][0], after.sum(0), rtol=0, atol=1e-9):
        return None
    q, k = (passage.after[name].permute(1, 2, 3, 0) for name in ("q", "k"))
    return q, k


def of_rotations(encoding: PositionalEncoding, length: int) -> dict[str, Any]:
    """All measures of this file, worst over axes; None where door 3 is shut."""
    axes = range(axes_of(encoding))
    p = torch.tensor(POSITIONS)
    kept: list[float | None] = []
    law: list[float | None] = []
    relativity: list[float | None] = []
    apart = torch.tensor([-max(POSITIONS), 2 * max(POSITIONS)])
    for axis in axes:
        if is_defined(encoding, along(encoding, apart, axis)):
            both = matrices(encoding, p, axis)
            kept += [norm_preservation(m) for m in both or ()]
            law.append(group_law(encoding, p, axis))
            relativity.append(exact_relativity(encoding, p, axis))
    spectra = frequencies_of(encoding)
    unfinished = [unfinished_pairs(f, length) for f in spectra]
    return {
        "norm_preservation": _largest(kept),
        "group_law": _largest(law),
        "exact_relativity": _largest(relativity),
        "unfinished_pairs": max(unfinished, key=lambda u: u["count"] or 0, default=None),
        "context_bound": min(
            (m for m in map(first_negative_offset, spectra) if m is not None), default=None
        ),
    }


def frequencies_of(encoding: PositionalEncoding) -> list[Tensor]:
    """The frequencies of door 3, (pairs,) an axis; empty where it is shut or has none."""
    found: list[Tensor] = []
    for member in encoding.members():
        given: object = getattr(member, "frequencies", None)
        if 3 in member.doors and isinstance(given, (Tensor, tuple)):
            each = given if isinstance(given, tuple) else given.reshape(-1, given.shape[-1])
            found += [axis.double() for axis in each]
    return found


def norm_preservation(matrix: Tensor) -> float:
    """Largest relative change of the length of a vector by one of the matrices (..., D', D).

    max |sigma - 1| over their singular values: 0 for rotations. A change makes attention sharper
    or flatter with position.
    """
    return float((torch.linalg.svdvals(matrix) - 1).abs().max())


def group_law(encoding: PositionalEncoding, positions: Tensor, axis: int = 0) -> float | None:
    """Largest |R_a R_b - R_{a+b}| over pairs of positions, Frobenius norm.

    0 if moving by a and then by b is moving by a + b. None if door 3 is shut, not linear, or
    changes the width.
    """
    sums = (positions[:, None] + positions).flatten()
    single, added = matrices(encoding, positions, axis), matrices(encoding, sums, axis)
    if single is None or added is None or single[0].shape[-1] != single[0].shape[-2]:
        return None
    product = single[0][:, :, None] @ single[0][:, None]
    return float((product.flatten(1, 2) - added[0]).norm(dim=(-2, -1)).max())


def exact_relativity(
    encoding: PositionalEncoding, positions: Tensor, axis: int = 0
) -> float | None:
    """Largest |Q_a^T K_b - Q_0^T K_{b-a}| over pairs of positions, Frobenius norm.

    Q and K are the matrices of queries and keys. 0: a score depends on the offset alone, whatever
    the content.
    """
    apart = (positions[None] - positions[:, None]).flatten()
    single, at_offset = matrices(encoding, positions, axis), matrices(encoding, apart, axis)
    if single is None or at_offset is None:
        return None
    q, k = single
    origin = matrices(encoding, torch.zeros(1, dtype=positions.dtype), axis)
    product = (q.mT[:, :, None] @ k[:, None]).flatten(1, 2)
    still = torch.eye(q.shape[-1], dtype=q.dtype) if origin is None else origin[0].mT
    return float((product - still @ at_offset[1]).norm(dim=(-2, -1)).max())


def unfinished_pairs(frequencies: Tensor, length: int) -> dict[str, int | None]:
    """Pairs whose wavelength is above `length`: their count, and the number of the first (or None).

    They never complete a turn in a text of that length, so a longer text shows the model angles
    that it has never seen.
    """
    unfinished = (frequencies * length < 2 * math.pi).nonzero()[:, 0]
    first = int(unfinished[0]) if len(unfinished) else None
    return {"count": len(unfinished), "first": first}


def first_negative_offset(frequencies: Tensor, limit: int = FAR) -> int | None:
    """Smallest m >= 1 with sum_k cos(m w_k) < 0: the context that the base bounds.

    From there on an alike key can score lower than a random one. None if there is none up to
    `limit`.
    """
    chunk = 4096
    for start in range(1, limit + 1, chunk):
        m = torch.arange(start, min(start + chunk, limit + 1), dtype=torch.float64)
        sums = (m[:, None] * frequencies).cos().sum(-1)
        below = (sums < 0).nonzero()
        if len(below):
            return start + int(below[0])
    return None


def decay_bound(frequencies: Tensor, offsets: Tensor) -> Tensor:
    """Mean over pairs k of |sum_{l<=k} exp(i m w_l)| at each offset m, (offsets,).

    It bounds scores whatever the content, and falls with distance.
    """
    angles = offsets.to(torch.float64)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).cumsum(-1).abs().mean(-1)


def _largest(values: list[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)
