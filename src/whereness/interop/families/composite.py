"""Families that are composed of parts whose own config does not say what they are.

A part is found without being listed here where its key ends in "_config" and it has a model_type.
"""

from whereness.interop.families import Families, Family

CLIP_AND_LLAMA = Family(parts={"text_config": "llama", "vision_config": "clip_vision_model"})


def qwen(name: str) -> Family:
    """Qwen-VL: the first files hold the keys of the text at the top."""
    parts = {"text_config": f"{name}_text", "vision_config": f"{name}_vision"}
    return Family(text=f"{name}_text", parts=parts)


FAMILIES: Families = {
    "evolla": Family(
        text="evolla_text",
        parts={"text_config": "evolla_text", "protein_encoder_config": "evolla_saprot"},
    ),
    "llava": CLIP_AND_LLAMA,
    "llava_next": CLIP_AND_LLAMA,
    "llava_next_video": CLIP_AND_LLAMA,
    "qwen2_5_vl": qwen("qwen2_5_vl"),
    "qwen2_vl": qwen("qwen2_vl"),
    "qwen3_omni_moe": Family(
        parts={
            "thinker_config.text_config": "qwen3_omni_moe_text",
            "thinker_config.vision_config": "qwen3_omni_moe_vision_encoder",
            "talker_config.text_config": "qwen3_omni_moe_talker_text",
            "talker_config.code_predictor_config": "qwen3_omni_moe_talker_code_predictor",
            "code2wav_config": "qwen3_omni_moe_code2wav",
        }
    ),
    "step3p7": Family(parts={"text_config": "step3p5", "vision_config": "step3p5_vision"}),
    "vipllava": CLIP_AND_LLAMA,
}
