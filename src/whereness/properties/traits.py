"""Traits of an encoding, measured: what it does decides, not what it declares about itself.

Everything is measured in float64 on a copy whose parameters were moved at random, so that a
learned encoding that starts at a constant shows its family's nature.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whereness.encoding import PositionalEncoding, Site
from whereness.properties.doors import Passage, exact_copy, sizes, through, with_tokens
from whereness.properties.probes import (
    axes_of,
    first_defined,
    is_defined,
    scattered,
    where_of,
)

SHIFTS = (1, 7, 1000, 100_000)
"""Above every threshold that an encoding may have (buckets, clips, normalisers)."""
BASES = tuple(
    torch.tensor(p)
    for p in ((0, 1, 2, 3, 5, 17, 40, 130, 600), (0, 1, 2, 3, 5), (0, 1, 2), (0, 1), (0,))
)
"""Positions to start from, far ones first; the first that the encoding takes are used."""
FAR = (2**24, 2**53)
"""An encoding that takes these takes any position."""
SAME = 1e-8
"""Relative difference up to which two float64 results count as the same."""
MOVED = 0.3
"""Spread of the random change of parameters."""


@dataclass(frozen=True)
class Traits:
    """What was measured; the meaning of each is that of the attribute of `PositionalEncoding`."""

    doors: tuple[int, ...]
    site: Site | None
    reads: Literal["positions", "order", "nothing"]
    relative: bool
    unbounded: bool
    content_aware: bool
    cacheable: bool
    learned: bool
    norm_preserving: bool | None
    """Door 3 keeps the length of queries and keys; None where door 3 is shut."""


def measured_traits(encoding: PositionalEncoding, seed: int = 0) -> Traits:
    """Measure all traits of `encoding`, which is left as it is."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        moved = moved_copy(encoding)
        return Traits(
            doors=doors(moved),
            site=site(moved),
            reads=reads(moved),
            relative=is_relative(moved),
            unbounded=is_unbounded(moved),
            content_aware=is_content_aware(moved),
            cacheable=is_cacheable(moved),
            learned=is_learned(moved),
            norm_preserving=is_norm_preserving(moved),
        )


def moved_copy(encoding: PositionalEncoding, spread: float = MOVED) -> PositionalEncoding:
    """A float64 copy whose parameters were moved at random."""
    copy = exact_copy(encoding)
    for parameter in copy.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn_like(parameter) * spread)
    return copy


def site(encoding: PositionalEncoding) -> Site | None:
    """Where Π joins X, by what changes.

    "tokens" if tokens() changes them, "every_layer" if inputs() changes what the values read,
    "queries_keys" if it changes what the queries read and not the values.
    """
    positions = _start(encoding)
    x = _tokens(encoding, len(positions))
    at = encoding.prepare(where_of(encoding, positions))
    if _differ(encoding.tokens(x, at), x):
        return "tokens"
    x_q, _, x_v = encoding.inputs(x, x, at)
    if _differ(x_v, x):
        return "every_layer"
    return "queries_keys" if _differ(x_q, x) else None


def doors(encoding: PositionalEncoding) -> tuple[int, ...]:
    """The doors at which something changes.

    Tokens (1), only what queries and keys read (2), queries or keys (3), logits or weights (4),
    values or outputs (5).
    """
    passage = _pass(encoding, _start(encoding))
    before, after = passage.before, passage.after
    changed = {
        name
        for name in ("q", "k", "logits", "weights", "v", "out")
        if _differ(before[name], after[name])
    }
    joins = site(encoding)
    opened = {
        1: joins in ("tokens", "every_layer"),
        2: joins == "queries_keys",
        3: bool(changed & {"q", "k"}),
        4: bool(changed & {"logits", "weights"}),
        5: bool(changed & {"v", "out"}),
    }
    return tuple(door for door, is_open in opened.items() if is_open)


def reads(encoding: PositionalEncoding) -> Literal["positions", "order", "nothing"]:
    """What a token's output depends on beside content.

    "positions" if other position ids change it; else "order" if the last token of a causal layer
    sees a difference when earlier tokens change places; else "nothing".
    """
    positions = _start(encoding)
    length = len(positions)
    x = _tokens(encoding, length)
    still = _seen(encoding, x, positions)
    for other in (positions.flip(0), positions.roll(1, 0)):
        moved = _seen(encoding, x, other)
        if not all(_same(a, b) for a, b in zip(still, moved, strict=True)):
            return "positions"
    last = _last(encoding, x, positions)
    order = torch.cat([torch.arange(length - 1).flip(0), torch.tensor([length - 1])])
    return "nothing" if _same(_last(encoding, x[:, order], positions), last) else "order"


