"""The own hosts by name: what a config says of their conventions, and the rules that follow it."""

import math
from dataclasses import replace
from typing import Any

from auditor.faults.formulas import llama3_speeds, speeds, yarn_speeds
from auditor.faults.hosts import HEAD_DIM, HEADS, KEY_HEADS, VOCABULARY, WIDTH, Decoder, Rules

LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": 256,
}
PLAIN = Rules(speeds=speeds(1e4, HEAD_DIM))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
ADDED = replace(PLAIN, schemes=("none", "none"), key_heads=HEADS)

OWN: dict[str, tuple[dict[str, Any], Rules]] = {
    "own rotary": (LLAMA, PLAIN),
    "own interleaved": (
        {**GPT, "model_type": "gptj", "rotary_dim": HEAD_DIM},
        replace(PLAIN, pairing="interleaved", key_heads=HEADS),
    ),
    "own partial": (
        {**LLAMA, "model_type": "stablelm", "partial_rotary_factor": 0.5},
        replace(PLAIN, rotary_dim=8, speeds=speeds(1e4, 8)),
    ),
    "own yarn": (
        {**LLAMA, "rope_scaling": YARN},
        replace(
            PLAIN,
            speeds=yarn_speeds(1e4, HEAD_DIM, 4.0, 512),
            amplitude=0.1 * math.log(4.0) + 1,
        ),
    ),
    "own llama3": (
        {**LLAMA, "rope_scaling": LLAMA3},
        replace(PLAIN, speeds=llama3_speeds(1e4, HEAD_DIM, 8.0, 256, 1.0, 4.0)),
    ),
    "own linear": (
        {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        replace(PLAIN, speeds=tuple(speed / 4 for speed in PLAIN.speeds)),
    ),
    "own nope": (
        {
            **LLAMA,
            "model_type": "smollm3",
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 1, 1, 0],
        },
        replace(PLAIN, schemes=("rotary", "rotary", "rotary", "none")),
    ),
    "own window": (
        {**LLAMA, "model_type": "mistral", "sliding_window": 8},
        replace(PLAIN, window=8),
    ),
    "own alibi": (
        {**GPT, "model_type": "bloom", "hidden_size": WIDTH},
        replace(PLAIN, schemes=("alibi", "alibi"), key_heads=HEADS),
    ),
    "own alibi of 6": (
        {**GPT, "model_type": "bloom", "hidden_size": 6 * HEAD_DIM, "n_head": 6},
        replace(PLAIN, schemes=("alibi", "alibi"), heads=6, key_heads=6, width=96),
    ),
    "own buckets": (
        {
            "model_type": "umt5",
            "d_model": WIDTH,
            "d_kv": HEAD_DIM,
            "num_heads": HEADS,
            "num_layers": 1,
            "num_decoder_layers": 2,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
        },
        replace(PLAIN, schemes=("buckets", "buckets"), key_heads=HEADS, part="decoder"),
    ),
    "own learned": ({**GPT, "model_type": "gpt2"}, replace(ADDED, added="learned")),
    "own sinusoidal": (
        {
            "model_type": "marian",
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "max_position_embeddings": 256,
        },
        replace(ADDED, added="sinusoidal", part="decoder"),
    ),
}
"""The conventions by name: what a config says of them, and the rules that follow it."""


def own(name: str) -> Decoder:
    """A fresh host in eval mode, the same at every call."""
    config, rules = OWN[name]
    return Decoder(dict(config), rules)
