"""Why measured speeds are not the expected ones: the kind of fault, its likely cause.

Speeds are radians a token by pair, in the order of the channels.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

CLOSE = 1e-4
"""How near a measured spectrum must be to that of a cause for it to be named, relative."""


@dataclass(frozen=True)
class Cause:
    """The kind of fault, in words, and what to do about it."""

    kind: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class Known:
    """What is known of the layer beside its speeds."""

    base: float | None
    rotary_dim: int
    head_dim: int
    plain: Sequence[float] | None
    """The spectrum without the config's scaling, where it has one."""
    others: dict[str, Sequence[float]]
    """Spectra that other layers of the model are to have, by what to call them."""
    farthest: int


def cause_of(got: Sequence[float], want: Sequence[float], known: Known) -> Cause:
    """The likeliest cause of got != want, which have the same pairs."""
    for test in (_unscaled, _turned_round, _cast, _of_others, _repeated, _geometric):
        found = test(got, want, known)
        if found is not None:
            return found
    wrong = sum(not _same([g], [w], known) for g, w in zip(got, want, strict=True))
    return Cause(
        "K02",
        f"{wrong} of {len(want)} pairs turn at another speed: a scaling whose numbers or whose "
        "ramp between bands differ from the config's",
        "compute the frequencies from the config's rope settings, every one of them",
    )


def _same(got: Sequence[float], want: Sequence[float], known: Known) -> bool:
    noise = 8e-7 / known.farthest
    return len(got) == len(want) and all(
        abs(g - w) <= CLOSE * abs(w) + noise for g, w in zip(got, want, strict=True)
    )


def _unscaled(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    if known.plain is None or not _same(got, known.plain, known):
        return None
    return Cause(
        "K02",
        "the rope scaling of the config has no effect: pairs turn as without it",
        "apply the scaling when the frequencies are made; check how its key is spelled and read",
    )


def _turned_round(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    if not _same([-g for g in got], want, known):
        return None
    return Cause(
        "K01",
        "pairs turn the other way: the sign of the sine, or the order within a pair, is wrong",
        "turn (u, v) to (u cos - v sin, u sin + v cos)",
    )


def _cast(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        cast = torch.tensor(want, dtype=torch.float32).to(dtype).double().tolist()
        step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        near = all(
            abs(g - w) <= 1.01 * step * abs(w) + 6e-8 for g, w in zip(got, want, strict=True)
        )
        if _same(got, cast, known) or (near and _is_of_type(got, dtype, known)):
            return Cause(
                "K06",
                f"the frequencies were rounded to {name}",
                "keep frequencies and angles in float32 or better, whatever the model's type",
            )
    return None


def _is_of_type(got: Sequence[float], dtype: torch.dtype, known: Known) -> bool:
    cast = torch.tensor(got, dtype=torch.float32).to(dtype).double().tolist()
    return all(
        abs(g - c) <= 1e-6 * abs(g) + 8e-7 / known.farthest for g, c in zip(got, cast, strict=True)
    )


def _of_others(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    for name, speeds in known.others.items():
        if _same(got, speeds, known):
            return Cause(
                "K02",
                f"the layer has the spectrum of {name}",
                "give each layer the rope settings of its own type",
            )
    return None


def _repeated(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    ratios = [g / w for g, w in zip(got, want, strict=True) if abs(w) * known.farthest > 0.1]
    if not ratios or max(ratios) - min(ratios) > 1e-3 * abs(ratios[0]):
        return None
    times = ratios[0]
    if abs(times - round(times)) < 1e-3 and 2 <= round(times) <= 4:
        return Cause(
            "K23",
            f"queries and keys are turned {round(times)} times",
            "turn them once: in the layer or before the cache, not in both",
        )
    return Cause(
        "K02",
        f"every pair turns {times:.6g} times as fast: positions or frequencies were multiplied",
        "apply the scaling factor of the config once, to the frequencies or the positions",
    )


def _geometric(got: Sequence[float], want: Sequence[float], known: Known) -> Cause | None:
    """Another base, or exponents that count in another width: both are geometric."""
    if len(got) < 2 or min(got) <= 0 or abs(got[0] - 1) > CLOSE:
        return None
    steps = [math.log(a / b) for a, b in itertools.pairwise(got)]
    step = steps[0]
    if step <= 0 or max(abs(s - step) for s in steps) > 1e-3 * step:
        return None
    if known.base is not None:
        width = 2 * math.log(known.base) / step
        plausible = {
            known.head_dim,
            2 * known.rotary_dim,
            known.rotary_dim // 2,
            known.rotary_dim - 2,
        }
        if abs(width - round(width)) < 1e-3 and round(width) in plausible - {known.rotary_dim}:
            return Cause(
                "K03",
                f"exponents count in a width of {round(width)} where {known.rotary_dim} channels "
                "turn",
                "divide the exponents by the rotary width, not by the head's",
            )
    # Tables in float32 tell a base to five digits or so.
    base = float(f"{math.exp(step * known.rotary_dim / 2):.5g}")
    return Cause(
        "K02",
        f"the base is {base:.15g}",
        "read the base from the config (rope_theta, or within rope_parameters) and use it",
    )
