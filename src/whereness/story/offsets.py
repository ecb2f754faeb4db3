"""Steps 8 and 9: from where tokens are to how far apart they are.

    offset of a and b = the k for which M_k code(a) comes nearest to code(b)

    (x + c_i) W_q . (y + c_j) W_k  =  x.y  +  x.c_j  +  c_i.y  +  c_i.c_j      (W left out)
                                    content   the two mixed ones   positions

Source: the offset is linearly recoverable and the four terms: Prince, Understanding Deep Learning,
2023, chapter 12, notes, equations 12.16 and 12.17; absolute against relative positions: section
12.3.1, and fleetwood.dev, "You could have designed state of the art positional encoding", 2024.

Axes: N pairs of tokens, S tokens, D width. Offsets in tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.absolute.sinusoidal import Sinusoidal
from whereness.story.parts import (
    FIVE_WORDS,
    Numbers,
    attended,
    drawn,
    embedded,
    gap,
    learned_relative,
    must_be_zero,
    projected,
)

DIM = 64
START = 2157


def offsets_between(first: Tensor, second: Tensor, encoding: Sinusoidal, reach: int) -> Tensor:
    """The offset in -reach .. reach that explains best how `second` (N, D) follows `first`.

    Each pair of channels, read as a complex number, turns by k w from the code of p to that of
    p + k. The k is taken whose turns bring `first` nearest to `second`.
    """
    turned = _as_complex(first).conj() * _as_complex(second)
    offsets = torch.arange(-reach, reach + 1)
    angles = encoding.frequencies[:, None] * offsets
    undone = torch.polar(torch.ones_like(angles), -angles)
    return offsets[(turned @ undone).real.argmax(-1)]


def _as_complex(codes: Tensor) -> Tensor:
    sines, cosines = codes[..., 0::2], codes[..., 1::2]
    return torch.complex(cosines, sines)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecoveredOffset(Numbers):
    """Step 8."""

    pairs: tuple[tuple[int, int], ...]
    recovered: tuple[int, ...]
    """Offset of each pair, from its two codes."""
    sizes: tuple[float, ...]
    """Standard deviations of the words that the codes are added to."""
    found: tuple[float, ...]
    """Share of 500 random pairs whose offset is recovered, one a size."""
    answers: Tensor
    """What is recovered from one pair of words 3 tokens apart, codes added, at 500 starts."""


def recovered_offset(
    pairs: Sequence[tuple[int, int]] = ((5, 8), (1005, 1008), (2157, 2150), (99, 0)),
    sizes: Sequence[float] = (0.0, 0.1, 0.3, 1.0),
    reach: int = 100,
) -> RecoveredOffset:
    """The offset of two tokens, read from two absolute codes, and from two words with a code."""
    encoding = Sinusoidal(DIM)
    rows = encoding.rows(torch.tensor(pairs))
    recovered = offsets_between(rows[:, 0], rows[:, 1], encoding, reach)
    wanted = torch.tensor([b - a for a, b in pairs])
    words = drawn(2, 500, DIM)
    starts = torch.arange(500)
    first, second = encoding.rows(starts) + words[0, :1], encoding.rows(starts + 3) + words[1, :1]
    answers = offsets_between(first, second, encoding, reach)
    spread = (answers.max() - answers.min()).item()
    return RecoveredOffset(
        pairs=tuple((a, b) for a, b in pairs),
        recovered=tuple(recovered.tolist()),
        sizes=tuple(sizes),
        found=tuple(_share_found(encoding, size * words, reach) for size in sizes),
        answers=answers,
        measured=(
            must_be_zero("exact_relativity", "two codes", gap(recovered, wanted)),
            must_be_zero("relative", "two words + codes", spread),
        ),
    )


def _share_found(encoding: Sinusoidal, words: Tensor, reach: int) -> float:
    """Of pairs with random starts below 3000 and random offsets, words (2, N, D) added."""
    generator = torch.Generator().manual_seed(2)
    count = words.shape[1]
    starts = torch.randint(reach, 3000, (count,), generator=generator)
    offsets = torch.randint(-reach, reach + 1, (count,), generator=generator)
    first, second = (encoding.rows(p) for p in (starts, starts + offsets))
    recovered = offsets_between(first + words[0], second + words[1], encoding, reach)
    return (recovered == offsets).double().mean().item()


@dataclass(frozen=True, eq=False, kw_only=True)
class MovedFragment(Numbers):
    """Step 9. Weights are those of the middle word, by encoding, at both starts: (2, S)."""

    words: tuple[str, ...]
    starts: tuple[int, int]
    positions: Tensor
    """(2, S)."""
    offsets: Tensor
    """Of each word, seen from the middle, at both starts: (2, S)."""
    weights: dict[str, Tensor]
    changes: dict[str, float]
    """Largest change of any weight between the two starts."""
    terms: dict[str, float]
    """Largest change of each of the four parts of the scores, by name. The last is what
    `wn.measure` calls translation_invariance: codes alone, without words, W_q and W_k."""


def moved_fragment(start: int = START) -> MovedFragment:
    """The same five words at the start of a text and far inside one."""
    x = embedded(FIVE_WORDS, DIM)
    positions = torch.stack([torch.arange(5), torch.arange(5) + start])
    absolute, relative = Sinusoidal(DIM), learned_relative(4)
    everyone = {"Sinusoidal": absolute, "LearnedRelative": relative}
    weights = {
        name: torch.stack([attended(x, encoding, p).weights for p in positions])
        for name, encoding in everyone.items()
    }
    changes = {name: gap(w[0], w[1]) for name, w in weights.items()}
    parts = [_four_terms(x, absolute.rows(p)) for p in positions]
    return MovedFragment(
        words=FIVE_WORDS,
        starts=(0, start),
        positions=positions,
        offsets=positions - positions[:, 2:3],
        weights={name: w[:, 2] for name, w in weights.items()},
        changes=changes,
        terms={name: gap(parts[0][name], parts[1][name]) for name in parts[0]},
        measured=(
            must_be_zero("relative", "LearnedRelative", changes["LearnedRelative"]),
            must_be_zero("relative", "Sinusoidal", changes["Sinusoidal"]),
        ),
    )


def _four_terms(x: Tensor, codes: Tensor) -> dict[str, Tensor]:
    """The scores of x + codes in four parts, (S, S) each; the last also without W_q and W_k."""
    word, place = projected(x), projected(codes)
    root = math.sqrt(x.shape[-1])
    return {
        "word . word": word.q @ word.k.T / root,
        "word . code": word.q @ place.k.T / root,
        "code . word": place.q @ word.k.T / root,
        "code . code": place.q @ place.k.T / root,
        "code . code, without W_q and W_k": codes @ codes.T / root,
    }
