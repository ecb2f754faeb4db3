"""from_config: sources, parts, layers, families, and what is told when it cannot say."""

import math
import warnings

import numpy as np
import pytest
import torch

import whereness as wn
from interop.toy import LLAMA3, SMALL, YARN, close, config, plain, quiet, scaled, told


def test_plain_llama():
    found = wn.from_config(SMALL)
    assert type(found) is wn.RoPE
    assert (found.head_dim, found.rotary_dim, found.pairing) == (16, 16, "half")
    close(found.frequencies, plain(10_000.0, 16))
    assert found.amplitude == 1.0


def test_a_known_config_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wn.from_config(SMALL)


def test_the_config_is_not_changed():
    keys = config(rope_parameters={"rope_type": "linear", "factor": 2.0})
    before = {**keys, "rope_parameters": dict(keys["rope_parameters"])}
    wn.from_config(keys)
    assert keys == before


def test_head_dim_beats_the_quotient():
    assert wn.from_config(config(head_dim=32)).head_dim == 32


@pytest.mark.parametrize("partial", [0.25, 0.5])
@pytest.mark.parametrize("nested", [False, True])
def test_partial_width(partial, nested):
    part = {"partial_rotary_factor": partial}
    more = {"rope_parameters": part} if nested else part
    found = wn.from_config(config(model_type="stablelm", **more))
    assert found.rotary_dim == int(16 * partial)
    close(found.frequencies, plain(10_000.0, int(16 * partial)))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"partial_rotary_factor": 0.5}, "never read by the code of this family"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "never read by the code"),
        ({"model_type": "stablelm", "partial_rotary_factor": 1.5}, "at most 1, got 1.5"),
        ({"model_type": "stablelm", "partial_rotary_factor": -0.5}, "above 0 and at most 1"),
        (
            {
                "model_type": "stablelm",
                "partial_rotary_factor": 0.5,
                "rope_parameters": {"partial_rotary_factor": 0.25},
            },
            "the part that turns twice",
        ),
        ({"hidden_size": 63.5}, "hidden_size must be a whole number"),
        ({"head_dim": 0}, "head_dim must be in 1 .. 65536, got 0"),
        ({"head_dim": 10**9}, "head_dim must be in 1 .. 65536"),
        ({"head_dim": 7.5}, "head_dim must be a whole number"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"head_dim": 7, "rope_scaling": YARN}, "head_dim = 7 is odd"),
        ({"hidden_size": 28}, "hidden_size / num_attention_heads = 7 is odd"),
        (
            {"num_attention_heads": 5, "hidden_size": 63},
            "hidden_size = 63 is no multiple of num_attention_heads = 5: a head would have 12.6",
        ),
        ({"rope_theta": -1.0}, "rope_theta must be above 0"),
        ({"rope_theta": 0}, "rope_theta must be above 0"),
        ({"rope_theta": float("nan")}, "rope_theta must be finite"),
        ({"rope_theta": float("inf")}, "rope_theta must be finite"),
        ({"rope_theta": 10**400}, "rope_theta must be finite"),
        ({"rope_tehta": 500_000.0}, "rope_tehta is an unknown key. Did you mean 'rope_theta'?"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be in 0 .. "),
    ],
)
def test_values_that_cannot_be(keys, says):
    with pytest.raises(ValueError, match=says):
        wn.from_config(config(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": "10000"},
        {"rope_theta": True},
        {"rope_theta": [10_000.0]},
        {"head_dim": "16"},
        {"head_dim": True},
        {"model_type": 3},
        {"rope_parameters": 3},
        {"rope_parameters": "default"},
        {"rope_parameters": {"rope_type": 3}},
        {"rope_parameters": {"rope_type": "linear", "factor": "8"}},
        {"rope_parameters": {"rope_type": "linear", "factor": True}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": "false"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": 0}},
        {"layer_types": "full_attention"},
        {"layer_types": [1, 2]},
    ],
)
def test_mistyped_values_are_told_by_name(keys):
    with pytest.raises(TypeError, match=f"{next(iter(keys))}.*must be"):
        quiet(config(**keys))


