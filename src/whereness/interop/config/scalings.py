"""A rope dict's scaling, as the spec of a `wn.scaling` object.

Every option is read by name; what a scaling needs and the dict does not say is derived as Hugging
Face derives it, and told, or refused.
"""

import math
from collections.abc import Callable
from typing import Any

from whereness.interop.config.keys import (
    ConfigError,
    Reading,
    boolean,
    integer,
    listed,
    number,
    shown,
)
from whereness.interop.config.specs import Spec, spec
from whereness.interop.families import Family

LENGTH = "max_position_embeddings"
ORIGINAL = "original_max_position_embeddings"


class Rope:
    """One rope dict, with the config around it."""

    def __init__(
        self,
        reading: Reading,
        family: Family,
        name: str,
        keys: dict[str, Any],
        pairs: int,
        *,
        flat: bool = True,
    ) -> None:
        self.reading, self.family, self.path, self.keys = reading, family, name, keys
        self.pairs, self.flat = pairs, flat

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else self.reading.name(key)

    def number(self, key: str, above: float | None = 0.0) -> float | None:
        value = self.keys.get(key)
        return None if value is None else number(self.name(key), value, above)

    def needed(self, key: str, kind: str) -> float:
        found = self.number(key)
        if found is None:
            raise ValueError(f"{self.name(key)} is missing: rope_type {kind!r} needs it.")
        return found

    def length(self) -> int | None:
        """The length that the model reaches, as the config says."""
        return self.reading.whole(self.family.num_positions)

    def original(self, kind: str) -> int:
        """The length of pre-training."""
        nested, top = self.keys.get(ORIGINAL), self.reading.explicit(ORIGINAL)
        found = None if nested is None else integer(self.name(ORIGINAL), nested)
        if top is not None:
            outer = integer(self.reading.name(ORIGINAL), top)
            if found is not None and outer != found:
                raise ConfigError(
                    f"{self.name(ORIGINAL)} = {found} and {self.reading.name(ORIGINAL)} = {outer} "
                    "differ. Keep the length of pre-training.",
                    "K02",
                )
            found = outer
        default = self.reading.get(ORIGINAL) if top is None else None
        if default is not None:
            found = self._before_default(found, integer(self.reading.name(ORIGINAL), default))
        if found is not None:
            return found
        length = self.length()
        if length is None:
            raise ValueError(
                f"rope_type {kind!r} needs {self.name(ORIGINAL)}, the length of pre-training: got "
                f"neither it nor {self.reading.name(LENGTH)}."
            )
        self.reading.notice(
            f"{self.name(ORIGINAL)} is missing: {self.reading.name(LENGTH)} = {length} is taken "
            "for the length of pre-training, as Hugging Face does.",
            "K22",
        )
        return length

    def _before_default(self, found: int | None, default: int) -> int:
        """The length given, before the default that the config's class has at the top."""
        if found is None:
            self.reading.notice(
                f"{self.name(ORIGINAL)} is missing: {default} is taken, the default of this "
                "family's own code.",
                "K02",
                "note",
            )
            return default
        if found != default and self.flat:
            self.reading.notice(
                f"{self.name(ORIGINAL)} = {found} is used; Hugging Face takes {default} all the "
                "same, the default of this family's class, unless the config has the key at the "
                "top, too.",
                "K02",
            )
        return found

    def factor(self, kind: str, original: int | None = None) -> float:
        """The explicit factor, or else the ratio of the two lengths."""
        found, length = self.number("factor"), self.length()
        ratio = None if original is None or length is None else length / original
        if found is None:
            if ratio is None:
                raise ValueError(f"{self.name('factor')} is missing: rope_type {kind!r} needs it.")
            self.reading.notice(
                f"{self.name('factor')} is missing: {LENGTH} / {ORIGINAL} = {length:,} / "
                f"{original:,} = {ratio:g} is taken.",
                "K02",
            )
            return ratio
        if found < 1.0:
            raise ConfigError(f"{self.name('factor')} must be at least 1, got {found:g}.", "K02")
        if kind in ("yarn", "longrope") and ratio not in (None, 1.0, found):
            self.reading.notice(
                f"{self.name('factor')} = {found:g} is not {LENGTH} / {ORIGINAL} = {length:,} / "
                f"{original:,} = {ratio:g}; the explicit factor is used.",
                "K02",
            )
        return found


