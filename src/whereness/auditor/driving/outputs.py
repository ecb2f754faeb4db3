"""What a model put out: the tensor with a row for every token, and the cache.

Axes: B batch, S tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

BEST = ("logits", "last_hidden_state", "prediction_logits", "decoder_hidden_states")
"""Names of the output that is looked for, likeliest first."""


def tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors of real numbers in `value`, likeliest output first."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping) and depth:
        for name in (*(n for n in BEST if n in value), *(n for n in value if n not in BEST)):
            if "past" not in name and "cache" not in name and "attentions" not in name:
                yield from tensors(value[name], depth - 1)
    elif isinstance(value, (tuple, list)) and depth:
        for item in value:
            yield from tensors(item, depth - 1)


def main_output(value: Any, batch: int, length: int, *, rows_first: bool) -> Tensor | None:
    """The first tensor of `value` with a row for every token, (B, S, ...)."""
    for found in tensors(value):
        if found.dim() >= 3 or (found.dim() == 2 and isinstance(value, Mapping)):
            if not rows_first and found.shape[:2] == (length, batch):
                return found.transpose(0, 1)
            if found.shape[:2] == (batch, length):
                return found
    return None


def held_cache(raw: Any, given: Any) -> Any:
    """The cache in what a model gave back; else the one that it was given and wrote into."""
    named = raw if isinstance(raw, Mapping) else getattr(raw, "_asdict", dict)()
    found = next(
        (v for n, v in named.items() if ("past" in n or "cache" in n) and v is not None), None
    )
    if found is not None:
        return found
    second = raw[1] if isinstance(raw, (tuple, list)) and len(raw) > 1 else None
    if given is None or type(second) is type(given):
        return second
    return given
