"""Steps 4 to 7: a code for every position, added to the words.

    p            in every channel      swamps the words
    p / N        in every channel      another code in a text of another length N
    bits of p                          jump: no linear map leads from p to p + k
    sin, cos of p w_c                  a rotation leads from p to p + k, the same one everywhere

    (sin, cos)((p + k) w) = M_k (sin, cos)(p w),   M_k = [[cos kw, sin kw], [-sin kw, cos kw]]

Source: fleetwood.dev, "You could have designed state of the art positional encoding", 2024;
Vaswani et al. 2017, arXiv:1706.03762, section 3.5. The article writes that 10 000 as base gives
about 63 000 positions; its slowest wave begins anew there, all waves together do not.

Axes: N positions, D width of a code, w frequencies in radians per token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from whereness.absolute.binary import Binary
from whereness.absolute.integer import Integer
from whereness.absolute.sinusoidal import Sinusoidal
from whereness.properties.codes import difference, linear_relation, max_abs, min_distance
from whereness.story.parts import (
    Measured,
    Numbers,
    embedded,
    gap,
    must_be_seen,
    must_be_zero,
)


def bounded(of: str, codes: Tensor) -> Measured:
    """No entry exceeds 1, the standard deviation of the words' entries."""
    return Measured("max_abs", of, max_abs(codes), most=1.0)


def residual_of(codes: Tensor, shift: int) -> float:
    """What the best affine map leaves unexplained, as a share of the codes' spread."""
    residual = linear_relation(codes, shift)
    assert residual is not None, "the table is longer than the shift"
    return residual


def shift_of(codes: Tensor, shift: int) -> Tensor:
    """M, (D, D), for which M code(p) comes nearest to code(p + shift), by least squares."""
    return torch.linalg.lstsq(codes[:-shift], codes[shift:]).solution.T


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerCodes(Numbers):
    """Step 4. Tensors have one entry a position."""

    positions: tuple[int, ...]
    tokens: Tensor
    """The words "dog" and "chased", (2, D)."""
    ratio: Tensor
    """Length of the code / length of "dog"."""
    kept: Tensor
    """Cosine between "dog" and "dog" with the code."""
    alike: Tensor
    """Cosine between the two words, both with the code."""


