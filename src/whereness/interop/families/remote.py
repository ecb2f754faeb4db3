"""Families whose code came with the weights and is not in transformers 5.24.

Each is certain from public code, named at its line; a default stands here only where that code has
it. Keys that say something in their own way are rewritten first (`remote.py`).
"""

from dataclasses import replace
from typing import Any

from whereness.interop.families import Families, Family
from whereness.interop.families.forms import latent, text
from whereness.interop.families.tables import FALCON

LLAMAS: Families = {
    "Yi": text(4096, 32, 32, 4096, 5_000_000.0),  # configuration_yi.py of 01-ai/Yi-6B
    "aquila": text(4096, 32, 32, 2048),  # vllm/model_executor/models/aquila.py
    "internlm": text(4096, 32, 32, 2048),  # modeling_internlm.py
    "internlm2": text(4096, 32, 32, 2048),  # modeling_internlm2.py
    "minicpm": text(4096, 32, 32, 2048),  # modeling_minicpm.py
    "orion": text(5120, 40, 40, 4096),  # vllm/model_executor/models/orion.py
    "stablelm_epoch": text(  # modeling_stablelm_epoch.py
        2560, 32, 32, 4096, also={"rope_pct": 0.25}, fraction=("rope_pct",)
    ),
    "xverse": text(5120, 40, 40, 8192),  # vllm/model_executor/models/xverse.py
}
"""Pairing "half", as Llama."""

PHI: dict[str, Any] = {
    "n_embd": 2048,
    "n_head": 32,
    "n_layer": 24,
    "n_positions": 2048,
    "rotary_dim": 32,
    "rope_theta": 10_000.0,
}
PHI_MSFT = Family(  # configuration_phi.py and modeling_phi.py of microsoft/phi-2
    defaults=PHI, head_dim=("n_embd//n_head",), rotary_dim=("rotary_dim",), base=()
)
REFINED_WEB = replace(  # modeling_RW.py of tiiuae/falcon-7b
    FALCON,
    defaults={"hidden_size": 4544, "n_head": 71, "n_layer": 32, "rope_theta": 10_000.0},
    head_dim=("hidden_size//n_head",),
    base=(),
    when=(
        (
            "alibi",
            True,
            Family(
                refused="adds ALiBi before the scores are divided by sqrt(head_dim), "
                "sqrt(head_dim) times weaker than ALiBi"
            ),
        ),
    ),
)
CODESHELL = Family(
    refused="has positions that only position_embedding_type 'rope' lets us read",
    when=(
        (
            "position_embedding_type",
            "rope",
            Family(  # modeling_codeshell.py: the base is no key
                defaults={"rope_theta": 10_000.0}, head_dim=("n_embd//n_head",), base=()
            ),
        ),
    ),
)

OTHERS: Families = {
    "RefinedWeb": REFINED_WEB,
    "RefinedWebModel": REFINED_WEB,
    "baichuan": Family(  # vllm/model_executor/models/baichuan.py tells them apart in the same way
        refused="has RoPE with hidden_size 4096 (7B) and ALiBi with 5120 (13B); others are unknown",
        when=(
            ("hidden_size", 4096, text(4096, 32, 32, 4096)),
            ("hidden_size", 5120, Family(kind="alibi", defaults={"num_attention_heads": 40})),
        ),
    ),
    "chatglm": Family(  # modeling_chatglm.py of chatglm2-6b, chatglm3-6b and glm-4-9b
        defaults={"rope_theta": 10_000.0},
        head_dim=("kv_channels",),
        rotary_dim=("kv_channels//2",),
        base=("rope_theta",),
        pairing="interleaved",
        num_positions=("seq_length",),
        when=(("position_encoding_2d", True, Family(refused="of the first kind has two axes")),),
    ),
    "codeshell": CODESHELL,
    "kimi_k2": latent(  # DeepSeek-V3's code, configuration_deepseek.py of moonshotai/Kimi-K2
        7168, 64, 61, 131_072, None, 128, 64
    ),
    "mixformer-sequential": PHI_MSFT,
    "phi-msft": PHI_MSFT,
    "qwen": Family(  # modeling_qwen.py of Qwen/Qwen-7B
        defaults={"kv_channels": 128, "rotary_pct": 1.0, "rotary_emb_base": 10_000.0},
        head_dim=("kv_channels",),
        fraction=("rotary_pct",),
        base=("rotary_emb_base",),
        num_positions=("seq_length",),
        dynamic="qwen",
        temperature="logn",
    ),
}

FAMILIES: Families = {**LLAMAS, **OTHERS}
