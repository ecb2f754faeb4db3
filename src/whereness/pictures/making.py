"""All pictures of an encoding."""

import torch

from whereness.encoding import PositionalEncoding
from whereness.pictures import codes, offsets, rotation, scores, spectrum, values
from whereness.pictures.drawing import Picture
from whereness.pictures.subject import subject


def pictures(
    encoding: PositionalEncoding, num_positions: int = 64, *, name: str = "", causal: bool = True
) -> tuple[Picture, ...]:
    """The pictures of every door that `encoding` opens, then scores by offset and the spectrum.

    The encoding may be trained or not, and is left as it is. Positions are 0 .. num_positions - 1,
    or as many as it has. What an encoding does not do has no picture.

    Args:
        name: ids in the pictures begin with it; give different ones to what stands in one page.
            Empty: the class of the encoding.
        causal: mark keys after the query as never seen.

    Raises:
        ValueError: fewer than two positions.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads wait for one another
    try:
        of = subject(encoding, num_positions)
        name = name or of.seen_as
        drawn = (
            codes.picture(of, name),
            rotation.picture(of, name),
            scores.picture(of, name, causal=causal),
            values.picture(of, name),
            offsets.picture(of, name),
            spectrum.picture(of, name),
        )
    finally:
        torch.set_num_threads(threads)
    return tuple(picture for picture in drawn if picture is not None)
