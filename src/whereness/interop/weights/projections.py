"""Which tensors of a checkpoint hold queries and keys, and how their heads lie.

The config reader says which layers turn, how wide a head is and how channels pair. What it does
not say stands here, by `model_type`: the names of the modules, and what lies fused in one.
`tests/peers/test_convert.py` converts a model of each family and runs it.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from whereness.interop.config import files
from whereness.interop.config.parts import DECIDED_BY_CODE, Part, parts_of
from whereness.interop.config.rope_keys import FRACTION_KEYS
from whereness.interop.families import families
from whereness.interop.strict_json import shown
from whereness.interop.weights.moves import Role, Rule
from whereness.interop.weights.pairing import Fused, rotary_slice, turning_heads
from whereness.interop.weights.shapes import Shape, Shapes, by_shape, shapes_of
from whereness.rotary.base import Side
from whereness.rotary.pairing import Pairing

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Names:
    """Patterns of the modules that make queries and keys, * for anything."""

    queries: tuple[str, ...] = ("*.self_attn.q_proj",)
    keys: tuple[str, ...] = ("*.self_attn.k_proj",)
    norms: tuple[str, ...] = ("*.self_attn.q_norm", "*.self_attn.k_norm")
    fused: tuple[str, ...] = ()
    layout: Fused = "stacked"
    latent: bool = False
    """DeepSeek's attention: one head of keys, which turns, stands behind the latent channels."""
    values_are_keys: str = ""
    """A boolean key that makes values of the rows of keys, which then must not move."""


def _named(attention: str) -> tuple[str, str]:
    return f"*.{attention}.query_layernorm", f"*.{attention}.key_layernorm"


_LAYERNORMS = ("*.self_attn.q_layernorm", "*.self_attn.k_layernorm")
_GROUPED = Names(fused=("*.self_attn.query_key_value",), norms=_LAYERNORMS, layout="grouped")
_LATENT = Names(
    queries=("*.self_attn.q_b_proj", "*.self_attn.q_proj"),
    keys=("*.self_attn.kv_a_proj_with_mqa",),
    norms=(),
    latent=True,
)
_PLAIN = (
    "afmoe apertus apertus1p5_text arcee aria_text bitnet cohere cohere2 cohere2_moe cwm diffllama "
    "doge dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1 flex_olmo gemma gemma2 "
    "gemma3_text glm glm4 glm4_moe gpt_oss granite granite_swa granitemoe granitemoe_swa "
    "granitemoeshared helium hy_v3 hyperclovax internlm3 iquestcoder jais2 kolibri1 laguna "
    "lara_mini llama llama4_text mellum minimax minimax_m2 minimax_m3_vl_text ministral ministral3 "
    "mistral mixtral nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe phimoe qwen2 "
    "qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe qwen3_vl_text seed_oss smollm3 "
    "solar_open starcoder2 vaultgemma"
)
_LATENTS = "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite mistral4 sarvam_mla youtu"
NAMES: dict[str, Names] = {
    **dict.fromkeys(_PLAIN.split(), Names()),
    **dict.fromkeys(_LATENTS.split(), _LATENT),
    "codegen": Names(fused=("*.attn.qkv_proj",), layout="codegen"),
    "dbrx": Names(fused=("*.attn.Wqkv",)),
    "falcon": Names(fused=("*.self_attention.query_key_value",), layout="grouped"),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"), Names(values_are_keys="attention_k_eq_v")
    ),
    "gpt_neox": Names(fused=("*.attention.query_key_value",), layout="grouped"),
    "gptj": Names(queries=("*.attn.q_proj",), keys=("*.attn.k_proj",)),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), Names(norms=_named("self_attn"))),
    "lfm2": Names(norms=_LAYERNORMS),
    "persimmon": _GROUPED,
    "phi": Names(norms=_LAYERNORMS),
    "phi3": Names(fused=("*.self_attn.qkv_proj",)),
    "sarvam_moe": Names(fused=("*.attention.query_key_value",), norms=_named("attention")),
    "stablelm": Names(norms=_LAYERNORMS),
}


def names_in_gguf(tensors: Container[str]) -> Names:
    """llama.cpp's names, the same for every architecture; what is fused there is stacked."""
    fused = ("blk.*.attn_qkv",) if "blk.0.attn_qkv.weight" in tensors else ()
    norms = ("blk.*.attn_q_norm", "blk.*.attn_k_norm")
    return Names(("blk.*.attn_q",), ("blk.*.attn_k",), norms, fused)


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

    @property
    def named(self) -> bool:
        """Whether it says which modules hold queries and keys."""
        return bool(self.queries or self.keys or self.fused)


def part_of(config: Config) -> Part | None:
    """The part of the model that is converted; None if several may be meant.

    Raises:
        ValueError: what cannot be a config.
    """
    try:
        parts = list(parts_of(files.Source(dict(config))).values())
    except TypeError as error:  # what a file holds is a value
        raise ValueError(str(error)) from None
    ours = [part for part in parts if part.model_type in NAMES]
    found = ours if len(ours) == 1 else parts
    return found[0] if len(found) == 1 else None


def is_known(part: Part | None) -> bool:
    """Whether the config reader knows its family, so its pairing."""
    return part is not None and part.model_type in families()


def key_of(part: Part | None) -> str:
    """The boolean key of the config that says the pairing, true for interleaved; "" without one."""
    return part.family.interleaved if part else ""


def usual_of(part: Part) -> Pairing:
    """The pairing that the weights of its family have."""
    return part.family.pairing


def rules_of(config: Config, given: Given) -> list[Rule]:
    """Which modules hold queries and keys, and how.

    Raises:
        ValueError: the family is not known and the user does not say enough, or numbers are missing
            or do not fit together.
    """
    part = part_of(config)
    return rules_for(part, config, _names(config, part, given), given)


