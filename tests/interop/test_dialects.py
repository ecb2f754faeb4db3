"""Megatron's arguments, and the configs of DeepSeek's and Meta's own code."""

import argparse
import math

import pytest

import whereness as wn
from interop.toy import close, config, llama3, plain, quiet, told, yarn

MEGATRON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_layers": 4,
    "max_position_embeddings": 128,
    "position_embedding_type": "rope",
}


def megatron(**changes):
    return {**MEGATRON, **changes}


def test_megatrons_defaults():
    found = quiet(MEGATRON)
    assert (found.head_dim, found.pairing, found.base) == (16, "half", 10_000.0)
    close(quiet(argparse.Namespace(**MEGATRON)).frequencies, plain(10_000.0, 16))


def test_megatrons_widths_pairing_and_base():
    found = quiet(
        megatron(kv_channels=32, rotary_percent=0.5, rotary_interleaved=True, rotary_base=500_000)
    )
    assert (found.head_dim, found.rotary_dim, found.pairing) == (32, 16, "interleaved")
    close(found.frequencies, plain(500_000.0, 16))


@pytest.mark.parametrize(
    ("frequency", "silent"),
    [(4, [3]), (2, [1, 3]), ([0, 1, 1, 0], [1, 2]), (None, []), ([0, 0, 0, 0], [])],
)
def test_megatrons_layers_without_rope(frequency, silent):
    keys = megatron(no_rope_freq=frequency)
    assert [i for i in range(4) if type(quiet(keys, layer=i)) is wn.NoPE] == silent


def test_megatrons_scalings():
    close(
        quiet(megatron(rotary_seq_len_interpolation_factor=4)).frequencies,
        [w / 4 for w in plain(10_000.0, 16)],
    )
    for more, factor in (({}, 8.0), ({"rope_scaling_factor": 32.0}, 32.0)):
        found = quiet(megatron(use_rope_scaling=True, rotary_base=500_000, **more))
        close(found.frequencies, llama3(500_000.0, 16, factor, 1.0, 4.0, 8192))
    with pytest.raises(ValueError, match="Only one of yarn"):
        quiet(megatron(use_rope_scaling=True, rotary_seq_len_interpolation_factor=2))


def m(factor, x):
    return 0.1 * x * math.log(factor) + 1


def test_megatrons_yarn():
    keys = megatron(
        position_embedding_type="yarn",
        yarn_rotary_scaling_factor=4.0,
        yarn_original_max_position_embeddings=32,
        yarn_mscale=0.707,
        yarn_mscale_all_dim=0.0,
    )
    found = quiet(keys)
    close(found.frequencies, yarn(10_000.0, 16, 4.0, 32))
    assert found.amplitude == pytest.approx(m(4, 0.707))
    assert found.logit_scale(16) == 1.0
    both = quiet({**keys, "yarn_mscale": 1.0, "yarn_mscale_all_dim": 1.0})
    assert (both.amplitude, both.logit_scale(16)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="rotary_percent is not read by Megatron's YaRN"):
        quiet({**keys, "rotary_percent": 0.5})


def test_megatrons_latent_attention():
    found = quiet(megatron(multi_latent_attention=True, mscale=1.0, mscale_all_dim=1.0))
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (192, 64, "trailing")
    assert found.pairing == "interleaved"
    assert found.amplitude == pytest.approx(1.0)
    assert found.logit_scale(192) == pytest.approx(m(40, 1) ** 2)
    close(found.frequencies, yarn(10_000.0, 64, 40.0, 4096))


def test_megatrons_other_types():
    learned = quiet(megatron(position_embedding_type="learned_absolute"))
    assert (learned.num_positions, learned.dim) == (128, 64)
    assert type(quiet(megatron(position_embedding_type="none"))) is wn.NoPE
    with pytest.raises(ValueError, match="position_embedding_type must be rope"):
        quiet(megatron(position_embedding_type="spiral"))


DEEPSEEK = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "mscale": 0.707,
    "rope_factor": 4.0,
    "original_seq_len": 32,
    "max_seq_len": 64,
}


