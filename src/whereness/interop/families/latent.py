"""Families with latent attention (MLA): a query's last channels turn, the others do not.

The code of most de-interleaves what turns before it turns halves, so the weights are stored
"interleaved"; q and k come out in another order of channels, which their product does not see.
"""

from typing import Any

from whereness.interop.families import Families
from whereness.interop.families.forms import FULL, SLIDING, latent

BY_KEY: dict[str, Any] = {"interleaved": "rope_interleave", "also": {"rope_interleave": True}}

FAMILIES: Families = {
    "axk1": latent(7168, 64, 61, 32_768, 10_000.0, 128, 64, **BY_KEY),
    "axk2": latent(2048, 32, 48, 131_072, 10_000.0, 64, 32),
    "bailing_hybrid": latent(
        2560,
        32,
        42,
        262_144,
        6_000_000.0,
        128,
        64,
        also={"layer_group_size": 6},
        pattern=("layer_group_size", FULL, "linear_attention", -1),
        num_positions=("max_position_embeddings", "model_max_length"),
    ),
    "deepseek_v2": latent(4096, 32, 32, 2048, 10_000.0, 128, 64),
    "deepseek_v3": latent(7168, 128, 61, 4096, 10_000.0, 128, 64, **BY_KEY),
    "deepseek_v32": latent(
        7168,
        128,
        61,
        163_840,
        10_000.0,
        128,
        64,
        notes=("The indexer turns its own first channels, in halves.",),
    ),
    "dots3_note_text": latent(
        5120,
        128,
        46,
        524_288,
        80_000_000.0,
        128,
        64,
        also={"swa_rope_theta": 50_000.0, "swa_head_dim": 256},
        yarn="huggingface",
        head_dims={SLIDING: ("swa_head_dim",)},
        types_bases={SLIDING: ("swa_rope_theta",)},
        fraction=("partial_rotary_factor",),
        cycle=(
            ("indexed_attention", "indexed_attention"),
            (SLIDING, SLIDING, SLIDING, "indexed_attention"),
            (),
        ),
    ),
    "glm4_moe_lite": latent(2048, 20, 47, 202_752, 10_000.0, 192, 64, **BY_KEY),
    "glm_moe_dsa": latent(6144, 64, 78, 202_752, 10_000.0, 192, 64),
    "hy_v4": latent(2816, 32, 34, 262_144, 10_000.0, 192, 64, pairing="half"),
    "longcat_flash": latent(
        6144,
        64,
        56,
        131_072,
        10_000_000.0,
        128,
        64,
        also={"num_layers": 28},
        num_layers=("num_layers+num_layers",),
    ),
    "minicpm3": latent(2560, 40, 62, 32_768, 10_000.0, 64, 32, pairing="half"),
    "mistral4": latent(
        4096,
        32,
        36,
        1_048_576,
        10_000.0,
        64,
        64,
        also={
            "rope_interleave": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 128.0,
                "original_max_position_embeddings": 8192,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        interleaved="rope_interleave",
        fraction=("partial_rotary_factor",),
        temperature="ministral3",
    ),
    "mistral_large4_text": latent(
        6144,
        64,
        72,
        1_048_576,
        10_000.0,
        64,
        64,
        also={
            "no_rope_layer_interval": 4,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 2048.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": 1.0,
            },
        },
        learned=True,
        rope_flags="no_rope_layers",
        nope_interval="no_rope_layer_interval",
        notes=(
            "Queries are also scaled by scale[h] log(position + 1) + bias[h], learned by head.",
        ),
    ),
    "sarvam_mla": latent(4096, 64, 32, 4096, 10_000.0, 128, 64, **BY_KEY),
    "youtu": latent(2048, 16, 32, 131_072, 10_000.0, 128, 64, **BY_KEY),
}
