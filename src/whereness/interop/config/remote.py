"""Keys of models outside of transformers that say their RoPE in their own way, in the usual keys.

chatglm     rope_ratio                      -> rope_theta
internlm    rotary: base, type, ...         -> rope_theta, rope_parameters
nomic_bert  n_embd, rotary_emb_base, ...    -> hidden_size, rope_theta, rope_parameters, ...
qwen        use_dynamic_ntk                 -> rope_parameters
"""

from collections.abc import Callable, Mapping
from typing import Any

from whereness.interop.config.keys import (
    ConfigError,
    Notice,
    boolean,
    mapping,
    number,
    shown,
)
from whereness.interop.families import Family

Keys = dict[str, Any]
SHARED_VOCABULARY = 65_024
"""Of ChatGLM2 and ChatGLM3 (`padded_vocab_size`); GLM-4 has another one."""


def rewritten(
    model_type: str, keys: Mapping[str, Any], known: Family
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The keys in the usual names, and what must be told of them."""
    rewrite = REWRITES.get(model_type)
    return rewrite(dict(keys), known) if rewrite else (keys, ())


def _chatglm(keys: Keys, known: Family) -> tuple[Keys, tuple[str, ...]]:
    ratio = keys.pop("rope_ratio", None)
    if ratio is None or number("rope_ratio", ratio, 0.0) == 1.0:
        return keys, ()
    if keys.get("rope_theta") is not None:
        raise ConfigError("The config has rope_theta and rope_ratio: keep one of them.", "K02")
    keys["rope_theta"] = known.defaults["rope_theta"] * ratio
    if keys.get("padded_vocab_size", SHARED_VOCABULARY) != SHARED_VOCABULARY:
        return keys, ()
    told = (
        f"rope_ratio = {shown(ratio)} multiplies the base, as in ChatGLM3 and GLM-4; the code of "
        "ChatGLM2-6B-32k divides positions by it instead: for that model take rope_ratio out and "
        f"give rope_scaling {{'type': 'linear', 'factor': {shown(ratio)}}}."
    )
    return keys, (Notice(told, "K02", "note"),)


def _internlm(keys: Keys, known: Family) -> tuple[Keys, tuple[str, ...]]:
    rotary, told = keys.pop("rotary", None), ()
    if rotary is None:
        if keys.get("rope_theta") is not None:
            return keys, ()
        rotary = {"base": known.defaults["rope_theta"], "type": "dynamic"}
        text = "rotary is missing: a dynamic scaling is taken, the default of its config class."
        told = (Notice(text, "K02", "note"),)
    rotary = mapping("rotary", rotary)
    kind = rotary.get("type")
    if kind not in ("origin", "dynamic"):
        raise ValueError(f"rotary.type must be origin or dynamic, got {shown(kind)}.")
    base = number("rotary.base", rotary.get("base"), 0.0)
    if keys.get("rope_theta") not in (None, base):
        text = "The config has rope_theta and another rotary.base: keep one of them."
        raise ConfigError(text, "K02")
    keys["rope_theta"] = base
    if kind == "dynamic":
        factor = rotary.get("scaling_factor", 1.0)
        keys["rope_parameters"] = {"rope_type": "dynamic", "factor": factor}
    return keys, told


NOMIC = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
}


def _nomic(keys: Keys, _: Family) -> tuple[Keys, tuple[str, ...]]:
    for old, usual in NOMIC.items():
        value = keys.pop(old, None)
        if value is not None and keys.get(usual) not in (None, value):
            raise ValueError(f"The config has {old} and another {usual}: keep one of them.")
        if value is not None:
            keys[usual] = value
    fraction = keys.pop("rotary_emb_fraction", None)
    if fraction is not None and number("rotary_emb_fraction", fraction) != 1.0:
        raise ConfigError(f"rotary_emb_fraction must be 1, got {shown(fraction)}.", "K03")
    interleaved = keys.pop("rotary_emb_interleaved", None)
    if interleaved is not None and boolean("rotary_emb_interleaved", interleaved):
        text = "rotary_emb_interleaved must be false: models of this family pair halves."
        raise ConfigError(text, "K01")
    factor = keys.pop("rotary_scaling_factor", None)
    if factor is not None:
        keys["rope_parameters"] = {"rope_type": "dynamic", "factor": factor}
        # Its code scales from the trained length on, and n_positions is what it may then reach.
        trained = keys.get("max_trained_positions")
        if trained is None:
            raise ValueError("rotary_scaling_factor needs max_trained_positions beside it.")
        keys["max_position_embeddings"] = trained
    return keys, ()


def _qwen(keys: Keys, _: Family) -> tuple[Keys, tuple[str, ...]]:
    if boolean("use_dynamic_ntk", keys.get("use_dynamic_ntk")):
        keys["rope_parameters"] = {"rope_type": "dynamic"}
    return keys, ()


REWRITES: dict[str, Callable[[Keys, Family], tuple[Keys, tuple[str, ...]]]] = {
    "chatglm": _chatglm,
    "internlm": _internlm,
    "nomic_bert": _nomic,
    "qwen": _qwen,
}