def integer_codes(positions: Sequence[int] = (0, 1, 10, 100, 1000), dim: int = 64) -> IntegerCodes:
    """Add the position itself: soon nothing else is left of the word."""
    encoding = Integer(dim)
    at = encoding.prepare(torch.tensor(positions))
    tokens = embedded(("dog", "chased"), dim)
    dog, chased = (encoding.tokens(word.expand(1, len(positions), dim), at)[0] for word in tokens)
    codes = encoding(torch.tensor(positions)).double()
    return IntegerCodes(
        positions=tuple(positions),
        tokens=tokens,
        ratio=codes.norm(dim=-1) / tokens[0].norm(),
        kept=cosine_similarity(dog, tokens[0], -1),
        alike=cosine_similarity(dog, chased, -1),
        measured=(
            must_be_seen("min_distance", "Integer", min_distance(codes)),
            bounded("Integer", codes),
        ),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalisedCodes(Numbers):
    """Step 5. Tensors have one entry a length."""

    position: int
    lengths: tuple[int, ...]
    codes: Tensor
    """Code of `position`, one channel of it, in a text of each length."""
    steps: Tensor
    """Distance between neighbours' codes, in one channel."""


def normalised_codes(
    position: int = 5, lengths: Sequence[int] = (10, 100, 1000, 10_000)
) -> NormalisedCodes:
    """Divide by the length: nothing is swamped, and a position has a code for every length."""
    place = torch.tensor([position, position + 1])
    rows = torch.stack([Integer(1, length=n).rows(place)[:, 0] for n in lengths])
    short, double = Integer(1, length=128), Integer(1, length=256)
    moved = difference(short.rows(torch.arange(128)), double.rows(torch.arange(256)))
    longest = Integer(1, length=max(lengths)).rows(torch.arange(max(lengths)))
    return NormalisedCodes(
        position=position,
        lengths=tuple(lengths),
        codes=rows[:, 0],
        steps=rows[:, 1] - rows[:, 0],
        measured=(
            bounded("Integer / length", longest),
            must_be_zero("length_dependence", "Integer / length", moved),
        ),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class BinaryCodes(Numbers):
    """Step 6."""

    codes: Tensor
    """Bits of 0 to 16, least significant first, (17, bits)."""
    flips: Tensor
    """Bits that change from p - 1 to p, p = 1 .. N - 1."""
    repeats: tuple[int, ...]
    """Positions after which each of the first bits has gone through its whole cycle."""
    residual: dict[str, float]
    """What the best linear map from p to p + 3 leaves unexplained, of the code and of Gray's."""
    beyond: str
    """What the library says of a position outside the bits."""


def binary_codes(num_positions: int = 128, num_bits: int = 16) -> BinaryCodes:
    """Write the position in bits: bounded, unique, the same in every text; but it jumps."""
    positions = torch.arange(num_positions)
    plain, gray = Binary(num_bits, num_bits), Binary(num_bits, num_bits, gray=True)
    codes = plain(positions).double()
    longer = plain(torch.arange(2 * num_positions)).double()
    residual = {
        "Binary": residual_of(codes, 3),
        "Binary, Gray code": residual_of(gray(positions).double(), 3),
    }
    return BinaryCodes(
        codes=codes[:17, :5],
        flips=(codes[1:] != codes[:-1]).sum(-1),
        repeats=tuple(_cycle(codes[:, bit]) for bit in range(5)),
        residual=residual,
        beyond=_refused(plain, 2**num_bits),
        measured=(
            must_be_seen("min_distance", "Binary", min_distance(codes)),
            bounded("Binary", codes),
            must_be_zero("length_dependence", "Binary", difference(codes, longer)),
            *(must_be_zero("linear_relation", name, left) for name, left in residual.items()),
        ),
    )


def _cycle(channel: Tensor) -> int:
    """The smallest shift that maps the channel onto itself."""
    shifts = range(1, len(channel))
    return next(s for s in shifts if torch.equal(channel[s:], channel[:-s]))


def _refused(encoding: Binary, position: int) -> str:
    try:
        encoding(torch.tensor([position]))
    except ValueError as error:
        return str(error)
    return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftMatrix(Numbers):
    """Step 7. Matrices are (D, D), fitted by least squares to the codes and nothing else."""

    shift: int
    start: int
    num_positions: int
    frequencies: Tensor
    matrix: Tensor
    """M_k, from positions 0 .. N - 1."""
    matrix_elsewhere: Tensor
    """M_k, from positions start .. start + N - 1."""
    moved: float
    """Largest difference of the two."""
    outside_pairs: float
    """Largest entry outside the 2 x 2 blocks."""
    not_a_rotation: float
    """Largest entry of M^T M - I."""
    neighbours: float
    """Distance between the codes of neighbours."""
    nearest: float
    """Smallest distance between any two codes that are up to `span` tokens apart."""
    span: int
    longest_wave: float
    """Tokens after which the slowest pair begins anew."""


def shift_matrix(shift: int = 3, start: int = 10_000, num_positions: int = 4096) -> ShiftMatrix:
    """Sines and cosines: the map from p to p + k is a rotation, the same one everywhere."""
    encoding = Sinusoidal(8)
    here = encoding.rows(torch.arange(num_positions))
    there = encoding.rows(torch.arange(start, start + num_positions))
    matrix, elsewhere = shift_of(here, shift), shift_of(there, shift)
    blocks = torch.block_diag(*(torch.ones(2, 2) for _ in range(4))).bool()
    arrows = here[shift:] - here[:-shift]
    wide, span = Sinusoidal(64), 2**17
    distances = _distances(wide, span)
    return ShiftMatrix(
        shift=shift,
        start=start,
        num_positions=num_positions,
        frequencies=encoding.frequencies,
        matrix=matrix,
        matrix_elsewhere=elsewhere,
        moved=gap(matrix, elsewhere),
        outside_pairs=matrix[~blocks].abs().max().item(),
        not_a_rotation=gap(matrix.T @ matrix, torch.eye(8, dtype=torch.float64)),
        neighbours=distances[0].item(),
        nearest=distances.min().item(),
        span=span,
        longest_wave=2 * math.pi / wide.frequencies[-1].item(),
        measured=(
            must_be_seen("min_distance", "Sinusoidal", distances.min().item()),
            bounded("Sinusoidal", here),
            must_be_zero("linear_relation", "Sinusoidal", residual_of(here, shift)),
            must_be_zero("exact_relativity", "code - code", gap(arrows, arrows[:1])),
        ),
    )


def _distances(encoding: Sinusoidal, span: int) -> Tensor:
    """Between the codes of 0 and of 1 .. span.

    The distance of p and p + k is that of 0 and k, since M_k is a rotation.
    """
    first = encoding.rows(torch.zeros(1))
    return torch.cat(
        [
            (encoding.rows(part) - first).norm(dim=-1)
            for part in torch.arange(1, span + 1).split(2**14)
        ]
    )
