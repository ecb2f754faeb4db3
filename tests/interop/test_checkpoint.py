"""Checkpoints between the pairings: exactly the rows that turn move, and all else is as it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import whereness as wn
from interop.support import (
    LAYERS,
    LLAMA,
    D,
    E,
    G,
    H,
    drawn,
    llama,
    load,
    metadata,
    raw,
    save,
    save_folder,
)
from processes import ROOT, clean_environment
from whereness.interop import checkpoint, placing
from whereness.interop.checkpoint import convert_checkpoint
from whereness.interop.projections import FAMILIES, Given


def expected(tensors: dict, to: str, **options) -> dict:
    """Every tensor by the public functions; which ones move is written down here once more."""
    heads = {"q_proj": H, "k_proj": G}
    found = {}
    for name, tensor in tensors.items():
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        found[name] = (
            tensor if count is None else wn.convert_pairing(tensor, count, D, to, **options)
        )
    return found


def same(found: dict, wanted: dict) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert raw(found[name]) == raw(tensor), name


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_there_and_back(tmp_path, shards, dtype):
    tensors = llama(dtype)
    source = save_folder(tmp_path / "a", tensors, shards=shards)
    plan = convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert len(plan.moves) == 4 * LAYERS and (plan.before, plan.to) == ("half", "interleaved")
    found = load(tmp_path / "b")
    same(found, expected(tensors, "interleaved"))
    assert raw(found["model.layers.0.self_attn.q_proj.weight"]) != raw(
        tensors["model.layers.0.self_attn.q_proj.weight"]
    )
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(
        p.name for p in source.iterdir()
    )
    for name in ("tokenizer.json", "model.safetensors.index.json"):
        if (source / name).exists():
            assert (tmp_path / "b" / name).read_bytes() == (source / name).read_bytes()
    assert config_of(tmp_path / "b") == {**LLAMA, "whereness_pairing": "interleaved"}
    for file in (tmp_path / "b").glob("*.safetensors"):
        assert metadata(file) == {"format": "pt", "whereness.pairing": "interleaved"}
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "half")
    same(load(tmp_path / "c"), tensors)
    assert config_of(tmp_path / "c") == LLAMA
    same(load(source), tensors)


def test_one_file_with_and_without_a_config_beside_it(tmp_path):
    tensors = llama()
    source = save(tmp_path / "a.safetensors", tensors)
    given = Given(H, G, D, queries=("*.q_proj",), keys=("*.k_proj",))
    convert_checkpoint(source, tmp_path / "b.safetensors", "half", "interleaved", given)
    same(load(tmp_path / "b.safetensors"), expected(tensors, "half"))
    with pytest.raises(ValueError, match="nothing says which pairing it has: give --from"):
        convert_checkpoint(source, tmp_path / "c.safetensors", "half", given=given)
    folder = save_folder(tmp_path / "folder", tensors)
    convert_checkpoint(folder / "model.safetensors", tmp_path / "d.safetensors", "interleaved")
    same(load(tmp_path / "d.safetensors"), expected(tensors, "interleaved"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.safetensors",
        "b.safetensors",
        "d.safetensors",
        "folder",
    ]


def test_a_second_conversion_to_the_same_pairing_is_refused(tmp_path):
    """The mark in the file is enough: whoever lost the config still cannot break the weights."""
    source = save_folder(tmp_path / "a")
    with pytest.raises(ValueError, match="is half already"):
        convert_checkpoint(source, tmp_path / "b", "half")
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    (tmp_path / "b" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for before in (None, "interleaved"):
        with pytest.raises(ValueError, match="is interleaved already"):
            convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", before)
    assert not (tmp_path / "c").exists()
    # The mark in the config is enough as well: saved anew, a file has lost its metadata.
    save(tmp_path / "b" / "model.safetensors", llama())
    marked = {**LLAMA, "whereness_pairing": "interleaved"}
    (tmp_path / "b" / "config.json").write_text(json.dumps(marked), encoding="utf-8")
    with pytest.raises(ValueError, match="is interleaved already"):
        convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved")


CONTRADICTIONS = {
    "said and marked": ({}, {"whereness.pairing": "half"}, "interleaved", "--from: interleaved"),
    "file and config": (
        {"whereness_pairing": "half"},
        {"whereness.pairing": "interleaved"},
        None,
        "whereness_pairing: half; model.safetensors, metadata whereness.pairing: interleaved",
    ),
    "no pairing": ({"whereness_pairing": 1}, {}, None, "must be one of half, interleaved; got 1"),
    "file, no pairing": ({}, {"whereness.pairing": "neox"}, None, "half, interleaved; got 'neox'"),
    "said and key": (
        {"model_type": "deepseek_v3", "rope_interleave": False},
        {},
        "interleaved",
        "rope_interleave: half",
    ),
    "key": (
        {"model_type": "deepseek_v3", "rope_interleave": "yes"},
        {},
        None,
        "rope_interleave must be true or false, got 'yes'",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_all_who_speak_of_the_pairing_must_agree(tmp_path, name):
    config, marks, said, message = CONTRADICTIONS[name]
    source = save_folder(tmp_path / "a", config={**LLAMA, **config})
    save(source / "model.safetensors", llama(), **marks)
    for to in ("half", "interleaved"):
        with pytest.raises(ValueError, match=message):
            convert_checkpoint(source, tmp_path / "b", to, said)
    assert not (tmp_path / "b").exists()


def test_the_user_may_say_that_weights_are_not_as_their_family_has_them(tmp_path):
    """Meta's own Llama weights are interleaved."""
    source = save_folder(tmp_path / "a")
    convert_checkpoint(source, tmp_path / "b", "half", "interleaved")
    same(load(tmp_path / "b"), expected(llama(), "half"))
    assert config_of(tmp_path / "b") == LLAMA


