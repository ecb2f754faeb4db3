"""Rope dicts of every scaling that transformers has, for a config of any rotary class."""

import copy
from typing import Any

from peers.rotary_classes import Spectrum, Subject

Rope = dict[str, Any]

LENGTH_DEPENDENT = ("dynamic", "longrope")


def reach(config: Any) -> int:
    """Where a scaling starts: a quarter of the model's length, but no shorter than a few turns."""
    return max(int(config.max_position_embeddings) // 4, 64)


def scalings(config: Any, pairs: int) -> dict[str, Rope]:
    """A rope dict of each kind, but for its base."""
    original: Rope = {"original_max_position_embeddings": reach(config)}
    yarn: Rope = {"rope_type": "yarn", "factor": 4.0, **original}
    long: Rope = {
        "rope_type": "longrope",
        "short_factor": [1.0 + k / 20 for k in range(pairs)],
        "long_factor": [1.0 + k / 2 for k in range(pairs)],
        **original,
    }
    return {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 2.0},
        "yarn": yarn,
        "yarn, betas": yarn | {"beta_fast": 16.0, "beta_slow": 2.0},
        "yarn, betas alike": yarn | {"beta_fast": 1.0, "beta_slow": 1.0},
        "yarn, not truncated": yarn | {"factor": 8.0, "truncate": False},
        "yarn, both mscales": yarn | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        "yarn, one mscale": yarn | {"factor": 40.0, "mscale": 0.707},
        "yarn, mscales alike": yarn | {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707},
        "yarn, attention_factor": yarn | {"attention_factor": 1.25},
        "yarn, no factor": yarn | {"factor": None},
        "llama3": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **original,
        },
        "longrope": long,
        "longrope, factors": long | {"factor": 16.0, "attention_factor": 1.1},
        "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        "proportional, factor": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "factor": 2.0,
        },
    }


def scaled(subject: Subject, plain: list[Spectrum], name: str) -> Any:
    """A config with this scaling, in every one of its nested dicts if it has those.

    A head_dim of None is filled in: transformers 5.24 cannot build YaRN, LongRoPE or dynamic NTK
    for such a config (docs/findings).
    """
    config = subject.config()
    config.max_position_embeddings = max(config.max_position_embeddings, 256)
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = reach(config)  # Phi-3 has it twice
    if config.to_dict().get("head_dim", 0) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    rope = copy.deepcopy(config.rope_parameters)
    if not any(isinstance(each, dict) for each in rope.values()):
        config.rope_parameters = _scaled(config, rope, len(plain[0].frequencies), name)
        return config
    pairs = {each.label: len(each.frequencies) for each in plain}
    config.rope_parameters = {
        label: inner and _scaled(config, inner, pairs.get(label, 0), name)
        for label, inner in rope.items()
    }
    if "truncate" in scalings(config, 0)[name]:
        config.rope_parameters["truncate"] = False  # where transformers looks, see docs/findings
    return config


def _scaled(config: Any, rope: Rope, pairs: int, name: str) -> Rope:
    kept = ("rope_theta", "partial_rotary_factor", "mrope_section", "llama_4_scaling_beta")
    if rope["rope_type"] == "proportional":  # its part is of another kind
        kept = ("rope_theta",)
        if name.startswith("longrope"):
            pairs = int(config.per_layer_config["full_attention"].head_dim) // 2
    made = scalings(config, pairs)[name]
    return {key: rope[key] for key in kept if key in rope} | made
