"""Configs that are not Hugging Face's, translated to its keys.

Megatron's arguments, the configs of DeepSeek's and Meta's own inference code, and GGUF metadata. A
translation gives the keys and the `Family` that reads them: what is a default in the other code
stands there as one.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from whereness.interop.config.files import Source
from whereness.interop.config.keys import (
    ConfigError,
    Notice,
    boolean,
    integer,
    listed,
    number,
    short,
    shown,
    string,
)
from whereness.interop.families import Family, Kind
from whereness.interop.gguf import keys as gguf_keys

MEGATRON = frozenset(
    {
        "kv_channels",
        "no_rope_freq",
        "position_embedding_type",
        "rotary_base",
        "rotary_interleaved",
        "rotary_percent",
        "rotary_scaling_factor",
        "rotary_seq_len_interpolation_factor",
        "use_rope_scaling",
    }
)
"""Any of these beside num_attention_heads, and no model_type: Megatron's arguments."""
DEEPSEEK = frozenset({"n_heads", "n_layers", "qk_rope_head_dim"})
META = frozenset({"dim", "n_heads", "n_layers"})
POSITIONAL = ("rope_", "rotary_", "yarn_")
"""What begins so is about positions, so that less likeness to a known key is enough to refuse."""
MOST_KEYS = 2**13
"""Megatron has about a thousand arguments."""


@dataclass(frozen=True)
class Translated:
    """A config in Hugging Face's keys."""

    name: str
    keys: dict[str, Any]
    family: Family
    notices: tuple[str, ...] = ()


def translated(source: Source) -> Translated | None:
    """The config in Hugging Face's keys; None if it is in them already."""
    keys = source.keys
    _no_fope("", keys)
    if "general.architecture" in keys:
        return Translated(*gguf_keys.translated(keys, source.tensors, source.factors))
    if keys.get("model_type") is not None:
        return None
    if MEGATRON & keys.keys() and "num_attention_heads" in keys:
        return _megatron(keys)
    if keys.keys() >= DEEPSEEK:
        return _deepseek(keys)
    if keys.keys() >= META:
        return _meta(keys)
    return None


