"""Top-level keys that are nearly one that would be read: a slip there is silent everywhere else.

A model whose config says `num_attn_heads` gets its class's default number of heads, and with it
heads of another width.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache

from whereness.interop.config import rope_keys
from whereness.interop.config.keys import Reading, shown
from whereness.interop.config.scalings import LENGTH, ORIGINAL
from whereness.interop.families import Family, families

MOST_UNKNOWN = 2000
"""Top-level keys that nothing here reads: released configs have some dozens."""
LONGEST = 60
LONG = 12
"""Letters from which on two slips are one key still, not one."""
SHORT = 6
"""Letters below which a slip makes another word."""
OTHERS = frozenset(
    {"_sliding_window_pattern", "encoder_num_attention_heads", "encoder_num_hidden_layers"}
)
"""Keys that are no slip in the configs that have them: what config classes save besides."""
ROTARY = (
    "head_dim",
    "rotary_dim",
    "fraction",
    "base",
    "sections",
    "interleaved",
    "num_layers",
    "num_positions",
    "rope_flags",
    "nope_interval",
    "nope_unless",
    "chunks",
    "layer_bases",
    "scaled_layers",
)
READS: dict[str, tuple[str, ...]] = {
    "learned": ("dim", "grid", "num_positions", "first_row_after", "num_layers"),
    "sinusoidal": ("dim", "num_layers"),
    "t5": ("num_heads", "num_buckets", "max_distance", "num_layers"),
    "alibi": ("num_heads", "bias_max", "num_layers"),
    "shaw": ("head_dim", "max_distance", "num_layers"),
    "none": (),
}
"""Fields of `Family` that hold keys, by kind; of the rotary kinds: `ROTARY`."""
ALSO = (*rope_keys.NAMES, LENGTH, ORIGINAL, "layer_types")
"""What all rotary families read."""


def no_misspelling(reading: Reading, family: Family) -> None:
    """Refuse a key at the top that is nearly one that would be read.

    Raises:
        ValueError: it names the key and the one that was meant.
    """
    meant = frozenset(_reads(family))
    known = known_keys() | meant
    unknown = [key for key in reading.given if isinstance(key, str) and key not in known]
    if len(unknown) > MOST_UNKNOWN:
        raise ValueError(f"The config has {len(unknown)} keys that nothing here reads.")
    for key in unknown:
        near = [name for name in meant if len(key) <= LONGEST and alike(key, name)]
        if near:
            best = min(near, key=lambda name: (distance(key, name), name))
            raise ValueError(f"{reading.name(key)} is an unknown key. Did you mean {shown(best)}?")


@cache
def known_keys() -> frozenset[str]:
    """Keys that are no slip: those that some family reads, and the others."""
    every = [*families().values(), Family()]
    every += [each.decoder for each in every if each.decoder]
    every += [other for each in every for _, _, other in each.when]
    return frozenset(key for each in every for key in _reads(each)) | rope_keys.TOP_KEYS | OTHERS


def _reads(family: Family) -> Iterator[str]:
    for name in READS.get(family.kind, ROTARY):
        yield from _words(getattr(family, name))
    for key, _, _ in family.when:
        yield key
    if family.kind in READS:
        return
    yield from ALSO
    yield from family.defaults
    if family.pattern:
        yield family.pattern[0]
    for keys in (*family.head_dims.values(), *family.types_bases.values()):
        yield from _words(keys)


def _words(keys: str | Iterable[str]) -> Iterator[str]:
    """The keys in a sum of quotients; of "a.b" the outer one."""
    for alternative in (keys,) if isinstance(keys, str) else keys:
        for word in re.split(r"//|\+", alternative):
            if word and not word.isdigit():
                yield word.partition(".")[0]


def alike(key: str, name: str) -> bool:
    """Whether `key` is `name` but for a slip, its case, or a word cut short."""
    ours, theirs = key.lower().replace("-", "_"), name.lower()
    if ours == theirs:
        return True
    most = (len(theirs) >= SHORT) + (len(theirs) >= LONG)
    if abs(len(ours) - len(theirs)) <= most and distance(ours, theirs) <= most:
        return True
    pairs = list(zip(ours.split("_"), theirs.split("_"), strict=False))
    same_count = ours.count("_") == theirs.count("_")
    return same_count and len(pairs) > 2 and all(a == b or _cut(a, b) for a, b in pairs)


def _cut(word: str, whole: str) -> bool:
    """Whether a word is another one with letters left out: attn for attention."""
    return len(word) > 2 and bool(re.fullmatch("".join(f"{re.escape(c)}.*" for c in word), whole))


def distance(a: str, b: str) -> int:
    """Letters added, left out, replaced, or exchanged with their neighbour."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        last, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
