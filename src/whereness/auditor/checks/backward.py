"""CHK18: the backward pass is the derivative of the forward pass, recomputed or not.

In float64, so that what rounds differently does not differ.
"""

import math
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.gradients import apart, gradient, trainable
from whereness.auditor.driving.probing import Bench, change, probed, teller
from whereness.auditor.driving.restore import written
from whereness.auditor.subject import Subject

CHECK = "CHK18"
LENGTH, BATCH = 7, 3
FEW_WEIGHTS, MOST_DIFFERENCES = 1_000_000, 24
"""Weights up to which gradients are held against differences, and of how many tensors."""
DIFFERENCE = 0.05
"""Part by which a gradient may be off; differences of a smooth function agree to 1e-6."""


def run(subject: Subject) -> None:
    """Look at gradients."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    tokens = bench.driver.sample(BATCH, LENGTH)
    _slopes(bench, tokens)
    _recomputed(bench, tokens)


def _slopes(bench: Bench, tokens: Tensor) -> None:
    """The backward pass is the derivative of the forward pass, weight by weight."""
    weights = {n: p for n, p in bench.model.named_parameters() if p.requires_grad and p.dim() >= 2}
    if (
        bench.slow
        or not bench.exact
        or not weights
        or sum(p.numel() for p in weights.values()) > FEW_WEIGHTS
    ):
        bench.not_checked(
            "the backward pass against differences: no float64, too many weights, or slow"
        )
        return
    chosen = dict(list(weights.items())[:MOST_DIFFERENCES])
    with bench.alone() as driver, torch.enable_grad():
        output = driver(tokens).output
        if not output.requires_grad:
            bench.not_checked("the backward pass: outputs are cut off from the weights")
            return
        generator = torch.Generator().manual_seed(0)
        factor = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
        grads = torch.autograd.grad(
            (output * factor).sum(), list(chosen.values()), allow_unused=True
        )
    worst, where = 0.0, ""
    for (name, weight), grad in zip(chosen.items(), grads, strict=True):
        gap = 0.0 if grad is None else _against_difference(bench, tokens, factor, weight, grad)
        if gap > worst:
            worst, where = gap, name
    bench.compared("backward against differences")
    if worst > DIFFERENCE:
        measured = f"{where}: the gradient is off by {worst:.0%} from a difference of two outputs"
        # Estimators of gradients by design are none either.
        _found(
            bench, measured, "the derivative of the forward pass", _BACKWARD, "warning", where=where
        )


def _against_difference(
    bench: Bench, tokens: Tensor, factor: Tensor, weight: Tensor, grad: Tensor
) -> float:
    """How far a gradient is from what two runs say, as a part; 0 where two steps do not agree."""
    generator = torch.Generator().manual_seed(1)
    way = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
    told = float((grad * way).sum())

    def loss(step: float) -> float:
        with written(weight):
            weight.data.add_(way, alpha=step)
            return float((bench.driver(tokens).output * factor).sum())

    # Norms that compute in float32 even here leave noise: a short step would measure that alone.
    # Weights may be all zeros, at the start.
    step = 1e-2 * (float(weight.std()) or 1.0)
    far, near = ((loss(s) - loss(-s)) / (2 * s) for s in (step, step / 4))
    size = float(grad.norm() * way.norm()) / max(1.0, weight.numel() ** 0.5)
    if abs(far - near) > 0.01 * max(abs(far), size):
        return 0.0  # a kink, a switch of experts, or float32 inside
    return abs(told - near) / max(abs(near), size, 1e-30) if math.isfinite(told) else math.inf


def _recomputed(bench: Bench, tokens: Tensor) -> None:
    """Activation checkpointing, with ids that are no arange: plain ones hide what is not passed."""
    model, driver = bench.model, bench.driver
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # new, old
    enable = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if not callable(enable) or not getattr(model, "supports_gradient_checkpointing", True):
        bench.not_checked("recomputation: the model has no switch for it")
        return
    given: dict[str, Any] = {}
    if driver.first is not None:
        ids = bench.natural(BATCH, LENGTH)
        given["positions"] = ids + (ids > ids[:, LENGTH // 2, None]) * 3
        given["mask"] = driver.ones(torch.ones_like(ids))
    weights = trainable(model)
    if not weights:
        bench.not_checked("recomputation: no weights are trained, or too many")
        return
    found = []
    for on in (False, True):
        with bench.alone():
            try:
                model.train()
                if on:
                    enable()
                torch.manual_seed(0)  # dropout
                with torch.enable_grad():
                    output = driver(tokens, **given).output
                    found.append((output.detach(), gradient(output, weights)))
            except (Refused, ValueError, RuntimeError, TypeError) as error:
                if not on:
                    bench.not_checked(f"recomputation: {error}")
                    return
                said = " ".join(str(error).split())[:200]
                _found(
                    bench, f"it raised {said}", "plain gradients", _RECOMPUTE, where="recomputation"
                )
                return
    bench.compared("recomputation")
    (output, slopes), (other, theirs) = found
    gap = max(change(other, output), apart(theirs, slopes))
    if not gap <= bench.tolerance:
        measured = f"outputs or gradients change by {gap:.1e}"
        _found(bench, measured, "plain gradients", _RECOMPUTE, where="recomputation")


_BACKWARD = (
    "A backward pass written by hand: the gradient is turned as the input was, or not at all.",
    "Turn gradients back by the same angles; check with torch.autograd.gradcheck.",
)
_RECOMPUTE = (
    "The recomputed layer gets other positions or tables than the first pass.",
    "Pass positions by keyword through the checkpoint, and tables as tensors.",
)


_found = teller("K21", "error")