def _no_misspelling(dialect: str, keys: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a key that is nearly one of those that are read: it would count as missing."""
    if len(keys) > MOST_KEYS:
        raise ValueError(f"The config has {len(keys)} keys; at most {MOST_KEYS} are read.")
    for key, value in keys.items():
        if value is None or value is False or key in known:
            continue  # a flag that is off does nothing under any name
        word = key[:60].lower().replace("-", "_")
        likeness = 0.8 if word.startswith(POSITIONAL) else 0.9
        near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=likeness)
        if near:
            raise ValueError(
                f"{short(key)} is no key of {dialect}'s. Did you mean {near[0]!r}? Rename it, or "
                "remove it."
            )


FOPE = ("use_fope", "num_inv_freq", "fope_sep_head", "fope_init_factor")
"""vLLM's keys of FoPE, within a rope dict."""


def _no_fope(path: str, keys: Mapping[str, Any]) -> None:
    """Refuse FoPE by name, in every part: its mixtures are weights, which no config holds."""
    for name, inner in keys.items():
        if not isinstance(inner, Mapping):
            continue
        if name.endswith("_config"):
            _no_fope(f"{path}{name}.", inner)
        if name not in ("rope_parameters", "rope_scaling"):
            continue
        for key in FOPE:
            if inner.get(key) is not None:
                pairs = inner.get("num_inv_freq")
                turn = (
                    f"length={shown(keys.get('max_position_embeddings'))}"
                    if pairs is None
                    else f"num_frequencies={shown(pairs)}"
                )
                heads = keys.get("num_key_value_heads") if inner.get("fope_sep_head") else 1
                raise ConfigError(
                    f"{short(path + name)}.{key} = {shown(inner[key])}: FoPE mixes frequencies by "
                    "weights of the model, cos_coef and sin_coef, which no config holds. Build "
                    f"wn.FoPE(head_dim, base, {turn}, num_kv_heads={shown(heads)}) and load them, "
                    "or remove FoPE's keys if the model has none.",
                    "",
                )


def present(keys: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The keys that are there and not None, under their other names: {theirs: ours}."""
    return {ours: keys[theirs] for theirs, ours in names.items() if keys.get(theirs) is not None}


SIZES = {
    "hidden_size": "hidden_size",
    "kv_channels": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "mrope_section": "mrope_section",
    "num_attention_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "relative_attention_max_distance": "relative_attention_max_distance",
    "relative_attention_num_buckets": "relative_attention_num_buckets",
    "rotary_base": "rope_theta",
    "rotary_base_per_layer": "layer_rope_theta",
    "rotary_interleaved": "rotary_interleaved",
    "rotary_percent": "partial_rotary_factor",
}


def _megatron(keys: dict[str, Any]) -> Translated:
    """Megatron-LM's arguments and TransformerConfig, megatron/training/arguments.py."""
    _no_misspelling("Megatron", keys, MEGATRON_KEYS)
    ours: dict[str, Any] = present(keys, SIZES)
    latent = bool(keys.get("multi_latent_attention"))
    default = "rope" if latent else "learned_absolute"
    kind = string("position_embedding_type", keys.get("position_embedding_type") or default)
    if latent and kind == "rope":
        kind = string("rope_type", keys.get("rope_type") or "yarn")
    others: dict[str, Kind] = {"learned_absolute": "learned", "none": "none", "relative": "t5"}
    if kind in others:
        return Translated("Megatron", ours, Family(kind=others[kind]))
    if kind not in ("rope", "mrope", "yarn"):
        raise ValueError(
            f"position_embedding_type must be rope, mrope, yarn, learned_absolute, relative or "
            f"none, got {shown(kind)}."
        )
    ours["rope_parameters"] = _megatron_scaling(keys, kind)
    frequency = keys.get("no_rope_freq")
    if isinstance(frequency, (list, tuple)):  # 1 skips, unlike Hugging Face's list
        entries = enumerate(listed("no_rope_freq", frequency))
        ours["no_rope_layers"] = [1 - integer(f"no_rope_freq[{i}]", n, 0, 1) for i, n in entries]
    elif frequency is not None:
        ours["no_rope_layer_interval"] = frequency
    family = Family(
        kind="multimodal" if kind == "mrope" else "rope",
        sections=("mrope_section",),
        fraction=() if kind == "yarn" or latent else ("partial_rotary_factor",),
        interleaved="" if latent else "rotary_interleaved",
        pairing="interleaved" if latent else "half",
        side="trailing" if latent else "leading",
        head_dim=("qk_nope_head_dim+qk_rope_head_dim",) if latent else Family.head_dim,
        rotary_dim=("qk_rope_head_dim",) if latent else (),
        yarn="megatron",
        rope_flags="no_rope_layers",
        nope_interval="no_rope_layer_interval",
        layer_bases="layer_rope_theta",
        defaults={"rope_theta": 10_000.0, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        notes=("Megatron's no_rope_freq marks the layers that skip RoPE by 1.",),
    )
    if kind == "yarn" and number("rotary_percent", keys.get("rotary_percent", 1.0)) != 1.0:
        raise ConfigError(
            "rotary_percent is not read by Megatron's YaRN, in which all channels turn: got "
            f"{keys['rotary_percent']}. Set it to 1.",
            "K03",
        )
    return Translated("Megatron", ours, family)


YARN = {
    "rotary_scaling_factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "correction_range_round_to_int": "truncate",
}


MEGATRON_KEYS = frozenset(
    {
        *MEGATRON,
        *SIZES,
        *YARN,
        *(f"yarn_{key}" for key in YARN),
        "multi_latent_attention",
        "rope_scaling_factor",
        "rope_type",
    }
)


def _megatron_scaling(keys: dict[str, Any], kind: str) -> dict[str, Any]:
    step = keys.get("rotary_seq_len_interpolation_factor")
    llama = keys.get("use_rope_scaling")
    llama = llama is not None and boolean("use_rope_scaling", llama)
    if sum((kind == "yarn", step not in (None, 1), llama)) > 1:
        raise ConfigError(
            "Only one of yarn, use_rope_scaling and rotary_seq_len_interpolation_factor may scale.",
            "K02",
        )
    if kind == "yarn":
        prefixed = {f"yarn_{theirs}": ours for theirs, ours in YARN.items()}
        found = {**present(keys, YARN), **present(keys, prefixed)}
        defaults = {"factor": 40.0, "original_max_position_embeddings": 4096}
        return {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.0, **defaults, **found}
    if llama:  # all but the factor stand in Megatron's code
        return {
            "rope_type": "llama3",
            "factor": keys.get("rope_scaling_factor", 8.0),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return {} if step in (None, 1) else {"rope_type": "linear", "factor": step}


DEEPSEEK_DEFAULTS = {
    "max_seq_len": 16_384,
    "original_seq_len": 4096,
    "rope_factor": 40.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
}
DEEPSEEK_SIZES = {
    "dim": "hidden_size",
    "max_seq_len": "max_position_embeddings",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "rope_theta": "rope_theta",
}
DEEPSEEK_KEYS = frozenset({*DEEPSEEK_DEFAULTS, *DEEPSEEK_SIZES})


def _deepseek(keys: dict[str, Any]) -> Translated:
    """DeepSeek-V3's inference code, inference/model.py; its ModelArgs hold the defaults."""
    _no_misspelling("DeepSeek", keys, DEEPSEEK_KEYS)
    full = {**DEEPSEEK_DEFAULTS, **{k: v for k, v in keys.items() if v is not None}}
    reach = integer("max_seq_len", full["max_seq_len"])
    original = integer("original_seq_len", full["original_seq_len"])
    ours = present(full, DEEPSEEK_SIZES)
    if reach > original:
        names = {
            "rope_factor": "factor",
            "original_seq_len": "original_max_position_embeddings",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "mscale": "mscale",
        }
        # One mscale: it is folded into the softmax scale alone, cos and sin keep amplitude 1.
        scaling = {"rope_type": "yarn", **present(full, names), "mscale_all_dim": full["mscale"]}
        ours["rope_parameters"] = scaling
        del ours["max_position_embeddings"]  # it is no multiple of the length of pre-training
    family = Family(
        head_dim=("qk_nope_head_dim+qk_rope_head_dim",),
        rotary_dim=("qk_rope_head_dim",),
        side="trailing",
        pairing="interleaved",
        yarn="deepseek",
        defaults={"rope_theta": 10_000.0, "qk_nope_head_dim": 128},
    )
    return Translated("DeepSeek", ours, family)


META_SIZES = {
    "dim": "hidden_size",
    "head_dim": "head_dim",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "rope_theta": "rope_theta",
}
META_KEYS = frozenset(
    {*META_SIZES, "rope_high_freq_factor", "rope_scaling_factor", "use_scaled_rope"}
)


def _meta(keys: dict[str, Any]) -> Translated:
    """Meta's own params.json of Llama: interleaved, as the published weights are there."""
    # A misspelled key of DeepSeek's is what makes its config look like one of Meta's.
    _no_misspelling("Meta", keys, META_KEYS | DEEPSEEK_KEYS)
    ours, notices = present(keys, META_SIZES), []
    scaled = keys.get("use_scaled_rope")
    if scaled is not None and boolean("use_scaled_rope", scaled):
        factor = keys.get("rope_scaling_factor")
        if factor is None:
            factor = 8.0
            text = (
                "use_scaled_rope does not say its factor: 8, of Llama 3.1, is taken; Llama 3.2's "
                "small models have 32."
            )
            notices.append(Notice(text, "K02"))
        ours["rope_parameters"] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": keys.get("rope_high_freq_factor", 4.0),
            "original_max_position_embeddings": 8192,
        }
    family = Family(pairing="interleaved", defaults={"rope_theta": 10_000.0})
    return Translated("Meta", ours, family, tuple(notices))
