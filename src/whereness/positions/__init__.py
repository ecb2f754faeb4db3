"""Position ids for the usual layouts of a batch, without loops over tokens. Integers are int64."""

from whereness.positions.draws import abacus, randomized
from whereness.positions.grids import grid, video
from whereness.positions.multimodal import Audio, Film, Image, Placed, Text, Video, multimodal
from whereness.positions.rows import (
    continued,
    decode,
    from_mask,
    packed,
    prefill,
    segments,
)
from whereness.positions.shards import shard, shard_mask, shard_order, unshard
from whereness.positions.token_types import from_token_types
from whereness.positions.trees import tree, tree_mask

__all__ = [
    "Audio",
    "Film",
    "Image",
    "Placed",
    "Text",
    "Video",
    "abacus",
    "continued",
    "decode",
    "from_mask",
    "from_token_types",
    "grid",
    "multimodal",
    "packed",
    "prefill",
    "randomized",
    "segments",
    "shard",
    "shard_mask",
    "shard_order",
    "tree",
    "tree_mask",
    "unshard",
    "video",
]
