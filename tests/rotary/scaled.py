"""Scaled spectra pair by pair in mpmath, from the formulas of the literature; settings to try.

Nothing here calls our code but to make a scaling and to read its options.

Axes: P pairs. L original length, n length of a sequence, d rotated width, b base, s factor.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
from mpmath import mpf

import whereness as wn

S = wn.scaling


def plain(base: float, width: int) -> list[mpf]:
    """b^(-2k/d) of every pair."""
    return [mpf(base) ** (mpf(-2 * k) / width) for k in range(width // 2)]


def clipped(x: mpf) -> mpf:
    return min(max(x, mpf(0)), mpf(1))


def linear(given: S.Linear, base: float, width: int, n: int) -> list[mpf]:
    factor = given.factor
    if isinstance(factor, tuple):
        factor = min(f for f in factor if n <= mpf(f) * given.original_length)
    return [w / mpf(factor) for w in plain(base, width)]


def ntk(given: S.NTK, base: float, width: int, n: int) -> list[mpf]:
    s, d = mpf(given.factor), mpf(width)
    if given.school == "bloc97":
        return plain(mpf(base) * s ** (d / (d - 2)), width)
    if given.school == "kexue":
        return [w / s ** (2 * (k + 1) / d) for k, w in enumerate(plain(base, width))]
    a = mpmath.log(s) / (d / 2) ** mpf(given.mixed_b)
    return [
        w * mpmath.exp(-a * mpf(k + 1) ** mpf(given.mixed_b))
        for k, w in enumerate(plain(base, width))
    ]


def dynamic(given: S.DynamicNTK, base: float, width: int, n: int) -> list[mpf]:
    d, ratio = mpf(width), mpf(max(n, given.original_length)) / given.original_length
    if given.school == "huggingface":
        alpha = given.factor * ratio - (mpf(given.factor) - 1)
    else:
        doublings = 0  # the smallest number with 2^doublings >= ratio
        while 2**doublings < ratio:
            doublings += 1
        alpha = mpf(2) ** (doublings + 1) - 1
    return plain(mpf(base) * alpha ** (d / (d - 2)), width)


def by_parts(given: S.NTKByParts, base: float, width: int, n: int) -> list[mpf]:
    length, found = given.original_length, []
    for k, w in enumerate(plain(base, width)):
        if given.ramp == "paper":
            turns = length * w / (2 * mpmath.pi)
            keep = clipped((turns - mpf(given.alpha)) / (mpf(given.beta) - mpf(given.alpha)))
        else:
            keep = 1 - pair_ramp(given, base, width, k)
            keep *= mpf(given.extrapolation_factor)
        found.append(keep * w + (1 - keep) * w / mpf(given.factor))
    return found


def pair_ramp(given: S.NTKByParts, base: float, width: int, k: int) -> mpf:
    """0 up to the pair that turns beta_fast times within L, 1 from that with beta_slow turns."""
    low, high = (
        mpf(width) / 2 * mpmath.log(given.original_length / (2 * mpmath.pi * mpf(turns)), base)
        for turns in (given.beta_fast, given.beta_slow)
    )
    if given.truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low = max(low, 0)
    high = min(high, {"dim": width - 1, "pairs": width // 2 - 1}[given.clamp])
    if low >= high:  # no room for a ramp: a step
        return mpf(k > low)
    return clipped((k - low) / (high - low))


def llama3(given: S.Llama3, base: float, width: int, n: int) -> list[mpf]:
    found, length, s = [], given.original_length, mpf(given.factor)
    low, high = mpf(given.low_freq_factor), mpf(given.high_freq_factor)
    for w in plain(base, width):
        turns = length * w / (2 * mpmath.pi)
        if turns > high:
            found.append(w)
        elif turns < low:
            found.append(w / s)
        else:
            share = (turns - low) / (high - low)
            found.append((1 - share) * w / s + share * w)
    return found


def longrope(given: S.LongRoPE, base: float, width: int, n: int) -> list[mpf]:
    factors = given.short_factor if n <= given.original_length else given.long_factor
    return [w / mpf(f) for w, f in zip(plain(base, width), factors, strict=True)]


def proportional(given: S.Proportional, base: float, width: int, n: int) -> list[mpf]:
    share = mpmath.floor(mpf(given.fraction) * width / 2)
    turning = [w / mpf(given.factor) for w in plain(base, width)]
    return [w if k < share else mpf(0) for k, w in enumerate(turning)]


def hope(given: S.HoPE, base: float, width: int, n: int) -> list[mpf]:
    return [w if 2 * mpmath.pi / w <= given.original_length else mpf(0) for w in plain(base, width)]


def resonance(given: S.Resonance, base: float, width: int, n: int) -> list[mpf]:
    inner = plain(base, width) if given.scaling is None else exact(given.scaling, base, width, n)
    found = []
    for w in inner:
        wavelength = 2 * mpmath.pi / w if w else mpmath.inf
        kept = given.original_length is not None and wavelength > given.original_length
        still = w == 0
        found.append(w if kept or still else 2 * mpmath.pi / mpmath.nint(wavelength))
    return found


ORACLES: dict[type, Callable[..., list[mpf]]] = {
    S.Linear: linear,
    S.NTK: ntk,
    S.DynamicNTK: dynamic,
    S.NTKByParts: by_parts,
    S.YaRN: by_parts,
    S.Llama3: llama3,
    S.LongRoPE: longrope,
    S.Proportional: proportional,
    S.HoPE: hope,
    S.Resonance: resonance,
}


def exact(scaling: S.Scaling, base: float, width: int, n: int = 1) -> list[mpf]:
    """The frequencies of a sequence that reaches n tokens, 40 digits."""
    with mpmath.workdps(40):
        return ORACLES[type(scaling)](scaling, base, width, n)


@dataclass(frozen=True)
class Scaled:
    """One scaling for 4 pairs, the base it goes with."""

    name: str
    scaling: S.Scaling
    base: float = 100.0

    def __str__(self) -> str:
        return self.name

    def make(self, head_dim: int = 8, **options: object) -> wn.RoPE:
        return wn.RoPE(head_dim, self.base, scaling=self.scaling, **options)

    @property
    def by_length(self) -> bool:
        return self.scaling.needs_lengths


SHORT, LONG = (1.0, 1.5, 1.25, 2.0), (1.0, 2.5, 4.0, 7.0)
EVERY = [
    Scaled("linear", S.Linear(3.0)),
    Scaled("linear-several", S.Linear((1.0, 2.0, 4.0), 8)),
    Scaled("ntk", S.NTK(4.0)),
    Scaled("ntk-kexue", S.NTK(4.0, "kexue")),
    Scaled("ntk-mixed", S.NTK(4.0, "mixed", 0.625)),
    Scaled("dynamic", S.DynamicNTK(2.0, 8)),
    Scaled("dynamic-qwen", S.DynamicNTK(None, 8, "qwen")),
    Scaled("by-parts", S.NTKByParts(4.0, 64, beta_fast=8.0)),
    Scaled("by-parts-paper", S.NTKByParts(4.0, 64, ramp="paper", beta=8.0)),
    Scaled("yarn", S.YaRN(4.0, 64, beta_fast=8.0)),
    Scaled("yarn-paper", S.YaRN(4.0, 64, ramp="paper", beta=8.0, mscale=0.7)),
    Scaled("yarn-huggingface", S.YaRN(40.0, 512, school="huggingface", mscale=1.0)),
    Scaled(
        "yarn-deepseek",
        S.YaRN(40.0, 64, truncate=False, school="deepseek", mscale=1.0, mscale_all_dim=0.7),
    ),
    Scaled("yarn-logits", S.YaRN(4.0, 64, clamp="pairs", placement="logits")),
    Scaled("llama3", S.Llama3(8.0, 1.0, 4.0, 100)),
    Scaled("longrope", S.LongRoPE(SHORT, LONG, 8, factor=4.0)),
    Scaled("longrope-mscales", S.LongRoPE(SHORT, LONG, 8, short_mscale=1.1, long_mscale=1.4)),
    Scaled("proportional", S.Proportional(0.5, 1.5)),
    Scaled("hope", S.HoPE(100)),
    Scaled("resonance", S.Resonance()),
    Scaled("resonance-yarn", S.Resonance(S.YaRN(4.0, 64, beta_fast=8.0), "pre_critical", 64)),
    Scaled("resonance-dynamic", S.Resonance(S.DynamicNTK(2.0, 8))),
    Scaled("resonance-longrope", S.Resonance(S.LongRoPE(SHORT, LONG, 8, 4.0))),
]
BY_LENGTH = [setting for setting in EVERY if setting.by_length]
assert {type(s.scaling) for s in EVERY} == set(ORACLES)
