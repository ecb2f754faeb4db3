"""Which tensors hold queries and keys, by family or as the user says."""

import pytest
import torch

import whereness as wn
from interop.support import D, E, G, H, config_of, drawn, load, raw, same, save_folder
from interop.toy import quiet
from whereness.interop.weights.checkpoint import convert_checkpoint
from whereness.interop.weights.projections import Given

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


def attention(layer: int, head_dim: int = D, at: str = "model.layers") -> dict[str, torch.Tensor]:
    module = f"{at}.{layer}.self_attn"
    return {
        f"{module}.q_proj.weight": drawn(layer, H * head_dim, E),
        f"{module}.k_proj.weight": drawn(layer + 50, G * head_dim, E),
        f"{module}.q_norm.weight": drawn(layer + 90, head_dim),
    }


def moved(tensors: dict[str, torch.Tensor], head_dim: int, to: str) -> dict[str, torch.Tensor]:
    heads = {"q_proj": H, "k_proj": G, "q_norm": 1}
    return {
        name: wn.convert_pairing(t, heads[name.split(".")[-2]], head_dim, to)
        for name, t in tensors.items()
    }


SIZES_OF = {"num_attention_heads": H, "num_key_value_heads": G, "head_dim": D, "hidden_size": E}


def test_layers_without_rotation_stay_as_they_are(tmp_path):
    """Every second layer of this SmolLM3 has no position; no_rope_layers says so by 0."""
    layers = [attention(i) for i in range(4)]
    config = {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]}
    tensors = {name: t for layer in layers for name, t in layer.items()}
    source = save_folder(tmp_path / "a", tensors, SIZES_OF | config)
    plan = convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert len(plan.moves) == 6
    wanted = dict(tensors)
    for i in (0, 2):
        wanted |= moved(layers[i], D, "interleaved")
    same(load(tmp_path / "b"), wanted)
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "half")
    same(load(tmp_path / "c"), tensors)


def test_a_width_of_each_type_of_layer(tmp_path):
    """Gemma 4: global layers have wider heads, all of whose channels are paired."""
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "global_head_dim": 2 * D,
    }
    narrow, wide = attention(0), attention(1, 2 * D)
    source = save_folder(tmp_path / "a", narrow | wide, SIZES_OF | config)
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    wanted = moved(narrow, D, "interleaved") | moved(wide, 2 * D, "interleaved")
    same(load(tmp_path / "b"), wanted)
    # A layer that the config does not count cannot be told from the two kinds.
    source = save_folder(tmp_path / "c", narrow | wide | attention(2), SIZES_OF | config)
    with pytest.raises(ValueError, match="layers.2.*is of no layer that the config counts"):
        convert_checkpoint(source, tmp_path / "d", "interleaved")
    shared = SIZES_OF | config | {"attention_k_eq_v": True}
    source = save_folder(tmp_path / "e", narrow | wide, shared)
    with pytest.raises(ValueError, match="attention_k_eq_v is true: values are made of the rows"):
        convert_checkpoint(source, tmp_path / "f", "interleaved")


def test_a_layer_beyond_the_counted_ones_moves_where_all_are_alike(tmp_path):
    """As the layer that predicts further tokens, whose number follows the last."""
    tensors = attention(0) | attention(1) | attention(2)
    config = {"model_type": "qwen3", "num_hidden_layers": 2, **SIZES_OF}
    convert_checkpoint(save_folder(tmp_path / "a", tensors, config), tmp_path / "b", "interleaved")
    same(load(tmp_path / "b"), moved(tensors, D, "interleaved"))


@pytest.mark.parametrize("at", ["model.language_model.layers", "model.layers"])
def test_the_text_of_a_model_with_a_tower(tmp_path, at):
    text = {"model_type": "gemma3_text", "num_hidden_layers": 1, **SIZES_OF}
    tower = {"model_type": "siglip_vision_model", "hidden_size": 16, "num_attention_heads": 2}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": tower}
    queries = attention(0, at=at)
    eyes = attention(0, at="model.vision_tower.vision_model.encoder.layers")
    source = save_folder(tmp_path / "a", queries | eyes, config)
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    same(load(tmp_path / "b"), eyes | moved(queries, D, "interleaved"))
    marked = config | {"text_config": text | {"whereness_pairing": "interleaved"}}
    assert config_of(tmp_path / "b") == marked
    assert quiet(marked, part="text_config", layer=0).pairing == "interleaved"
    with pytest.raises(ValueError, match="is interleaved already"):
        convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved")
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "half")
    assert config_of(tmp_path / "c") == config


def test_the_channels_that_turn_are_those_of_the_reader(tmp_path):
    """0.4 of 8 channels is an odd 3: transformers' GLM turns 4."""
    tensors = {k: t for k, t in attention(0).items() if "norm" not in k}
    config = {"model_type": "glm", "partial_rotary_factor": 0.4, **SIZES_OF}
    convert_checkpoint(save_folder(tmp_path / "a", tensors, config), tmp_path / "b", "half")
    heads = {"q_proj": H, "k_proj": G}
    wanted = {
        name: wn.convert_pairing(t, heads[name.split(".")[-2]], D, "half", 4)
        for name, t in tensors.items()
    }
    same(load(tmp_path / "b"), wanted)


def test_a_model_of_which_nothing_turns(tmp_path):
    config = {"model_type": "smollm3", "num_hidden_layers": 1, "no_rope_layers": [0], **SIZES_OF}
    source = save_folder(tmp_path / "a", attention(0), config)
    with pytest.raises(ValueError, match="no layer of this model turns"):
        convert_checkpoint(source, tmp_path / "b", "interleaved")


@pytest.mark.parametrize(
    ("config", "given", "says"),
    [
        ({"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor .*: give --rotary-dim"),
        ({"qk_rope_head_dim": 4}, {}, "qk_rope_head_dim .*: give --rotary-dim"),
        ({"hidden_size": None, "head_dim": None}, {}, "no hidden_size"),
        ({"head_dim": None, "hidden_size": 33}, {}, "do not divide a width of 33"),
        ({"partial_rotary_factor": 0.5}, {"rotary_dim": 4}, ""),
        ({}, {}, ""),
    ],
)
def test_names_that_are_given_for_a_model_that_the_reader_refuses(tmp_path, config, given, says):
    keys = {**SIZES_OF, "model_type": "own", **config}
    source = save_folder(tmp_path / "a", attention(0), keys)
    said = Given(queries=("*.q_proj",), keys=("*.k_proj",), **given)
    if says:
        with pytest.raises(ValueError, match=says):
            convert_checkpoint(source, tmp_path / "b", "half", "interleaved", said)
        return
    convert_checkpoint(source, tmp_path / "b", "half", "interleaved", said)
    name = "model.layers.0.self_attn.q_proj.weight"
    wanted = wn.convert_pairing(attention(0)[name], H, D, "half", given.get("rotary_dim"))
    assert raw(load(tmp_path / "b")[name]) == raw(wanted)
