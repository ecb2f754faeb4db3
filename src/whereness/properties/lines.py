"""Codes and scores of one line of positions along an axis, and the worst over lines and heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whereness.encoding import PositionalEncoding
from whereness.properties import codes, scores
from whereness.properties.doors import sizes, through
from whereness.properties.probes import (
    Content,
    along,
    contents,
    identical_scores,
    is_flat,
    offset_codes,
    position_codes,
    seen_by,
    where_of,
)
from whereness.properties.traits import Traits

LINEAR_SHIFTS = (1, 3, 10)
NEAR_AND_FAR = 8
"""Decay compares the nearest and the farthest eighth of the keys."""


@dataclass(frozen=True, eq=False)
class Line:
    """What was probed at positions 0 .. N-1 of one axis."""

    codes: Tensor | None
    """(N, m): one row a position, or an offset."""
    code_of: str | None
    scores: Tensor
    """(H, N, N), mean over contents."""
    seen: Tensor
    flat: bool


def probe(encoding: PositionalEncoding, length: int, axis: int, tokens: Tensor) -> Line:
    """Probe the float64 copy `encoding` with identical `tokens` (R, E)."""
    where = where_of(encoding, along(encoding, torch.arange(length), axis))
    s = identical_scores(encoding, where, tokens)
    seen = seen_by(encoding, length)
    flat = is_flat(s, seen)
    rows, code_of = position_codes(encoding, where), "position"
    if rows is None and not flat:
        rows, code_of = offset_codes(s), "offset"
    return Line(rows, None if rows is None else code_of, s.mean(0), seen, flat)


def content_for(encoding: PositionalEncoding, length: int, found: Traits) -> Content:
    """The content that shows position best.

    gaussian  door 4 reads content: the mean over many
    ones      queries and keys are turned, or scores multiplied: zeros would hide it
    zero      what is added, to tokens or to scores, is all that there is to see
    """
    if found.content_aware:
        return "gaussian"
    if 3 in found.doors:
        return "ones"
    if found.site is not None:
        return "zero"
    where = where_of(encoding, along(encoding, torch.arange(length)))
    seen = seen_by(encoding, length)
    dim = sizes(encoding).dim
    zeros, ones = (
        identical_scores(encoding, where, contents(kind, dim)) for kind in ("zero", "ones")
    )
    return "zero" if is_flat(ones - zeros, seen) and not is_flat(zeros, seen) else "ones"


def of_codes(lines: Sequence[Line]) -> dict[str, Any]:
    """The measures of codes, worst over lines."""

    def worst(measure: Callable[[Tensor], Any], pick: Callable[..., Any] = max) -> Any:
        return _worst([measure(line.codes) for line in lines if line.codes is not None], pick)

    of_positions = all(line.code_of == "position" for line in lines)
    relation = {k: worst(lambda p, k=k: codes.linear_relation(p, k)) for k in LINEAR_SHIFTS}
    relation = {k: v for k, v in relation.items() if v is not None}
    return {
        "uniqueness": worst(codes.uniqueness, min),
        "min_distance": worst(codes.min_distance, min),
        "first_repeat": worst(codes.first_repeat, min),
        "lipschitz": worst(codes.lipschitz),
        "max_abs": worst(codes.max_abs),
        "norm_growth": worst(codes.norm_growth),
        "content_ratio": worst(codes.content_ratio, min) if of_positions else None,
        "linear_relation": relation or None,
        "rigid_shift": worst(lambda p: codes.rigid_shift(p, LINEAR_SHIFTS[0])),
        "process_r2": worst(codes.process_r2, min),
        "position_decoding": worst(codes.position_decoding, min),
    }


def of_scores(lines: Sequence[Line], causal: bool) -> dict[str, Any]:
    """The measures of scores, worst over lines and heads."""
    heads = [(head, line.seen) for line in lines for head in line.scores]
    return {
        "translation_invariance": max(scores.translation_invariance(s, seen) for s, seen in heads),
        "monotonicity": _worst([scores.monotonicity(s, seen) for s, seen in heads], min),
        "first_increase": _worst([scores.first_increase(s) for s, _ in heads], min),
        "distance_correlation": _worst(
            [scores.distance_correlation(s, seen) for s, seen in heads], max
        ),
        "symmetry": None if causal else max(scores.symmetry(s) for s, _ in heads),
    }


def decay(encoding: PositionalEncoding, length: int, tokens: Tensor) -> dict[str, float] | None:
    """Mean score of the nearest eighth of the keys minus that of the farthest eighth.

    In logits, unscaled, mean over heads:

    identical: query and keys hold the same `tokens`
    independent: query and keys hold independent contents. Each pair comes with every sign, so the
        mean of whatever is linear in both is exactly 0: RoPE decays for identical tokens only.
    """
    eighth = length // NEAR_AND_FAR
    if not eighth:
        return None
    last = length - 1
    # Farthest keys, nearest keys, query: positions may be left out, only offsets count.
    slots = [*range(eighth), *range(last - eighth, last), last]
    where = where_of(encoding, along(encoding, torch.tensor(slots)), length)

    def drop(x: Tensor) -> float:
        passage = through(encoding, x, where)
        row = passage.after["logits"][..., -1, :]
        return float(row[..., eighth:-1].mean() - row[..., :eighth].mean())

    query, key = torch.randn(2, 1, 1, tokens.shape[-1], dtype=tokens.dtype)
    keys = key.expand(1, len(slots) - 1, -1)
    pairs = [torch.cat([a * keys, b * query], 1) for a in (1, -1) for b in (1, -1)]
    same = tokens[:, None].expand(-1, len(slots), -1)
    return {"identical": drop(same), "independent": drop(torch.cat(pairs))}


def _worst(values: Sequence[Any], pick: Callable[..., Any]) -> Any:
    given = [v for v in values if v is not None]
    return pick(given) if given else None
