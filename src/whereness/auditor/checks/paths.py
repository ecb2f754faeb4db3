"""CHK18: every way through the model gives the same: eager, fused and recomputed attention.

Forward and backward, other strides, axes of size 1, and inputs that nobody writes into. In float64,
so that paths that round differently do not differ.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.drive import Refused
from whereness.auditor.probing import Bench, change, probed
from whereness.auditor.subject import Subject

CHECK = "CHK18"
LENGTH, BATCH = 7, 3
MOST_WEIGHTS = 20_000_000
"""Weights up to which gradients are compared."""


def run(subject: Subject) -> None:
    """Look at the paths through the model."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    tokens = driver.sample(BATCH, LENGTH)
    plain = bench.run(tokens)
    _inputs(bench, tokens)
    if driver.takes != "pixels":
        _shapes(bench, tokens, plain)
    _implementations(bench, tokens)
    _recomputed(bench, tokens)


def _inputs(bench: Bench, tokens: Tensor) -> None:
    """The model writes into nothing that it is given."""
    driver = bench.driver
    given: dict[str, Tensor] = {"tokens": tokens.clone()}
    if driver.first is not None:
        given["positions"] = bench.natural(BATCH, LENGTH)
    if driver.mask is not None and driver.takes != "pixels":
        given["mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long, device=driver.device)
    before = {name: value.clone() for name, value in given.items()}
    bench.run(given["tokens"], **{n: v for n, v in given.items() if n != "tokens"})
    bench.compared("inputs unmodified")
    for name, value in given.items():
        if not torch.equal(value, before[name]):
            _found(bench, f"the {name} given", "were overwritten", "inputs unchanged", _IN_PLACE)


def _shapes(bench: Bench, tokens: Tensor, plain: Tensor) -> None:
    """One row, one token, and tokens that are not contiguous."""
    driver = bench.driver
    wide = torch.stack([tokens, tokens.flip(0)], 2)[:, :, 0]
    runs = {"other strides": (wide, plain), "one row": (tokens[:1], plain[:1])}
    for name, (given, expected) in runs.items():
        try:
            got = bench.run(given)
        except Refused as error:
            _found(bench, name, f"the model raised {error}", "the same output", _STRIDES)
            continue
        if bench.differ(got, expected):
            gap = change(got, expected)
            _found(bench, name, f"the output changes by {gap:.1e}", "the same output", _STRIDES)
    try:
        single = bench.run(tokens[:, :1])
        if driver.mask is not None and not driver.decodes:
            mask = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=driver.device)
            mask[:, 0] = 1
            among = bench.run(tokens, mask=mask)[:, :1]
            if among.isfinite().all() and bench.differ(single, among):
                gap = change(single, among)
                _found(
                    bench,
                    "one token",
                    f"the output changes by {gap:.1e}",
                    "that among pads",
                    _STRIDES,
                )
    except Refused:
        pass
    bench.compared("shapes")


def _implementations(bench: Bench, tokens: Tensor) -> None:
    """Attention by every implementation that the model can be switched to."""
    ways = dict(_switches(bench))
    if len(ways) < 2:
        bench.not_checked("eager against fused attention: the model cannot be switched")
        return
    found, why = {}, ""
    for name, switch in ways.items():
        with bench.alone():
            try:
                switch()
                found[name] = _both(bench, tokens)
            except (Refused, ValueError, ImportError, RuntimeError) as error:
                why = f"{name}: {error}"
    if len(found) < 2:
        bench.not_checked(f"eager against fused attention: {why}")
        return
    bench.compared("paths")
    (first, (output, slopes)), *others = found.items()
    for name, (other, theirs) in others:
        if bench.differ(other, output):
            measured = f"the output changes by {change(other, output):.1e}"
            _found(bench, f"{name} attention", measured, f"the output of {first}", _KERNEL)
        elif slopes is not None and theirs is not None and not _near(bench, theirs, slopes):
            measured = f"gradients change by {_gap(theirs, slopes):.1e} of the largest"
            _found(bench, f"{name} attention", measured, f"the gradients of {first}", _KERNEL)


def _switches(bench: Bench) -> Iterator[tuple[str, Callable[[], None]]]:
    """Ways to compute attention, by name."""
    config = bench.driver.config
    if hasattr(config, "_attn_implementation"):
        for name in ("eager", "sdpa"):
            yield name, lambda name=name: _set(bench, name)
    layers = [m for m in bench.model.modules() if isinstance(m, _torch_layers())]
    if layers:
        for name, on in (("plain", False), ("fast path", True)):
            yield name, lambda on=on: torch.backends.mha.set_fastpath_enabled(on)
    own = [m for m in bench.model.modules() if hasattr(m, "implementation")]
    if own and type(own[0]).__module__.startswith("whereness."):
        for name in ("reference", "auto"):
            yield name, lambda name=name: [setattr(m, "implementation", name) for m in own] and None