def test_only_some_shards_marked_is_refused(tmp_path):
    source = save_folder(tmp_path / "a", shards=2)
    file = next(source.glob("*.safetensors"))
    save(file, load(file), **{"whereness.pairing": "half"})
    with pytest.raises(ValueError, match="some of its files are marked"):
        convert_checkpoint(source, tmp_path / "b", "interleaved")


def deepseek(q_lora: bool = True) -> tuple[dict, dict]:
    nope, rope, latent = 4, 8, 6
    config = {
        "model_type": "deepseek_v3",
        "num_attention_heads": H,
        "num_key_value_heads": H,
        "kv_lora_rank": latent,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "hidden_size": E,
    }
    at = "model.layers.0.self_attn."
    queries = "q_b_proj" if q_lora else "q_proj"
    tensors = {
        f"{at}q_a_proj.weight": drawn(1, 5, E),
        f"{at}q_a_layernorm.weight": drawn(2, 5),
        f"{at}{queries}.weight": drawn(3, H * (nope + rope), 5),
        f"{at}kv_a_proj_with_mqa.weight": drawn(4, latent + rope, E),
        f"{at}kv_a_layernorm.weight": drawn(5, latent),
        f"{at}kv_b_proj.weight": drawn(6, H * (nope + 8), latent),
    }
    return config, tensors


@pytest.mark.parametrize("q_lora", [True, False])
def test_latent_attention_says_its_pairing_in_its_own_key(tmp_path, q_lora):
    config, tensors = deepseek(q_lora)
    source = save_folder(tmp_path / "a", tensors, config)
    plan = convert_checkpoint(source, tmp_path / "b", "half")
    assert len(plan.moves) == 2
    found = load(tmp_path / "b")
    for name, tensor in tensors.items():
        heads, width = (1, 14) if "kv_a_proj" in name else (H, 12)
        moves = "kv_a_proj" in name or "q_b_proj" in name or ".q_proj" in name
        wanted = (
            wn.convert_pairing(tensor, heads, width, "half", 8, "trailing") if moves else tensor
        )
        assert raw(found[name]) == raw(wanted)
    assert config_of(tmp_path / "b") == {**config, "rope_interleave": False}
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved")
    same(load(tmp_path / "c"), tensors)
    assert config_of(tmp_path / "c") == {**config, "rope_interleave": True}
    with pytest.raises(ValueError, match="the heads of a deepseek_v3 come from its config"):
        convert_checkpoint(source, tmp_path / "d", "half", given=Given(num_heads=2))


