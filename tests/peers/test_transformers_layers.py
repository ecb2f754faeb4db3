"""Which layers have a position: `from_config` against live models of Hugging Face transformers.

Small models are run, and each layer is watched for a call of the function that turns queries and
keys. So the oracle is the code that runs, not the keys of a config.
"""

import importlib
import sys
import warnings
from typing import Any

import pytest
import torch

import whereness as wn

pytestmark = [pytest.mark.more, pytest.mark.untyped, pytest.mark.timeout(300)]

SIZES: dict[str, int] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "hidden_size": 64,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "intermediate_size": 32,
    "kv_lora_rank": 8,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 9,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "pad_token_id": 0,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "shared_expert_intermediate_size": 16,
    "sliding_window": 4,
    "topk_group": 1,
    "v_head_dim": 8,
    "vocab_size": 40,
}
"""Of a small model; those that its config does not have are left out."""

FULL, SLIDING = "full_attention", "sliding_attention"
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("afmoe", {}),
    ("afmoe", {"global_attn_every_n_layers": 2}),
    ("bailing_hybrid", {}),
    ("cohere2", {}),
    ("cohere2", {"sliding_window_pattern": 3}),
    ("cohere2_moe", {}),
    ("cohere2_moe", {"mlp_layer_types": ["dense"] * 5 + ["sparse"] * 4}),
    ("deepseek_v4", {}),
    ("exaone4", {}),
    ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 9}),
    ("exaone_moe", {}),
    ("flint", {}),
    ("gemma3_text", {}),
    ("gemma4_unified_text", {}),
    ("granite_swa", {}),
    ("granite_swa", {"layer_rope_theta": [1e4, 0, 1e6, 0, 0, 1e4, 1e4, 0, 0]}),
    ("granitemoe_swa", {}),
    ("kolibri1", {}),
    ("laguna", {"layer_types": [FULL, SLIDING, FULL] * 3}),
    ("lara_mini", {}),
    ("lfm2", {"layer_types": ["conv", FULL, "conv"] * 3}),
    ("lfm3", {}),
    ("llama", {}),
    ("llama4_text", {}),
    ("llama4_text", {"no_rope_layers": [0, 1, 1, 0, 0, 1, 1, 1, 0]}),
    ("mellum", {}),
    ("mimo_v2_flash", {}),
    ("minimax", {}),
    ("mistral_large4_text", {}),
    ("modernbert", {}),
    ("muse_glimmer_text", {}),
    ("muse_spark_text", {}),
    ("neomme", {}),
    ("olmo3", {}),
    ("olmo_hybrid", {}),
    ("qwen3_next", {}),
    ("recurrent_gemma", {}),
    ("smollm3", {}),
    ("smollm3", {"no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 0, 1]}),
    ("smollm3", {"no_rope_layer_interval": 2}),
]


@pytest.fixture(autouse=True)
def quiet():
    """Small sizes make peers warn of one another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def small(model_type: str, overrides: dict[str, Any]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    fields = cls.__dataclass_fields__
    sizes = {name: size for name, size in SIZES.items() if name in fields}
    if "qk_rope_head_dim" in fields:  # latent attention: every head has its own keys
        sizes |= {"num_key_value_heads": sizes["num_attention_heads"]}
        sizes.pop("head_dim", None)
    return cls(**sizes | overrides)


def turning(config: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each layer turns its queries and keys when the model runs."""
    from transformers import AutoModel

    model = AutoModel.from_config(config).eval()
    file = sys.modules[type(model).__module__]
    now: list[int] = []
    turned: set[int] = set()
    for i, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda *_, i=i: now.append(i))
    for name in [n for n in vars(file) if n.startswith("apply_rotary")]:
        original = getattr(file, name)

        def watched(*args, original=original, **kwargs):
            turned.add(now[-1])
            return original(*args, **kwargs)

        monkeypatch.setattr(file, name, watched)
    with torch.no_grad():
        model(input_ids=torch.tensor([[3, 4, 5, 6]]))
    return [i in turned for i in range(len(model.layers))]


def positioned(config: Any, layer: int) -> bool:
    found = wn.from_config(config.to_dict(), layer=layer, part="")
    members = found if isinstance(found, tuple) else (found,)
    return not isinstance(members[0], wn.NoPE)


@pytest.mark.parametrize(
    ("model_type", "overrides"), MODELS, ids=[f"{i}-{m}" for i, (m, _) in enumerate(MODELS)]
)
def test_layers_that_turn(model_type, overrides, monkeypatch):
    config = small(model_type, overrides)
    theirs = turning(config, monkeypatch)
    assert [positioned(config, i) for i in range(len(theirs))] == theirs


def test_a_layer_that_is_refused(monkeypatch):
    """Beam's full attention has no position but scales its queries in a way of its own."""
    config = small("beam", {"num_experts": 16, "n_group": 8, "topk_group": 4})
    theirs = turning(config, monkeypatch)
    assert theirs[4:6] == [True, False]
    assert positioned(config, 4)
    with pytest.raises(ValueError, match="queries are scaled"):
        positioned(config, 5)


@pytest.mark.parametrize("model_type", ["neucodec", "xcodec2"])
def test_heads_that_turn_by_their_number(model_type):
    """The attention of these codecs does not see an order of tokens: ours is NoPE."""
    file = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    stem = {"neucodec": "NeuCodec", "xcodec2": "Xcodec2"}[model_type]
    config = getattr(file, f"{stem}Config")()
    config._attn_implementation = "eager"
    attention = getattr(file, f"{stem}Attention")(config, 0).eval()
    heads = torch.arange(config.num_attention_heads)[None]
    tables = getattr(file, f"{stem}RotaryEmbedding")(config)(torch.zeros(1), heads)
    x, order = torch.randn(1, 12, config.hidden_size), torch.randperm(12)
    with torch.no_grad():
        straight, mixed = (attention(y, tables, None)[0] for y in (x, x[:, order]))
    torch.testing.assert_close(straight[:, order], mixed, rtol=1e-4, atol=1e-5)
    assert isinstance(wn.from_config(config.to_dict()), wn.NoPE)


LATENT = (
    "axk1",
    "axk2",
    "bailing_hybrid",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "hy_v4",
    "longcat_flash",
    "minicpm3",
    "mistral4",
    "mistral_large4_text",
    "youtu",
)
"""Models that fold m(mscale_all_dim)^2 into the scale of the logits, where a config has it."""


@pytest.mark.parametrize("mscales", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale": 0.7}])
@pytest.mark.parametrize("model_type", [*LATENT, "llama", "qwen3"])
def test_scale_of_the_logits(model_type, mscales):
    from transformers import AutoModel

    config = small(model_type, {})
    base = config.rope_parameters["rope_theta"]
    yarn = {"rope_type": "yarn", "rope_theta": base, "factor": 40.0}
    own = {"llama_4_scaling_beta": 0.1} if model_type == "mistral4" else {}
    config.rope_parameters = yarn | {"original_max_position_embeddings": 64} | own | mscales
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    attention = next(m for m in model.modules() if hasattr(m, "scaling") and hasattr(m, "o_proj"))
    layer = next(i for i in range(9) if positioned(config, i))
    found = wn.from_config(config.to_dict(), layer=layer)
    rope = found[0] if isinstance(found, tuple) else found
    ours = rope.logit_scale(rope.head_dim) * rope.head_dim**-0.5
    assert ours == pytest.approx(attention.scaling, rel=1e-6)
