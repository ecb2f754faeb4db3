"""Where offsets of positions are offsets of slots: found by a look at S + T numbers, or known.

Documents that lie in one piece each and pads at either end leave every query one unbroken run of
keys that it may see. Counted from 0 in each document, or from the first real token, positions there
differ as slots do: a bias by offset is one strip of numbers.

Axes: B batch, S queries, T keys.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whereness.where import Where, is_nowhere


class Span(NamedTuple):
    """Queries and the one run of keys that they may see, causality and windows apart."""

    sequence: int | None
    """Row of the batch; None: all of them."""
    queries: tuple[int, int]
    keys: tuple[int, int]
    placed: bool
    """Whether these queries have a place: without one no bias is added."""


@dataclass(frozen=True)
class Alignment:
    """k_positions[j] - q_positions[i] = j - i + shift for every pair that may see each other."""

    shift: int
    spans: tuple[Span, ...] | None
    """All that see anything; None: key_mask and segments must say."""
    all_placed: bool = True
    reach: tuple[int, int] | None = None
    """Least and greatest j - i of placed tokens that may see each other; None: of all pairs."""


class Run(NamedTuple):
    """Tokens of one kind in a row, each one position after the one before."""

    sequence: int
    start: int
    stop: int
    segment: int
    shown: bool
    placed: bool
    first: int


def aligned(where: Where) -> Alignment | None:
    """How positions follow slots; None: they do not, or a look would be a host sync."""
    queries, keys = where.num_queries, where.num_keys
    found = None
    if where.regular and where.key_mask is None and where.segments is None:
        found = (Span(None, (0, queries), (0, keys), True),)
    elif where.num_axes == 1:
        looked = _look(where)
        if not where.regular:
            return looked
        if looked is not None and looked.shift == queries - keys:
            return looked
    # Built so: the last position of the queries is that of the keys.
    return Alignment(queries - keys, found) if where.regular else None


def _look(where: Where) -> Alignment | None:
    if torch.compiler.is_compiling() or not all(may_look(t) for t in where.tensors().values()):
        return None
    if where.positions.is_floating_point() or where.keys.is_floating_point():
        return None
    q_runs = _runs(where.positions, where.segments, None)
    k_runs = _runs(where.keys, where.key_segments, where.key_mask)
    if q_runs is None or k_runs is None:
        return None
    return _matched(q_runs, k_runs)


def may_look(x: Tensor) -> bool:
    """Values can be read without waiting for a device, and are values."""
    plain = type(x) is Tensor or type(x) is torch.nn.Parameter
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[missing-attribute] # noqa: SLF001
    return plain and x.device.type == "cpu" and not wrapped


def _runs(
    positions: Tensor, segments: Tensor | None, shown: Tensor | None
) -> dict[int, list[Run]] | None:
    """Runs of every sequence; None: there are none, or so many that each is but a few tokens."""
    placed = ~is_nowhere(positions)
    kinds = [positions, placed]
    kinds.append(torch.zeros_like(positions) if segments is None else segments)
    kinds.append(torch.ones_like(placed) if shown is None else shown)
    positions, placed, segments, shown = torch.broadcast_tensors(*kinds)
    begins = torch.ones_like(placed)
    # Where there is no place, all positions are the same number: a step of 0.
    step = positions[:, 1:] - positions[:, :-1]
    begins[:, 1:] = (
        (step != placed[:, 1:])
        | (placed[:, 1:] != placed[:, :-1])
        | (segments[:, 1:] != segments[:, :-1])
        | (shown[:, 1:] != shown[:, :-1])
    )
    row, start = begins.nonzero(as_tuple=True)
    if type(row) is not Tensor or not 0 < len(row) <= 64 + begins.numel() // 16:
        return None
    columns = (row, start, *(t[row, start] for t in (segments, shown, placed, positions)))
    numbers = [c.tolist() for c in columns]
    found: dict[int, list[Run]] = {}
    for n, (sequence, first) in enumerate(zip(numbers[0], numbers[1], strict=True)):
        last = n + 1 == len(numbers[0]) or numbers[0][n + 1] != sequence
        stop = begins.shape[1] if last else numbers[1][n + 1]
        run = Run(sequence, first, stop, *(c[n] for c in numbers[2:]))
        found.setdefault(sequence, []).append(run)
    return found


def _matched(q_runs: dict[int, list[Run]], k_runs: dict[int, list[Run]]) -> Alignment | None:
    spans, shifts, all_placed = [], set(), True
    sequences = max(len(q_runs), len(k_runs))
    for b in range(sequences):
        visible: dict[int, list[Run]] = {}
        for run in k_runs[b if len(k_runs) > 1 else 0]:
            all_placed &= run.placed
            if run.shown:
                visible.setdefault(run.segment, []).append(run)
        for run in q_runs[b if len(q_runs) > 1 else 0]:
            all_placed &= run.placed
            keys = visible.get(run.segment, [])
            if not keys:
                continue
            if len(keys) > 1 or (run.placed and not keys[0].placed):
                return None
            if run.placed:
                shifts.add((keys[0].first - keys[0].start) - (run.first - run.start))
            ends = (run.start, run.stop), (keys[0].start, keys[0].stop)
            spans.append(Span(None if sequences == 1 else b, *ends, run.placed))
    if len(shifts) > 1:
        return None
    placed = [s for s in spans if s.placed]
    least = min((s.keys[0] - s.queries[1] + 1 for s in placed), default=0)
    greatest = max((s.keys[1] - 1 - s.queries[0] for s in placed), default=0)
    shift = shifts.pop() if shifts else 0
    return Alignment(shift, tuple(spans), all_placed, (least, greatest))
