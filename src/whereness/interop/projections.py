"""Which tensors of a checkpoint hold queries and keys, and how their heads lie.

A family is known by the `model_type` of its config. Its pairing is that of its code in
transformers; `tests/peers/test_convert.py` converts a model of each family and runs it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from whereness.interop.moves import Rule
from whereness.interop.pairing import Fused, rotary_slice, turning_heads
from whereness.interop.strict_json import shown
from whereness.rotary.base import Side
from whereness.rotary.pairing import Pairing

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Heads:
    """How many heads there are, how wide they are and which of their channels turn."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    side: Side = "leading"


@dataclass(frozen=True)
class Family:
    """A model_type: its pairing, the names of its modules, and the share of a head that turns.

    key: the config key that says the pairing, true for interleaved; None: the code fixes it.
    """

    pairing: Pairing
    queries: tuple[str, ...] = ("*.self_attn.q_proj",)
    keys: tuple[str, ...] = ("*.self_attn.k_proj",)
    norms: tuple[str, ...] = ("*.self_attn.q_norm", "*.self_attn.k_norm")
    fused: tuple[str, ...] = ()
    layout: Fused = "stacked"
    share: float = 1.0
    key: str | None = None
    latent: bool = False
    """DeepSeek's attention: of every query the last channels turn, and one shared head of keys."""


