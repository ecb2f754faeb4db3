"""The architectures of the zoo: what is shrunk everywhere, and what a family must be told."""

from dataclasses import dataclass, field
from typing import Any

SEED = 6
MOST_PARAMETERS = 3_000_000
"""A model with more is refused before any weight is made: 12 MB of float32."""

VOCABULARY, WIDTH, HEADS, HEAD_DIM, LAYERS, TABLE = 128, 64, 4, 16, 2, 256
LIVELY = 0.1
"""Deviation of weights: near 1/sqrt(width), so that attention is not flat as it is with 0.02."""


def _all(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **_all(WIDTH, "hidden_size d_model n_embd dim word_embed_proj_dim projection_dim hidden_dim"),
    **_all(WIDTH, "embedding_size mamba_d_state feature_projection_input_dim out_hidden_size"),
    **_all(HEADS, "num_attention_heads n_head num_heads n_heads attention_heads"),
    **_all(HEADS, "encoder_attention_heads decoder_attention_heads"),
    **_all(LAYERS, "num_hidden_layers n_layer num_layers n_layers num_decoder_layers depth"),
    **_all(LAYERS, "encoder_layers decoder_layers num_encoder_layers"),
    **_all(
        96, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff dff n_inner d_inner"
    ),
    **_all(96, "moe_intermediate_size ffn_hidden_size shared_expert_intermediate_size"),
    **_all(96, "intermediate_size_mlp expert_ffn_hidden_size hidden_dim_ffn ffn_dims"),
    **_all(VOCABULARY, "vocab_size vocab_size_per_layer_input"),
    **_all(HEAD_DIM, "head_dim d_kv v_head_dim query_pre_attn_scalar d_head kv_channels"),
    **_all(8, "qk_rope_head_dim qk_nope_head_dim rotary_dim sliding_window window_size"),
    **_all(8, "attention_chunk_size"),
    **_all(32, "kv_lora_rank q_lora_rank hidden_size_per_layer_input"),
    **_all(4, "num_local_experts n_routed_experts num_experts moe_num_experts"),
    **_all(2, "num_experts_per_tok moe_top_k num_experts_per_token moe_k spatial_merge_size"),
    **_all(1, "n_shared_experts n_group topk_group first_k_dense_replace"),
    **_all(32, "image_size"),
    **_all(8, "patch_size"),
    **_all(TABLE, "n_positions n_ctx max_target_positions max_source_positions max_seq_len"),
    **_all(TABLE, "max_text_positions max_speech_positions"),
    "initializer_range": LIVELY,
    "init_std": LIVELY,
    "temporal_patch_size": 1,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
"""What the keys of a config class become, wherever the class has them as numbers."""

GROUPED = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")


@dataclass(frozen=True)
class Architecture:
    """An entry: the model_type of the config class, what it is told, what its model is and takes.

    model: "causal" (the language model), "base" (the bare one), or the name of a class.
    takes: "tokens", "both" (encoder and decoder tokens), "pixels", "patches", "samples", "frames".
    """

    model_type: str
    model: str = "causal"
    takes: str = "tokens"
    keys: dict[str, Any] = field(default_factory=dict)


def _table(model: str, names: str, takes: str = "tokens") -> dict[str, Architecture]:
    return {name: Architecture(name, model, takes) for name in names.split()}


SECTIONS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
}
STRIPED = {"rope_parameters": {**SECTIONS["rope_parameters"], "mrope_section": [4, 2, 2]}}
HALF_STRIPED = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    }
}
FULL = ["full_attention"]
LATENT = {"num_key_value_heads": HEADS}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
HEADED = {"head_dim": HEAD_DIM}
LISTENING = {
    "conv_dim": [32] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
WINDOWS = {
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 32,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "out_features": None,
    "out_indices": None,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2}
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": 32,
    "position_biased_input": False,
}
PROTEIN = {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2}
GEMMA = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16,
    "max_position_embeddings": TABLE,
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    **_table(
        "causal",
        "llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gemma gemma2 gemma3_text gpt2 "
        "gpt_bigcode gptj gpt_neox gpt_neox_japanese opt bloom mpt falcon phi phi3 phimoe "
        "persimmon stablelm starcoder2 codegen cohere cohere2 olmo olmo2 olmo3 olmoe glm glm4 "
        "glm4_moe granite granitemoe granitemoeshared minicpm3 exaone exaone4 ernie4_5 "
        "ernie4_5_moe gpt_oss helium jetmoe arcee apertus seed_oss doge bitnet "
        "biogpt xglm ctrl xlnet openai-gpt ministral3 diffllama vaultgemma cwm flex_olmo "
        "nanochat minimax_m2 modernbert-decoder whisper marian pegasus mbart blenderbot "
        "blenderbot-small plbart bigbird_pegasus solar_open afmoe internlm3 hyperclovax "
        "granite_swa iquestcoder kolibri1 lara_mini sarvam_moe "
        "qwen3_next gemma4_text",
    ),
    **_table(
        "base",
        "bert roberta xlm-roberta distilbert albert electra camembert "
        "modernbert nomic_bert roformer mpnet layoutlm ernie nystromformer megatron-bert rembert "
        "mobilebert splinter squeezebert convbert big_bird longformer data2vec-text "
        "roberta-prelayernorm jina_embeddings_v3 gte eurobert clip_text_model bert-generation "
        "ibert mra yoso fnet",
    ),
    **_table("base", "t5 mt5 umt5 longt5 bart m2m_100 switch_transformers led mvp", "both"),
    **_table(
        "base",
        "vit deit dinov2 dinov2_with_registers dinov3_vit siglip_vision_model clip_vision_model "
        "ijepa vit_msn vit_mae pixtral",
        "pixels",
    ),
    "lfm2": Architecture("lfm2", keys={"layer_types": ["conv", "full_attention"]}),
    "smollm3": Architecture("smollm3", keys={"layer_types": FULL * 4}),
    "llama4_text": Architecture(
        "llama4_text", keys={"layer_types": ["chunked_attention"] * 3 + FULL}
    ),
    **{
        name: Architecture(name, keys={"layer_types": ["sliding_attention", *FULL]})
        for name in ("laguna", "mellum")
    },
    "gpt_neo": Architecture("gpt_neo", keys={"attention_types": [[["global", "local"], 1]]}),
    "falcon_alibi": Architecture("falcon", keys={"alibi": True}),
    "falcon_new": Architecture("falcon", keys={"new_decoder_architecture": True}),
    "deepseek_v2": Architecture(
        "deepseek_v2", keys={**LATENT, **EXPERTS, "first_k_dense_replace": 1}
    ),
    "deepseek_v3": Architecture("deepseek_v3", keys=LATENT),
    "mistral4": Architecture("mistral4", "Mistral4ForCausalLM", keys=LATENT),
    "youtu": Architecture("youtu", keys=LATENT),
    "longcat_flash": Architecture(
        "longcat_flash", keys={**LATENT, "head_dim": 8, "moe_topk": 2, "zero_expert_num": 2}
    ),
    "dots1": Architecture("dots1", keys={**EXPERTS, "n_shared_experts": 1}),
    "nemotron": Architecture("nemotron", keys={"num_key_value_heads": 2}),
    "dbrx": Architecture(
        "dbrx", keys={"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}}
    ),
    "hunyuan_v1_dense": Architecture("hunyuan_v1_dense", keys=HEADED),
    "hunyuan_v1_moe": Architecture("hunyuan_v1_moe", keys=HEADED),
    "recurrent_gemma": Architecture("recurrent_gemma", keys={"num_hidden_layers": 3}),
    "bamba": Architecture("bamba", keys={"attn_layer_indices": [1], **MAMBA}),
    "jamba": Architecture("jamba", keys={"attn_layer_period": 2, "attn_layer_offset": 1}),
    "granitemoehybrid": Architecture(
        "granitemoehybrid", keys={"layer_types": ["mamba", "attention"], **MAMBA}
    ),
    "ministral": Architecture("ministral", keys=HEADED),
    "esm": Architecture("esm", "base", keys={**PROTEIN, "position_embedding_type": "rotary"}),
    "esm_absolute": Architecture("esm", "base", keys=PROTEIN),
    "deberta": Architecture("deberta", "base", keys=DISENTANGLED),
    "deberta-v2": Architecture("deberta-v2", "base", keys={**DISENTANGLED, "position_buckets": 8}),
    "xlm": Architecture("xlm", "base", keys={"emb_dim": WIDTH}),
    "flaubert": Architecture("flaubert", "base", keys={"emb_dim": WIDTH}),
    "t5gemma": Architecture("t5gemma", "base", "both", {"encoder": GEMMA, "decoder": GEMMA}),
    "qwen2_vl_text": Architecture("qwen2_vl_text", "base", keys=SECTIONS),
    "qwen2_5_vl_text": Architecture("qwen2_5_vl_text", "base", keys=SECTIONS),
    "qwen3_5_text": Architecture("qwen3_5_text", keys=HALF_STRIPED),
    "qwen3_vl_text": Architecture("qwen3_vl_text", "base", keys=STRIPED),
    "glm4v_text": Architecture("glm4v_text", "base", keys=SECTIONS),
    "qwen2_vl_vision": Architecture(
        "qwen2_vl",
        "Qwen2VisionTransformerPretrainedModel",
        "patches",
        {"vision_config": {"embed_dim": WIDTH, "num_heads": HEADS}},
    ),
    "qwen2_5_vl_vision": Architecture(
        "qwen2_5_vl_vision", "base", "patches", {"window_size": 32, "fullatt_block_indexes": [1]}
    ),
    "qwen3_vl_vision": Architecture(
        "qwen3_vl_vision", "base", "patches", {"deepstack_visual_indexes": [0]}
    ),
    "beit": Architecture("beit", "base", "pixels", {"use_relative_position_bias": True}),
    "swin": Architecture("swin", "base", "pixels", WINDOWS),
    "swinv2": Architecture(
        "swinv2", "base", "pixels", {**WINDOWS, "pretrained_window_sizes": [0, 0]}
    ),
    **{
        name: Architecture(name, "base", "samples", LISTENING)
        for name in ("wav2vec2", "hubert", "wavlm", "unispeech-sat")
    },
    "wav2vec2-conformer": Architecture("wav2vec2-conformer", "base", "samples", LISTENING),
    "wav2vec2-conformer_rotary": Architecture(
        "wav2vec2-conformer",
        "base",
        "samples",
        {**LISTENING, "position_embeddings_type": "rotary"},
    ),
    "wav2vec2-bert": Architecture("wav2vec2-bert", "base", "frames"),
    "wav2vec2-bert_rotary": Architecture(
        "wav2vec2-bert", "base", "frames", {"position_embeddings_type": "rotary"}
    ),
}
