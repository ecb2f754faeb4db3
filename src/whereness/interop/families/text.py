"""Families of text and audio models whose layers all have the same RoPE."""

from dataclasses import replace
from typing import Any

from whereness.interop.families import Families, Family
from whereness.interop.families.forms import PARTIAL, text

LLAMA_3: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GPT_OSS_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
APERTUS: dict[str, Any] = {
    "base": 12_000_000.0,
    "also": {"rope_parameters": LLAMA_3 | {"rope_theta": 12_000_000.0, "factor": 8.0}},
}
PLAIN: Families = {
    "arcee": text(2560, 32, 32, 4096),
    "aria_text": text(4096, 32, 32, 2048),
    "bitnet": text(2560, 20, 30, 2048, 500_000.0),
    "chameleon": text(4096, 32, 32, 4096),
    "csm": text(2048, 32, 16, 2048, 500_000.0),
    "csm_depth_decoder_model": text(1024, 8, 4, 33, 500_000.0),
    "deepseek_ocr2_encoder": text(4096, 32, 32, 32_768),
    "deepseek_ocr2_text": text(4096, 32, 32, 2048),
    "dia_decoder": text(2048, 16, 18, 3072, head_dim=128),
    "dia_encoder": text(1024, 16, 12, 1024, head_dim=128),
    "diffllama": text(2048, 32, 16, 2048),
    "doge": text(1024, 8, 32, 2048),
    "dots1": text(4608, 32, 62, 2048),
    "emu3_text_model": text(4096, 32, 32, 9216, 1_000_000.0),
    "esmc": text(2560, 40, 80, 2048),
    "eurobert": text(768, 12, 12, 8192),
    "evolla_text": text(4096, 32, 32, 8192, 500_000.0),
    "exaone": replace(
        text(4096, 32, 32, 4096, 500_000.0),
        num_layers=("num_layers", "num_hidden_layers"),
    ),
    "falcon_h1": text(4096, 32, 32, 8192),
    "flex_olmo": text(4096, 32, 32, 4096, 500_000.0),
    "gemma": text(3072, 16, 28, 8192, head_dim=256),
    "gemma2": text(2304, 8, 26, 8192, head_dim=256),
    "gradium_phonon_tts": text(768, 12, 6, 8192),
    "granite": text(4096, 32, 32, 2048),
    "granite4_vision_text": text(4096, 32, 32, 2048),
    "granite_docling_text": text(1024, 16, 28, 32_768),
    "granitemoe": text(4096, 32, 32, 2048),
    "granitemoeshared": text(4096, 32, 32, 2048),
    "gte": text(768, 12, 12, 8192, 160_000.0),
    "hrm_text": text(1536, 12, 128, 2048, head_dim=128),
    "hy_v3": text(4096, 64, 80, 131_072, 11_158_840.0, head_dim=128),
    "hyperclovax": text(4096, 32, 32, 2048),
    "idefics": text(4096, 32, 32, 2048),
    "internlm3": text(4096, 32, 48, 32_768, head_dim=128),
    "iquestcoder": text(5120, 40, 80, 131_072, head_dim=128),
    "jais2": text(3328, 26, 32, 8192),
    "jetmoe": replace(
        text(2048, 32, 12, 4096, also={"kv_channels": 128}), head_dim=("kv_channels",)
    ),
    "jina_embeddings_v3": text(1024, 16, 24, 8194, 20_000.0),
    "kyutai_speech_to_text": text(2048, 32, 48, 750),
    "lasr_encoder": text(512, 8, 17, 10_000),
    "llama": text(4096, 32, 32, 2048),
    "mimi": text(512, 8, 8, 8000),
    "ministral": text(4096, 32, 32, 131_072),
    "mistral": text(4096, 32, 32, 131_072),
    "mixtral": text(4096, 32, 32, 131_072, 1_000_000.0),
    "mllama_text_model": text(4096, 32, 40, 131_072, 500_000.0),
    "moshi": text(4096, 32, 32, 3000),
    "muse_glimmer_assistant": text(6656, 32, 5, 131_072, 500_000.0, head_dim=128),
    "nomic_bert": text(768, 12, 12, 2048, 1000.0),
    "olmo": text(4096, 32, 32, 2048),
    "olmo2": text(4096, 32, 32, 2048),
    "olmoe": text(2048, 16, 16, 4096),
    "pocket_tts": text(1024, 16, 6, 8192),
    "pocket_tts_audio_tokenizer": text(512, 8, 2, 8000),
    "qwen2": text(4096, 32, 32, 32_768),
    "qwen2_moe": text(2048, 16, 24, 32_768),
    "qwen3": text(4096, 32, 32, 32_768, head_dim=128),
    "qwen3_moe": text(2048, 32, 24, 32_768),
    "qwen3_omni_moe_code2wav": text(1024, 16, 8, 8000),
    "qwen3_omni_moe_talker_code_predictor": text(1024, 16, 5, 32_768, head_dim=128),
    "seed_oss": text(4096, 80, 64, 524_288, head_dim=128),
    "starcoder2": text(3072, 24, 30, 4096),
    "t5_gemma_module": text(2304, 8, 26, 8192, head_dim=256),
    "timesfm2_5": text(1280, 16, 20, 16_384, head_dim=80),
    "unlimited_ocr_text": text(1280, 10, 12, 32_768),
    "vaultgemma": text(2304, 8, 26, 8192, head_dim=256),
    "voxtral_realtime_encoder": text(1280, 32, 32, 1500, head_dim=64),
    "voxtral_realtime_text": text(4096, 32, 32, 131_072),
}
"""Pairing "half", every channel turns, no scaling unless the config has one."""

