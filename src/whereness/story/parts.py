"""What the steps share: words as seeded vectors, one attention head, and a measured property.

    out = softmax(x W_q (x W_k)^T / sqrt(D)) x W_v

Words are drawn from N(0, 1) and the three matrices from N(0, 1/D), all in float64: what the story
claims holds for any words and any weights, so none are trained.

Axes: S tokens, D width of a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whereness.attend.functional import attention
from whereness.encoding import PositionalEncoding
from whereness.relative.learned import LearnedRelative

SEED = 0

FIVE_WORDS = ("the", "woman", "ate", "the", "raccoon")

ZERO = 1e-9
"""What counts as 0. Angles in the story stay below 2e5 radians, where float64 rounds by 2e-11."""

VISIBLE = 1e-3
"""What counts as a difference; the words themselves differ by about 1."""


@dataclass(frozen=True)
class Measured:
    """A property of one candidate, in numbers. The name is that of a field of `wn.Properties`."""

    name: str
    of: str
    value: float
    least: float = 0.0
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """The value is where it has to be."""
        return self.least <= self.value <= self.most


def must_be_zero(name: str, of: str, value: float) -> Measured:
    """A property that holds if the value is 0 but for rounding."""
    return Measured(name, of, value, most=ZERO)


def must_be_seen(name: str, of: str, value: float) -> Measured:
    """A property that holds if the value is a difference that can be seen."""
    return Measured(name, of, value, least=VISIBLE)


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbers:
    """What a step gives; every step adds its own fields."""

    measured: tuple[Measured, ...]

    def failed(self) -> tuple[Measured, ...]:
        """The measured properties that do not hold."""
        return tuple(m for m in self.measured if not m.holds)

    def plain(self) -> dict[str, Any]:
        """Every number in plain Python types, for JSON."""
        named = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        verdicts = named.pop("measured")
        return {**named, "measured": verdicts}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Measured):
        bounds = {"least": value.least, "most": value.most if math.isfinite(value.most) else None}
        return {
            "property": value.name,
            "of": value.of,
            "value": value.value,
            **bounds,
            "holds": value.holds,
        }
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def drawn(*shape: int, seed: int = SEED) -> Tensor:
    """Numbers from N(0, 1), float64, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def embedded(words: Sequence[str], dim: int) -> Tensor:
    """(S, dim): equal words have equal rows, whatever their order."""
    known = sorted(set(words))
    rows = drawn(len(known), dim)
    return rows[[known.index(word) for word in words]]


class Projected(NamedTuple):
    """Queries, keys and values, (S, D) each."""

    q: Tensor
    k: Tensor
    v: Tensor


def projected(x: Tensor) -> Projected:
    """x through W_q, W_k and W_v."""
    dim = x.shape[-1]
    weights = drawn(3, dim, dim, seed=SEED + 1) / math.sqrt(dim)
    return Projected(*(x @ w for w in weights))


class Attended(NamedTuple):
    """Outputs (S, D) and weights (S, S) of one head."""

    outputs: Tensor
    weights: Tensor


def attended(
    x: Tensor,
    encoding: PositionalEncoding | None = None,
    positions: Tensor | None = None,
    *,
    causal: bool = False,
) -> Attended:
    """One head over the tokens x (S, D), with an encoding of any door. Positions count from 0."""
    positions = torch.arange(len(x)) if positions is None else positions
    if encoding is not None and encoding.site == "tokens":
        x = encoding.tokens(x[None], encoding.prepare(positions))[0]
        encoding = None
    return ready(projected(x), encoding, positions, causal=causal)


def ready(
    head: Projected,
    encoding: PositionalEncoding | None = None,
    positions: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Attended:
    """Attention over ready queries, keys and values."""
    q, k, v = (t[None, None] for t in head)
    outputs, weights = attention(
        q, k, v, encoding, where=positions, causal=causal, scale=scale, return_weights=True
    )
    return Attended(outputs[0, 0], weights[0, 0])


def learned_relative(max_distance: int) -> LearnedRelative:
    """One number an offset, as training would leave them: drawn from N(0, 1)."""
    encoding = LearnedRelative(1, max_distance).double().requires_grad_(False)
    encoding.table.copy_(drawn(*encoding.table.shape))
    return encoding


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors."""
    return (a - b).abs().max().item()
