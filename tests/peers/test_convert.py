"""Converted checkpoints run in transformers and give the same logits under the other pairing.

So every family's pairing, names, numbers of heads and rotary width are what we take them for.
"""

import functools
import importlib
import json

import pytest
import torch
from torch.testing import assert_close

from whereness.interop.weights.checkpoint import convert_checkpoint
from whereness.interop.weights.projections import NAMES, Given, rules_of

pytestmark = [pytest.mark.more, pytest.mark.untyped]

SMALL = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_inner": 32, "rotary_dim": 8}
GEMMA_4 = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
}
SPECIAL = {
    "cohere": {"use_qk_norm": True},
    "codegen": GPT,
    "gptj": GPT,
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_neox": {"num_key_value_heads": 4},
    "hunyuan_v1_dense": {"pad_id": 0},
    "llama4_text": {"num_hidden_layers": 4},
    "gemma4_text": GEMMA_4,
    "gemma4_unified_text": GEMMA_4,
    "phi": {"qk_layernorm": True},
    "stablelm": {"qk_layernorm": True},
    "glm4_moe": {"use_qk_norm": True},
}
MOE = [
    n
    for n in NAMES
    if "moe" in n
    or n
    in (
        "mixtral",
        "gpt_oss",
        "deepseek_v2",
        "deepseek_v3",
        "dots1",
        "axk1",
        "sarvam_mla",
        "flex_olmo",
        "solar_open",
        "minimax_m2",
    )
]
DROPPED = {
    "falcon": ("head_dim",),
    "persimmon": ("num_key_value_heads",),
    "codegen": tuple(SMALL)[1:8],
    "gptj": tuple(SMALL)[1:8],
    "dbrx": tuple(SMALL)[1:8],
}


EYES = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
WHOLE = {
    "qwen2_vl_text": ("qwen2_vl", {**EYES, "embed_dim": 16, "hidden_size": 64}),
    "qwen2_5_vl_text": (
        "qwen2_5_vl",
        {**EYES, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 64},
    ),
    "qwen3_vl_text": (
        "qwen3_vl",
        {
            **EYES,
            "hidden_size": 16,
            "intermediate_size": 16,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
        },
    ),
}
"""Text parts, with the model that has them and its tower."""


