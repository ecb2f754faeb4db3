"""Text models whose positions have several axes (M-RoPE), and the towers that see and hear."""

from dataclasses import replace
from typing import Any

from whereness.interop.families import Families, Family
from whereness.interop.families.forms import FULL, PARTIAL, SLIDING, latent, text


def chunked(*sections: int, **also: Any) -> dict[str, Any]:
    """Time, height and width one after the other."""
    return {
        "kind": "multimodal",
        "sections": ("mrope_section",),
        "also": {"mrope_section": list(sections), **also},
    }


def interleaved(*sections: int, **also: Any) -> dict[str, Any]:
    """Time, height and width in turn."""
    return chunked(*sections, **also) | {"order": "interleaved"}


QWEN_2 = chunked(16, 24, 24) | {"interleaved_sections": "mrope_interleaved"}
QWEN_3 = interleaved(24, 20, 20) | {"rope_keys": ("mrope_interleaved",)}
QWEN_3_5 = interleaved(11, 11, 10) | {"rope_keys": ("mrope_interleaved",)}
LINEAR = ("linear_attention",) * 3

TEXT: Families = {
    "cohere_compass_text": text(
        8192,
        64,
        40,
        8192,
        10_000.0,
        types_default=FULL,
        **QWEN_3,
    ),
    "cosmos3_edge_text": text(2048, 16, 28, 131_072, 100_000_000.0, head_dim=128, **QWEN_3),
    "ernie4_5_vl_moe_text": text(
        2560,
        20,
        28,
        131_072,
        500_000.0,
        pairing="interleaved",
        **chunked(22, 22, 20) | {"order": "ernie"},
    ),
    "glm4v_moe_text": text(4096, 96, 46, 65_536, partial=0.5, **chunked(8, 12, 12)),
    "glm4v_text": text(
        4096, 32, 40, 32_768, fraction=PARTIAL, pairing="interleaved", **chunked(8, 12, 12)
    ),
    "glm_image_text": text(4096, 32, 40, 131_072, fraction=PARTIAL, **chunked(8, 12, 12)),
    "glm_ocr_text": text(
        1024, 16, 16, 131_072, fraction=PARTIAL, pairing="interleaved", **chunked(8, 12, 12)
    ),
    "hunyuan_vl_text": text(
        4096,
        32,
        32,
        2048,
        rope_keys=("alpha",),
        refused=(
            "transformers 5.24 gives each section twice as many channels of the whole head, so the "
            "two channels of a pair turn by different axes; other engines give it pairs"
        ),
    ),
    "hy_v4_vl_text": latent(
        6144,
        64,
        78,
        262_144,
        10_000.0,
        192,
        64,
        **interleaved(12, 10, 10),
    ),
    "paddleocr_vl_text": text(1024, 16, 18, 131_072, 500_000.0, head_dim=128, **QWEN_2),
    "qwen2_5_omni_talker": text(3584, 28, 28, 32_768, 1_000_000.0, head_dim=128, **QWEN_2),
    "qwen2_5_omni_text": text(3584, 28, 28, 32_768, 1_000_000.0, **QWEN_2),
    "qwen2_5_vl_text": text(8192, 64, 80, 32_768, 1_000_000.0, **QWEN_2),
    "qwen2_vl_text": text(8192, 64, 80, 32_768, 1_000_000.0, **QWEN_2),
    "qwen3_5_moe_text": text(
        2048,
        16,
        40,
        32_768,
        head_dim=256,
        partial=0.25,
        cycle=((), (*LINEAR, FULL), ()),
        **QWEN_3_5,
    ),
    "qwen3_5_text": text(
        4096,
        16,
        32,
        32_768,
        head_dim=256,
        partial=0.25,
        cycle=((), (*LINEAR, FULL), ()),
        **QWEN_3_5,
    ),
    "qwen3_omni_moe_talker_text": text(1024, 16, 20, 32_768, **QWEN_3_5),
    "qwen3_omni_moe_text": text(2048, 28, 28, 32_768, 1_000_000.0, **QWEN_3),
    "qwen3_vl_moe_text": text(2048, 16, 24, 128_000, 500_000.0, **QWEN_3),
    "qwen3_vl_text": text(4096, 32, 32, 128_000, 500_000.0, head_dim=128, **QWEN_3),
    "qwen4_exp_text": text(
        2048,
        16,
        40,
        32_768,
        head_dim=256,
        fraction=PARTIAL,
        cycle=((), (*LINEAR, "indexed_attention"), ()),
        **interleaved(107, 11, 10) | {"rope_keys": ("mrope_interleaved",)},
    ),
    "neomme": text(
        1024,
        16,
        17,
        16_384,
        head_dim=64,
        kind="axial",
        fraction=PARTIAL,
        options={"num_axes": 2, "layout": "shared_alternating"},
        types_bases={SLIDING: ("sliding_rope_theta",), FULL: ("full_rope_theta",)},
        types_fractions={FULL: 0.25, SLIDING: 1.0},
        also={"sliding_rope_theta": 10_000.0, "full_rope_theta": 1_000_000.0},
        cycle=((), (*(SLIDING,) * 5, FULL), (FULL,)),
    ),
    "musicflamingo": Family(
        refused="angles are products of a token's index and its time stamp, not of one position"
    ),
}

