"""CHK18: every way through the model gives the same: eager and fused attention, training mode.

Forward and backward, other strides, axes of size 1, and inputs that nobody writes into. In float64,
so that paths that round differently do not differ. The backward pass by itself: `checks.backward`.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from whereness.auditor.checks.masks import sight
from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.gradients import apart, gradient, trainable
from whereness.auditor.driving.probing import Bench, change, probed, teller
from whereness.auditor.subject import Subject

CHECK = "CHK18"
LENGTH, BATCH = 7, 3
LONGEST = 9


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
        _sizes(bench)
    _trained(bench, tokens, plain)
    _implementations(bench, tokens)


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
            _found(
                bench, "were overwritten", "inputs unchanged", _IN_PLACE, where=f"the {name} given"
            )


def _shapes(bench: Bench, tokens: Tensor, plain: Tensor) -> None:
    """One row, one token, and tokens that are not contiguous."""
    driver = bench.driver
    wide = torch.stack([tokens, tokens.flip(0)], 2)[:, :, 0]
    if driver.first is not None:
        ids = bench.natural(BATCH, LENGTH)
        ids[1] += 1  # rows that differ, or wrong strides would read the same
        mask = driver.ones(torch.ones_like(ids))
        other = ids.T.contiguous().T
        got, right = (bench.run(tokens, positions=i, mask=mask) for i in (other, ids))
        warped = ids * 2 - ids[:, :1]
        got2, right2 = (
            bench.run(tokens, positions=i, mask=mask) for i in (warped.T.contiguous().T, warped)
        )
        gap = max(change(got, right), change(got2, right2))
        if not gap <= bench.tolerance:
            measured = f"the output changes by {gap:.1e}"
            _found(bench, measured, "the same output", _STRIDES, where="ids of other strides")
    runs = {"other strides": (wide, plain), "one row": (tokens[:1], plain[:1])}
    for name, (given, expected) in runs.items():
        try:
            got = bench.run(given)
        except Refused as error:
            _found(bench, f"the model raised {error}", "the same output", _STRIDES, where=name)
            continue
        if bench.differ(got, expected):
            gap = change(got, expected)
            _found(
                bench, f"the output changes by {gap:.1e}", "the same output", _STRIDES, where=name
            )
    try:
        single = bench.run(tokens[:, :1])
        if driver.mask is not None and not driver.decodes and bench.mixes is False:
            mask = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=driver.device)
            mask[:, 0] = 1
            among = bench.run(tokens, mask=mask)[:, :1]
            if among.isfinite().all() and bench.differ(single, among):
                gap = change(single, among)
                _found(
                    bench,
                    f"the output changes by {gap:.1e}",
                    "that among pads",
                    _STRIDES,
                    where="one token",
                )
    except Refused:
        pass
    bench.compared("shapes")


def _sizes(bench: Bench) -> None:
    """As many tokens as heads or rows: a causal model gives the start of a longer run."""
    if bench.slow or not sight(bench).causal:
        return
    tokens = bench.driver.sample(1, LONGEST)
    whole = bench.run(tokens)
    gaps = {n: change(bench.run(tokens[:, :n]), whole[:, :n]) for n in range(2, LONGEST)}
    wrong = {n: gap for n, gap in gaps.items() if not gap <= bench.tolerance}
    bench.compared("numbers of tokens")
    # If most are wrong it is no axis: what is true of later tokens is seen by earlier ones.
    if wrong and len(wrong) <= 2:
        measured = ", ".join(f"{n} tokens {gap:.1e}" for n, gap in wrong.items())
        _found(
            bench,
            f"change of the output: {measured}",
            "that of other sizes",
            _STRIDES,
            where="equal sizes",
        )


def _trained(bench: Bench, tokens: Tensor, plain: Tensor) -> None:
    """Training mode without dropout is no other model."""
    norms = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
    if any(isinstance(m, norms) for m in bench.model.modules()):
        return
    outputs = []
    for seed in (0, 1):
        with bench.alone() as driver:
            bench.model.train()
            for module in bench.model.modules():
                for name, value in list(vars(module).items()):
                    if isinstance(value, float) and ("drop" in name or name == "p"):
                        setattr(module, name, 0.0)
            torch.manual_seed(seed)
            try:
                outputs.append(driver(tokens).output)
            except Refused:
                return
    if bench.differ(outputs[0], outputs[1]):
        return  # something is still random: nothing can be said
    bench.compared("training mode")
    if bench.differ(outputs[0], plain):
        measured = f"the output changes by {change(outputs[0], plain):.1e}, dropout being off"
        _found(bench, measured, "the output of eval mode", _KERNEL, where="training mode")


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
            _found(bench, measured, f"the output of {first}", _KERNEL, where=f"{name} attention")
        elif (
            slopes is not None
            and theirs is not None
            and not apart(theirs, slopes) <= bench.tolerance
        ):
            measured = f"gradients change by {apart(theirs, slopes):.1e} of the largest"
            _found(bench, measured, f"the gradients of {first}", _KERNEL, where=f"{name} attention")


def _switches(bench: Bench) -> Iterator[tuple[str, Callable[[], None]]]:
    """Ways to compute attention, by name."""
    config = bench.driver.config
    if hasattr(config, "_attn_implementation"):
        for name in ("eager", "sdpa"):
            yield name, lambda name=name: _set(bench, name)
    layers = [
        m
        for m in bench.model.modules()
        if isinstance(m, (nn.TransformerEncoderLayer, nn.MultiheadAttention))
    ]
    if layers:
        for name, on in (("plain", False), ("fast path", True)):
            yield name, lambda on=on: torch.backends.mha.set_fastpath_enabled(on)
    own = [m for m in bench.model.modules() if hasattr(m, "implementation")]
    if own and type(own[0]).__module__.startswith("whereness."):
        for name in ("reference", "auto"):
            yield name, lambda name=name: _implement(own, name)


def _implement(layers: list[nn.Module], name: str) -> None:
    """Switch this library's own layers."""
    for layer in layers:
        layer.implementation = name  # type: ignore[assignment]


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
    """Output, and the gradient of all weights where they are few enough."""
    driver = bench.driver
    weights = trainable(bench.model)
    if not weights:
        return driver(tokens).output, None
    with torch.enable_grad():
        output = driver(tokens).output
        if not output.requires_grad:
            return output, None
        return output.detach(), gradient(output, weights)


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


_found = teller("K21", "error")
