"""GGUF metadata in Hugging Face's keys.

The pairing is that of llama.cpp's code for the architecture, not of the model's first code: the
converter permutes Llama's rows, so that its pairs are interleaved there.
"""

import math
from collections.abc import Mapping
from typing import Any

from whereness.interop.config.keys import (
    ConfigError,
    Notice,
    integer,
    listed,
    nearest,
    number,
    shown,
    string,
)
from whereness.interop.families import Family
from whereness.interop.gguf.architectures import (
    CONSTANTS,
    HALF,
    INTERLEAVED,
    MIXED,
    MULTIMODAL,
    OTHERS,
    SCHEDULES,
    TRAILING,
)
from whereness.interop.gguf.header import FACTORS

NAMES = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.max_alibi_bias": "alibi_bias_max",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "attention.sliding_window": "sliding_window",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "rope.dimension_count": "rotary_dim",
    "rope.dimension_sections": "mrope_section",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_attn_factor": "attn_factor",
    "rope.scaling.attn_factor": "attn_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_ext_factor": "extrapolation_factor",
}
IN_CODE = (
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.finetuned",
    "rope.scaling.type",
    "rope.scaling.yarn_log_multiplier",
)
FREQS, LONG, SHORT = FACTORS
Factors = Mapping[str, tuple[float, ...]]


def translated(
    metadata: Mapping[str, Any], tensors: frozenset[str] | None, factors: Factors
) -> tuple[str, dict[str, Any], Family, tuple[str, ...]]:
    """(architecture, keys, family, notices) of a file's metadata and its divisors.

    Raises:
        ValueError: an architecture or a rope key that is not known, divisors that nothing here can
            say or that are not there, two spellings of a key that differ.
    """
    arch = string("general.architecture", metadata["general.architecture"])
    known = INTERLEAVED | HALF | MULTIMODAL.keys() | OTHERS.keys()
    if arch not in known:
        text = f"The GGUF architecture {shown(arch)} is not known.{nearest(arch, known)}"
        raise ConfigError(text, "")
    if arch in MIXED:
        raise ConfigError(
            f"The GGUF architecture {arch!r} has layers without rotary positions, and its metadata "
            "do not say which: read the model's config.json.",
            "",
        )
    keys = {k[len(arch) + 1 :]: v for k, v in metadata.items() if k.startswith(f"{arch}.")}
    _no_unknown(arch, keys)
    ours = {new: keys[old] for old, new in NAMES.items() if keys.get(old) is not None}
    if keys.get("attention.key_length_mla") is not None:
        ours["head_dim"] = keys["attention.key_length_mla"]
    if isinstance(ours.get("num_attention_heads"), list):
        _same_heads(arch, ours)
    if arch in OTHERS:
        return f"GGUF {arch}", ours, _other(arch), ()
    notices = _of_tensors(arch, keys, tensors)
    ours["rope_parameters"] = _scaling(arch, keys, factors)
    return f"GGUF {arch}", ours, _family(arch), notices


def _family(arch: str) -> Family:
    rotary: dict[str, Any] = {
        "head_dim": ("head_dim", "hidden_size//num_attention_heads"),
        "rotary_dim": ("rotary_dim",),
        "side": "trailing" if arch in TRAILING else "leading",
        "pairing": "interleaved" if arch in INTERLEAVED else "half",
        "yarn": "deepseek" if arch == "deepseek2" else "huggingface",
        "defaults": {"rope_theta": 10_000.0, **CONSTANTS.get(arch, {})},
        "num_layers": ("num_hidden_layers",),
        "rope_keys": ("alpha",),
        **SCHEDULES.get(arch, {}),
    }
    if arch in MULTIMODAL:
        rotary |= {"kind": "multimodal", "sections": ("mrope_section",), "order": MULTIMODAL[arch]}
    return Family(**rotary)


def _other(arch: str) -> Family:
    return Family(
        kind=OTHERS[arch],
        defaults={"relative_attention_max_distance": 128},
        bias_max=("alibi_bias_max",),
        decoder=Family(
            kind="t5", bidirectional=False, defaults={"relative_attention_max_distance": 128}
        )
        if arch == "t5"
        else None,
    )


def _no_unknown(arch: str, keys: Mapping[str, Any]) -> None:
    known = {*NAMES, *SCALING, *IN_CODE}
    for key in keys:
        if key.startswith("rope.") and key not in known:
            near = nearest(key, known)
            # A newer converter may have written one that resembles nothing.
            text = f"{arch}.{key[:60]} is an unknown key.{near}"
            raise ConfigError(text, "K22" if near else "")


def _same_heads(arch: str, ours: dict[str, Any]) -> None:
    heads = listed(f"{arch}.attention.head_count", ours["num_attention_heads"])
    if len(set(map(str, heads))) == 1:
        ours["num_attention_heads"] = heads[0]
    elif "head_dim" in ours:
        del ours["num_attention_heads"]
    else:
        raise ConfigError(
            f"{arch}.attention.head_count differs between layers, and no "
            f"{arch}.attention.key_length gives the width of a head.",
            "",
        )