def _linear(rope: Rope) -> Spec:
    return spec("scaling.Linear", factor=rope.factor("linear"))


def _ntk(rope: Rope) -> Spec:
    """vLLM's: the frequency itself is scaled, in one of two ways."""
    mixed = rope.number("mixed_b")
    school = "kexue" if mixed is None else "mixed"
    return spec("scaling.NTK", factor=rope.factor("ntk"), school=school, mixed_b=mixed)


def _dynamic(rope: Rope) -> Spec:
    alpha, length = rope.number("alpha"), rope.length()
    if alpha is not None:  # HunYuan: the base is scaled once, by alpha; a factor does nothing
        if "alpha" not in rope.family.rope_keys:
            rope.reading.notice(
                f"{rope.name('alpha')} scales the base once and for all in vLLM, which is done "
                "here; Hugging Face reads it in HunYuan's models alone, and has the factor grow.",
                "K02",
                "note",
            )
        return spec("scaling.NTK", factor=alpha)
    if length is None:
        name = rope.reading.name(rope.family.num_positions[0])
        raise ValueError(
            f"rope_type 'dynamic' needs {name}: the base grows with what a sequence has beyond it."
        )
    if rope.family.dynamic == "qwen":
        options = {"factor": None, "original_length": length, "school": "qwen"}
        return Spec("scaling.DynamicNTK", tuple(options.items()))
    original = rope.keys.get(ORIGINAL)
    if original is not None and original != length:
        rope.reading.notice(
            f"{rope.name(ORIGINAL)} = {shown(original)} is not {LENGTH} = {length}: Hugging Face "
            "reads the latter for 'dynamic', and so do we; other libraries read the former.",
            "K02",
        )
    return spec("scaling.DynamicNTK", factor=rope.factor("dynamic"), original_length=length)


def _yarn(rope: Rope) -> Spec:
    original = rope.original("yarn")
    factor = rope.factor("yarn", original)
    if factor == 1.0 and rope.keys.get("factor") is None:
        raise ConfigError(
            f"{rope.name('factor')} is missing, and {LENGTH} / {ORIGINAL} = {original:,} / "
            f"{original:,} = 1 scales nothing. Give the factor (4.0 to reach 4 times the length of "
            "pre-training).",
            "K02",
        )
    fast, slow = rope.number("beta_fast"), rope.number("beta_slow")
    if (fast or 32.0) < (slow or 1.0):  # equal ones make a step: Kimi K2 has 1 and 1
        raise ConfigError(
            f"{rope.name('beta_fast')} must not be below beta_slow, got {fast or 32.0:g} and "
            f"{slow or 1.0:g}: the fast bound keeps the fast pairs unscaled.",
            "K02",
        )
    truncate = rope.keys.get("truncate")
    if truncate is not None:
        truncate = boolean(rope.name("truncate"), truncate)
    return spec(
        "scaling.YaRN",
        factor=factor,
        original_length=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
        extrapolation_factor=rope.number("extrapolation_factor"),
        **_yarn_amplitude(rope, factor),
    )


def _yarn_amplitude(rope: Rope, factor: float) -> dict[str, Any]:
    """The options of YaRN that set cos, sin and logits."""
    given = rope.number("attention_factor")
    if given is None and rope.flat:
        given = rope.family.attention_factor
    extra = rope.number("attn_factor")
    mscale, all_dim = rope.number("mscale", None), rope.number("mscale_all_dim", None)
    for key, value in (("mscale", mscale), ("mscale_all_dim", all_dim)):
        if value is not None and value < 0:
            raise ConfigError(f"{rope.name(key)} must not be negative, got {value:g}.", "K04")
    if extra is not None:
        if given is not None:
            raise ConfigError(
                f"{rope.path} has attention_factor and attn_factor: the first replaces the "
                "amplitude, the second multiplies it. Keep one.",
                "K04",
            )
        rope.reading.notice(
            f"{rope.name('attn_factor')} multiplies the amplitude in vLLM and llama.cpp; Hugging "
            "Face does not read it.",
            "K04",
            "note",
        )
        given = extra * _m(factor, 1.0)
    if given is not None and (mscale is not None or all_dim is not None):
        rope.reading.notice(
            f"{rope.path}: attention_factor replaces the amplitude, so mscale has no effect on "
            "cos and sin.",
            "K04",
        )
    if rope.family.yarn == "megatron":
        if rope.family.rotary_dim:  # its latent attention folds a part into the softmax scale
            school = {"school": "deepseek", "mscale": mscale, "mscale_all_dim": all_dim}
            return {"attention_factor": given, **school}
        ratio = _m(factor, 1.0 if mscale is None else mscale) / _m(factor, all_dim or 0.0)
        return {"attention_factor": ratio if given is None else given}
    if given is None:
        _tell_mscales(rope, factor, mscale, all_dim)
    if rope.family.yarn == "deepseek" and all_dim is not None:
        # The two schools agree where both are above 0.
        name = "deepseek" if mscale and all_dim else "huggingface"
        school = {"school": name, "mscale": mscale, "mscale_all_dim": all_dim}
        return {"attention_factor": given, **school}
    if given is None and mscale and all_dim:  # without the factor on logits, as most models
        given = _m(factor, mscale) / _m(factor, all_dim)
        if given == 1.0 and factor > 1:
            rope.reading.notice(
                f"{rope.path}: mscale and mscale_all_dim are alike and cancel, so YaRN does not "
                "sharpen the logits (amplitude 1). Vendors have since set mscale_all_dim to 0, "
                f"for an amplitude of {_m(factor, 1.0):.4f}.",
                "K04",
            )
    return {"attention_factor": given}


