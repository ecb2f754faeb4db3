"""Models whose code is not in transformers: the numbers are those of their own public code.

Each case has the positional keys of a released config.json.
"""

import math

import pytest
import torch

import whereness as wn
from interop.toy import close, plain, quiet, told

QWEN = {
    "model_type": "qwen",
    "hidden_size": 4096,
    "kv_channels": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 32_768,
    "seq_length": 8192,
    "rotary_emb_base": 10_000,
    "rotary_pct": 1.0,
    "use_dynamic_ntk": True,
    "use_logn_attn": False,
}


@pytest.mark.parametrize(
    ("length", "alpha"), [(100, 1), (8192, 1), (8193, 3), (16_384, 3), (16_385, 7), (32_768, 7)]
)
def test_qwen_grows_its_base_by_powers_of_two(length, alpha):
    """modeling_qwen.py: get_ntk_alpha, then base * alpha^(dim / (dim - 2))."""
    found = quiet(QWEN)
    assert (found.pairing, found.head_dim, found.rotary_dim) == ("half", 128, 128)
    close(found.frequencies_at(length), plain(10_000.0 * alpha ** (128 / 126), 128), 1e-10)


def test_qwen_without_its_scaling_and_with_a_part_that_turns():
    found = quiet({**QWEN, "use_dynamic_ntk": False, "rotary_emb_base": 1e6, "rotary_pct": 0.25})
    assert (found.scaling, found.rotary_dim) == (None, 32)
    close(found.frequencies, plain(1e6, 32))


def test_qwens_logarithm_on_queries():
    """modeling_qwen.py: queries times logn_tensor, math.log(i, seq_length) beyond seq_length."""
    rope, warm = quiet({**QWEN, "use_logn_attn": True})
    assert (type(rope), type(warm)) == (wn.RoPE, wn.Temperature)
    places = [0, 100, 8190, 8191, 8192, 20_000, 32_766]
    wanted = [math.log(p + 1, 8192) if p + 1 > 8192 else 1.0 for p in places]
    torch.testing.assert_close(
        warm.factors(torch.tensor(places)), torch.tensor(wanted, dtype=torch.float64)
    )


@pytest.mark.parametrize("missing", ["use_dynamic_ntk", "use_logn_attn", "seq_length"])
def test_what_qwens_classes_had_different_defaults_for_must_be_there(missing):
    keys = {k: v for k, v in QWEN.items() if k != missing}
    with pytest.raises((TypeError, ValueError), match=missing):
        quiet(keys)


CHATGLM = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "kv_channels": 128,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "multi_query_attention": True,
    "padded_vocab_size": 65_024,
    "seq_length": 32_768,
}


@pytest.mark.parametrize(("ratio", "base"), [(None, 1e4), (1, 1e4), (50, 5e5), (500, 5e6)])
def test_half_of_a_head_of_chatglm_turns_in_neighbouring_pairs(ratio, base):
    """modeling_chatglm.py: RotaryEmbedding(kv_channels // 2), base * rope_ratio."""
    found = quiet({**CHATGLM, **({"rope_ratio": ratio} if ratio else {})})
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (128, 64, "leading")
    assert found.pairing == "interleaved"
    close(found.frequencies, plain(base, 64))


def test_a_ratio_that_chatglm_2_reads_in_another_way_is_told():
    assert "ChatGLM2-6B-32k divides positions by it" in told({**CHATGLM, "rope_ratio": 16})
    assert "rope_ratio" not in told({**CHATGLM, "rope_ratio": 500, "padded_vocab_size": 151_552})
    linear = quiet({**CHATGLM, "rope_scaling": {"type": "linear", "factor": 16}})
    close(linear.frequencies, [w / 16 for w in plain(10_000.0, 64)])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"position_encoding_2d": True}, "of the first kind has two axes"),
        ({"kv_channels": None}, "kv_channels"),
        ({"rope_ratio": 2, "rope_theta": 1e4}, "rope_theta and rope_ratio"),
        ({"rope_ratio": -2}, "rope_ratio must be above 0"),
    ],
)
def test_a_chatglm_that_cannot_be_read(keys, says):
    with pytest.raises(ValueError, match=says):
        quiet({**CHATGLM, **keys})