def _torch_layers() -> tuple[type, ...]:
    from torch import nn

    return (nn.TransformerEncoderLayer, nn.MultiheadAttention)


def _set(bench: Bench, name: str) -> None:
    """Switch a Hugging Face model by its own method, which says if it cannot."""
    switch = getattr(bench.model, "set_attn_implementation", None)
    if not callable(switch):
        raise ValueError("the model has no switch")  # noqa: TRY004
    for module in bench.model.modules():
        supported = getattr(module, f"_supports_{name}", True)
        if supported is False:
            raise ValueError(f"the model does not support {name}")
    switch(name)


def _both(bench: Bench, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Output, and the gradient of the largest few weights."""
    driver = bench.driver
    weights = [p for p in bench.model.parameters() if p.requires_grad and p.is_floating_point()]
    if sum(p.numel() for p in weights) > MOST_WEIGHTS or not weights:
        return driver(tokens).output, None
    with torch.enable_grad():
        output = driver(tokens).output
        if not output.requires_grad:
            return output, None
        grads = torch.autograd.grad(output.sin().sum(), weights, allow_unused=True)
    slopes = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)]
    return output.detach(), torch.cat([g.flatten() for g in slopes])


def _recomputed(bench: Bench, tokens: Tensor) -> None:
    """Activation checkpointing, with ids that are no arange: plain ones hide what is not passed."""
    model, driver = bench.model, bench.driver
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if not callable(enable) or not getattr(model, "supports_gradient_checkpointing", True):
        bench.not_checked("recomputation: the model has no switch for it")
        return
    given: dict[str, Any] = {}
    if driver.first is not None:
        ids = bench.natural(BATCH, LENGTH)
        given["positions"] = ids + (ids > ids[:, LENGTH // 2, None]) * 3
        given["mask"] = driver.ones(torch.ones_like(ids))
    weights = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    if not weights or sum(p.numel() for p in weights) > MOST_WEIGHTS:
        return
    found = []
    for on in (False, True):
        with bench.alone():
            try:
                with contextlib.ExitStack() as stack:
                    model.train()
                    if on:
                        enable()
                    torch.manual_seed(0)  # dropout
                    stack.enter_context(torch.enable_grad())
                    output = driver(tokens, **given).output
                    grads = torch.autograd.grad(output.sin().sum(), weights, allow_unused=True)
            except (Refused, ValueError, RuntimeError, TypeError) as error:
                if not on:
                    bench.not_checked(f"recomputation: {error}")
                    return
                said = " ".join(str(error).split())[:200]
                _found(bench, "recomputation", f"it raised {said}", "plain gradients", _RECOMPUTE)
                return
        kept = [
            torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)
        ]
        found.append((output.detach(), torch.cat([g.flatten() for g in kept])))
    bench.compared("recomputation")
    (output, slopes), (other, theirs) = found
    gap = max(change(other, output), _gap(theirs, slopes))
    if not gap <= bench.tolerance:
        measured = f"outputs or gradients change by {gap:.1e}"
        _found(bench, "recomputation", measured, "plain gradients", _RECOMPUTE)


def _gap(a: Tensor, b: Tensor) -> float:
    """How far apart two gradients are, of the largest: small ones are sums that cancel."""
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def _near(bench: Bench, a: Tensor, b: Tensor) -> bool:
    return _gap(a, b) <= bench.tolerance


_IN_PLACE = (
    "A rotation or a shift of ids writes into its input.",
    "Work out of place unless asked; a recomputed layer reads its inputs again.",
)
_STRIDES = (
    "An axis is guessed from its size, or a kernel takes every input for contiguous.",
    "Name the axes, and read strides.",
)
_KERNEL = (
    "One of the two paths has another mask, scale or table.",
    "Give both paths the same resolved settings and compare them in float64.",
)
_RECOMPUTE = (
    "The recomputed layer gets other positions or tables than the first pass.",
    "Pass positions by keyword through the checkpoint, and tables as tensors.",
)


def _found(bench: Bench, where: str, measured: str, expected: str, why: tuple[str, str]) -> None:
    bench.found(
        "K21",
        "error",
        expected=expected,
        measured=measured,
        cause=why[0],
        remedy=why[1],
        where=where,
    )