def _scaling(arch: str, keys: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    """The rope dict; empty where nothing scales."""
    kind = string(f"{arch}.rope.scaling.type", keys.get("rope.scaling.type") or "linear")
    rope = _options(arch, keys)
    if factors:
        return _divided(arch, keys, kind, factors)
    if keys.get("rope.scaling.alpha"):
        return {"rope_type": "dynamic", "alpha": keys["rope.scaling.alpha"]}
    if kind == "longrope":
        raise ConfigError(
            f"{arch}.rope.scaling.type is 'longrope': its factors are weights of the file, {LONG} "
            f"and {SHORT}, and are not here. Give the path of the file that has them.",
            "K02",
        )
    if kind == "none":
        return {}
    if kind == "linear":
        factor = rope.get("factor", keys.get("rope.scale_linear"))
        if factor in (None, 0, 1):
            return {}
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise ValueError(
            f"{arch}.rope.scaling.type must be none, linear, yarn or longrope, got {shown(kind)}."
        )
    if arch == "deepseek2":
        return _latent_yarn(arch, keys, rope)
    return {"rope_type": "yarn", **rope}


def _latent_yarn(arch: str, keys: Mapping[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """DeepSeek's: the metadata hold a tenth of mscale_all_dim, cos and sin keep amplitude 1."""
    name = "rope.scaling.yarn_log_multiplier"
    tenth = number(f"{arch}.{name}", keys.get(name, 0.0))
    rope.pop("attn_factor", None)
    if not tenth:
        return {"rope_type": "yarn", **rope, "attention_factor": 1.0}
    # Files hold float32: 0.1 comes back as 0.10000000149.
    mscale = round(tenth * 10, 6)
    return {"rope_type": "yarn", **rope, "mscale": mscale, "mscale_all_dim": mscale}


def _of_tensors(
    arch: str, keys: Mapping[str, Any], tensors: frozenset[str] | None
) -> tuple[str, ...]:
    """Notices; refuses divisors of single layers, which llama.cpp does not read either."""
    if tensors is None:
        text = (
            f"GGUF metadata of {arch!r} without the file's tensors: if it has {FREQS}, that scales "
            "the frequencies as well."
        )
        return (Notice(text, "K02", "note"),)
    for name in FACTORS:
        if any(each.endswith(f".{name}") for each in tensors):
            raise ConfigError(
                f"The file has the tensor {name} of single layers, which scales the frequencies: "
                "only one of the whole model is read. Read the model's config.json.",
                "",
            )
    if LONG in tensors and keys.get("rope.scaling.attn_factor") is None:
        text = (
            f"{arch}.rope.scaling.attn_factor is missing beside {LONG}: amplitude 1 is taken, as "
            "llama.cpp does; Hugging Face derives one from the two lengths."
        )
        return (Notice(text, "K04"),)
    return ()


def _options(arch: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling's options under our names; two spellings of one must agree."""
    found: dict[str, Any] = {}
    first: dict[str, str] = {}
    for old, new in SCALING.items():
        if keys.get(old) is None:
            continue
        if new in found and found[new] != keys[old]:
            raise ValueError(
                f"{arch}.{first[new]} = {shown(found[new])} and {arch}.{old} = "
                f"{shown(keys[old])} are two spellings of the same key and differ. Keep one."
            )
        first.setdefault(new, old)
        found[new] = keys[old]
    return found


def _divided(arch: str, keys: Mapping[str, Any], kind: str, factors: Factors) -> dict[str, Any]:
    """The rope dict of a file whose tensors divide the frequencies."""
    names = " and ".join(sorted(factors))
    step = keys.get("rope.scaling.factor", keys.get("rope.scale_linear"))
    plain = kind == "none" or (kind in ("linear", "longrope") and step in (None, 0, 1))
    if not plain or keys.get("rope.scaling.alpha"):
        raise ConfigError(
            f"The file has {names}, which scales the frequencies, and {arch}.rope.scaling asks for "
            f"{shown(kind)} with factor {shown(step)} as well: nothing here does both.",
            "K02",
        )
    if factors.keys() not in ({FREQS}, {LONG, SHORT}):
        raise ConfigError(
            f"The file has {names}: needed {FREQS} alone, or {LONG} and {SHORT} together.", "K02"
        )
    options = _options(arch, keys)
    amplitude = number(f"{arch}.rope.scaling.attn_factor", options.get("attn_factor", 1.0), 0.0)
    # Whether there is one number a pair is told where the width is known, for LongRoPE alone.
    counted = keys.get("rope.dimension_count") == 2 * len(factors.get(FREQS, ()))
    if counted and amplitude == 1.0:
        base = number(f"{arch}.rope.freq_base", keys.get("rope.freq_base", 10_000.0), 0.0)
        known = _llama3(base, factors[FREQS])
        if known is not None:
            return known
    length = keys.get("context_length")
    original = options.get("original_max_position_embeddings", length)
    ratio = 1.0
    if length is not None:
        name = f"{arch}.rope.scaling.original_context_length"
        ratio = integer(f"{arch}.context_length", length) / integer(name, original)
    return {
        "rope_type": "longrope",
        "short_factor": list(factors.get(SHORT, factors.get(FREQS, ()))),
        "long_factor": list(factors.get(LONG, factors.get(FREQS, ()))),
        "original_max_position_embeddings": original,
        "factor": max(ratio, 1.0),
        "attention_factor": amplitude,
    }


def _llama3(base: float, divisors: tuple[float, ...]) -> dict[str, Any] | None:
    """Llama 3's scaling if these are its divisors; it needs no lengths, as LongRoPE would.

    All released models have 1, 4 and 8192; the slowest pairs are divided by the factor itself. The
    converter takes powers of the base in float32, which leaves about 1e-6.
    """
    factor, low, high, original = max(divisors), 1.0, 4.0, 8192
    if factor < 1:
        return None
    for k, divisor in enumerate(divisors):
        turns = original * base ** (-k / len(divisors)) / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        if abs(divisor * ((1 - share) / factor + share) - 1) > 2e-6:
            return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