def test_a_number_in_quotes():
    with pytest.raises(TypeError, match=r"factor must be a number, got '8'\. Write 8 without quo"):
        quiet(config(rope_parameters={"rope_type": "linear", "factor": "8"}))


def test_a_config_that_says_nothing():
    with pytest.raises(ValueError, match=r"^The config has no model_type\. Its keys alone do not"):
        wn.from_config({})


def test_a_name_on_a_hub_is_no_path():
    with pytest.raises(FileNotFoundError, match=r"nothing is downloaded: 'Qwen/Qwen2.5-7B'"):
        wn.from_config("Qwen/Qwen2.5-7B")


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ("num_attention_heads", "num_attention_heads is missing: 32 is taken.* hidden_size = 64: "),
        ("hidden_size", "hidden_size is missing: 4,096 is taken.* num_attention_heads = 4: heads"),
    ],
)
def test_half_of_a_quotient_from_the_family_is_told(left_out, says):
    with pytest.warns(wn.ConfigWarning, match=says):
        wn.from_config(config(**{left_out: None}))


def test_a_remainder_of_the_familys_own_defaults_is_told():
    said = told({"model_type": "glm4_moe", "partial_rotary_factor": 1.0})
    assert "hidden_size / num_attention_heads = 4096 / 96 is no whole number: 42 is taken" in said


@pytest.mark.parametrize("found", [None, 3, 2.5, True, [SMALL], b"{}", object(), dict])
def test_what_is_no_config(found):
    with pytest.raises(TypeError, match="needs a dict, a path, or a config object"):
        wn.from_config(found)


class Config:
    def __init__(self, **keys: object) -> None:
        self.keys = keys

    def to_dict(self) -> dict[str, object]:
        return self.keys


def test_a_config_object_is_asked_for_its_dict():
    close(wn.from_config(Config(**SMALL)).frequencies, plain(10_000.0, 16))


# Layers


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_that_are_all_the_same_need_no_number(layer):
    assert wn.from_config(SMALL, layer=np.int64(layer)).head_dim == 16
    a, b = wn.from_config(SMALL), wn.from_config(SMALL, layer=layer)
    assert torch.equal(a.frequencies, b.frequencies)
    assert a is not b


@pytest.mark.parametrize("layer", [2, 10**30])
def test_a_layer_that_is_not_there(layer):
    with pytest.raises(ValueError, match=r"layer must be in 0 \.\. 1"):
        wn.from_config(SMALL, layer=layer)


@pytest.mark.untyped
@pytest.mark.parametrize("layer", [True, 1.0, "0", "full_attention"])
def test_a_layer_is_a_number(layer):
    with pytest.raises(TypeError, match="layer must be an int"):
        wn.from_config(SMALL, layer=layer)


GEMMA = config(
    model_type="gemma3_text",
    head_dim=16,
    num_hidden_layers=7,
    rope_theta=1e6,
    rope_local_base_freq=1e4,
    sliding_window_pattern=3,
)


def test_layers_that_differ_are_listed_with_what_each_has():
    with pytest.raises(ValueError) as caught:
        wn.from_config(GEMMA)
    said = str(caught.value)
    assert said.startswith("The layers differ: choose one with layer=.")
    assert "0-1, 3-4, 6: RoPE(head_dim=16, base=10000" in said
    assert "2, 5: RoPE(head_dim=16, base=1000000" in said


@pytest.mark.parametrize("layer", range(7))
def test_local_and_global_bases(layer):
    base = 1e6 if layer in (2, 5) else 1e4
    close(wn.from_config(GEMMA, layer=layer).frequencies, plain(base, 16))


def test_a_list_of_types_beats_the_period():
    keys = {**GEMMA, "layer_types": ["full_attention"] * 7}
    assert wn.from_config(keys).base == 1e6


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"layer_types": ["full_attention"] * 3}, "layer_types must have an entry a layer, 7"),
        (
            {"rope_theta": None, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "no entry for 'sliding_attention'; it has 'full_attention'",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "factor": 2.0}},
            "one dict a layer type, and beside them 'factor'",
        ),
    ],
)
def test_schedules_that_do_not_fit(keys, says):
    with pytest.raises(ValueError, match=says):
        quiet(config(**{**GEMMA, **keys}))


