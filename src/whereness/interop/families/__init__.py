"""What a config's `model_type` says beyond its keys: a table of facts.

A config names sizes and scalings. How channels pair, which layers have no position, what a missing
key means and how a table is laid out stand in the code of the model. A `Family` holds that as data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Kind = Literal[
    "rope", "axial", "multimodal", "dinov3", "learned", "sinusoidal", "t5", "alibi", "shaw", "none"
]
Keys = tuple[str, ...]
"""Where a number stands: the first alternative whose keys are all there. An alternative is a sum of
quotients of keys: "head_dim", "hidden_size//num_attention_heads", "nope_head_dim+rope_head_dim"."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the models of one `model_type` read their config."""

    kind: Kind = "rope"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the config class fills in for a key that a file leaves out: positional keys alone. The
    one place of a default base (`rope_theta`). A whole `rope_parameters` may stand here."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the encoding's constructor as they are (axial: num_axes, layout, ...)."""
    refused: str = ""
    """Not empty: no encoding can say what this family does, and why."""
    notes: tuple[str, ...] = ()
    """Quirks of the models' code, told by `explain`."""

    # Width
    head_dim: Keys = ("head_dim", "hidden_size//num_attention_heads")
    """Width of a query, the part that does not turn included (MLA: nope + rope)."""
    head_dims: Mapping[str, Keys] = field(default_factory=dict)
    """The same for layer types that have another one: {"full_attention": ("global_head_dim",)}."""
    rotary_dim: Keys = ()
    """Channels that turn, as a number; empty: head_dim times the fraction."""
    fraction: Keys = ()
    """Part of the channels that turns: ("partial_rotary_factor",). Empty: the code of the plain
    (unscaled) model never reads one, and a value other than 1 is a dead key."""
    side: Literal["leading", "trailing"] = "leading"
    pairing: Literal["half", "interleaved"] = "half"
    """As the weights are stored: code that de-interleaves q and k first is "interleaved"."""
    interleaved: str = ""
    """A boolean key that decides the pairing instead: "rope_interleave"."""

    # Frequencies
    base: Keys = ("rope_theta",)
    """Top-level keys of the base, beside the nested `rope_theta`."""
    yarn: Literal["huggingface", "deepseek", "megatron"] = "huggingface"
    """deepseek: m(mscale_all_dim)^2 is folded into the softmax scale. megatron: m(mscale) over
    m(mscale_all_dim) whatever they are, also where they are 0."""
    rope_keys: tuple[str, ...] = ()
    """Further keys that the family reads in its rope dict: "mrope_interleaved", "alpha", ..."""
    sections: Keys = ()
    """multimodal: where the pairs of each axis stand, in the rope dict or at the top."""
    order: str = "chunked"
    """multimodal: order of the axes over the pairs, as `MultimodalRoPE` names them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Another meaning of a `rope_type`: Phi-3 reads "yarn" as "longrope"."""
    dynamic: Literal["huggingface", "qwen"] = "huggingface"
    """The school of its "dynamic": Qwen's has no factor and grows by powers of two."""
    attention_factor: float | None = None
    """Of a YaRN dict without one, where the config class fills it in (DeepSeek-V4: 1)."""
    learned: bool = False
    """The weights hold a factor for every frequency: `LeRoPE`, which starts at 1."""
    reversed: bool = False
    """Pairs turn the other way, by -p w (nanochat)."""
    interleaved_sections: str = ""
    """A boolean key of the rope dict that makes the order "interleaved": "mrope_interleaved"."""

    # Layers
    num_layers: Keys = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    labels: Mapping[str, str] = field(default_factory=dict)
    """Layer type -> its key in a nested `rope_parameters`, where the names differ."""
    types_default: str = ""
    """Without `layer_types`: the type of every layer ("full_attention"), where no pattern says."""
    pattern: tuple[str, str, str, int] | None = None
    """Without `layer_types`: (key of n, type of every n-th layer, type of the others, which one of
    the n: n - 1 is -1, the first is 0): ("sliding_window_pattern", "full_attention",
    "sliding_attention", -1)."""
    cycle: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
    """Without `layer_types` and `pattern`: (types of the first layers, types that repeat after
    them, types of the last layers, which replace): ((), ("conv", "full_attention"), ())."""
    types_bases: Mapping[str, Keys] = field(default_factory=dict)
    """Layer type -> top-level keys of its own base: {"sliding_attention":
    ("rope_local_base_freq",)}."""
    types_scaled: tuple[str, ...] | None = None
    """Layer types that a flat `rope_scaling` reaches; None: all. Others are plain."""
    types_fractions: Mapping[str, float] = field(default_factory=dict)
    """Layer type -> the part of the channels that turns, where its rope dict does not say."""
    types_parameters: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Layer type -> its rope dict if the config has neither `rope_parameters` nor `rope_scaling`;
    None: no position."""
    scaled_layers: str = ""
    """Key of a list of layer indices: a rope scaling reaches these layers alone."""
    nope_types: tuple[str, ...] = ()
    """Layer types without position: Cohere2's "full_attention"."""
    refused_types: Mapping[str, str] = field(default_factory=dict)
    """Layer types whose positions no encoding can say, and why: asking for one is refused."""
    forced: tuple[str, str, str, int] | None = None
    """(list, entry, key, value): a layer of `nope_types` turns all the same if its entry of the
    list is `entry` and the key has this value (Cohere2-MoE's dense layers)."""
    nope_unless: str = ""
    """`nope_types` hold only if this key is there and not None or 0 (EXAONE-4: sliding_window)."""
    rope_flags: str = ""
    """Key of a list, one entry a layer: 1 has RoPE, 0 has none ("no_rope_layers", whose name says
    the contrary)."""
    nope_interval: str = ""
    """Without `rope_flags`: key of n, every n-th layer has no position
    ("no_rope_layer_interval")."""
    nope_back: int = 0
    """Without `layer_bases`: the last layer and every n-th before it have no position."""
    chunks: str = ""
    """Key of the length of the chunks that layers with a position see ("attention_chunk_size")."""
    layer_bases: str = ""
    """Key of a list of bases, one a layer; 0 or None: no position."""

    # Temperature
    temperature: Literal["", "llama4", "ministral3", "inkling", "logn"] = ""
    temperature_on: Literal["all", "nope", "rope"] = "all"

    # Parts
    parts: Mapping[str, str] = field(default_factory=dict)
    """Key path of a part -> its model_type if the part does not say: {"text_config": "llama"}.
    Not empty: the config itself has no position."""
    text: str = ""
    """With `parts`: the model_type as which the config itself is read where it holds the keys of
    its text part at the top, as older files do (Qwen2-VL: "qwen2_vl_text")."""
    decoder: "Family | None" = None
    """An encoder-decoder of flat keys: self is its encoder, this its decoder."""
    when: tuple[tuple[str, Any, "Family"], ...] = ()
    """(key, value, family): another family where the key has this value (Falcon: alibi, True)."""

    # Tables and biases
    dim: Keys = ("hidden_size", "d_model", "n_embd")
    num_heads: Keys = ("num_attention_heads", "n_head", "num_heads", "n_heads")
    num_positions: Keys = ("max_position_embeddings", "n_positions", "n_ctx")
    """Positions that a table holds (learned); the trained length (rotary)."""
    first_row: int = 0
    """Row of position 0, beyond num_positions: the table of BART and OPT has 2 rows more."""
    first_row_after: str = ""
    """The key of a row (pad_token_id): position 0 is the row after it, and the rows up to it are
    *of* num_positions (RoBERTa: 514 rows, 512 positions)."""
    num_prefix: int = 0
    """Rows before the grid (CLS, registers)."""
    grid: Keys = ()
    """Side of the table's grid, where it is two-dimensional: ("image_size//patch_size",)."""
    num_buckets: Keys = ("relative_attention_num_buckets",)
    max_distance: Keys = ("relative_attention_max_distance",)
    bidirectional: bool = True
    """T5: an encoder's; the decoder's own is False."""
    bias_max: Keys = ()
    """ALiBi: the largest exponent where it is a key (MPT: "alibi_bias_max"); 8 otherwise."""


Families = Mapping[str, Family]
"""model_type -> Family."""

LLAMA = Family()
"""Half pairing, head_dim from its key or the quotient, everything turns. An unknown model_type is
read this way only if its keys leave nothing open."""


def family(model_type: str) -> Family | None:
    """The family of this model_type, or None."""
    return families().get(model_type)


@cache
def families() -> Families:
    """All families by model_type, the tables joined at the first look."""
    from whereness.interop.families import (
        composite,
        latent,
        layered,
        multimodal,
        remote,
        tables,
        text,
        types,
    )

    found: dict[str, Family] = {}
    for table in (
        text.FAMILIES,
        types.FAMILIES,
        layered.FAMILIES,
        composite.FAMILIES,
        latent.FAMILIES,
        multimodal.FAMILIES,
        tables.FAMILIES,
        remote.FAMILIES,
    ):
        twice = table.keys() & found.keys()
        assert not twice, twice
        found.update(table)
    return found
