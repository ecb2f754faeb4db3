"""What the arguments of a model's forward pass mean, read from their names.

Names are the only thing that models agree on; what they leave open is found by running
(`drive.Driver`). Axes: B batch, S tokens, E features.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Takes = Literal["tokens", "features", "pixels"]

TOKENS = ("input_ids", "ids", "tokens", "token_ids", "idx", "inp", "input", "x", "inputs", "src")
DECODER_TOKENS = ("decoder_input_ids", "tgt", "target")
FEATURES = ("inputs_embeds", "hidden_states", "embeddings", "features", "embeds")
PIXELS = ("pixel_values", "pixel_values_videos", "input_values", "input_features", "images", "img")
POSITIONS = (
    "position_ids",
    "positions",
    "input_pos",
    "where",
    "pos_ids",
    "pos",
    "position",
    "token_positions",
)
REAL = ("attention_mask", "key_mask", "pad_mask", "attn_mask_2d")
"""Masks with 1 at real tokens."""
PADS = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
"""Masks with True at pads, as torch's own modules have them."""
EITHER = ("mask", "attn_mask")
"""Masks that mean one thing here and another there."""
CACHES = (
    "past_key_values",
    "caches",
    "cache",
    "kv_cache",
    "past",
    "past_kv",
    "layer_past",
    "past_key_value",
    "kv_caches",
    "cache_params",
)
SEGMENTS = (
    "segments",
    "segment_ids",
    "document_ids",
    "doc_ids",
    "documents",
    "sequence_ids",
    "seq_ids",
    "seq_idx",
)
"""Numbers of the documents of a packed row."""
USE_CACHE = ("use_cache", "return_cache", "return_kv_cache")


@dataclass(frozen=True)
class Arguments:
    """Names of a forward pass's arguments, None where there is none."""

    first: str | None
    """The first one: what it takes where no name says more."""
    tokens: str | None
    features: str | None
    pixels: str | None
    decoder: str | None
    decoder_mask: str | None
    memory: str | None
    positions: str | None
    mask: str | None
    pads: bool
    """The mask has True at pads."""
    either: str | None
    """A mask whose meaning has to be found out."""
    segments: str | None
    cache: str | None
    use_cache: str | None
    plain: frozenset[str]
    """All names."""


def arguments_of(module: nn.Module) -> Arguments:
    """Read the signature of `module.forward`."""
    names = _names(module)

    def one(known: tuple[str, ...]) -> str | None:
        return next((name for name in known if name in names), None)

    real, pads = one(REAL), one(PADS)
    return Arguments(
        first=names[0] if names else None,
        tokens=one(TOKENS),
        features=one(FEATURES),
        pixels=one(PIXELS),
        decoder=one(DECODER_TOKENS),
        decoder_mask=one(("decoder_attention_mask", "tgt_key_padding_mask")),
        memory=one(("encoder_outputs",)),
        positions=one(POSITIONS),
        mask=real or pads,
        pads=real is None and pads is not None,
        either=one(EITHER),
        segments=one(SEGMENTS) or ("where" if "where" in names else None),
        cache=one(CACHES),
        use_cache=one(USE_CACHE),
        plain=frozenset(names),
    )


def _names(module: nn.Module, depth: int = 8) -> list[str]:
    """Names of the arguments, looked for behind a forward(*args, **kwargs) that hands them on.

    It hands them to the class that it is derived from, or to the one module that it wraps.
    """
    own, hands_on = _signature(module.forward)
    if own or not hands_on:
        return own
    for base in type(module).__mro__[1:]:
        if base is nn.Module:
            break
        if "forward" in vars(base):
            inherited = _signature(vars(base)["forward"])[0][1:]  # without self
            if inherited:
                return inherited
    inner = [each for each in module.children() if each is not module]
    return _names(inner[0], depth - 1) if len(inner) == 1 and depth else []


def _signature(function: Any) -> tuple[list[str], bool]:
    """The names that a function's arguments have, and whether it takes any other as well."""
    kinds = inspect.Parameter
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return [], False
    named = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    return [p.name for p in found if p.kind in named], any(
        p.kind == kinds.VAR_KEYWORD for p in found
    )
