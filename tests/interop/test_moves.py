"""What goes with queries and keys moves with them; what cannot be told is refused."""

import pytest
import torch

import whereness as wn
from interop.support import LLAMA, D, E, G, H, drawn, llama, load, raw, same, save_folder
from whereness.interop.weights.checkpoint import convert_checkpoint
from whereness.interop.weights.projections import Given


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


STABLE = {"model_type": "stablelm", "partial_rotary_factor": 0.5}
REFUSED = {
    "wrong heads": ({"num_attention_heads": 8}, {}, "8 heads of 8 rows, 64, on its first axis"),
    "wrong key heads": ({"num_key_value_heads": 4}, {}, "k_proj.*must have 4 heads"),
    "no heads": ({"num_attention_heads": None}, {}, "no num_attention_heads"),
    "text heads": ({"num_attention_heads": "4"}, {}, "must be an integer above 0, got '4'"),
    "true heads": ({"num_attention_heads": True}, {}, "must be an integer above 0, got True"),
    "huge heads": ({"num_attention_heads": 10**30}, {}, "must be an integer above 0"),
    "odd width": ({"head_dim": None, "hidden_size": 33}, {}, "do not divide a width of 33"),
    "share": (STABLE | {"partial_rotary_factor": 1.5}, {}, "above 0 and at most 1, got 1.5"),
    "share of 0": ({"rope_parameters": {"partial_rotary_factor": 0}}, {}, "got 0"),
    "share that nobody reads": (
        {"partial_rotary_factor": 0.5},
        {},
        "0.5 is never read by the code",
    ),
    "two shares": (
        STABLE | {"rope_parameters": {"partial_rotary_factor": 0.25}},
        {},
        r"twice: rope_parameters.partial_rotary_factor = 0.25 and partial_rotary_factor = 0.5",
    ),
    "shares of layers": (
        {"rope_parameters": {"a": {"rotary_pct": 1.0}, "b": {"rotary_pct": 0.5}}},
        {},
        "nested per layer type and has no entry for the layers",
    ),
    "share and width": ({"rotary_pct": 0.5, "rotary_dim": 2}, {}, "rotary_pct = 0.5 is never read"),
    "share and another's": (STABLE | {"rotary_pct": 0.25}, {}, "rotary_pct = 0.25 is never read"),
    "width": ({"model_type": "minimax_m2", "rotary_dim": 9}, {}, "rotary_dim = 9 is wider"),
    "odd width that is given": ({}, {}, "rotary_dim must be even.*got 3"),
    "no base": ({"rope_theta": 0}, {}, "rope_theta must be above 0"),
    "text base": ({"rope_theta": "1"}, {}, "rope_theta must be a number"),
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
    given = Given(rotary_dim=3) if name == "odd width that is given" else None
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(source, tmp_path / "b", "interleaved", given=given)
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
