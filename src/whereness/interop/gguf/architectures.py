"""What llama.cpp's code knows of an architecture, and the metadata of a GGUF file do not say.

Source: llama.cpp, src/llama-model.cpp, `llama_model_rope_type` and `load_hparams`.
"""

from typing import Any

from whereness.interop.families import Kind


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INTERLEAVED = _names(
    """llama llama4 llama-embed deci baichuan internlm2 minicpm xverse command-r cohere2 olmo
    arctic deepseek deepseek2 plm chatglm granite granitemoe granitehybrid chameleon
    bailingmoe neo-bert smollm3 arcee ernie4_5 ernie4_5-moe mistral3 mistral4 maincoder llada"""
)
HALF = _names(
    """falcon falcon-h1 grok dbrx jina-bert-v3 nomic-bert nomic-bert-moe eurobert stablelm bitnet
    qwen qwen2 dream qwen2moe qwen3 qwen3moe llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo
    plamo2 gemma gemma2 gemma3 gemma-embedding starcoder2 openelm gptneox codeshell orion
    nemotron exaone exaone4 minicpm3 bailingmoe2 dots1 hunyuan-moe jais2 gpt-oss hunyuan-dense
    lfm2 lfm2moe smallthinker seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded afmoe
    glm4moe"""
)
MULTIMODAL = {
    "qwen2vl": "chunked",
    "qwen3vl": "interleaved",
    "qwen3vlmoe": "interleaved",
}
OTHERS: dict[str, Kind] = {
    "bert": "learned",
    "bloom": "alibi",
    "gpt2": "learned",
    "jais": "alibi",
    "mamba": "none",
    "mamba2": "none",
    "mpt": "alibi",
    "refact": "alibi",
    "starcoder": "learned",
    "t5": "t5",
    "t5encoder": "t5",
}
TRAILING = frozenset({"deepseek2", "minicpm3", "plm"})
"""Latent attention: the channels that turn come last."""
MIXED = _names("lfm2 lfm2moe falcon-h1 granitehybrid plamo2 afmoe smallthinker")
"""Not every layer has attention or positions, and no key of the metadata says which."""

FULL, LOCAL = "full_attention", "sliding_attention"
SCHEDULES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "pattern": ("sliding_window_pattern", FULL, LOCAL, -1),
        "types_bases": {LOCAL: ("rope_local_base_freq",)},
        "types_scaled": (FULL,),
    },
    "cohere2": {"pattern": ("sliding_window_pattern", FULL, LOCAL, -1), "nope_types": (FULL,)},
    "exaone4": {
        "pattern": ("sliding_window_pattern", FULL, LOCAL, -1),
        "nope_types": (FULL,),
        "nope_unless": "sliding_window",
    },
    "smollm3": {"nope_interval": "no_rope_layer_interval"},
    "llama4": {
        "nope_interval": "no_rope_layer_interval",
        "temperature": "llama4",
        "temperature_on": "nope",
    },
}
CONSTANTS: dict[str, dict[str, Any]] = {
    "gemma3": {"sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0},
    "cohere2": {"sliding_window_pattern": 4},
    "exaone4": {"sliding_window_pattern": 4},
    "smollm3": {"no_rope_layer_interval": 4},
    "llama4": {
        "no_rope_layer_interval": 4,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
}
"""What llama.cpp's code holds for an architecture."""
