"""The story in short: the numbers come from running it."""

from typing import NamedTuple

from whereness import story
from whereness.story.telling import shown


class Chapter(NamedTuple):
    """A heading and what was found."""

    title: str
    text: str


def chapters() -> list[Chapter]:
    """From attention that sees no order to rotary encoding, measured now, in float64."""
    raccoon, dogs = story.raccoon_and_woman(), story.two_dogs()
    counted, divided, bits = story.integer_codes(), story.normalised_codes(), story.binary_codes()
    waves, moved = story.shift_matrix(), story.moved_fragment()
    turned, scores = story.added_or_turned(), story.rotated_scores()
    lengths = divided.lengths
    factors = turned.added.tolist()
    return [
        Chapter(
            "Attention sees a set.",
            f"“{raccoon.sentences[0]}” and “{raccoon.sentences[1]}” give every word the same "
            f"output (largest difference {shown(raccoon.gap)}), and two dogs in one sentence are "
            f"one ({shown(dogs.gaps['no encoding'])}). Position has to be added.",
        ),
        Chapter(
            "Count.",
            f"With its number added the two dogs differ by {shown(dogs.gaps['Integer'])}. But at "
            f"position {counted.positions[-1]:,} the number is "
            f"{shown(counted.ratio[-1].item())} times as long as the word and drowns it.",
        ),
        Chapter(
            "Divide by the length.",
            f"Nothing drowns, but position {divided.position} is "
            f"{shown(divided.codes[0].item())} in a text of {lengths[0]:,} tokens and "
            f"{shown(divided.codes[-1].item())} in one of {lengths[-1]:,}: a place has no code of "
            "its own.",
        ),
        Chapter(
            "Write it in bits.",
            "Small, and the same in every text. But bits jump: the best linear map from a "
            f"position to the one three further leaves {bits.residual['Binary']:.0%} of the code "
            "unexplained.".replace("%", "\N{NO-BREAK SPACE}%"),
        ),
        Chapter(
            "Make the bits smooth: sines and cosines.",
            f"Now one matrix moves any position by {waves.shift}, the same at 0 and at "
            f"{waves.start:,} (difference {shown(waves.moved)}), and it is a rotation.",
        ),
        Chapter(
            "Only distance should count.",
            f"Move a text to position {moved.starts[1]:,}, and with sines and cosines added its "
            f"attention changes by up to {shown(moved.changes['Sinusoidal'])}; with a learned "
            f"number for each offset by {shown(moved.changes['LearnedRelative'])}.",
        ),
        Chapter(
            "Turn instead of adding.",
            f"A code that is added makes a word {min(factors):.2f} to {max(factors):.2f} times as "
            "long as it was; a rotation leaves its length, and then the score of two words depends "
            f"on their offset alone, wherever they stand (change {shown(scores.fragment_change)}). "
            "That is rotary encoding.",
        ),
    ]
