"""The story, executable: from attention without order to rotary encoding, in numbers.

Each step is a function that gives numbers and prints nothing; `show()` tells them all. A step is
answered by the next one, which names the property that it failed.

Source: the order of the steps follows fleetwood.dev, "You could have designed state of the art
positional encoding", 2024, and Prince, Understanding Deep Learning, 2023, section 12.3.1. That a
complex system that works grew from a simple one that worked: John Gall, Systemantics, 1975.
"""

from whereness.story.codes import binary_codes as binary_codes
from whereness.story.codes import integer_codes as integer_codes
from whereness.story.codes import normalised_codes as normalised_codes
from whereness.story.codes import shift_matrix as shift_matrix
from whereness.story.offsets import moved_fragment as moved_fragment
from whereness.story.offsets import recovered_offset as recovered_offset
from whereness.story.order import permuted_attention as permuted_attention
from whereness.story.order import raccoon_and_woman as raccoon_and_woman
from whereness.story.order import two_dogs as two_dogs
from whereness.story.parts import Measured as Measured
from whereness.story.parts import Numbers as Numbers
from whereness.story.steps import STEPS as STEPS
from whereness.story.steps import Step as Step
from whereness.story.steps import as_json as as_json
from whereness.story.turning import added_or_turned as added_or_turned
from whereness.story.turning import more_axes as more_axes
from whereness.story.turning import rotated_scores as rotated_scores


def show(step: int | None = None) -> int:
    """Print the story, or one step of it counted from 1, and give the exit status.

    Raises:
        ValueError: there is no such step.
        ModuleNotFoundError: rich is not installed.
    """
    from whereness.story.printing import print_story

    print_story(step)
    return 0