INTERLEAVED: Families = {
    name: replace(family, pairing="interleaved")
    for name, family in {
        "blt_global_transformer": text(2048, 16, 25, 4096, 500_000.0),
        "blt_local_decoder": text(1024, 16, 9, 24_576, 500_000.0),
        "blt_local_encoder": text(1024, 16, 1, 24_576, 500_000.0),
        "blt_patcher": text(768, 12, 14, 8192),
        "cohere": text(8192, 64, 40, 8192, 500_000.0),
        "ernie4_5": text(1024, 16, 18, 131_072, 500_000.0, head_dim=128),
        "ernie4_5_moe": text(2560, 20, 28, 131_072, 500_000.0),
        "glm": text(4096, 32, 40, 131_072, head_dim=128, partial=0.5),
        "glm4": text(4096, 32, 40, 131_072, head_dim=128, partial=0.5),
        "helium": text(2560, 20, 24, 4096, 100_000.0, head_dim=128),
        "moonshine_streaming": text(320, 8, 6, 4096, partial=0.8),
        "openai_privacy_filter": text(
            640, 14, 8, 131_072, 150_000.0, head_dim=64, also={"rope_parameters": GPT_OSS_YARN}
        ),
        "pe_audio_encoder": text(1792, 14, 6, 10_000, 20_000.0, head_dim=128),
        "pe_audio_video_encoder": text(1792, 14, 6, 10_000, 20_000.0, head_dim=128),
        "pe_video_encoder": text(1792, 14, 6, 10_000, 20_000.0, head_dim=128),
    }.items()
}

NEOX: dict[str, Any] = {
    "base": ("rotary_emb_base",),
    "fraction": ("rotary_pct",),
    "notes": (
        (
            "transformers 5.24 reads rotary_emb_base and rotary_pct here, and neither rope_theta "
            "nor partial_rotary_factor outside of rope_parameters."
        ),
    ),
}
SU: dict[str, Any] = {
    "fraction": PARTIAL,
    "aliases": {"su": "longrope", "yarn": "longrope"},
}
"""Phi-3's code knows one scaling, LongRoPE, under three names."""
HALF_DICT: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
}

PART: Families = {
    "bamba": text(4096, 32, 32, 262_144, partial=0.5),
    "dots3_note_audio_encoder": text(1280, 20, 32, 6000, head_dim=64, partial=0.5),
    "glm4_moe": text(4096, 96, 46, 131_072, partial=0.5),
    "glmasr_encoder": text(1280, 20, 32, 1500, partial=0.5),
    "gpt_neox": Family(
        defaults={
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "max_position_embeddings": 2048,
            "rotary_emb_base": 10_000.0,
            "rotary_pct": 0.25,
        },
        **NEOX,
    ),
    "gpt_neox_japanese": Family(
        defaults={
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "max_position_embeddings": 2048,
            "rotary_emb_base": 10_000.0,
            "rotary_pct": 1.0,
        },
        **NEOX,
    ),
    "minimax_m2": text(
        3072,
        48,
        62,
        196_608,
        5_000_000.0,
        head_dim=128,
        fraction=PARTIAL,
        rotary_dim=("rotary_dim",),
    ),
    "minimax_m3_vl_text": text(
        6144,
        64,
        60,
        524_288,
        5_000_000.0,
        head_dim=128,
        fraction=PARTIAL,
        notes=(
            "rotary_dim is a dead key in transformers 5.24: partial_rotary_factor says what turns.",
        ),
    ),
    "nemotron": text(6144, 48, 32, 4096, partial=0.5),
    "nemotron3_5_transcribe_asr_audio": text(
        1280, 10, 32, 5000, partial=1.0, also={"rope_parameters": HALF_DICT}
    ),
    "nemotron3_5_transcribe_word_timestamp": text(
        1280, 16, 2, 5000, fraction=PARTIAL, also={"rope_parameters": HALF_DICT}
    ),
    "nemotron3_diarization_audio": text(512, 8, 31, 5000, partial=1.0),
    "persimmon": text(4096, 64, 36, 16_384, partial=0.5),
    "phi": text(2048, 32, 24, 2048, partial=0.5),
    "phi3": text(3072, 32, 32, 4096, also={"original_max_position_embeddings": 4096}, **SU),
    "phi4_multimodal": text(
        3072, 32, 32, 131_072, also={"original_max_position_embeddings": 4096}, **SU
    ),
    "recurrent_gemma": text(
        2560,
        10,
        26,
        8192,
        head_dim=256,
        partial=0.5,
        cycle=((), ("recurrent", "recurrent", "attention"), ()),
    ),
    "solar_open": text(4096, 64, 48, 131_072, 1_000_000.0, head_dim=128, partial=1.0),
    "sarvam_moe": text(4096, 64, 19, 131_072, 8_000_000.0, head_dim=64, partial=1.0),
    "stablelm": text(2560, 32, 32, 4096, partial=0.25),
}
"""The first channels turn."""

