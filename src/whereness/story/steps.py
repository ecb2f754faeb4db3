"""The steps in order, and which property each one answers and fails."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from whereness.story.codes import binary_codes, integer_codes, normalised_codes, shift_matrix
from whereness.story.offsets import moved_fragment, recovered_offset
from whereness.story.order import permuted_attention, raccoon_and_woman, two_dogs
from whereness.story.parts import Measured, Numbers
from whereness.story.turning import added_or_turned, more_axes, rotated_scores

MEANINGS = {
    "permutation_sensitivity": "order must be seen",
    "same_word": "places must be told apart",
    "max_abs": "codes must be bounded",
    "length_dependence": "a code must not depend on the length of the text",
    "linear_relation": "a linear map must lead from a place to a later one",
    "exact_relativity": "an offset must be the same thing everywhere",
    "relative": "moving the text must change nothing",
    "norm_preservation": "words must keep their length",
    "extends_to": "places may have several coordinates",
    "anisotropy": "directions must be alike",
}
"""What each property that a step fails asks for."""


@dataclass(frozen=True)
class Step:
    """One step of the story."""

    title: str
    function: Callable[..., Numbers]
    shows: str
    answers: str | None
    """The property that the step before failed, a field of `wn.Properties` (anisotropy: of its
    grid); None for the first step."""
    fails: str
    """The property that this step's own numbers show failing."""


STEPS: tuple[Step, ...] = (
    Step(
        "Attention sees a set",
        permuted_attention,
        "Permuted tokens give permuted outputs, and permuted rows and columns of the weights.",
        None,
        "permutation_sensitivity",
    ),
    Step(
        "Who ate whom?",
        raccoon_and_woman,
        "Two sentences of the same words cannot be told apart.",
        "permutation_sensitivity",
        "permutation_sensitivity",
    ),
    Step(
        "Two dogs",
        two_dogs,
        "A word used twice has equal outputs until an encoding joins.",
        "permutation_sensitivity",
        "same_word",
    ),
    Step(
        "Count the tokens",
        integer_codes,
        "Integer codes swamp the words.",
        "same_word",
        "max_abs",
    ),
    Step(
        "Divide by the length",
        normalised_codes,
        "Normalised codes depend on the length of the text.",
        "max_abs",
        "length_dependence",
    ),
    Step(
        "Write the position in bits",
        binary_codes,
        "Binary codes jump.",
        "length_dependence",
        "linear_relation",
    ),
    Step(
        "Sines and cosines",
        shift_matrix,
        "The map from a position to a later one is a rotation, the same one everywhere.",
        "linear_relation",
        "exact_relativity",
    ),
    Step(
        "Two places, one offset",
        recovered_offset,
        "Two absolute codes tell their offset; two words with codes do not.",
        "exact_relativity",
        "relative",
    ),
    Step(
        "A text that starts anywhere",
        moved_fragment,
        "Moving a text leaves relative scores as they are and changes absolute ones.",
        "relative",
        "relative",
    ),
    Step(
        "Turn instead of add",
        added_or_turned,
        "Adding a code changes the length of a word, turning does not.",
        "relative",
        "norm_preservation",
    ),
    Step(
        "Scores know the offset alone",
        rotated_scores,
        "Scores of turned queries and keys depend on the offset, wherever they stand.",
        "norm_preservation",
        "extends_to",
    ),
    Step(
        "Planes and space",
        more_axes,
        "The same holds in 2-D and 3-D, if each axis turns pairs of its own.",
        "extends_to",
        "anisotropy",
    ),
)


def chosen(number: int | None) -> list[int]:
    """Numbers of the steps that are meant: all, or one, counted from 1.

    Raises:
        ValueError: there is no such step.
    """
    if number is None:
        return list(range(1, len(STEPS) + 1))
    if not 1 <= number <= len(STEPS):
        raise ValueError(f"The story has steps 1 to {len(STEPS)}, got {number}.")
    return [number]


def verdict(step: Step, numbers: Numbers) -> Measured:
    """The measurement by which a step fails."""
    return next(m for m in numbers.failed() if m.name == step.fails)


def as_json(step: int | None = None) -> dict[str, Any]:
    """All numbers of the story, or of one step, in plain Python types.

    Raises:
        ValueError: there is no such step.
    """
    return {"steps": [_plain_step(number) for number in chosen(step)]}


def _plain_step(number: int) -> dict[str, Any]:
    step = STEPS[number - 1]
    return {
        "step": number,
        "title": step.title,
        "function": step.function.__name__,
        "shows": step.shows,
        "answers": step.answers,
        "fails": step.fails,
        "numbers": step.function().plain(),
    }
