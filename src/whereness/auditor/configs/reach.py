"""How far a base reaches: the published bound of the context by the base.

    B(m) = sum over pairs k of cos(m w_k) >= 0    for every offset m within the context

B(m) is the expected score of a key like the query, less that of a random key, at offset m. Where it
is negative a like key is attended to less than a random one, and perplexity does not show it.
Channels that do not turn add 1 a pair. Whether a base passes is not monotone in the base, and
definitions differ by up to 2: only half the context is asked for.

Source: Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591, section 4.
The same sum is `properties.rotations.first_negative_offset`, on tensors; here it needs no torch.

Units: tokens.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from whereness.interop.config.reader import Layers
from whereness.interop.config.sight import WINDOWS
from whereness.interop.config.specs import Spec

OFTEN = 2
"""How much definitions of the bound differ; the paper's table and this sum agree within that."""
LOST = 32
"""Context over bound from which on the base is likely lost. Released models with narrow heads go to
21 (64 channels, base 1,000,000, 128,000 tokens); a base of 10,000 in place of a larger one makes 77
and more at 131,072."""
MOST = 2**21
"""Cosines that are computed: an eighth of a second in plain Python; 32,768 offsets of 64 pairs."""


def reached(layers: Layers, spec: Spec, where: Sequence[int]) -> int | None:
    """Tokens that layers with this encoding compare: those of pre-training, a window's at most."""
    if spec.kind != "RoPE" or layers.length is None:
        return None
    length = layers.length
    scaling = spec.get("scaling")
    if scaling is not None:
        original = scaling.get("original_length")
        if original is None:  # linear and NTK: the spectrum is another, the length of training open
            return None
        length = min(length, original)
    seen = [layers.sights[i] for i in where if layers.sights]
    if seen and all(each is not None for each in seen):
        length = min(length, max(each.tokens for each in seen if each is not None))
    elif any(layers.types[i] in WINDOWS for i in where if layers.types):
        return None  # a window that is not known
    window = layers.part.reading.get("sliding_window")
    if not any(layers.types) and isinstance(window, int) and window > 0:  # Mistral's: everywhere
        length = min(length, window)
    return length


def farthest(spec: Spec, length: int) -> int:
    """The offset up to which a base is held against a length: half of it, or what is computed."""
    pairs = (spec.get("rotary_dim") or spec.get("head_dim")) // 2
    return min(length // OFTEN, MOST // pairs)


def first_below(spec: Spec, length: int) -> int | None:
    """The first offset within `farthest` where B is negative."""
    head_dim = spec.get("head_dim")
    rotary_dim = spec.get("rotary_dim") or head_dim
    return _first_below(spec.get("base"), head_dim, rotary_dim, farthest(spec, length))


def plain_speeds(spec: Spec) -> tuple[float, ...] | None:
    """Radians a token of every pair, fastest first, of plain RoPE; None of other encodings.

    Scalings are for `rotary.scaling`, on tensors: here they are not told.
    """
    head_dim, base = spec.get("head_dim"), spec.get("base")
    if spec.kind != "RoPE" or spec.get("scaling") is not None or not head_dim or not base:
        return None
    return _plain_speeds(base, spec.get("rotary_dim") or head_dim)


def _plain_speeds(base: float, rotary_dim: int) -> tuple[float, ...]:
    return tuple(base ** (-k / rotary_dim) for k in range(0, rotary_dim, 2))


@lru_cache(maxsize=64)
def _first_below(base: float, head_dim: int, rotary_dim: int, last: int) -> int | None:
    if rotary_dim <= head_dim - rotary_dim:
        return None  # the channels that do not turn make up for any sum
    still = (head_dim - rotary_dim) / 2
    frequencies = _plain_speeds(base, rotary_dim)
    cos = math.cos
    for m in range(1, last + 1):
        if still + sum([cos(m * w) for w in frequencies]) < 0:
            return m
    return None