def test_baichuan_has_rope_or_alibi_by_its_size():
    """vllm's baichuan.py: hidden_size 4096 is RoPE, the 13B models have ALiBi."""
    small = {"model_type": "baichuan", "hidden_size": 4096, "num_attention_heads": 32}
    found = quiet(small)
    assert (found.head_dim, found.pairing) == (128, "half")
    close(found.frequencies, plain(10_000.0, 128))
    large = quiet({"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40})
    assert type(large) is wn.ALiBi
    # modeling_baichuan.py, _get_interleave: 32 slopes 2^-(k/4), then every other one of 64.
    wanted = [2 ** (-k / 4) for k in range(1, 33)] + [2 ** (-k / 8) for k in range(1, 17, 2)]
    torch.testing.assert_close(large.slopes.double(), torch.tensor(wanted, dtype=torch.float64))
    for other in ({"hidden_size": 6144}, {}):
        with pytest.raises(ValueError, match="RoPE with hidden_size 4096"):
            quiet({"model_type": "baichuan", "num_attention_heads": 48, **other})


INTERNLM = {
    "model_type": "internlm",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 2048,
}


def test_internlms_rotary_dict():
    """modeling_internlm.py: "origin" is plain, "dynamic" has scaling_factor 1 unless it says so."""
    found = quiet({**INTERNLM, "rotary": {"base": 20_000, "type": "origin"}})
    assert found.scaling is None
    close(found.frequencies, plain(20_000.0, 128))
    found = quiet({**INTERNLM, "rotary": {"base": 10_000, "type": "dynamic"}})
    close(found.frequencies_at(2048), plain(10_000.0, 128))
    close(found.frequencies_at(8192), plain(10_000.0 * 4 ** (128 / 126), 128), 1e-10)
    assert "rotary is missing" in told(INTERNLM)
    assert quiet(INTERNLM).scaling.factor == 1.0
    with pytest.raises(ValueError, match="origin or dynamic, got 'other'"):
        quiet({**INTERNLM, "rotary": {"base": 10_000, "type": "other"}})
    with pytest.raises(ValueError, match="another rotary.base"):
        quiet({**INTERNLM, "rope_theta": 1e6, "rotary": {"base": 10_000, "type": "origin"}})


def test_internlm_2s_dynamic_scaling():
    """modeling_internlm2.py: base * (factor * n / L - (factor - 1))^(dim / (dim - 2))."""
    keys = {**INTERNLM, "model_type": "internlm2", "max_position_embeddings": 32_768}
    keys |= {"rope_theta": 1_000_000, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    found = quiet(keys)
    assert found.pairing == "half"
    close(found.frequencies_at(32_768), plain(1e6, 128))
    close(found.frequencies_at(65_536), plain(1e6 * 3 ** (128 / 126), 128), 1e-10)


PLAIN = {
    "Yi": ({}, 5_000_000.0, 128, 128),
    "aquila": ({}, 10_000.0, 128, 128),
    "internlm3": ({"rope_theta": 50_000_000.0}, 50_000_000.0, 128, 128),
    "iquestcoder": ({"head_dim": 128}, 10_000.0, 128, 128),
    "minicpm": ({"hidden_size": 2304, "num_attention_heads": 36}, 10_000.0, 64, 64),
    "orion": ({"hidden_size": 5120, "num_attention_heads": 40}, 10_000.0, 128, 128),
    "sarvam_moe": ({"head_dim": 64}, 8_000_000.0, 64, 64),
    "stablelm_epoch": ({"hidden_size": 2560, "rope_pct": 0.25}, 10_000.0, 80, 20),
    "xverse": ({"hidden_size": 5120, "num_attention_heads": 40}, 10_000.0, 128, 128),
}


@pytest.mark.parametrize("name", PLAIN)
def test_bases_and_widths_of_plain_ones(name):
    more, base, head_dim, rotary_dim = PLAIN[name]
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2}
    found = quiet({"model_type": name, **sizes, **more})
    assert (found.pairing, found.head_dim, found.rotary_dim) == ("half", head_dim, rotary_dim)
    close(found.frequencies, plain(base, rotary_dim))


def test_exaone_3_5_has_llama_3s_scaling_and_its_own_name_for_the_layers():
    keys = {"model_type": "exaone", "hidden_size": 4096, "num_attention_heads": 32}
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    keys |= {"num_layers": 3, "rope_theta": 1_000_000.0, "rope_scaling": rope}
    found = quiet(keys)
    # Their slowest pair turns less than once in 8192 tokens: it is slowed 8 times.
    assert found.frequencies[-1].item() == pytest.approx(1e6 ** (-126 / 128) / 8)
    assert found.frequencies[0].item() == 1.0
    with pytest.raises(ValueError, match=r"0 \.\. 2"):
        quiet(keys, layer=3)


def test_the_first_phis():
    """configuration_phi.py of phi-2: rotary_dim 32 of 80; modeling_phi.py turns halves."""
    sizes = {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048}
    for name in ("phi-msft", "mixformer-sequential"):
        found = quiet({"model_type": name, **sizes, "rotary_dim": 32})
        assert (found.head_dim, found.rotary_dim, found.pairing) == (80, 32, "half")
        close(found.frequencies, plain(10_000.0, 32))


@pytest.mark.parametrize("name", ["RefinedWeb", "RefinedWebModel"])
def test_falcons_first_names(name):
    keys = {"model_type": name, "hidden_size": 4544, "n_head": 71, "n_layer": 32, "alibi": False}
    found = quiet(keys)
    assert (found.head_dim, found.pairing) == (64, "half")
    close(found.frequencies, plain(10_000.0, 64))
    with pytest.raises(ValueError, match="sqrt.head_dim. times weaker"):
        quiet({**keys, "alibi": True})


def test_codeshell_with_rope_alone():
    keys = {"model_type": "codeshell", "n_embd": 4096, "n_head": 32, "n_layer": 42}
    found = quiet({**keys, "position_embedding_type": "rope"})
    assert (found.head_dim, found.pairing) == (128, "half")
    close(found.frequencies, plain(10_000.0, 128))
    for other in ({}, {"position_embedding_type": "learned_absolute"}):
        with pytest.raises(ValueError, match="only position_embedding_type 'rope'"):
            quiet({**keys, **other})


KIMI = {
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "num_attention_heads": 64,
    "num_hidden_layers": 61,
    "max_position_embeddings": 131_072,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_theta": 50_000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


def test_kimi_k2_is_read_as_deepseek_v3():
    found = quiet(KIMI)
    # K2-Instruct has 1 for both betas: a step and not a ramp, at most one pair lies between.
    turning = torch.tensor([50_000.0 ** (-2 * k / 64) for k in range(32)], dtype=torch.float64)
    kept = (found.frequencies / turning).tolist()
    assert sum(not math.isclose(k, 1) and not math.isclose(k, 1 / 32) for k in kept) <= 1
    assert kept[0] == pytest.approx(1) and kept[-1] == pytest.approx(1 / 32)
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (192, 64, "trailing")
    assert (found.pairing, found.amplitude) == ("interleaved", 1.0)
    assert found.logit_scale(192) == pytest.approx((0.1 * math.log(32) + 1) ** 2)
    with pytest.raises(ValueError, match="gives no base"):
        quiet({**KIMI, "rope_theta": None})


def test_a_converted_model_of_a_rewritten_config_keeps_its_mark():
    assert quiet({**CHATGLM, "rope_ratio": 50, "whereness_pairing": "half"}).pairing == "half"


NOMIC = {  # the file of nomic-embed-text-v1
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": 2,
}


def test_nomic_bert_scales_its_base_beyond_the_trained_length():
    found = quiet(NOMIC)
    assert (found.head_dim, found.rotary_dim, found.pairing) == (64, 64, "half")
    for length, grown in ((2048, 1.0), (4096, 2 * 4096 / 2048 - 1), (8192, 2 * 8192 / 2048 - 1)):
        slowest = (1000 * grown ** (64 / 62)) ** (-62 / 64)
        assert found.frequencies_at(length)[-1].item() == pytest.approx(slowest, rel=1e-12)


def test_nomic_bert_reads_its_own_names():
    plain = quiet({**NOMIC, "n_embd": 1024, "n_head": 32, "rotary_scaling_factor": None})
    assert (plain.head_dim, plain.base, plain.scaling) == (32, 1000.0, None)
    usual = {"model_type": "nomic_bert", "hidden_size": 512, "num_attention_heads": 4}
    assert quiet(usual).head_dim == 128  # transformers' own names, and none of the others
    for changed, message in (
        ({"rope_theta": 10_000.0}, "rotary_emb_base and another rope_theta"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction must be 1, got 0.5"),
        ({"rotary_emb_interleaved": True}, "models of this family pair halves"),
        ({"max_trained_positions": None}, "rotary_scaling_factor needs max_trained_positions"),
    ):
        with pytest.raises(ValueError, match=message):
            quiet({**NOMIC, **changed})