def test_deepseeks_own_config():
    found = quiet(DEEPSEEK)
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (48, 16, "trailing")
    assert found.pairing == "interleaved"
    close(found.frequencies, yarn(10_000.0, 16, 4.0, 32))
    assert found.amplitude == pytest.approx(1.0)
    assert found.logit_scale(48) == pytest.approx(m(4, 0.707) ** 2)


def test_deepseeks_code_scales_beyond_the_training_alone():
    found = quiet({**DEEPSEEK, "max_seq_len": 32})
    close(found.frequencies, plain(10_000.0, 16))
    assert found.logit_scale(48) == 1.0


def test_metas_params():
    keys = {"dim": 64, "n_heads": 4, "n_layers": 2, "norm_eps": 1e-5}
    found = quiet(keys)
    assert (found.head_dim, found.pairing) == (16, "interleaved")
    close(found.frequencies, plain(10_000.0, 16))
    scaled = {**keys, "rope_theta": 500_000.0, "use_scaled_rope": True}
    close(quiet(scaled).frequencies, llama3(500_000.0, 16, 8.0, 1.0, 4.0, 8192))
    assert "does not say its factor" in told(scaled)
    assert not told({**scaled, "rope_scaling_factor": 32.0})


@pytest.mark.parametrize(
    "keys", [MEGATRON, DEEPSEEK, {"dim": 64, "n_heads": 4, "n_layers": 2}], ids=str.split("m d l")
)
def test_a_base_that_is_the_codes_own_is_told(keys):
    assert "rope_theta is missing: 10,000 is taken" in told(keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (megatron(rotary_percnt=0.5), "rotary_percnt is no key of Megatron's. Did you mean 'rot"),
        (megatron(rotary_pct=0.5), "Did you mean 'rotary_percent'"),
        (megatron(**{"rotary-percent": 0.5}), "Did you mean 'rotary_percent'"),
        (megatron(Rotary_Base=5e5), "Did you mean 'rotary_base'"),
        (megatron(rotary_bas=5e5), "Did you mean 'rotary_base'"),
        (megatron(kv_chanels=32), "Did you mean 'kv_channels'"),
        (megatron(no_rope_frq=4), "Did you mean 'no_rope_freq'"),
        (megatron(use_rope_scalling=True), "Did you mean 'use_rope_scaling'"),
        (megatron(rope_scaling={"factor": 8}), "Did you mean 'use_rope_scaling'"),
        (megatron(yarn_mscal=1.0), "Did you mean 'yarn_mscale'"),
        ({**DEEPSEEK, "rope_factr": 40}, "rope_factr is no key of DeepSeek's. Did you mean 'rope_"),
        ({**DEEPSEEK, "max_seq_lens": 64}, "Did you mean 'max_seq_len'"),
        ({**DEEPSEEK, "qk_nope_head_dims": 64}, "Did you mean 'qk_nope_head_dim'"),
        (
            {"dim": 64, "n_heads": 4, "n_layers": 2, "qk_rope_head_dm": 16},
            "Did you mean 'qk_rope_head_dim'",
        ),
        ({"dim": 64, "n_heads": 4, "n_layers": 2, "rope_thta": 5e5}, "Did you mean 'rope_theta'"),
        ({"dim": 64, "n_heads": 4, "n_layers": 2, "use_scaled_ropes": True}, "'use_scaled_rope'"),
        (megatron(**{f"key{i}": 1 for i in range(9000)}), "at most 8192 are read"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_misspelled_key_is_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        quiet(keys)


def words(text):
    return text.split()


USUAL = words(
    """
    accumulate_allreduce_grads_in_fp32 adam_beta1 adam_beta2 adam_eps add_bias_linear
    add_position_embedding add_qkv_bias apply_layernorm_1p apply_query_key_layer_scaling
    apply_residual_connection_post_layernorm apply_rope_fusion attention_backend attention_dropout
    attention_output_gate attention_softmax_in_fp32 batch_size bf16 bias_dropout_fusion
    bias_gelu_fusion bias_swiglu_fusion biencoder_projection_dim calculate_per_token_loss
    ckpt_format clip_grad clone_scatter_output_in_embedding consumed_train_samples
    context_parallel_size cp_comm_type create_attention_mask_in_dataloader
    cross_entropy_loss_fusion csa_compress_rotary_base data_cache_path data_parallel_size data_path
    dataloader_type ddp_bucket_size decoder_first_pipeline_num_layers
    decoder_last_pipeline_num_layers decoder_num_layers decoder_seq_length distributed_backend
    distributed_timeout_minutes dsa_indexer_head_dim dsa_indexer_n_heads
    dsa_indexer_rope_interleaved dsa_indexer_topk embedding_init_method_std encoder_num_layers
    encoder_seq_length end_weight_decay eod_mask_loss eval_interval eval_iters
    expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size finetune
    first_last_layers_bf16 fp16 fp32_residual_connection fp8 fp8_margin fused_single_qkv_rope
    global_batch_size glu_linear_offset group_query_attention head_wise_attn_gate hidden_dropout
    inference_max_seq_length init_method_std iteration kv_lora_rank layernorm_epsilon
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads
    linear_value_head_dim log_interval lr lr_decay_iters lr_decay_style lr_warmup_fraction
    make_vocab_size_divisible_by mamba_head_dim mamba_num_groups mamba_num_heads mamba_state_dim
    masked_softmax_fusion max_tokens_to_oom micro_batch_size min_lr moe_aux_loss_coeff
    moe_ffn_hidden_size moe_grouped_gemm moe_layer_freq moe_router_topk
    moe_router_topk_scaling_factor moe_shared_expert_intermediate_size mtp_loss_scaling_factor
    mtp_num_layers mup_base_head_dim mup_base_hidden_size norm_epsilon normalization num_experts
    num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 num_layers_in_first_pipeline_stage
    num_layers_per_virtual_pipeline_stage num_moe_experts num_query_groups num_workers
    original_vocab_size overlap_grad_reduce padded_vocab_size params_dtype
    pipeline_model_parallel_size q_lora_rank qk_clip qk_l2_norm qk_layernorm rampup_batch_size rank
    recompute_granularity recompute_method recompute_num_layers retro_add_retriever
    retro_encoder_layers reset_attention_mask reset_position_ids save save_interval seed seq_length
    sequence_parallel softmax_scale softmax_type split squared_relu start_weight_decay swiglu
    tensor_model_parallel_size tokenizer_type train_iters transformer_impl
    untie_embeddings_and_output_weights use_flash_attn use_mup use_rotary_position_embeddings
    v_head_dim vision_backbone_type vocab_size weight_decay window_attn_skip_freq window_size
    world_size
"""
)


def test_megatrons_other_arguments_are_no_misspellings():
    assert len(USUAL) > 100
    keys = megatron(**dict.fromkeys(USUAL, 1), rope_scaling=False, rotary_pct=None)
    close(quiet(keys).frequencies, plain(10_000.0, 16))


def test_the_other_keys_of_deepseek_and_meta_are_no_misspellings():
    deepseeks = """vocab_size inter_dim moe_inter_dim n_dense_layers n_routed_experts
        n_shared_experts n_activated_experts n_expert_groups n_limited_groups route_scale
        score_func dtype q_lora_rank kv_lora_rank v_head_dim max_batch_size index_n_heads
        index_head_dim index_topk scale_fmt"""
    quiet({**DEEPSEEK, **dict.fromkeys(words(deepseeks), 1)})
    metas = "vocab_size n_kv_heads multiple_of ffn_dim_multiplier norm_eps max_batch_size"
    quiet({"dim": 64, "n_heads": 4, "n_layers": 2, **dict.fromkeys(words(metas), 1)})


@pytest.mark.parametrize(
    ("rope", "call"),
    [
        ({"use_fope": True}, "length=64, num_kv_heads=1"),
        ({"num_inv_freq": 6, "fope_sep_head": True}, "num_frequencies=6, num_kv_heads=2"),
        ({"fope_init_factor": 0.5, "num_inv_freq": None}, "length=64, num_kv_heads=1"),
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_vllms_fope_is_refused_by_name(rope, call, name):
    keys = config(num_key_value_heads=2, **{name: {"rope_type": "default", **rope}})
    for source, path in ((keys, ""), ({"model_type": "x", "text_config": keys}, "text_config.")):
        with pytest.raises(ValueError, match="FoPE mixes frequencies by weights") as caught:
            quiet(source)
        assert str(caught.value).startswith(f"{path}{name}.{next(iter(rope))} = ")
        assert call in str(caught.value)