_LAYERNORMS = ("*.self_attn.q_layernorm", "*.self_attn.k_layernorm")
_LATENT = Family(
    "interleaved",
    queries=("*.self_attn.q_b_proj", "*.self_attn.q_proj"),
    keys=("*.self_attn.kv_a_proj_with_mqa",),
    norms=(),
    key="rope_interleave",
    latent=True,
)
_HALF = (
    "afmoe apertus arcee bitnet cwm dots1 exaone4 flex_olmo gemma gemma2 gemma3_text gpt_oss "
    "granite granitemoe granitemoeshared llama minimax_m2 ministral ministral3 mistral mixtral "
    "olmo olmo2 olmo3 olmo_hybrid olmoe phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 "
    "solar_open starcoder2 vaultgemma"
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_HALF.split(), Family("half")),
    **dict.fromkeys(
        ("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "helium"), Family("interleaved")
    ),
    **dict.fromkeys(("glm", "glm4"), Family("interleaved", share=0.5)),
    **dict.fromkeys(
        ("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "sarvam_mla", "youtu"), _LATENT
    ),
    "codegen": Family("interleaved", fused=("*.attn.qkv_proj",), layout="codegen"),
    "dbrx": Family("half", fused=("*.attn.Wqkv",)),
    "deepseek_v2": Family(
        "interleaved", queries=_LATENT.queries, keys=_LATENT.keys, norms=(), latent=True
    ),
    "falcon": Family("half", fused=("*.self_attention.query_key_value",), layout="grouped"),
    "gpt_neox": Family(
        "half", fused=("*.attention.query_key_value",), layout="grouped", share=0.25
    ),
    "gptj": Family("interleaved", queries=("*.attn.q_proj",), keys=("*.attn.k_proj",)),
    "hunyuan_v1_dense": Family(
        "half", norms=("*.self_attn.query_layernorm", "*.self_attn.key_layernorm")
    ),
    "glm4_moe": Family("half", share=0.5),
    "nemotron": Family("half", share=0.5),
    "persimmon": Family(
        "half",
        norms=_LAYERNORMS,
        fused=("*.self_attn.query_key_value",),
        layout="grouped",
        share=0.5,
    ),
    "phi": Family("half", norms=_LAYERNORMS, share=0.5),
    "phi3": Family("half", fused=("*.self_attn.qkv_proj",)),
    "stablelm": Family("half", norms=_LAYERNORMS, share=0.25),
}


@dataclass(frozen=True)
class Given:
    """What the user says of a checkpoint; None and () leave it to the config."""

    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None
    side: Side | None = None
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    layout: Fused | None = None


def family_of(config: Config) -> Family | None:
    """The family of a config, None if it is not known."""
    name = config.get("model_type")
    return FAMILIES.get(name) if isinstance(name, str) else None


def rules_of(config: Config, given: Given) -> list[Rule]:
    """Which modules hold queries and keys, and how.

    Raises:
        ValueError: the family is not known and the user does not say enough, or numbers are missing
            or do not fit together.
    """
    family = family_of(config)
    if given.queries or given.keys or given.fused:
        family = Family(
            "half",
            given.queries,
            given.keys,
            given.norms,
            given.fused,
            given.layout or "stacked",
            family.share if family else 1.0,
        )
    elif family is None:
        name = shown(config.get("model_type"))
        raise ValueError(
            f"model_type {name} is not known here. Say which modules hold queries and keys: "
            "--queries and --keys PATTERN (or --fused PATTERN with --layout), --num-heads, "
            "--num-kv-heads, --head-dim, --rotary-dim, --side."
        )
    elif given.norms or given.layout:
        raise ValueError("--norms and --layout go with --queries and --keys, or with --fused.")
    if family.latent:
        if any((given.num_heads, given.num_kv_heads, given.head_dim, given.rotary_dim, given.side)):
            raise ValueError(
                f"the heads of a {config['model_type']} come from its config: mend that, or give "
                "--queries and --keys as well."
            )
        return _latent_rules(config, family)
    heads = _heads(config, family, given)
    rotary_slice(heads.head_dim, heads.rotary_dim, heads.side)
    shape = (heads.head_dim, heads.rotary_dim, heads.side)
    rules = [Rule(p, "queries", (True,) * heads.num_heads, *shape) for p in family.queries]
    rules += [Rule(p, "keys", (True,) * heads.num_kv_heads, *shape) for p in family.keys]
    rules += [Rule(p, "norm", (), *shape) for p in family.norms]
    if family.fused:
        turning = tuple(turning_heads(heads.num_heads, heads.num_kv_heads, family.layout))
        return [r for r in rules if r.role == "norm"] + [
            Rule(p, "fused", turning, *shape) for p in family.fused
        ]
    return rules


def _latent_rules(config: Config, family: Family) -> list[Rule]:
    heads, latent, nope, rope = (
        _number(config, name)
        for name in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    )
    rules = [
        Rule(p, "queries", (True,) * heads, nope + rope, rope, "trailing") for p in family.queries
    ]
    return rules + [Rule(p, "keys", (True,), latent + rope, rope, "trailing") for p in family.keys]


def _heads(config: Config, family: Family, given: Given) -> Heads:
    num_heads = given.num_heads or _number(config, "num_attention_heads", "n_head", "n_heads")
    head_dim = given.head_dim or _optional(config, "head_dim")
    if head_dim is None:
        width = _number(config, "hidden_size", "n_embd", "d_model")
        head_dim, rest = divmod(width, num_heads)
        if rest:
            raise ValueError(
                f"{num_heads} heads do not divide a width of {width}: give --head-dim."
            )
    rotary_dim = given.rotary_dim or _rotary_dim(config, family, head_dim)
    num_kv_heads = given.num_kv_heads or _num_kv_heads(config) or num_heads
    return Heads(num_heads, num_kv_heads, head_dim, rotary_dim, given.side or "leading")


def _num_kv_heads(config: Config) -> int | None:
    if config.get("model_type") == "falcon":
        if config.get("alibi"):
            raise ValueError("this falcon has ALiBi and no rotary encoding: nothing to convert.")
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            return 1
    attention = config.get("attn_config")  # DBRX
    if isinstance(attention, Mapping) and "kv_n_heads" in attention:
        return _number(attention, "kv_n_heads")
    return _optional(config, "num_key_value_heads", "num_kv_heads")


def _rotary_dim(config: Config, family: Family, head_dim: int) -> int:
    """No shape tells this one, so all places that speak of it must agree."""
    said = {}
    if (given := _optional(config, "rotary_dim")) is not None:
        said["rotary_dim"] = given
    for place, where in _places(config):
        for name in ("partial_rotary_factor", "rotary_pct"):
            if (share := where.get(name)) is not None:
                said[f"{place}{name}"] = int(head_dim * _share(name, share))
    if len(set(said.values())) > 1:
        told = ", ".join(f"{name}: {channels}" for name, channels in said.items())
        raise ValueError(f"the config does not agree on how many channels turn ({told}).")
    return next(iter(said.values()), int(head_dim * family.share))


def _places(config: Config) -> Iterator[tuple[str, Config]]:
    """The config, its rope_parameters, and those of every kind of layer."""
    yield "", config
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping):
        yield "rope_parameters.", parameters
        for kind, nested in parameters.items():
            if isinstance(nested, Mapping):
                yield f"rope_parameters.{kind}.", nested


def _share(name: str, share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ValueError(f"{name} must be a number above 0 and at most 1, got {shown(share)}.")
    return share


def _number(config: Config, *names: str) -> int:
    found = _optional(config, *names)
    if found is None:
        raise ValueError(
            f"the config has no {names[0]}: give --num-heads, --head-dim, --num-kv-heads."
        )
    return found


def _optional(config: Config, *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ValueError(f"{name} must be an integer above 0, got {shown(value)}.")
        return value
    return None