def _tell_mscales(rope: Rope, factor: float, mscale: float | None, all_dim: float | None) -> None:
    if (mscale is None and all_dim is None) or (mscale and all_dim):
        return
    other = _m(factor, 1.0 if mscale is None else mscale) / _m(factor, all_dim or 0.0)
    if other == _m(factor, 1.0):
        return  # mscale = 1 alone: all agree
    rope.reading.notice(
        f"{rope.path}: mscale is {_known(mscale)} and mscale_all_dim is {_known(all_dim)}. Hugging "
        f"Face reads them only if both are above 0, and has the amplitude {_m(factor, 1.0):.4f}, "
        f"which is used; DeepSeek's and Megatron's code have {other:.4f}.",
        "K04",
    )


def _known(value: float | None) -> str:
    return "missing" if value is None else f"{value:g}"


def _m(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(rope: Rope) -> Spec:
    original = rope.original("longrope")
    factor = rope.factor("longrope", original)
    return spec(
        "scaling.LongRoPE",
        short_factor=_factors(rope, "short_factor"),
        long_factor=_factors(rope, "long_factor"),
        original_length=original,
        factor=factor,
        attention_factor=rope.number("attention_factor"),
        short_mscale=rope.number("short_mscale"),
        long_mscale=rope.number("long_mscale"),
    )


def _factors(rope: Rope, key: str) -> tuple[float, ...]:
    name = rope.name(key)
    if rope.keys.get(key) is None:
        raise ValueError(f"{name} is missing: rope_type 'longrope' needs one number a pair.")
    found = tuple(number(name, value, 0.0) for value in listed(name, rope.keys[key]))
    if len(found) != rope.pairs:
        raise ConfigError(
            f"{name} must have one number a pair, {rope.pairs}, got {len(found)}.", "K03"
        )
    return found


def _llama3(rope: Rope) -> Spec:
    low, high = rope.needed("low_freq_factor", "llama3"), rope.needed("high_freq_factor", "llama3")
    if high < low:
        raise ConfigError(
            f"{rope.name('high_freq_factor')} must not be below low_freq_factor, got {high:g} and "
            f"{low:g}.",
            "K02",
        )
    original = rope.original("llama3")
    return spec(
        "scaling.Llama3",
        factor=rope.factor("llama3"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_length=original,
    )


SCALINGS: dict[str, Callable[[Rope], Spec]] = {
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


DIVIDE = ("linear", "ntk", "yarn", "llama3")
"""Scalings that do nothing where their factor is 1."""


def scaling_of(rope: Rope, kind: str, fraction: float) -> Spec | None:
    """The scaling that this dict asks for; None for a plain one."""
    if kind == "default":
        return None
    if kind == "proportional":
        factor = rope.number("factor")
        return spec("scaling.Proportional", fraction=fraction, factor=factor)
    found = SCALINGS[kind](rope)
    if kind in DIVIDE and found.get("factor") == 1.0 and found.get("attention_factor") is None:
        rope.reading.notice(
            f"{rope.name('factor')} = 1: {kind!r} scales nothing, so remove it; or give the factor "
            "that the weights need (4.0 to reach 4 times the length of pre-training).",
            "K02",
        )
    return found