def test_a_base_at_the_top_must_be_that_of_a_layer_type():
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    keys = {**GEMMA, "rope_local_base_freq": None, "rope_parameters": nested}
    assert quiet(config(**{**keys, "rope_theta": 1e6}), layer=0).base == 1e4
    with pytest.raises(ValueError, match="rope_theta = 50,000 is the base of no layer type"):
        quiet(config(**{**keys, "rope_theta": 5e4}), layer=0)


def test_layers_without_attention_have_no_position():
    types = ["linear_attention", "full_attention"]
    found = [quiet(config(layer_types=types), layer=i) for i in (0, 1)]
    assert [type(each) for each in found] == [wn.NoPE, wn.RoPE]


# Parts

COMPOSITE = {
    "model_type": "llava",
    "text_config": SMALL,
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "image_size": 56,
        "patch_size": 14,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}


def test_a_composite_model_lists_its_parts():
    with pytest.raises(ValueError, match=r"2 parts: .*'text_config' \(llama\), 'vision_config'"):
        wn.from_config(COMPOSITE)
    assert type(wn.from_config(COMPOSITE, part="text_config")) is wn.RoPE
    seen = wn.from_config(COMPOSITE, part="vision_config")
    assert type(seen) is wn.LearnedAbsolute
    assert seen.grid == (4, 4)


@pytest.mark.parametrize("part", ["text_confg", "text", ""])
def test_a_part_that_is_not_there(part):
    with pytest.raises(ValueError, match="no part"):
        wn.from_config(COMPOSITE, part=part)


def test_a_model_of_one_part_has_none_to_choose():
    with pytest.raises(ValueError, match="no parts: leave part out"):
        wn.from_config(SMALL, part="text_config")


@pytest.mark.parametrize("own", [{}, {"model_type": "llama4"}, {"model_type": "llama4_text"}])
def test_a_part_of_older_files_has_the_type_of_its_model_or_none(own):
    """ "llama4_text" rotates interleaved; "llama4" is the type of the whole."""
    inner = {**{k: v for k, v in SMALL.items() if k != "model_type"}, "head_dim": 16, **own}
    keys = {"model_type": "llama4", "text_config": inner, "vision_config": {"model_type": "x"}}
    assert quiet(keys, part="text_config", layer=0).pairing == "interleaved"


def test_an_error_in_a_part_names_it():
    keys = {**COMPOSITE, "text_config": {**SMALL, "rope_theta": -1.0}}
    with pytest.raises(ValueError, match="text_config.rope_theta must be above 0"):
        wn.from_config(keys, part="text_config")


T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "num_heads": 4,
    "num_layers": 2,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 64,
}


def test_an_encoder_and_decoder_is_read_as_its_encoder():
    encoder, decoder = wn.from_config(T5), wn.from_config(T5, part="decoder")
    assert (encoder.num_buckets, encoder.max_distance, encoder.num_heads) == (16, 64, 4)
    assert (encoder.bidirectional, decoder.bidirectional) == (True, False)
    assert wn.from_config(T5, part="encoder").bidirectional


# Pairing


def test_converted_weights_have_the_pairing_that_their_config_says():
    assert wn.from_config(config(whereness_pairing="interleaved")).pairing == "interleaved"
    assert wn.from_config(config(whereness_pairing="half")).pairing == "half"
    with pytest.raises(ValueError, match="whereness_pairing must be half or interleaved, got 'x'"):
        wn.from_config(config(whereness_pairing="x"))


