"""Rope dicts: every scaling with every key, what is derived, told and refused."""

import math
import re

import pytest
import torch

import whereness as wn
from interop.toy import LLAMA3, YARN, close, config, llama3, plain, quiet, scaled, told, yarn

LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "original_max_position_embeddings": 32,
}
W = plain(10_000.0, 16)


def test_linear():
    close(wn.from_config(scaled(rope_type="linear", factor=4)).frequencies, [w / 4 for w in W])


def test_llama3():
    close(quiet(scaled(**LLAMA3)).frequencies, llama3(10_000.0, 16, 8.0, 1.0, 4.0, 64))


@pytest.mark.parametrize("more", [{}, {"beta_fast": 2.0, "beta_slow": 0.5, "truncate": False}])
def test_yarn(more):
    found = quiet(scaled(**YARN, **more))
    fast, slow = more.get("beta_fast", 32.0), more.get("beta_slow", 1.0)
    close(found.frequencies, yarn(10_000.0, 16, 4.0, 32, fast, slow, more.get("truncate", True)))
    assert found.amplitude == pytest.approx(0.1 * math.log(4) + 1)
    assert found.logit_scale(16) == 1.0


def test_yarn_of_equal_betas_is_a_step():
    """Kimi K2's: both are 1."""
    found = quiet(scaled(**YARN, beta_fast=1.0, beta_slow=1.0))
    close(found.frequencies, yarn(10_000.0, 16, 4.0, 32, 1.0, 1.0))


def test_longrope():
    found = wn.from_config(scaled(**LONG, factor=2.0))
    close(found.frequencies_at(32), [w / s for w, s in zip(W, LONG["short_factor"], strict=True)])
    close(found.frequencies_at(33), [w / s for w, s in zip(W, LONG["long_factor"], strict=True)])
    assert found.amplitude_at(33) == pytest.approx(math.sqrt(1 + math.log(2) / math.log(32)))


def test_longrope_without_a_factor_takes_the_ratio_of_lengths():
    with pytest.warns(wn.ConfigWarning, match="64 / 32 = 2 is taken"):
        found = wn.from_config(scaled(**LONG))
    assert found.amplitude_at(33) == pytest.approx(math.sqrt(1 + math.log(2) / math.log(32)))


def test_phi3_keeps_the_length_of_training_beside_the_dict():
    rope = {k: v for k, v in LONG.items() if k != "original_max_position_embeddings"}
    keys = {**scaled(**rope, factor=2.0), "original_max_position_embeddings": 32}
    assert wn.from_config(keys).scaling.original_length == 32
    with pytest.raises(ValueError, match="= 16 and original_max_position_embeddings = 32 differ"):
        wn.from_config(
            {
                **scaled(**{**LONG, "original_max_position_embeddings": 16}),
                "original_max_position_embeddings": 32,
            }
        )


def test_phi3s_class_has_a_length_of_its_own():
    """Its config class holds 4096, and Hugging Face reads that before the dict."""
    rope = {k: v for k, v in LONG.items() if k != "original_max_position_embeddings"}
    keys = {**scaled(**rope, factor=2.0), "model_type": "phi3"}
    assert "4096 is taken, the default of this family's own code" in told(keys)
    assert quiet(keys).scaling.original_length == 4096
    keys = {**scaled(**LONG, factor=2.0), "model_type": "phi3"}
    assert "= 32 is used; Hugging Face takes 4096 all the same" in told(keys)
    assert quiet(keys).scaling.original_length == 32


def test_proportional_spreads_the_pairs_that_turn():
    keys = scaled(rope_type="proportional", partial_rotary_factor=0.5)
    found = wn.from_config(config(rope_parameters=keys["rope_scaling"]))
    assert found.rotary_dim == 16
    close(found.frequencies, [*W[:4], 0.0, 0.0, 0.0, 0.0])


def test_vllms_ntk():
    found = quiet(scaled(rope_type="ntk", factor=4.0))
    close(found.frequencies, [w * 4.0 ** (-2 * (k + 1) / 16) for k, w in enumerate(W)])
    mixed = quiet(scaled(rope_type="ntk", factor=4.0, mixed_b=0.5))
    a = math.log(4.0) / 8**0.5
    close(mixed.frequencies, [w / math.exp(a * (k + 1) ** 0.5) for k, w in enumerate(W)])


def test_hunyuans_alpha_scales_the_base_once():
    found = quiet(scaled(rope_type="dynamic", alpha=1000.0, factor=1.0))
    close(found.frequencies, plain(10_000.0 * 1000.0 ** (16 / 14), 16))
    hunyuan = {**scaled(rope_type="dynamic", alpha=1000.0), "model_type": "hunyuan_v1_dense"}
    assert not told(hunyuan)
    hunyuan["rope_scaling"]["rope_type"] = "default"
    assert told(hunyuan) == "rope_scaling.alpha = 1000.0 has no effect: 'default' does not read it."


# Amplitudes


def m(factor: float, x: float) -> float:
    return 0.1 * x * math.log(factor) + 1


@pytest.mark.parametrize(
    ("more", "amplitude"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"attention_factor": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.5}, m(4, 0.707) / m(4, 0.5)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0}, m(4, 1)),
        ({"mscale": 0.707}, m(4, 1)),
        ({"mscale_all_dim": 0.707}, m(4, 1)),
        ({"attn_factor": 1.5}, 1.5 * m(4, 1)),
    ],
)
def test_amplitude_of_yarn_in_most_families(more, amplitude):
    found = quiet(scaled(**YARN, **more))
    assert found.amplitude == pytest.approx(amplitude)
    assert found.logit_scale(16) == 1.0


