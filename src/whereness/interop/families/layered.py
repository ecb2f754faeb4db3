"""Families of text models some of whose layers have no position, or no attention."""

from whereness.interop.families import Families
from whereness.interop.families.forms import EVERY_N, FULL, SLIDING, every, text

NOPE_FULL: Families = {
    "afmoe": text(
        2048,
        16,
        32,
        16_384,
        head_dim=128,
        also={"global_attn_every_n_layers": 4},
        pattern=("global_attn_every_n_layers", FULL, SLIDING, -1),
        nope_types=(FULL,),
    ),
    "beam": text(
        5120,
        48,
        52,
        8192,
        head_dim=128,
        cycle=((), (*(SLIDING,) * 5, FULL), (FULL,)),
        types_parameters={SLIDING: {"rope_type": "default", "rope_theta": 10_000.0}, FULL: None},
        refused_types={
            FULL: "queries are scaled by (1 + (position + 1) / 2048)^0.1, which nothing here does"
        },
    ),
    "cohere2": text(
        8192,
        64,
        40,
        8192,
        head_dim=128,
        pairing="interleaved",
        also={"sliding_window_pattern": 4},
        nope_types=(FULL,),
        **EVERY_N,
    ),
    "cohere2_moe": text(
        8192,
        64,
        40,
        8192,
        head_dim=128,
        pairing="interleaved",
        also={"sliding_window_pattern": 4, "prefix_dense_sliding_window_pattern": 1},
        nope_types=(FULL,),
        forced=("mlp_layer_types", "dense", "prefix_dense_sliding_window_pattern", 1),
        **EVERY_N,
    ),
    "exaone4": text(
        4096,
        32,
        32,
        2048,
        also={"sliding_window": 4096, "sliding_window_pattern": 4},
        nope_types=(FULL,),
        nope_unless="sliding_window",
        **EVERY_N,
    ),
    "exaone_moe": text(
        4096,
        32,
        32,
        2048,
        also={"sliding_window": 4096, "sliding_window_pattern": 4},
        nope_types=(FULL,),
        nope_unless="sliding_window",
        **EVERY_N,
    ),
    "flint": text(
        2048,
        32,
        49,
        262_144,
        head_dim=128,
        cycle=((FULL, FULL), (SLIDING, SLIDING, SLIDING, FULL), (FULL,)),
        nope_types=(FULL,),
    ),
    "kolibri1": text(
        2560,
        48,
        50,
        262_144,
        head_dim=128,
        also={"sliding_window": 4096},
        cycle=every(5),
        nope_types=(FULL,),
        nope_unless="sliding_window",
    ),
    "lara_mini": text(
        1024,
        16,
        34,
        131_072,
        head_dim=128,
        cycle=((), ("linear_attention", SLIDING, "linear_attention", FULL, SLIDING), ()),
        nope_types=(FULL,),
    ),
}
"""Full attention has no position; the layers with a window turn."""

NOPE_EVERY: Families = {
    "granite_swa": text(2560, 20, 24, 8192, layer_bases="layer_rope_theta"),
    "granitemoe_swa": text(4096, 32, 32, 2048, layer_bases="layer_rope_theta"),
    "llama4_text": text(
        5120,
        40,
        48,
        131_072,
        500_000.0,
        head_dim=128,
        pairing="interleaved",
        also={
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        rope_flags="no_rope_layers",
        nope_interval="no_rope_layer_interval",
        chunks="attention_chunk_size",
        temperature="llama4",
        temperature_on="nope",
    ),
    "muse_glimmer_text": text(
        6656, 32, 52, 131_072, head_dim=128, layer_bases="layer_rope_theta", nope_back=4
    ),
    "muse_spark_text": text(
        8192,
        128,
        62,
        1_048_576,
        500_000.0,
        head_dim=64,
        layer_bases="layer_rope_theta",
        nope_back=4,
    ),
    "smollm3": text(
        2048,
        16,
        36,
        32_768,
        2_000_000.0,
        also={"no_rope_layer_interval": 4},
        rope_flags="no_rope_layers",
        nope_interval="no_rope_layer_interval",
    ),
}
"""Some layers have no position, or a base of their own, by their number."""

HYBRID: Families = {
    "granitemoehybrid": text(
        4096,
        32,
        32,
        2048,
        types_default="linear_attention",
        kind="none",
        when=(("position_embedding_type", "rope", text(4096, 32, 32, 2048)),),
    ),
    "lfm2": text(2560, 32, 32, 128_000, 1_000_000.0),
    "lfm2_moe": text(2048, 32, 32, 128_000, 1_000_000.0),
    "minimax": text(4096, 32, 32, 131_072, 1_000_000.0, cycle=((), (FULL, "linear_attention"), ())),
    "olmo_hybrid": text(3840, 30, 32, 65_536, cycle=every(4, FULL, "linear_attention")),
    "qwen3_next": text(
        2048,
        16,
        48,
        32_768,
        head_dim=256,
        partial=0.25,
        cycle=every(4, FULL, "linear_attention"),
    ),
}
"""Beside layers without attention."""


SAME: Families = {
    "cwm": text(
        6144,
        48,
        64,
        131_072,
        1_000_000.0,
        head_dim=128,
        also={
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ),
}
"""Layer types that differ in their window alone."""

FAMILIES: Families = {**NOPE_FULL, **NOPE_EVERY, **HYBRID, **SAME}