def test_two_pairings_that_differ_are_refused():
    latent = {"model_type": "deepseek_v3", "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
    keys = config(**latent, rope_interleave=True)
    assert wn.from_config({**keys, "rope_interleave": False}).pairing == "half"
    with pytest.raises(ValueError, match="'half' and rope_interleave says 'interleaved'"):
        wn.from_config({**keys, "whereness_pairing": "half"})


def test_a_pairing_beside_parts_is_of_no_part():
    with pytest.raises(ValueError, match="put it into the one it is for"):
        wn.from_config({**COMPOSITE, "whereness_pairing": "half"}, part="text_config")


# Keys of other families


@pytest.mark.parametrize(
    "keys",
    [
        {"alibi": True},
        {"dual_chunk_attention_config": {"chunk_size": 262_144}},
        {"no_rope_layers": [1, 0]},
        {"position_embedding_type": "alibi"},
        {"rope_interleave": True},
        {"rotary_dim": 8},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_a_positional_key_that_the_family_does_not_read_is_told_by_name(keys):
    said = told(config(**keys))
    assert said.startswith(f"{next(iter(keys))} = ")
    assert "is not read by the code of this family" in said
    assert wn.from_config(SMALL).frequencies.equal(quiet(config(**keys)).frequencies)


@pytest.mark.parametrize(
    "keys",
    [
        {"alibi": False},
        {"no_rope_layers": []},
        {"position_embedding_type": "rope"},
        {"model_type": "smollm3", "no_rope_layers": [1, 1], "no_rope_layer_interval": 3},
        {"model_type": "gemma3_text", "sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0,
         "layer_types": ["sliding_attention"] * 2},
        {"model_type": "esm", "position_embedding_type": "rotary"},
    ],
    ids="-".join,
)  # fmt: skip
def test_a_key_that_is_read_or_says_nothing_is_not_told(keys):
    assert not told(config(**keys), layer=0)


# Unknown models


def test_an_unknown_model_is_read_as_llama_if_it_leaves_nothing_open():
    with pytest.warns(wn.ConfigWarning, match="'newcomer' is not a known family: read as Llama's"):
        found = wn.from_config(config(model_type="newcomer"))
    close(found.frequencies, plain(10_000.0, 16))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"rope_theta": None}, "takes a base"),
        ({"hidden_size": None}, "a width"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers means what its code makes of it"),
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim means what its code makes of it"),
        ({"rope_interleave": True}, "rope_interleave means what its code makes of it"),
        ({"model_type": "lama", "rope_theta": None}, "Did you mean 'llama'"),
    ],
)
def test_an_unknown_model_that_leaves_something_open_is_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        wn.from_config(config(**{"model_type": "newcomer", **keys}))


# Families without rotation


def test_learned_tables_begin_where_the_family_has_its_first_position():
    gpt2 = wn.from_config({"model_type": "gpt2", "n_embd": 32, "n_positions": 10})
    assert (gpt2.num_positions, gpt2.first_row, gpt2.dim) == (10, 0, 32)
    opt = wn.from_config({"model_type": "opt", "hidden_size": 32, "max_position_embeddings": 10})
    assert (opt.num_positions, opt.first_row, len(opt.table)) == (10, 2, 12)
    roberta = wn.from_config(
        {
            "model_type": "roberta",
            "hidden_size": 32,
            "max_position_embeddings": 514,
            "pad_token_id": 1,
        }
    )
    assert (roberta.num_positions, roberta.first_row, len(roberta.table)) == (512, 2, 514)


def test_bloom_has_alibi_and_falcon_a_weaker_one_by_its_flag():
    bloom = wn.from_config({"model_type": "bloom", "n_head": 12, "hidden_size": 64})
    assert type(bloom) is wn.ALiBi
    assert bloom.num_heads == 12
    falcon = config(model_type="falcon", rope_theta=None)
    with pytest.raises(ValueError, match="'falcon' adds ALiBi before the scores are divided"):
        wn.from_config({**falcon, "alibi": True})
    assert type(quiet({**falcon, "alibi": False})) is wn.RoPE


def test_mpts_slopes_end_where_ours_do():
    keys = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2}
    made = {**keys, "attn_config": {"alibi": True, "alibi_bias_max": 8}}
    assert type(wn.from_config(made)) is wn.ALiBi
    with pytest.raises(ValueError, match="alibi_bias_max = 16"):
        wn.from_config({**keys, "attn_config": {"alibi": True, "alibi_bias_max": 16}})


