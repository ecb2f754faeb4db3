"""Top-level keys that are nearly one that is read: refused by name, and no other key is."""

import warnings

import pytest

import whereness as wn
from interop.toy import SMALL, config, quiet
from whereness.interop.config import reader as configs
from whereness.interop.config import spelling
from whereness.interop.config.files import read


@pytest.mark.parametrize(
    ("family", "key", "meant"),
    [
        ("qwen2", "num_attn_heads", "num_attention_heads"),
        ("llama", "num_attention_head", "num_attention_heads"),
        ("llama", "hiden_size", "hidden_size"),
        ("llama", "head_dimm", "head_dim"),
        ("llama", "Head_Dim", "head_dim"),
        ("llama", "head-dim", "head_dim"),
        ("llama", "num_hiden_layers", "num_hidden_layers"),
        ("llama", "num_hid_layers", "num_hidden_layers"),
        ("llama", "max_pos_embeddings", "max_position_embeddings"),
        ("llama", "rope_tehta", "rope_theta"),
        ("llama", "rope_scalling", "rope_scaling"),
        ("llama", "layer_type", "layer_types"),
        ("smollm3", "no_rope_layer_intervall", "no_rope_layer_interval"),
        ("smollm3", "no_rope_layer", "no_rope_layers"),
        ("gemma3_text", "sliding_window_patern", "sliding_window_pattern"),
        ("gemma3_text", "rope_local_base_freqs", "rope_local_base_freq"),
        ("stablelm", "partial_rotary_facto", "partial_rotary_factor"),
        ("phi3", "origianl_max_position_embeddings", "original_max_position_embeddings"),
        ("deepseek_v3", "qk_rope_head_dimm", "qk_rope_head_dim"),
        ("gpt2", "n_embed", "n_embd"),
    ],
)
def test_a_slip_is_refused_with_what_was_meant(family, key, meant):
    keys = {"model_type": family, key: 4}
    with pytest.raises(ValueError, match=rf"^{key} is an unknown key. Did you mean '{meant}'\?$"):
        quiet(keys)


def test_a_slip_in_a_part_is_told_with_its_part():
    keys = {"model_type": "llava", "text_config": {**SMALL, "num_attn_heads": 8}}
    with pytest.raises(ValueError, match=r"^text_config\.num_attn_heads is an unknown key"):
        wn.from_config(keys)


@pytest.mark.parametrize(
    "key",
    ["num_key_value_heads", "v_head_dim", "n_heads", "vocab_size", "hidden_act", "head_dims_of_x"],
)
def test_other_keys_are_no_slips(key):
    assert wn.from_config(config(**{key: 3})).head_dim == 16


def test_more_unknown_keys_than_any_config_has():
    with pytest.raises(ValueError, match="has 3001 keys that nothing here reads"):
        wn.from_config(config(**{f"num_attention_heads_{i}": 1 for i in range(3000)}))


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("ab", "xaby", 2),
     ("origianl", "original", 1), ("kitten", "sitting", 3)],
)  # fmt: skip
def test_distance(a, b, wanted):
    assert spelling.distance(a, b) == spelling.distance(b, a) == wanted


@pytest.mark.more
def test_no_key_of_a_config_of_transformers_is_a_slip(record_property):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    count, said = 0, []
    for name in CONFIG_MAPPING:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                keys = CONFIG_MAPPING[name]().to_dict()
            except Exception:  # noqa: BLE001 (a class without defaults)
                continue
        for part in configs.parts_of(read(keys)).values():
            if part.family.refused:
                continue
            count += 1
            try:
                spelling.no_misspelling(part.reading, part.family)
            except ValueError as error:
                said.append(f"{part.model_type}: {error}")
    record_property("measured", f"{count} parts of default configs, none has a slip")
    assert not said
    assert count > 500