def rules_for(part: Part | None, config: Config, names: Names, given: Given) -> list[Rule]:
    """The rules of modules of these names; the keys of a part hide those of the whole config.

    Raises:
        ValueError: numbers are missing or do not fit together.
    """
    keys = part.reading.given if part else config
    if names.values_are_keys and keys.get(names.values_are_keys):
        raise ValueError(
            f"{names.values_are_keys} is true: values are made of the rows of keys, which then "
            "cannot move."
        )
    if names.latent and part:
        if any((given.num_heads, given.num_kv_heads, given.head_dim, given.rotary_dim, given.side)):
            raise ValueError(
                f"the heads of a {part.model_type} come from its config: mend that, or give "
                "--queries and --keys as well."
            )
        counts = _number(keys, "num_attention_heads"), 1
    else:
        counts = head_counts(keys, given)
    found = []
    for shape, layers in by_shape(_shapes(part, keys, given)):
        found += _rules(names, keys, counts, shape, layers)
    return found


def _names(config: Config, part: Part | None, given: Given) -> Names:
    if given.named:
        return Names(given.queries, given.keys, given.norms, given.fused, given.layout or "stacked")
    names = NAMES.get(part.model_type) if part else None
    if names is None or part is None:
        name = shown(config.get("model_type"))
        raise ValueError(
            f"model_type {name} is not known here. Say which modules hold queries and keys: "
            "--queries and --keys PATTERN (or --fused PATTERN with --layout), --num-heads, "
            "--num-kv-heads, --head-dim, --rotary-dim, --side."
        )
    if given.norms or given.layout:
        raise ValueError("--norms and --layout go with --queries and --keys, or with --fused.")
    return within(names, part)


def within(names: Names, part: Part) -> Names:
    """The names in a model that may have other parts."""
    if not part.name:
        return names
    return replace(
        names,
        queries=_of_the_text(names.queries),
        keys=_of_the_text(names.keys),
        norms=_of_the_text(names.norms),
        fused=_of_the_text(names.fused),
    )


def _of_the_text(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The same modules where towers may have ones of these names, too."""
    starts = ("*language_model.*", "model.layers.*")
    return tuple(start + pattern.removeprefix("*") for pattern in patterns for start in starts)


def _rules(
    names: Names,
    config: Config,
    counts: tuple[int, int],
    shape: Shape | None,
    layers: frozenset[int] | None,
) -> list[Rule]:
    """The rules of the layers that have this shape."""
    if shape is None:  # nothing turns there: their weights stay
        patterns = (*names.queries, *names.keys, *names.norms, *names.fused)
        return [Rule(p, "still", (), 0, 0, "leading", layers) for p in patterns]
    rotary_slice(shape.head_dim, shape.rotary_dim, shape.side)
    fits = (shape.head_dim, shape.rotary_dim, shape.side, layers)
    rules = [Rule(p, "norm", (), *fits) for p in names.norms]
    if names.fused:
        turning = tuple(turning_heads(*counts, names.layout))
        return rules + [Rule(p, "fused", turning, *fits) for p in names.fused]
    queries, keys = ((True,) * count for count in counts)
    found: list[Rule] = [Rule(p, _ROLES[0], queries, *fits) for p in names.queries]
    if names.latent:
        fits = (_number(config, "kv_lora_rank") + shape.rotary_dim, *fits[1:])
    return found + [Rule(p, _ROLES[1], keys, *fits) for p in names.keys] + rules


_ROLES: tuple[Role, Role] = ("queries", "keys")


def _shapes(part: Part | None, config: Config, given: Given) -> Shapes:
    """How the heads lie: as the user says, and for the rest as the config reader."""
    if part and given.head_dim:
        keys = {**part.reading.given, "head_dim": given.head_dim}
        part = replace(part, reading=replace(part.reading, given=keys))
    try:
        found = shapes_of(part) if part else None
    except ValueError:
        if not given.named:
            raise
        found = None
    if found is None:
        found = (_said(config, given),)
    return tuple(shape and _with(shape, given) for shape in found)


def _with(shape: Shape, given: Given) -> Shape:
    head_dim = given.head_dim or shape.head_dim
    whole = shape.rotary_dim == shape.head_dim
    rotary_dim = given.rotary_dim or (head_dim if whole else shape.rotary_dim)
    return Shape(head_dim, rotary_dim, given.side or shape.side)


def _said(config: Config, given: Given) -> Shape:
    """The heads of a model that the reader does not know, all channels turning."""
    head_dim = given.head_dim or _optional(config, "head_dim") or _quotient(config, given)
    for key in (*FRACTION_KEYS, *DECIDED_BY_CODE):
        if config.get(key) not in (None, [], {}) and not given.rotary_dim:
            raise ValueError(f"{key} means what the model's code makes of it: give --rotary-dim.")
    return Shape(head_dim, given.rotary_dim or head_dim)


def head_counts(config: Config, given: Given) -> tuple[int, int]:
    """Heads of queries and of keys.

    Raises:
        ValueError: the config does not say.
    """
    num_heads = given.num_heads or _number(config, *_HEADS)
    if not (given.head_dim or config.get("head_dim")) and any(config.get(w) for w in _WIDTHS):
        _quotient(config, replace(given, num_heads=num_heads))
    return num_heads, given.num_kv_heads or _num_kv_heads(config) or num_heads


_HEADS = ("num_attention_heads", "n_head", "n_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model")


def _quotient(config: Config, given: Given) -> int:
    width, num_heads = _number(config, *_WIDTHS), given.num_heads or _number(config, *_HEADS)
    if width % num_heads:
        raise ValueError(f"{num_heads} heads do not divide a width of {width}: give --head-dim.")
    return width // num_heads


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
