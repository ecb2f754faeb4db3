"""Steps 1 to 3: attention sees a set.

    f(P x) = P f(x),   A(P x) = P A(x) P^T      for any permutation P of the tokens

Source: Prince, Understanding Deep Learning, 2023, section 12.3.1 (the raccoon);
fleetwood.dev, "You could have designed state of the art positional encoding", 2024 (the dogs);
a causal mask as the only sign of order: Haviv et al. 2022, arXiv:2203.16634.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.absolute.binary import Binary
from whereness.absolute.integer import Integer
from whereness.absolute.sinusoidal import Sinusoidal
from whereness.encoding import PositionalEncoding
from whereness.rotary.rope import RoPE
from whereness.story.parts import (
    FIVE_WORDS,
    Attended,
    Numbers,
    Projected,
    attended,
    drawn,
    embedded,
    gap,
    learned_relative,
    must_be_seen,
    ready,
)

DIM = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class PermutedAttention(Numbers):
    """Step 1."""

    two: Attended
    """The example of two tokens."""
    swapped: Attended
    """The same two in the other order."""
    tokens: Tensor
    """Drawn at random, like the permutation."""
    permutation: tuple[int, ...]
    straight: Attended
    permuted: Attended
    weights_gap: float
    """Largest entry of A(P x) - P A(x) P^T."""
    outputs_gap: float
    """Largest entry of f(P x) - P f(x)."""


def permuted_attention(num_tokens: int = 6) -> PermutedAttention:
    """Permute the tokens: the rows and columns of the weights, and the outputs, follow."""
    x = drawn(num_tokens, DIM)
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(1))
    straight, permuted = attended(x), attended(x[order])
    outputs_gap = gap(permuted.outputs, straight.outputs[order])
    return PermutedAttention(
        two=_two_tokens([0, 1]),
        swapped=_two_tokens([1, 0]),
        tokens=x,
        permutation=tuple(order.tolist()),
        straight=straight,
        permuted=permuted,
        weights_gap=gap(permuted.weights, straight.weights[order][:, order]),
        outputs_gap=outputs_gap,
        measured=(must_be_seen("permutation_sensitivity", "no encoding", outputs_gap),),
    )


def _two_tokens(order: list[int]) -> Attended:
    """Softmax of [[ln 9, 0], [0, ln 4]], which is [[.9, .1], [.2, .8]], tokens in this order."""
    q = torch.tensor([[math.log(9), 0.0], [0.0, math.log(4)]], dtype=torch.float64)
    k = torch.eye(2, dtype=torch.float64)
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    return ready(Projected(q[order], k[order], v[order]), scale=1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Raccoon(Numbers):
    """Step 2. Outputs are (word, D), words in the order of `words`."""

    sentences: tuple[str, str]
    words: tuple[str, ...]
    tokens: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    gap: float
    """Largest difference between a word's outputs in the two sentences."""
    mean_gap: float
    """The same for the mean of all outputs, what a classifier would read."""
    causal_gap: float
    """The same as `gap` where a word sees only those before it."""


def raccoon_and_woman() -> Raccoon:
    """Two sentences of the same words: every word comes out the same in both."""
    sentences = (" ".join(FIVE_WORDS), "the raccoon ate the woman")
    split = [sentence.split() for sentence in sentences]
    words = ("the", "woman", "ate", "raccoon")
    rows = [[s.index(word) for word in words] for s in split]
    tokens = [embedded(s, DIM) for s in split]
    plain = [attended(x).outputs for x in tokens]
    causal = [attended(x, causal=True).outputs for x in tokens]
    first, second = (out[r] for out, r in zip(plain, rows, strict=True))
    causal_gap = gap(*(out[r] for out, r in zip(causal, rows, strict=True)))
    return Raccoon(
        sentences=sentences,
        words=words,
        tokens=(tokens[0], tokens[1]),
        outputs=(first, second),
        gap=gap(first, second),
        mean_gap=gap(plain[0].mean(0), plain[1].mean(0)),
        causal_gap=causal_gap,
        measured=(
            must_be_seen("permutation_sensitivity", "causal mask alone", causal_gap),
            must_be_seen("permutation_sensitivity", "no encoding", gap(first, second)),
        ),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoDogs(Numbers):
    """Step 3."""

    sentence: str
    places: tuple[int, int]
    """Where the two dogs stand, counted from 0."""
    tokens: Tensor
    outputs: dict[str, Tensor]
    """Outputs of the two dogs, (2, D), by encoding."""
    gaps: dict[str, float]
    """Largest difference of the two."""


def two_dogs() -> TwoDogs:
    """One word twice in a sentence: equal outputs, until any encoding joins."""
    sentence = "the dog chased another dog"
    words = sentence.split()
    first, second = (i for i, word in enumerate(words) if word == "dog")
    x = embedded(words, DIM)
    encodings: dict[str, PositionalEncoding | None] = {
        "no encoding": None,
        "Integer": Integer(DIM),
        "Integer / length": Integer(DIM, length=len(words)),
        "Binary": Binary(DIM, num_bits=3),
        "Sinusoidal": Sinusoidal(DIM),
        "LearnedRelative": learned_relative(len(words) - 1),
        "RoPE": RoPE(DIM),
    }
    outputs = {
        name: attended(x, encoding).outputs[[first, second]] for name, encoding in encodings.items()
    }
    gaps = {name: gap(out[0], out[1]) for name, out in outputs.items()}
    return TwoDogs(
        sentence=sentence,
        places=(first, second),
        tokens=x,
        outputs=outputs,
        gaps=gaps,
        measured=tuple(must_be_seen("same_word", name, gaps[name]) for name in gaps),
    )