def is_relative(encoding: PositionalEncoding) -> bool:
    """Moving all positions by the same number, on any axis, changes nothing.

    Neither what a layer sees nor what it gives, for every shift of SHIFTS that the encoding takes,
    one at least.
    """
    positions = first_defined(encoding, BASES, shift=1)
    if positions is None:
        return False
    x = _tokens(encoding, len(positions))
    still = _seen(encoding, x, positions)
    for shift in SHIFTS:
        for moved in _shifts(encoding, positions, shift):
            if is_defined(encoding, moved) and not all(
                _same(a, b) for a, b in zip(still, _seen(encoding, x, moved), strict=True)
            ):
                return False
    return True


def is_unbounded(encoding: PositionalEncoding) -> bool:
    """Defined and finite at any position: measured at 2^24 and 2^62, beside position 0."""
    return all(is_defined(encoding, scattered(encoding, torch.tensor([0, 1, far]))) for far in FAR)


def is_content_aware(encoding: PositionalEncoding) -> bool:
    """What door 4 does depends on the tokens.

    For two contents it neither adds the same to the logits (or weights) nor multiplies them by the
    same.
    """
    if len(encoding.members()) > 1:  # one member may add and another multiply
        return any(is_content_aware(member) for member in encoding.members())
    positions = _start(encoding)
    one, two = (_pass(encoding, positions) for _ in range(2))
    for stage in ("logits", "weights"):
        a, b = one.before[stage], one.after[stage]
        c, d = two.before[stage], two.after[stage]
        if not _same(b - a, d - c) and not _same(b * c, d * a):
            return True
    return False


def is_cacheable(encoding: PositionalEncoding) -> bool:
    """Keys and values that have been through doors 3 and 5 stay as they are when tokens come."""
    positions = _start(encoding)
    few = len(positions) - 1
    if few < 1:
        return True
    x = _tokens(encoding, len(positions))
    length = len(positions)  # the same final length for both: that is what `lengths` is for
    shorter = through(
        encoding, x[:, :few], where_of(encoding, positions[:few], length), causal=True
    )
    longer = through(encoding, x, where_of(encoding, positions, length), causal=True)
    return all(_same(longer.after[name][:, :, :few], shorter.after[name]) for name in ("k", "v"))


def is_learned(encoding: PositionalEncoding) -> bool:
    """Moving the parameters changes what the encoding does."""
    positions = _start(encoding)
    x = _tokens(encoding, len(positions))
    a, b = _seen(encoding, x, positions), _seen(moved_copy(encoding), x, positions)
    return not all(_same(p, q) for p, q in zip(a, b, strict=True))


def is_norm_preserving(encoding: PositionalEncoding) -> bool | None:
    """Door 3 keeps the length of every query and key; None where door 3 is shut."""
    passage = _pass(encoding, _start(encoding))
    if not any(_differ(passage.before[name], passage.after[name]) for name in ("q", "k")):
        return None
    return all(
        _same(passage.before[name].norm(dim=-1), passage.after[name].norm(dim=-1))
        for name in ("q", "k")
    )


def _start(encoding: PositionalEncoding) -> Tensor:
    """Scattered positions that the encoding takes.

    Raises:
        ValueError: it does not even take position 0.
    """
    positions = first_defined(encoding, BASES)
    if positions is None:
        raise ValueError(f"{type(encoding).__name__} takes no position, not even 0.")
    return positions


def _tokens(encoding: PositionalEncoding, length: int) -> Tensor:
    """Gaussian tokens with q.k of about 1: larger ones let softmax hide all keys but the own."""
    s = sizes(encoding)
    return torch.randn(1, length, s.dim, dtype=torch.float64) * s.head_dim**-0.5


def _pass(encoding: PositionalEncoding, positions: Tensor) -> Passage:
    x = _tokens(encoding, len(positions))
    return through(encoding, x, where_of(encoding, positions))


def _seen(encoding: PositionalEncoding, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    """Tokens after door 1, visible logits and output of a layer."""
    where = where_of(encoding, positions)
    passage = through(encoding, x, where)
    joined = with_tokens(encoding, x, where)
    return joined, passage.after["logits"][passage.allowed], passage.out


def _last(encoding: PositionalEncoding, x: Tensor, positions: Tensor) -> Tensor:
    return through(encoding, x, where_of(encoding, positions), causal=True).out[:, -1]


def _shifts(encoding: PositionalEncoding, positions: Tensor, shift: int) -> list[Tensor]:
    """All tokens moved by `shift`, on every axis together and on each alone."""
    n = axes_of(encoding)
    if n == 1:
        return [positions + shift]
    alone = torch.eye(n, dtype=positions.dtype) * shift
    return [positions + shift, *(positions + row for row in alone)]


def _differ(a: Tensor, b: Tensor) -> bool:
    return a.shape != b.shape or not torch.equal(a, b)


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    size = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return bool(((a - b).abs() <= SAME * size).all())