def config_of(family: str):
    from transformers import AutoConfig

    options = {k: v for k, v in SMALL.items() if k not in DROPPED.get(family, ())}
    if family in MOE or family == "mistral4":
        options |= EXPERTS
    if NAMES[family].latent:
        options |= LATENT
        options.pop("head_dim")
    if family in WHOLE:
        name, tower = WHOLE[family]
        options["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3]}
        return AutoConfig.for_model(name, text_config=options, vision_config=tower)
    return AutoConfig.for_model(family, **{**options, **SPECIAL.get(family, {})})


def model_class(config):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if config.model_type in [name for name, _ in WHOLE.values()]:
        return AutoModelForImageTextToText._model_mapping[type(config)]
    if config.model_type == "mistral4":
        return importlib.import_module(
            "transformers.models.mistral4.modeling_mistral4"
        ).Mistral4ForCausalLM
    return AutoModelForCausalLM._model_mapping[type(config)]


INTERLEAVED = (
    "axk1 codegen cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe glm "
    "glm4 glm4_moe_lite gptj helium llama4_text mistral4 sarvam_mla youtu"
)
PAIRING = dict.fromkeys(INTERLEAVED.split(), "interleaved")
"""Of the code, which the test sees turn a query that has its first channel alone."""
WITHOUT_A_KEY = ("deepseek_v2",)

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def built(config):
    """A model in float64 with every number at random."""
    torch.manual_seed(0)
    model = model_class(config)._from_config(config, **EAGER).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def reordered(x: torch.Tensor, width: int, pairing: str) -> torch.Tensor:
    """The first channels of the other pairing in the places of `pairing`."""
    part, rest = x[..., :width], x[..., width:]
    if pairing == "half":
        part = torch.cat([part[..., 0::2], part[..., 1::2]], -1)
    else:
        part = torch.stack([part[..., : width // 2], part[..., width // 2 :]], -1).flatten(-2)
    return torch.cat([part, rest], -1)


def channels_with_the_first(rotate, arguments, options) -> set[int]:
    """Where a query that has its first channel alone ends up: there, and in its partner."""
    one = torch.zeros_like(arguments[0] if arguments else options["q"])
    one[..., 0] = 1
    given = (one, *arguments[1:]) if arguments else ()
    out = rotate(*given, **(options if arguments else {**options, "q": one}))
    out = out[0] if isinstance(out, tuple) else out
    return set((out.flatten(0, -2).abs().amax(0) > 1e-9).nonzero()[:, 0].tolist())


def of_the_other_pairing(rotate, widths: dict[int, int], pairing: str):
    """A function of transformers that turns queries and keys, for channels of the other pairing.

    widths: how many channels turn in a head of so many.
    """
    other = "interleaved" if pairing == "half" else "half"
    count = 1 if rotate.__code__.co_varnames[0] in ("tensor", "x") else 2

    @functools.wraps(rotate)
    def turned(*arguments, **options):
        given = arguments[0] if arguments else options["q"]
        width = widths[given.shape[-1]]
        mixed = channels_with_the_first(rotate, arguments, options)
        assert mixed == {0, width // 2 if pairing == "half" else 1}
        arguments = [
            reordered(x, width, pairing) if i < count else x for i, x in enumerate(arguments)
        ]
        options = {
            k: reordered(x, width, pairing) if k in ("q", "k") else x for k, x in options.items()
        }
        out = rotate(*arguments, **options)
        if isinstance(out, tuple):
            return tuple(reordered(x, width, other) for x in out)
        return reordered(out, width, other)

    return turned


FOLDERS = {
    "gemma3_text": "gemma3",
    "llama4_text": "llama4",
    "exaone": "llama",
    "internlm3": "llama",
    "iquestcoder": "llama",
    "minimax_m3_vl_text": "minimax_m3_vl",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "glm4_moe",
}


def patch(monkeypatch, family: str, widths: dict[int, int], pairing: str) -> None:
    folder = FOLDERS.get(family, family.removesuffix("_text"))
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    for name in ("apply_multimodal_rotary_pos_emb", "apply_rotary_pos_emb", "apply_rotary_emb"):
        if hasattr(module, name):
            new = of_the_other_pairing(getattr(module, name), widths, pairing)
            monkeypatch.setattr(module, name, new)
            return
    raise AssertionError("no function that turns")


@pytest.mark.parametrize("family", NAMES)
def test_a_converted_model_of_the_family_gives_the_same_logits(tmp_path, monkeypatch, family):
    config = config_of(family)
    model = built(config)
    ids = torch.randint(3, 50, (2, 9))
    with torch.no_grad():
        before = model(ids).logits
    model.save_pretrained(tmp_path / "a")
    before_it = PAIRING.get(family, "half")
    to = "interleaved" if before_it == "half" else "half"
    plan = convert_checkpoint(tmp_path / "a", tmp_path / "b", to)
    assert plan.before == before_it

    def loaded():
        whole = model_class(config).from_pretrained(tmp_path / "b", dtype=torch.float64, **EAGER)
        with torch.no_grad():
            return whole.eval()(ids).logits

    if NAMES[family].latent and family not in WITHOUT_A_KEY:
        written = json.loads((tmp_path / "b" / "config.json").read_text(encoding="utf-8"))
        assert written["rope_interleave"] is (to == "interleaved")
    else:
        assert (loaded() - before).abs().max() > 1e-3  # wrong where nothing turns the new pairs
        rules = rules_of(plan.source.config, Given())
        widths = {rule.head_dim: rule.rotary_dim for rule in rules if rule.role != "still"}
        widths |= {w: w for w in widths.values() if w not in widths}  # that part alone is passed
        patch(monkeypatch, family, widths, before_it)
    assert_close(loaded(), before, rtol=1e-5, atol=1e-5)
