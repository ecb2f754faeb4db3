"""Shapes that many families share: a table then is one line a family."""

from typing import Any

from whereness.interop.families import Family

PARTIAL = ("partial_rotary_factor",)
FULL, SLIDING = "full_attention", "sliding_attention"
EVERY_N: dict[str, Any] = {"pattern": ("sliding_window_pattern", FULL, SLIDING, -1)}
"""Every n-th layer has full attention, the others a window."""


def text(
    hidden_size: int,
    num_attention_heads: int,
    num_hidden_layers: int,
    max_position_embeddings: int,
    base: float | None = 10_000.0,
    *,
    head_dim: int | None = None,
    partial: float | None = None,
    also: dict[str, Any] | None = None,
    **facts: Any,
) -> Family:
    """A family of Llama's keys and the numbers that its config class fills in.

    Args:
        base: None where every layer type has its own.
        head_dim: only where the class has a number of its own; else it is the quotient.
        partial: the part of the channels that turns, of a family whose plain RoPE reads it.
        also: further defaults.
        facts: fields of `Family`.
    """
    defaults: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "num_hidden_layers": num_hidden_layers,
        "max_position_embeddings": max_position_embeddings,
    }
    if base is not None:
        defaults["rope_theta"] = base
    if head_dim is not None:
        defaults["head_dim"] = head_dim
    if partial is not None:
        defaults["partial_rotary_factor"] = partial
        facts.setdefault("fraction", PARTIAL)
    return Family(defaults=defaults | (also or {}), **facts)


def latent(
    hidden_size: int,
    num_attention_heads: int,
    num_hidden_layers: int,
    max_position_embeddings: int,
    base: float | None,
    nope: int,
    rope: int,
    **facts: Any,
) -> Family:
    """Latent attention (MLA): a query is `nope` channels and then `rope` that turn."""
    also = {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope, **facts.pop("also", {})}
    shape: dict[str, Any] = {
        "head_dim": ("qk_nope_head_dim+qk_rope_head_dim",),
        "rotary_dim": ("qk_rope_head_dim",),
        "side": "trailing",
        "pairing": "interleaved",
        "yarn": "deepseek",
    }
    family = text(
        hidden_size,
        num_attention_heads,
        num_hidden_layers,
        max_position_embeddings,
        base,
        also=also,
    )
    return Family(defaults=family.defaults, **(shape | facts))


def every(
    n: int, nth: str = FULL, others: str = SLIDING
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The cycle in which every n-th layer is `nth`."""
    return (), (*(others,) * (n - 1), nth), ()