DEPTH = ("num_hidden_layers", "depth")
BACK: dict[str, Any] = {"axis_order": (1, 0)}
"""Columns have the first pairs."""


def tower(
    hidden_size: int,
    num_attention_heads: int,
    num_hidden_layers: int,
    base: float = 10_000.0,
    *,
    heads: str = "num_attention_heads",
    layers: str = "num_hidden_layers",
    pairing: str = "half",
    notes: tuple[str, ...] = (),
    **options: Any,
) -> Family:
    """A vision tower: rows and columns of patches, half of the pairs each."""
    return Family(
        kind="axial",
        defaults={
            "hidden_size": hidden_size,
            heads: num_attention_heads,
            layers: num_hidden_layers,
            "rope_theta": base,
        },
        head_dim=("head_dim", f"hidden_size//{heads}"),
        num_layers=(layers,),
        pairing=pairing,  # type: ignore[arg-type]
        options={"num_axes": 2, **options},
        notes=notes,
    )


def qwen(hidden_size: int, num_heads: int, depth: int) -> Family:
    """The towers of Qwen-VL and GLM-V, with their names of the keys."""
    return tower(hidden_size, num_heads, depth, heads="num_heads", layers="depth")


def memory(num_layers: int) -> Family:
    """The memory attention of SAM 2 and its kin, which turns; the encoder does not."""
    parts = ("memory_attention_downsample_rate", "memory_attention_num_attention_heads")
    return Family(
        kind="axial",
        defaults={
            "memory_attention_hidden_size": 256,
            "memory_attention_downsample_rate": 1,
            "memory_attention_num_attention_heads": 1,
            "memory_attention_num_layers": num_layers,
            "rope_theta": 10_000.0,
        },
        head_dim=("//".join(("memory_attention_hidden_size", *parts)),),
        num_layers=("memory_attention_num_layers",),
        base=("memory_attention_rope_theta", "rope_theta"),
        pairing="interleaved",
        options={"num_axes": 2, **BACK},
    )


