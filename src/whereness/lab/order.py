"""The order task: who acts on whom, in sentences where only word order tells.

    there gladly the woman ate the raccoon again often today who?   -> woman
    there gladly the raccoon ate the woman again often today who?   -> raccoon

Five words of a clause begin anywhere among fillers. A bidirectional model reads the sentence and
answers at its last token: of the two nouns, the one with the greater logit. Every sentence comes
with its mirror, the two nouns swapped. Both hold the same words, so a model without positions gives
both the same answer and is right for exactly one of them.

Distances without direction suffice: the actor stands next to the verb, the other noun has an
article between. So a symmetric bias can solve it as well.

Axes: B sentences, S words.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from whereness.lab.settings import LENGTH

NOUNS = (
    *("woman", "raccoon", "man", "dog", "cat", "girl", "boy", "bear", "fox", "horse", "doctor"),
    *("baker", "lion", "goat", "wolf", "king", "queen", "nurse", "judge", "pilot", "sheep", "owl"),
    *("mouse", "snake"),
)
VERBS = (
    *("ate", "saw", "chased", "helped", "found", "heard", "followed", "carried", "greeted"),
    *("watched", "pushed", "called"),
)
FILLERS = (
    *("yesterday", "again", "there", "gladly", "often", "today", "outside", "slowly", "twice"),
    *("perhaps", "later", "upstairs"),
)
WORDS = ("the", "who?", *NOUNS, *VERBS, *FILLERS)
"""A word's token id is its place here."""

CLAUSE = 5
THE, WHO = 0, 1
FIRST_NOUN = 2
FIRST_VERB = FIRST_NOUN + len(NOUNS)
FIRST_FILLER = FIRST_VERB + len(VERBS)


class Sentences(NamedTuple):
    """Sentences, and then their mirrors in the same order."""

    ids: Int[Tensor, "B S"]
    actor: Int[Tensor, " B"]
    other: Int[Tensor, " B"]

    def to(self, device: str) -> "Sentences":
        """The same on another device."""
        return Sentences(*(part.to(device) for part in self))


def draw(pairs: int, generator: torch.Generator) -> Sentences:
    """`pairs` sentences and their mirrors: B = 2 pairs."""

    def below(limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape or (pairs,), generator=generator)

    first = below(len(NOUNS))
    second = (first + 1 + below(len(NOUNS) - 1)) % len(NOUNS)
    actor, other = FIRST_NOUN + first, FIRST_NOUN + second
    verb = FIRST_VERB + below(len(VERBS))
    ids = FIRST_FILLER + below(len(FILLERS), pairs, LENGTH)
    ids[:, -1] = WHO
    the = torch.full_like(verb, THE)
    places = below(LENGTH - CLAUSE)[:, None] + torch.arange(CLAUSE)
    ids = ids.scatter(1, places, torch.stack([the, actor, verb, the, other], 1))
    mirrors = ids.scatter(1, places, torch.stack([the, other, verb, the, actor], 1))
    return Sentences(
        torch.cat([ids, mirrors]), torch.cat([actor, other]), torch.cat([other, actor])
    )


def margins(model: Callable[[Tensor], Tensor], sentences: Sentences) -> Float[Tensor, " B"]:
    """By how much the logit of the actor is above that of the other noun."""
    logits = model(sentences.ids)[:, -1]
    actor, other = (logits.gather(1, noun[:, None]) for noun in sentences[1:])
    return (actor - other)[:, 0]


def loss_of(model: Callable[[Tensor], Tensor], sentences: Sentences) -> Float[Tensor, ""]:
    """Mean cross-entropy of the choice between the two nouns, in nats."""
    return F.softplus(-margins(model, sentences)).mean()


class Score(NamedTuple):
    """The part of sentences for which the actor has the greater logit, and the mean loss."""

    accuracy: float
    loss: float


@torch.no_grad()
def score(model: torch.nn.Module, sentences: Sentences) -> Score:
    """How well a model does on sentences.

    On the CPU in float64, where the model is left: sums of the same words in another order then
    differ too little to tell a sentence from its mirror.
    """
    model.to("cpu", torch.float64)
    found = margins(model, sentences)
    return Score((found > 0).double().mean().item(), F.softplus(-found).mean().item())