def test_a_table_larger_than_any_models_is_refused():
    keys = {"model_type": "gpt2", "n_embd": 2**15, "n_positions": 2**24}
    with pytest.raises(ValueError, match="larger than any model has"):
        wn.from_config(keys)


def test_latent_attention_turns_the_last_channels():
    keys = config(
        model_type="deepseek_v3", qk_nope_head_dim=32, qk_rope_head_dim=16, rope_interleave=True
    )
    found = wn.from_config(keys)
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (48, 16, "trailing")
    assert found.pairing == "interleaved"
    close(found.frequencies, plain(10_000.0, 16))


# As the files of released models have it


def test_a_size_under_its_usual_name():
    # BLOOM's own config says num_attention_heads, where its code says n_head.
    bloom = {"model_type": "bloom", "n_layer": 2, "n_embed": 64, "num_attention_heads": 4}
    assert wn.from_config(bloom).num_heads == 4
    assert wn.from_config({**bloom, "n_head": 4}).num_heads == 4
    with pytest.raises(ValueError, match="n_head = 8 and num_attention_heads = 4 are two names"):
        wn.from_config({**bloom, "n_head": 8})
    gpt2 = {"model_type": "gpt2", "hidden_size": 64, "max_position_embeddings": 32}
    found = wn.from_config(gpt2)
    assert (found.dim, found.num_positions) == (64, 32)


def test_bounds_that_meet_are_a_step():
    # Kimi K2 has beta_fast = beta_slow, Llama 4 Scout both factors of llama3 1: fast pairs are
    # kept, slow ones divided, and nothing lies between.
    def stepped(length: int, factor: float) -> list[float]:
        return [w if length * w > 2 * math.pi else w / factor for w in plain(10_000.0, 16)]

    ends = {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
    scout = wn.from_config(config(rope_scaling={**LLAMA3, **ends}))
    close(scout.frequencies, stepped(64, 8.0))
    ends = {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False}
    kimi = quiet(scaled(**YARN, **ends))
    close(kimi.frequencies, stepped(32, 4.0))


@pytest.mark.parametrize("kind", ["alibi", "relative_key"])
@pytest.mark.parametrize("model_type", ["bert", "roberta", "camembert"])
def test_a_table_that_bert_does_not_have(model_type, kind):
    keys = {"model_type": model_type, "hidden_size": 64, "position_embedding_type": kind}
    with pytest.raises(ValueError, match=f"position_embedding_type = '{kind}' is not read"):
        wn.from_config(keys)
    assert wn.from_config({**keys, "position_embedding_type": "absolute"}).dim == 64


def test_text_beside_its_tower():
    # GLM-4.1V's file has the keys of its text at the top; "glm4v" is no family by itself.
    vision = {"hidden_size": 64, "num_heads": 4, "depth": 2}
    text = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    keys = config(model_type="glm4v", head_dim=128, vision_config=vision, **text)
    with pytest.raises(ValueError, match="2 parts"):
        wn.from_config(keys)
    found = wn.from_config(keys, part="text_config")
    assert (type(found), found.rotary_dim) == (wn.MultimodalRoPE, 64)
    assert type(wn.from_config(keys, part="vision_config")) is wn.AxialRoPE


def test_an_unknown_model_with_sections_is_refused():
    keys = config(model_type="nobody", rope_scaling={"type": "default", "mrope_section": [4, 2, 2]})
    with pytest.raises(ValueError, match="its mrope_section means what its code makes of it"):
        wn.from_config(keys)


def test_an_amplitude_that_all_agree_on_is_not_told():
    assert not told(scaled(**YARN, mscale=1.0) | {"max_position_embeddings": 128})


def test_what_every_cohere2_says_is_not_told():
    keys = config(model_type="cohere2", position_embedding_type="rope_gptj", head_dim=16)
    assert not told(keys, layer=0)