TOWERS: Families = {
    "cohere_compass_vision": qwen(1152, 16, 27),
    "dots3_note_vision_encoder": tower(1536, 24, 42),
    "ernie4_5_vl_moe_vision": qwen(1280, 16, 32),
    "exaone4_5_vision": qwen(3584, 16, 32),
    "gemma4_vision": Family(
        kind="axial",
        defaults={
            "hidden_size": 768,
            "num_attention_heads": 12,
            "head_dim": 64,
            "num_hidden_layers": 16,
            "rope_theta": 100.0,
        },
        options={"num_axes": 2, "layout": "heads", **BACK},
    ),
    "glm4v_moe_vision": qwen(1536, 12, 24),
    "glm4v_vision": qwen(1536, 12, 24),
    "glm5_next_vision": qwen(1024, 16, 24),
    "glm_ocr_vision": qwen(1024, 16, 24),
    "inkling2_vision": tower(1024, 16, 23, pairing="interleaved", offset=1.0, **BACK),
    "kimi_k25_vision": tower(1152, 16, 27, layout="alternating", **BACK),
    "lfm3_vl_vision": replace(
        tower(1024, 16, 14, 1_000_000.0), cycle=(("conv", "conv"), (FULL, "conv"), ())
    ),
    "llama4_vision_model": tower(
        768,
        16,
        34,
        pairing="interleaved",
        offset=1.0,
        notes=("The class token, last in its sequence, does not turn.",),
        **BACK,
    ),
    "mlcd_vision_model": tower(
        1664, 16, 48, notes=("The class token turns by learned angles, not by a position.",)
    ),
    "muse_glimmer_vision": tower(1536, 16, 50, offset=1.0, **BACK),
    "muse_spark_vision": tower(1536, 16, 50, offset=1.0, **BACK),
    "paddleocr_vl_vision": tower(1152, 16, 27),
    "pixtral": tower(1024, 16, 24, layout="shared_blocks"),
    "qwen2_5_omni_vision_encoder": qwen(3584, 16, 32),
    "qwen2_5_vl_vision": qwen(3584, 16, 32),
    "qwen2_vl_vision": Family(
        kind="axial",
        defaults={"embed_dim": 1280, "num_heads": 16, "depth": 32, "rope_theta": 10_000.0},
        head_dim=("head_dim", "embed_dim//num_heads"),
        num_layers=("depth",),
        options={"num_axes": 2},
    ),
    "qwen3_5_moe_vision": qwen(1152, 16, 27),
    "qwen3_5_vision": qwen(1152, 16, 27),
    "qwen3_omni_moe_vision_encoder": qwen(1152, 16, 27),
    "qwen3_vl_moe_vision": qwen(1152, 16, 27),
    "qwen3_vl_vision": qwen(1152, 16, 27),
    "qwen4_exp_vision": qwen(1152, 16, 27),
    "sam3_vit_model": tower(
        1024,
        16,
        32,
        pairing="interleaved",
        notes=("Layers without a window scale coordinates by window_size / grid width.",),
        **BACK,
    ),
    "step3p5_vision": tower(1536, 16, 47, **BACK),
    "video_llama_3_vision": tower(768, 12, 12),
}

OTHER: Families = {
    "dinov3_vit": Family(
        kind="dinov3",
        defaults={
            "hidden_size": 384,
            "num_attention_heads": 6,
            "num_hidden_layers": 12,
            "rope_theta": 100.0,
            "pos_embed_rescale": 2.0,
        },
        head_dim=("hidden_size//num_attention_heads",),
    ),
    "edgetam_video": memory(2),
    "efficientloftr": Family(
        kind="axial",
        defaults={"hidden_size": 256, "num_attention_heads": 8, "rope_theta": 10_000.0},
        head_dim=("hidden_size",),
        pairing="interleaved",
        rope_keys=("partial_rotary_factor",),
        options={"num_axes": 2, "layout": "alternating", "offset": 1.0},
        notes=("Turns before heads are split: one head of the whole width.",),
    ),
    "eomt_dinov3": Family(
        kind="dinov3",
        defaults={
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "rope_theta": 100.0,
            "pos_embed_rescale": 2.0,
        },
        head_dim=("hidden_size//num_attention_heads",),
    ),
    "minimax_m3_vl_vision": Family(
        kind="axial",
        defaults={
            "hidden_size": 1280,
            "num_attention_heads": 16,
            "num_hidden_layers": 32,
            "rope_theta": 10_000.0,
        },
        rotary_dim=("+".join(["hidden_size//num_attention_heads//6"] * 6),),
        options={"num_axes": 3},
    ),
    "sam2_video": memory(4),
    "sam3_tracker_video": memory(4),
}

FAMILIES: Families = {**TEXT, **TOWERS, **OTHER}
