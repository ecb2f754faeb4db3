"""Families of text models whose layers differ: no position, another base, another width."""

from typing import Any

from whereness.interop.families import Families
from whereness.interop.families_forms import PARTIAL, every, text

FULL, SLIDING = "full_attention", "sliding_attention"
EVERY_N: dict[str, Any] = {"pattern": ("sliding_window_pattern", FULL, SLIDING, -1)}

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
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        rope_flags="no_rope_layers",
        nope_interval="no_rope_layer_interval",
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


def two_bases(full: float, sliding: float, full_key: str, sliding_key: str) -> dict[str, Any]:
    """Bases by layer type, and the top-level keys of older files for them."""
    return {
        "base": None,
        "also": {full_key: full, sliding_key: sliding},
        "types_bases": {FULL: (full_key,), SLIDING: (sliding_key,)},
    }


def gemma(**also: Any) -> dict[str, Any]:
    """Gemma 3: a long base for full attention, which alone a `rope_scaling` reaches."""
    shape = two_bases(1_000_000.0, 10_000.0, "rope_theta", "rope_local_base_freq")
    return shape | {"also": shape["also"] | also, "types_scaled": (FULL,)}


def modern_bert() -> dict[str, Any]:
    """ModernBERT: every third layer, the first among them, has full attention."""
    shape = two_bases(160_000.0, 10_000.0, "global_rope_theta", "local_rope_theta")
    shape["also"]["global_attn_every_n_layers"] = 3
    return shape | {"pattern": ("global_attn_every_n_layers", FULL, SLIDING, 0)}


def plain(base: float, fraction: float | None = None) -> dict[str, Any]:
    """A rope dict without scaling."""
    own = {"rope_type": "default", "rope_theta": base}
    return own if fraction is None else own | {"partial_rotary_factor": fraction}


PROPORTIONAL: dict[str, Any] = {
    "rope_type": "proportional",
    "partial_rotary_factor": 0.25,
    "rope_theta": 1_000_000.0,
}
GEMMA_4: dict[str, Any] = {
    "base": None,
    "head_dim": 256,
    "also": {"global_head_dim": 512},
    "head_dims": {FULL: ("global_head_dim",)},
    "types_parameters": {SLIDING: plain(10_000.0), FULL: PROPORTIONAL},
    "cycle": ((), (*(SLIDING,) * 5, FULL), (FULL,)),
}

TWO_BASES: Families = {
    "deepseek_v4": text(
        4096,
        64,
        43,
        1_048_576,
        10_000.0,
        head_dim=512,
        pairing="interleaved",
        side="trailing",
        rotary_dim=("qk_rope_head_dim",),
        fraction=PARTIAL,
        also={"partial_rotary_factor": 0.125, "compress_rope_theta": 160_000.0},
        labels={
            SLIDING: "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
        types_bases={
            "compressed_sparse_attention": ("compress_rope_theta",),
            "heavily_compressed_attention": ("compress_rope_theta",),
        },
        types_scaled=("compressed_sparse_attention", "heavily_compressed_attention"),
        attention_factor=1.0,
        cycle=(
            ("heavily_compressed_attention", "heavily_compressed_attention"),
            ("heavily_compressed_attention", "compressed_sparse_attention"),
            (),
        ),
        notes=("The layer also turns its output back by the query's position.",),
    ),
    "diffusion_gemma_text": text(2304, 8, 30, 131_072, fraction=PARTIAL, **GEMMA_4),
    "dory": text(
        2560,
        16,
        36,
        8192,
        None,
        head_dim=256,
        cycle=every(4),
        types_parameters={SLIDING: plain(10_000.0), FULL: plain(10_000_000.0)},
    ),
    "embedding_gemma2_text": text(
        512,
        4,
        24,
        262_144,
        **GEMMA_4 | {"types_parameters": {SLIDING: plain(10_000.0), FULL: plain(1_000_000.0)}},
    ),
    "gemma3_text": text(
        2304, 8, 26, 131_072, head_dim=256, **gemma(sliding_window_pattern=6), **EVERY_N
    ),
    "gemma3n_text": text(2048, 8, 35, 32_768, head_dim=256, **gemma(), cycle=every(5)),
    "gemma4_text": text(2304, 8, 30, 131_072, **GEMMA_4),
    "gemma4_unified_text": text(2304, 8, 30, 262_144, **GEMMA_4),
    "laguna": text(
        2048,
        48,
        40,
        131_072,
        None,
        head_dim=128,
        fraction=PARTIAL,
        types_default=FULL,
        types_parameters={FULL: plain(500_000.0, 0.5), SLIDING: plain(10_000.0, 1.0)},
    ),
    "lfm3": text(
        2048,
        16,
        24,
        128_000,
        None,
        head_dim=128,
        cycle=(("conv",), ("conv", FULL, "conv", SLIDING), ()),
        types_parameters={
            FULL: PROPORTIONAL | {"partial_rotary_factor": 0.5},
            SLIDING: plain(10_000.0),
        },
    ),
    "mellum": text(
        2304,
        32,
        28,
        131_072,
        None,
        head_dim=128,
        fraction=PARTIAL,
        types_default=FULL,
        types_parameters={FULL: plain(500_000.0), SLIDING: plain(10_000.0)},
    ),
    "mimo_v2_flash": text(
        4096,
        64,
        48,
        131_072,
        None,
        head_dim=192,
        fraction=PARTIAL,
        types_fractions={FULL: 0.334, SLIDING: 0.334},
        cycle=((FULL, *(SLIDING,) * 4, FULL), (*(SLIDING,) * 5, FULL), ()),
        types_parameters={FULL: plain(5_000_000.0, 0.334), SLIDING: plain(10_000.0, 0.334)},
    ),
    "modernbert": text(768, 12, 22, 8192, **modern_bert()),
    "modernbert-decoder": text(768, 12, 22, 8192, **modern_bert()),
    "olmo3": text(4096, 32, 32, 2048, 500_000.0, types_scaled=(FULL,), cycle=every(4)),
    "step3p5": text(
        4096,
        64,
        45,
        128_000,
        head_dim=128,
        fraction=PARTIAL,
        types_default=FULL,
        types_scaled=(FULL,),
    ),
    "t5gemma2_decoder": text(
        2304, 8, 26, 131_072, head_dim=256, **gemma(sliding_window_pattern=6), **EVERY_N
    ),
    "t5gemma2_text": text(
        2304, 8, 26, 131_072, head_dim=256, **gemma(sliding_window_pattern=6), **EVERY_N
    ),
    "ultrabert": text(
        4096,
        32,
        32,
        32_768,
        None,
        cycle=every(3),
        types_parameters={SLIDING: plain(10_000.0), FULL: plain(2_560_000.0)},
    ),
    "zaya": text(
        2048,
        8,
        40,
        131_072,
        None,
        head_dim=128,
        fraction=PARTIAL,
        types_default="hybrid",
        types_parameters={
            "hybrid": plain(5_000_000.0, 0.5),
            "hybrid_sliding": plain(10_000.0, 0.5),
        },
    ),
}
"""Layer types with bases, widths or scalings of their own."""

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

FAMILIES: Families = {**NOPE_FULL, **NOPE_EVERY, **HYBRID, **TWO_BASES, **SAME}
