"""Megatron's arguments, and the configs of DeepSeek's and Meta's own code."""

import argparse
import math

import pytest

import whereness as wn
from interop.toy import close, llama3, plain, quiet, told, yarn

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
