"""Which tensors hold queries and keys, by family or as the user says."""

import pytest

import whereness as wn
from interop.support import D, E, G, H, config_of, drawn, load, raw, same, save_folder
from whereness.interop.checkpoint import convert_checkpoint
from whereness.interop.projections import Given

FUSED = {
    "phi3": ("self_attn.qkv_proj", {"partial_rotary_factor": 0.5}, "stacked", H, G, 4),
    "gpt_neox": ("attention.query_key_value", {"rotary_pct": 0.5}, "grouped", H, H, 4),
    "persimmon": ("self_attn.query_key_value", {}, "grouped", H, H, 4),
    "falcon": (
        "self_attention.query_key_value",
        {"new_decoder_architecture": True, "num_kv_heads": G},
        "grouped",
        H,
        G,
        8,
    ),
    "codegen": ("attn.qkv_proj", {"rotary_dim": 4}, "codegen", H, H, 4),
    "dbrx": ("attn.Wqkv", {"attn_config": {"kv_n_heads": G}}, "stacked", H, G, 8),
}
SIZES = {"codegen": ("n_head", "n_embd"), "dbrx": ("n_heads", "d_model")}


@pytest.mark.parametrize("family", FUSED)
def test_fused_projections(tmp_path, family):
    module, more, layout, heads, groups, rotary_dim = FUSED[family]
    sizes = SIZES.get(family, ("num_attention_heads", "hidden_size"))
    config = {"model_type": family, **dict(zip(sizes, (H, H * D), strict=True)), **more}
    if family == "phi3":
        config["num_key_value_heads"] = G
    name = f"model.layers.0.{module}"
    rows = (heads + 2 * groups) * D
    tensors = {f"{name}.weight": drawn(0, rows, E), f"{name}.bias": drawn(1, rows)}
    to = "half" if family == "codegen" else "interleaved"
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
