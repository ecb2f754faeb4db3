"""How far the layers of a model see: a window of the last tokens, or the chunk a token is in.

Told beside the encodings, since a position beyond the window is never attended to. Only of layers
whose type says it, or whose family does.
"""

from dataclasses import dataclass

from whereness.interop.config.keys import Reading, integer
from whereness.interop.config.layers import Slot
from whereness.interop.families import Family

WINDOWS = {
    "sliding_attention": "sliding_window",
    "hybrid_sliding": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}
"""Layer type -> the key of what it sees."""
BOTH_WAYS = (
    "diffusion_gemma_text",
    "embedding_gemma2_text",
    "modernbert",
    "openai_privacy_filter",
    "t5gemma2_text",
    "ultrabert",
)
"""Families that see ahead as well, each with another reading of the window: nothing is told."""


@dataclass(frozen=True)
class Sight:
    """What a layer sees."""

    kind: str
    """ "window" or "chunk"."""
    tokens: int

    def __str__(self) -> str:
        if self.kind == "chunk":
            return f"its chunk of {self.tokens:,} tokens"
        return f"the last {self.tokens:,} tokens"


def sight_of(reading: Reading, family: Family, model_type: str, slot: Slot) -> Sight | None:
    """What a layer sees; None where it is all, or is not said."""
    if model_type in BOTH_WAYS or reading.get("use_bidirectional_attention"):
        return None
    key = WINDOWS.get(slot.type or "")
    if family.chunks and slot.positioned and slot.type is None:
        key = family.chunks
    value = reading.get(key) if key else None
    if not value or key is None:
        return None
    kind = "window" if key == "sliding_window" else "chunk"
    return Sight(kind, integer(reading.name(key), value))
