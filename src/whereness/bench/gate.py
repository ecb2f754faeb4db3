"""Correct first: what a contestant gives is compared with float64 before it is timed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whereness.bench.contest import Verdict

Output = Tensor | Sequence[Tensor]


def compare(
    output: Callable[[], Output], expected: Callable[[], Output], tolerance: float | Sequence[float]
) -> Callable[[], Verdict]:
    """A gate: every tensor of `output` is within its tolerance (absolute) of `expected`."""

    def gate() -> Verdict:
        found, wanted = _listed(output()), _listed(expected())
        if [t.shape for t in found] != [t.shape for t in wanted]:
            shapes = [tuple(t.shape) for t in found], [tuple(t.shape) for t in wanted]
            return Verdict(False, note=f"shapes {shapes[0]}, not {shapes[1]}")
        allowed = [tolerance] * len(found) if isinstance(tolerance, float) else list(tolerance)
        errors = [_distance(a, b) for a, b in zip(found, wanted, strict=True)]
        pairs = list(zip(errors, allowed, strict=True))
        error, bound = max(pairs, key=lambda pair: pair[0] / pair[1])
        # Not error > bound: a NaN must fail.
        return Verdict(all(e <= b for e, b in pairs), error, bound)

    return gate


def _listed(output: Output) -> list[Tensor]:
    tensors = [output] if isinstance(output, Tensor) else list(output)
    return [t.detach() for t in tensors]


def _distance(found: Tensor, wanted: Tensor) -> float:
    difference = (found.double() - wanted.double()).abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    return largest if torch.isfinite(difference).all() else float("inf")