SCALED: Families = {
    "apertus": text(4096, 32, 32, 65_536, **APERTUS),
    "apertus1p5_text": text(4096, 32, 32, 65_536, **APERTUS),
    "gpt_oss": text(
        2880, 64, 36, 131_072, 150_000.0, head_dim=64, also={"rope_parameters": GPT_OSS_YARN}
    ),
    "higgs_audio_v2": text(
        3072,
        24,
        28,
        2048,
        500_000.0,
        head_dim=128,
        also={
            "rope_parameters": LLAMA_3
            | {
                "rope_theta": 500_000.0,
                "factor": 32.0,
                "high_freq_factor": 0.5,
                "low_freq_factor": 0.125,
                "original_max_position_embeddings": 1024,
            }
        },
    ),
    "hunyuan_v1_dense": text(4096, 32, 32, 2048, rope_keys=("alpha",)),
    "hunyuan_v1_moe": text(4096, 32, 32, 2048, rope_keys=("alpha",)),
    "ministral3": text(
        4096,
        32,
        34,
        262_144,
        1_000_000.0,
        head_dim=128,
        also={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
        temperature="ministral3",
    ),
    "molmo2_text": text(4096, 32, 36, 36_864, head_dim=128, scaled_layers="rope_scaling_layers"),
    "nanochat": text(768, 6, 12, 2048, reversed=True),
    "phimoe": text(
        4096,
        32,
        32,
        131_072,
        1_000_000.0,
        notes=(
            "transformers 5.24 turns by short_factor at every length; long_factor is never read.",
        ),
    ),
}
"""With scalings of their own, or a quirk."""

SINUSOIDAL_TABLES: dict[str, Any] = {
    "head_dim": ("n_embd//n_head",),
    "rotary_dim": ("rotary_dim",),
    "pairing": "interleaved",
}
NAMED: Families = {
    "codegen": Family(
        defaults={
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "n_positions": 2048,
            "rotary_dim": 64,
            "rope_theta": 10_000.0,
        },
        **SINUSOIDAL_TABLES,
    ),
    "dbrx": Family(
        defaults={
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 24,
            "max_seq_len": 2048,
            "rope_theta": 10_000.0,
        },
        head_dim=("head_dim", "d_model//n_heads"),
        base=("attn_config.rope_theta", "rope_theta"),
        notes=(
            (
                "transformers 5.24 turns by 10 000 whatever attn_config.rope_theta says; the "
                "released models were trained with 500 000."
            ),
        ),
        num_positions=("max_seq_len",),
    ),
    "gptj": Family(
        defaults={
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "n_positions": 2048,
            "rotary_dim": 64,
            "rope_theta": 10_000.0,
        },
        **SINUSOIDAL_TABLES,
    ),
}
"""With names of their own for the sizes."""

BY_HEAD = (
    (
        "The code turns each head by its number and not by a token's, q and k alike, so attention "
        "sees no position."
    ),
)
ODD: Families = {
    "neucodec": Family(kind="none", notes=BY_HEAD),
    "qwen2_5_omni_dit": Family(
        refused="turns the first head of queries and keys alone, the other heads have no position"
    ),
    "xcodec2": Family(kind="none", notes=BY_HEAD),
}
"""Codes that hold a rotary embedding and do something else with it."""

FAMILIES: Families = {**PLAIN, **INTERLEAVED, **PART, **SCALED, **NAMED, **ODD}