def test_norms_scales_and_adapters_move_with_their_rows(tmp_path):
    at = "model.layers.0.self_attn."
    moved = {
        f"{at}q_proj.weight": (drawn(0, H * D, E).to(torch.int8), H),
        f"{at}q_proj.weight_scale": (drawn(1, H * D, 1), H),
        f"{at}q_proj.weight_zero_point": (drawn(2, H * D, 1).to(torch.int8), H),
        f"{at}k_proj.weight_packed": (drawn(3, G * D, E // 4).to(torch.int32), G),
        f"{at}k_proj.weight_scale": (drawn(4, G * D, 3), G),
        f"{at}k_proj.bias": (drawn(5, G * D), G),
        f"{at}q_norm.weight": (drawn(6, D), 1),
        f"{at}k_norm.weight": (drawn(7, G * D), G),
        f"{at}q_proj.lora_B.default.weight": (drawn(8, H * D, 2), H),
        f"{at}q_proj.lora_magnitude_vector": (drawn(9, H * D), H),
    }
    stays = {
        f"{at}q_proj.input_scale": torch.tensor(0.5),
        f"{at}k_proj.k_scale": torch.tensor([0.5]),
        f"{at}k_proj.weight_shape": torch.tensor([G * D, E]),
        f"{at}k_proj.weight_g_idx": torch.arange(E),
        f"{at}q_proj.lora_A.default.weight": drawn(10, 2, E),
        f"{at}v_proj.weight": drawn(11, G * D, E),
        f"{at}rotary_emb.inv_freq": drawn(12, D // 2),
    }
    tensors = {name: tensor for name, (tensor, _) in moved.items()} | stays
    config = {**LLAMA, "model_type": "qwen3"}
    convert_checkpoint(save_folder(tmp_path / "a", tensors, config), tmp_path / "b", "interleaved")
    wanted = {n: wn.convert_pairing(t, heads, D, "interleaved") for n, (t, heads) in moved.items()}
    same(load(tmp_path / "b"), wanted | stays)


def test_a_norm_with_a_row_for_each_head(tmp_path):
    at = "model.layers.0.self_attn."
    tensors = {
        f"{at}q_proj.weight": drawn(0, H * D, E),
        f"{at}k_proj.weight": drawn(1, G * D, E),
        f"{at}q_norm.weight": drawn(2, H, D),
        f"{at}k_norm.weight": drawn(3, G, D),
    }
    config = {**LLAMA, "model_type": "cohere"}
    convert_checkpoint(save_folder(tmp_path / "a", tensors, config), tmp_path / "b", "half")
    found = load(tmp_path / "b")
    for name in (f"{at}q_norm.weight", f"{at}k_norm.weight"):
        assert raw(found[name]) == raw(wn.convert_pairing(tensors[name], 1, D, "half", dim=1))


@pytest.mark.parametrize(
    ("blocks", "block", "stays"),
    [
        ((H, 1), None, True),  # a scale a head
        ((H // 2, 1), None, True),
        ((2 * H, 1), None, False),  # two scales a head: rows would change their scale
        ((3, 1), None, False),
        ((3, 1), 16, False),
        ((2, 1), 16, True),
    ],
)
def test_scales_of_blocks_stay_where_rows_stay_in_their_block(tmp_path, blocks, block, stays):
    at = "model.layers.0.self_attn."
    tensors = {
        f"{at}q_proj.weight": drawn(0, H * D, E).to(torch.float8_e4m3fn),
        f"{at}q_proj.weight_scale_inv": drawn(1, *blocks),
        f"{at}k_proj.weight": drawn(2, G * D, E),
    }
    config = {**LLAMA, "quantization_config": {"weight_block_size": [block, 128]}}
    source = save_folder(tmp_path / "a", tensors, config)
    if stays:
        convert_checkpoint(source, tmp_path / "b", "interleaved")
        scale = load(tmp_path / "b")[f"{at}q_proj.weight_scale_inv"]
        assert raw(scale) == raw(tensors[f"{at}q_proj.weight_scale_inv"])
    else:
        with pytest.raises(ValueError, match="rows are shared or packed"):
            convert_checkpoint(source, tmp_path / "b", "interleaved")


def test_rows_that_share_a_scale_across_heads_of_latent_attention_stay_in_their_block(tmp_path):
    """DeepSeek-V3's proportions: blocks of 128 rows, heads of 128 + 64, the last 64 turning."""
    config = {
        "model_type": "deepseek_v3",
        "num_attention_heads": 2,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "quantization_config": {"weight_block_size": [16, 16]},
    }
    at = "model.layers.0.self_attn."
    tensors = {
        f"{at}q_b_proj.weight": drawn(0, 48, 5).to(torch.float8_e4m3fn),
        f"{at}q_b_proj.weight_scale_inv": drawn(1, 3, 1),
        f"{at}kv_a_proj_with_mqa.weight": drawn(2, 72, 5).to(torch.float8_e4m3fn),
        f"{at}kv_a_proj_with_mqa.weight_scale_inv": drawn(3, 5, 1),
    }
    source = save_folder(tmp_path / "a", tensors, config)
    plan = convert_checkpoint(source, tmp_path / "b", "half")
    assert sorted(plan.moves) == sorted(n for n in tensors if n.endswith(".weight"))


FUSED = {
    "phi3": ("*", "self_attn.qkv_proj", {"partial_rotary_factor": 0.5}, "stacked", H, G, 4),
    "gpt_neox": ("*", "attention.query_key_value", {"rotary_pct": 0.5}, "grouped", H, H, 4),
    "persimmon": ("*", "self_attn.query_key_value", {}, "grouped", H, H, 4),
    "falcon": (
        "*",
        "self_attention.query_key_value",
        {"new_decoder_architecture": True, "num_kv_heads": G},
        "grouped",
        H,
        G,
        8,
    ),
    "codegen": ("*", "attn.qkv_proj", {"rotary_dim": 4}, "codegen", H, H, 4),
    "dbrx": ("*", "attn.Wqkv", {"attn_config": {"kv_n_heads": G}}, "stacked", H, G, 8),
}


@pytest.mark.parametrize("family", FUSED)
def test_fused_projections(tmp_path, family):
    _, module, more, layout, heads, groups, rotary_dim = FUSED[family]
    config = {"model_type": family, "num_attention_heads": H, "hidden_size": H * D, **more}
    if family == "phi3":
        config["num_key_value_heads"] = G
    name = f"model.layers.0.{module}"
    rows = (heads + 2 * groups) * D
    tensors = {f"{name}.weight": drawn(0, rows, E), f"{name}.bias": drawn(1, rows)}
    to = "half" if FAMILIES[family].pairing == "interleaved" else "interleaved"
    convert_checkpoint(save_folder(tmp_path / "a", tensors, config), tmp_path / "b", to)
    wanted = {
        n: wn.convert_fused_qkv(t, heads, D, groups, layout, to, rotary_dim)
        for n, t in tensors.items()
    }
    same(load(tmp_path / "b"), wanted)


def test_falcon_with_one_key_head_and_falcon_with_alibi(tmp_path):
    config = {"model_type": "falcon", "num_attention_heads": H, "hidden_size": H * D}
    config["multi_query"] = True
    name = "transformer.h.0.self_attention.query_key_value.weight"
    tensors = {name: drawn(0, (H + 2) * D, E)}
    source = save_folder(tmp_path / "a", tensors, config)
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    wanted = wn.convert_fused_qkv(tensors[name], H, D, 1, "grouped", "interleaved")
    assert raw(load(tmp_path / "b")[name]) == raw(wanted)
    source = save_folder(tmp_path / "c", tensors, {**config, "alibi": True})
    with pytest.raises(ValueError, match="ALiBi and no rotary encoding"):
        convert_checkpoint(source, tmp_path / "d", "interleaved")


def test_a_family_that_is_not_known_needs_names_and_numbers(tmp_path):
    tensors = {
        "blocks.0.attention.wq": drawn(0, H * D, E),
        "blocks.0.attention.wq.weight": drawn(1, H * D, E),
        "blocks.0.attention.wk.weight": drawn(2, G * D, E),
        "blocks.0.attention.nq.weight": drawn(3, D),
    }
    source = save_folder(tmp_path / "a", tensors, {"model_type": "own"})
    with pytest.raises(ValueError, match="give --from"):
        convert_checkpoint(source, tmp_path / "b", "half")
    with pytest.raises(ValueError, match="'own' is not known here.*--queries and --keys PATTERN"):
        convert_checkpoint(source, tmp_path / "b", "half", "interleaved")
    given = {"queries": ("*.wq",), "keys": ("*.wk",), "norms": ("*.nk", "*.nq")}
    with pytest.raises(ValueError, match="no num_attention_heads: give --num-heads"):
        convert_checkpoint(source, tmp_path / "b", "half", "interleaved", Given(**given))
    given |= {"num_heads": H, "num_kv_heads": G, "head_dim": D, "rotary_dim": 6, "side": "trailing"}
    convert_checkpoint(source, tmp_path / "b", "half", "interleaved", Given(**given))
    found = load(tmp_path / "b")
    at = "blocks.0.attention"
    moved = (
        (f"{at}.wq", H),
        (f"{at}.wq.weight", H),
        (f"{at}.wk.weight", G),
        (f"{at}.nq.weight", 1),
    )
    for name, heads in moved:
        wanted = wn.convert_pairing(tensors[name], heads, D, "half", 6, "trailing")
        assert raw(found[name]) == raw(wanted)
    assert config_of(tmp_path / "b") == {"model_type": "own", "whereness_pairing": "half"}


REFUSED = {
    "wrong heads": ({"num_attention_heads": 8}, {}, "8 heads of 8 rows, 64, on its first axis"),
    "wrong key heads": ({"num_key_value_heads": 4}, {}, "k_proj.*must have 4 heads"),
    "no heads": ({"num_attention_heads": None}, {}, "no num_attention_heads"),
    "text heads": ({"num_attention_heads": "4"}, {}, "must be an integer above 0, got '4'"),
    "true heads": ({"num_attention_heads": True}, {}, "must be an integer above 0, got True"),
    "huge heads": ({"num_attention_heads": 10**30}, {}, "must be an integer above 0"),
    "odd width": ({"head_dim": None, "hidden_size": 33}, {}, "do not divide a width of 33"),
    "share": ({"partial_rotary_factor": 1.5}, {}, "above 0 and at most 1, got 1.5"),
    "share of 0": ({"rope_parameters": {"partial_rotary_factor": 0}}, {}, "got 0"),
    "two shares": (
        {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
        {},
        r"partial_rotary_factor: 4, rope_parameters.partial_rotary_factor: 2",
    ),
    "shares of layers": (
        {"rope_parameters": {"a": {"rotary_pct": 1.0}, "b": {"rotary_pct": 0.5}}},
        {},
        "does not agree on how many channels turn",
    ),
    "share and width": ({"rotary_pct": 0.5, "rotary_dim": 2}, {}, "rotary_dim: 2, rotary_pct: 4"),
    "odd share": ({"partial_rotary_factor": 0.4}, {}, "rotary_dim must be even.*got 3"),
    "GPTQ": ({}, {"{q}.qweight": (2, H * D)}, "q_proj.qweight'.*packed together"),
    "AWQ": ({}, {"{q}.qzeros": (3, H)}, "packed together"),
    "bitsandbytes": ({}, {"{q}.weight.absmax": (64,)}, "no kind that is known here"),
    "packed rows": ({}, {"{q}.weight_packed": (H * D // 2, E)}, "shared or packed"),
    "no keys": ({}, {"model.layers.7.self_attn.q_proj.weight": (H * D, E)}, "queries and no keys"),
    "no queries": ({}, {"model.layers.7.self_attn.k_proj.weight": (G * D, E)}, "keys and no quer"),
    "norm": ({}, {"model.layers.0.self_attn.q_norm.weight": (D + 1,)}, "8 channels of a head"),
    "norm of three": ({}, {"model.layers.0.self_attn.q_norm.weight": (1, 1, D)}, "8 channels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_before_anything_is_written(tmp_path, name):
    config, more, message = REFUSED[name]
    tensors = llama()
    for key, shape in more.items():
        tensors[key.format(q="model.layers.0.self_attn.q_proj")] = drawn(0, *shape)
    source = save_folder(tmp_path / "a", tensors, {**LLAMA, **config})
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_checkpoint_without_known_names_is_refused(tmp_path):
    source = save_folder(tmp_path / "a", {"x": torch.ones(3)})
    with pytest.raises(ValueError, match=r"no tensor of a module \*\.self_attn\.q_proj"):
        convert_checkpoint(source, tmp_path / "b", "interleaved")
    for given in (Given(norms=("*.x",)), Given(layout="grouped")):
        with pytest.raises(ValueError, match="go with --queries"):
            convert_checkpoint(source, tmp_path / "b", "interleaved", given=given)


def test_an_adapter_may_have_queries_alone(tmp_path):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    tensors = {name.format("A"): drawn(0, 2, E), name.format("B"): drawn(1, H * D, 2)}
    source = save_folder(tmp_path / "a", tensors)
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    found = load(tmp_path / "b")
    assert raw(found[name.format("A")]) == raw(tensors[name.format("A")])
    wanted = wn.convert_pairing(tensors[name.format("B")], H, D, "interleaved")
    assert raw(found[name.format("B")]) == raw(wanted)


# What is there already


def test_nothing_is_overwritten_unless_asked(tmp_path):
    source = save_folder(tmp_path / "a")
    target = save_folder(tmp_path / "b", {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="is there. Give --overwrite"):
        convert_checkpoint(source, target, "interleaved")
    assert set(load(target)) == {"x"}
    convert_checkpoint(source, target, "interleaved", overwrite=True)
    same(load(target), expected(llama(), "interleaved"))
    (target / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="has notes.txt, which the conversion would not write"):
        convert_checkpoint(source, target, "interleaved", overwrite=True)
    assert (target / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_is_not_overwritten_unless_asked(tmp_path):
    source = save_folder(tmp_path / "a") / "model.safetensors"
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"mine")
    with pytest.raises(ValueError, match="Give --overwrite"):
        convert_checkpoint(source, target, "interleaved")
    assert target.read_bytes() == b"mine"
    convert_checkpoint(source, target, "interleaved", overwrite=True)
    same(load(target), expected(llama(), "interleaved"))
    for odd in (tmp_path / "folder.safetensors", tmp_path / "link.safetensors"):
        odd.mkdir() if "folder" in odd.name else odd.symlink_to(target)
        with pytest.raises(ValueError, match="is there and is not a file"):
            convert_checkpoint(source, odd, "interleaved", overwrite=True)


def test_source_and_target_must_be_apart(tmp_path):
    source = save_folder(tmp_path / "a")
    (tmp_path / "link").symlink_to(source)
    for target in (source, source / "b", tmp_path, tmp_path / "link", tmp_path / "link" / "b"):
        with pytest.raises(ValueError, match="must be apart"):
            convert_checkpoint(source, target, "interleaved", overwrite=True)
    file = source / "model.safetensors"
    with pytest.raises(ValueError, match="must be apart"):
        convert_checkpoint(file, tmp_path / "link" / "model.safetensors", "interleaved")
    with pytest.raises(ValueError, match="ends in .safetensors"):
        convert_checkpoint(file, tmp_path / "b", "interleaved")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("folder", [True, False])
def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch, error, folder):
    source = save_folder(tmp_path / "a", shards=1 if not folder else 2)
    source = source if folder else source / "model.safetensors"
    target = tmp_path / ("b" if folder else "b.safetensors")
    count = 0

    def failing(*arguments):
        nonlocal count
        count += 1
        if count == 4:
            raise error
        return original(*arguments)

    original = checkpoint.copy_bytes
    monkeypatch.setattr(checkpoint, "copy_bytes", failing)
    with pytest.raises(type(error)):
        convert_checkpoint(source, target, "interleaved")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    source = save_folder(tmp_path / "a")
    target = save_folder(tmp_path / "b", {"x": torch.ones(1)})

    def rename(self, other):
        if len(calls := [*seen, self]) == 2:
            seen.append(self)
            raise OSError(5, "Input/output error")
        seen[:] = calls
        return original(self, other)

    seen, original = [], Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        convert_checkpoint(source, target, "interleaved", overwrite=True)
    assert set(load(target)) == {"x"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.untyped
@pytest.mark.parametrize("folder", [True, False])
def test_a_run_that_is_killed_leaves_no_half_target_and_the_next_cleans_up(tmp_path, folder):
    source = save_folder(tmp_path / "a")
    source = source if folder else source / "model.safetensors"
    target = tmp_path / ("b" if folder else "b.safetensors")
    code = (
        "import sys, time; from whereness.interop import checkpoint\n"
        "def slow(*arguments):\n"
        "    print('there', flush=True); time.sleep(60)\n"
        "checkpoint.copy_bytes = slow\n"
        "from pathlib import Path\n"
        "checkpoint.convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), 'interleaved')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(target)],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 2  # the source, and the part
    other = tmp_path / f".{target.name}.part"
    other.write_text("another's", encoding="utf-8")
    convert_checkpoint(source, target, "interleaved")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([other.name, "a", target.name])


def test_a_target_that_appears_meanwhile_is_not_overwritten(tmp_path):
    def meanwhile() -> None:
        with placing.appearing(tmp_path / "b", None, False) as part:
            part.write_text("ours", encoding="utf-8")
            (tmp_path / "b").write_text("theirs", encoding="utf-8")

    with pytest.raises(ValueError, match="is there"):
        meanwhile()
    assert (tmp_path / "b").read_text(encoding="utf-8") == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


# What lies beside the weights


def test_files_beside_the_weights(tmp_path):
    source = save_folder(tmp_path / "a")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    (source / "blob").write_bytes(b"vocabulary")
    (source / "vocab.txt").symlink_to(source / "blob")
    left = ["pytorch_model.bin", "model.gguf", "consolidated.safetensors", ".cache", "a.pt"]
    left += ["pytorch_model.bin.index.json", "around", "gone.txt", "circle.txt"]
    for name in left[:6]:
        (source / name).write_bytes(b"1")
    (source / "around").symlink_to(source)
    (source / "gone.txt").symlink_to(source / "nowhere")
    (source / "circle.txt").symlink_to(source / "circle.txt")
    os.mkfifo(source / "pipe")
    plan = convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert plan.source.left_out == tuple(sorted([*left, "pipe"]))
    found = sorted(str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*"))
    assert found == [
        *("1_Pooling", "1_Pooling/config.json", "blob", "config.json", "model.safetensors"),
        *("tokenizer.json", "vocab.txt"),
    ]
    assert (tmp_path / "b" / "vocab.txt").read_bytes() == b"vocabulary"
    assert not (tmp_path / "b" / "vocab.txt").is_symlink()
    convert_checkpoint(source, tmp_path / "b", "interleaved", overwrite=True)


def test_a_cache_of_links_as_the_hub_has_it(tmp_path):
    """Every file of a snapshot is a link to a blob."""
    blobs = save_folder(tmp_path / "blobs", shards=2)
    (tmp_path / "snapshot").mkdir()
    for file in blobs.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    convert_checkpoint(tmp_path / "snapshot", tmp_path / "b", "interleaved")
    same(load(tmp_path / "b"), expected(llama(), "interleaved"))
    assert not any(file.is_symlink() for file in (tmp_path / "b").iterdir())


def test_the_progress_counts_every_byte(tmp_path):
    told = []
    source = save_folder(tmp_path / "a", shards=2)
    convert_checkpoint(
        source, tmp_path / "b", "interleaved", progress=lambda done, size: told.append((done, size))
    )
    size = sum(tensor.nbytes for tensor in llama().values())
    assert [d for d, _ in told] == sorted(d for d, _ in told)
    assert {s for _, s in told} == {size} and told[-1][0] == size
    assert len(told) == len(llama())


MEMORY = """
import sys
from pathlib import Path
from whereness.interop.checkpoint import convert_checkpoint

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), "interleaved")
Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is used
before = memory("VmRSS")
convert_checkpoint(Path(sys.argv[3]), Path(sys.argv[4]), "interleaved")
print(memory("VmHWM") - before)
"""


@pytest.mark.more
@pytest.mark.untyped
def test_memory_is_bounded_by_a_part_of_the_largest_tensor(tmp_path):
    """600 MB in tensors of 34 MB: a head of one is held, or a piece of one that is copied."""
    warm = save_folder(tmp_path / "warm")
    width = 4096
    config = {**LLAMA, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
    tensors = {}
    for layer in range(6):
        for name in ("q_proj", "k_proj", "v_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.zeros(
                width, width, dtype=torch.bfloat16
            )
    largest = max(tensor.nbytes for tensor in tensors.values())
    source = save_folder(tmp_path / "a", tensors, config, shards=2)
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 15 * largest
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, warm, tmp_path / "w", source, tmp_path / "b"],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    print(f"{size / 1e6:.0f} MB, peak +{grown / 1e6:.1f} MB, {time.monotonic() - started:.1f} s")
    assert 0 <= grown < largest / 2
