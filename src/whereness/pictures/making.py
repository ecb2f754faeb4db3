"""All pictures of an encoding."""

from whereness.encoding import PositionalEncoding
from whereness.pictures import codes, offsets, rotation, scores, spectrum, values
from whereness.pictures.drawing import Picture
from whereness.pictures.subject import one_thread, subject


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
    with one_thread():
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
    return tuple(picture for picture in drawn if picture is not None)
