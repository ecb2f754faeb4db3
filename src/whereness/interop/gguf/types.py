"""The types of a GGUF file's tensors: how many numbers a block of each has, and how many bytes.

Source: the format's structures in the ggml repository, ggml-common.h and ggml.h.
"""

from typing import NamedTuple


class Type(NamedTuple):
    """Numbers in a block, its bytes, and its name."""

    numbers: int
    size: int
    name: str


TYPES = {
    0: Type(1, 4, "F32"),
    1: Type(1, 2, "F16"),
    2: Type(32, 18, "Q4_0"),
    3: Type(32, 20, "Q4_1"),
    6: Type(32, 22, "Q5_0"),
    7: Type(32, 24, "Q5_1"),
    8: Type(32, 34, "Q8_0"),
    10: Type(256, 84, "Q2_K"),
    11: Type(256, 110, "Q3_K"),
    12: Type(256, 144, "Q4_K"),
    13: Type(256, 176, "Q5_K"),
    14: Type(256, 210, "Q6_K"),
    16: Type(256, 66, "IQ2_XXS"),
    17: Type(256, 74, "IQ2_XS"),
    18: Type(256, 98, "IQ3_XXS"),
    19: Type(256, 50, "IQ1_S"),
    20: Type(32, 18, "IQ4_NL"),
    21: Type(256, 110, "IQ3_S"),
    22: Type(256, 82, "IQ2_S"),
    23: Type(256, 136, "IQ4_XS"),
    24: Type(1, 1, "I8"),
    25: Type(1, 2, "I16"),
    26: Type(1, 4, "I32"),
    27: Type(1, 8, "I64"),
    28: Type(1, 8, "F64"),
    29: Type(256, 56, "IQ1_M"),
    30: Type(1, 2, "BF16"),
    34: Type(256, 54, "TQ1_0"),
    35: Type(256, 66, "TQ2_0"),
    39: Type(32, 17, "MXFP4"),
}
"""By the number that stands in a file."""
READ = frozenset(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
"""Quantised types whose numbers `quants` can tell. The others can be measured only."""