DEEPSEEK = {"model_type": "deepseek_v3", "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}


@pytest.mark.parametrize(
    ("more", "amplitude", "logits"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, m(4, 1) ** 2),
        ({"mscale": 0.707, "mscale_all_dim": 0.5}, m(4, 0.707) / m(4, 0.5), m(4, 0.5) ** 2),
        ({"mscale_all_dim": 0.5}, m(4, 1), m(4, 0.5) ** 2),
        ({"mscale": 0.707, "mscale_all_dim": 0}, m(4, 1), 1.0),
        ({}, m(4, 1), 1.0),
    ],
)
def test_amplitude_of_yarn_in_deepseeks(more, amplitude, logits):
    found = quiet({**scaled(**YARN, **more), **DEEPSEEK})
    assert found.amplitude == pytest.approx(amplitude)
    assert found.logit_scale(48) == pytest.approx(logits)


# What is told


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({**YARN, "mscale": 0.707, "mscale_all_dim": 0}, r"amplitude 1\.1386.* have 1\.0980"),
        ({**YARN, "mscale": 0.707}, "mscale_all_dim is missing"),
        ({**YARN, "attn_factor": 1.5}, "Hugging Face does not read it"),
        ({**YARN, "attention_factor": 1.5, "mscale": 1.0}, "mscale has no effect"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "beta_fast = 32 has no effect"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32},
            "= 32 is not max_position_embeddings = 64: Hugging Face reads the latter",
        ),
        ({**YARN, "factor": 1.0}, "factor = 1: 'yarn' scales nothing, so remove it; or give"),
        ({"rope_type": "linear", "factor": 1}, "factor = 1: 'linear' scales nothing"),
        ({**LLAMA3, "low_freq_factor": 1, "truncate": True}, "truncate = True has no effect"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0},
            "alpha scales the base once .* Hugging Face reads it in HunYuan's models alone",
        ),
    ],
)
def test_what_libraries_read_differently_is_told_by_name(rope, says):
    assert re.search(says, told(scaled(**rope)))


def test_a_nested_truncate_is_used_and_told():
    nested = {
        "full_attention": {**YARN, "rope_theta": 1e4, "truncate": False},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    keys = config(
        model_type="olmo3",
        rope_theta=None,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters=nested,
        max_position_embeddings=128,
    )
    with pytest.warns(wn.ConfigWarning, match=r"full_attention.truncate = False is used; Hugging"):
        found = wn.from_config(keys, layer=0)
    close(found.frequencies, yarn(1e4, 16, 4.0, 32, truncate=False))


# What is refused


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "linear"}, "factor is missing: rope_type 'linear' needs it"),
        ({"rope_type": "linear", "factor": 0}, "factor must be above 0"),
        ({"rope_type": "linear", "factor": -2.0}, "factor must be above 0"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be at least 1"),
        ({**YARN, "factor": 0.5}, "factor must be at least 1"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor must be finite"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor is missing"),
        ({**LLAMA3, "high_freq_factor": 0.5}, "high_freq_factor must not be below"),
        ({"rope_type": "yarn"}, "64 / 64 = 1 scales nothing. Give the factor"),
        ({**YARN, "mscale": -1.0}, "mscale must not be negative"),
        ({**YARN, "attention_factor": 1.0, "attn_factor": 1.0}, "Keep one"),
        ({**YARN, "original_max_position_embeddings": 0}, "must be in 1 .. "),
        ({**LONG, "long_factor": [1.0] * 7}, "one number a pair, 8, got 7"),
        ({**LONG, "long_factor": [0.0] * 8}, "long_factor must be above 0"),
        ({**LONG, "short_factor": None}, "short_factor is missing"),
        ({"rope_type": "linear", "factor": 2.0, "extra": 1}, "unknown key 'extra'"),
        ({"rope_type": "linear", "facotr": 2.0}, "'facotr'. Did you mean 'factor'"),
    ],
)
def test_what_cannot_be(rope, says):
    with pytest.raises(ValueError, match=says):
        quiet(scaled(**rope))


def test_dynamic_without_a_length():
    keys = {**scaled(rope_type="dynamic", factor=2.0), "model_type": "nobody_knows"}
    del keys["max_position_embeddings"]
    with pytest.raises(ValueError, match="'dynamic' needs max_position_embeddings"):
        quiet(keys)


def test_both_names_of_the_dict():
    first = {"rope_type": "linear", "factor": 2.0}
    same = config(rope_parameters=first, rope_scaling={"factor": 2.0, "type": "linear"})
    close(quiet(same).frequencies, [w / 2 for w in W])
    with pytest.raises(ValueError, match="differ in 'factor': 2.0 and 3.0"):
        quiet(config(rope_parameters=first, rope_scaling={"factor": 3.0}))


def test_an_odd_part_has_the_spectrum_of_its_odd_width():
    """Hugging Face counts arange(0, 7, 2): four pairs, 8 channels, exponents over 7."""
    keys = config(model_type="stablelm", head_dim=28, partial_rotary_factor=0.25)
    with pytest.warns(wn.ConfigWarning, match="7 of 28 channels turn, an odd number"):
        found = wn.from_config(keys)
    assert found.rotary_dim == 8
    close(found.frequencies, [10_000.0 ** (-2 * k / 7) for k in range(4)])
    assert found.frequencies.dtype == torch.float64
