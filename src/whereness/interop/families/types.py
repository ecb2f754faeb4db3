"""Families of text models whose layer types have bases, widths or scalings of their own."""

from typing import Any

from whereness.interop.families import Families
from whereness.interop.families.forms import EVERY_N, FULL, PARTIAL, SLIDING, every, text


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

FAMILIES: Families = {
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
