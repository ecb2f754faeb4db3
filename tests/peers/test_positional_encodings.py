"""Against positional-encodings: sinusoids of one, two and three axes.

Axes: B batch, x y z the grid, E channels.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import angle_error, explained, file_of_package, spread

pytestmark = pytest.mark.more


def theirs(name: str, channels: int) -> torch.nn.Module:
    return getattr(file_of_package("positional_encodings", "torch_encodings.py"), name)(channels)


def width_of(channels: int, axes: int) -> int:
    """Channels of each axis: as few as are even and fill the tensor together."""
    width = -(-channels // axes)
    return width + width % 2


@pytest.mark.parametrize(("channels", "length"), [(64, 2000), (10, 50), (2, 9)])
def test_one_axis(channels, length):
    expected = theirs("PositionalEncoding1D", channels)(torch.zeros(2, length, channels))
    ids = np.arange(length)
    found = wn.Sinusoidal(channels)(torch.from_numpy(ids)).expand(2, -1, -1)
    explained(found, expected, spread(angle_error(ids, 10_000, channels), "interleaved"), 1.0)


def test_channels_first():
    expected = theirs("PositionalEncodingPermute1D", 8)(torch.zeros(2, 8, 20))
    found = wn.Sinusoidal(8)(torch.arange(20)).T.expand(2, -1, -1)
    assert_close(found, expected, rtol=0, atol=20 * 4 * 2.0**-24)


@pytest.mark.parametrize("channels", [7, 31])
def test_an_odd_width_is_the_next_even_one_cut_off(channels):
    """Theirs drops the last cosine; ours refuses odd widths, so the cut is the user's to see."""
    expected = theirs("PositionalEncoding1D", channels)(torch.zeros(1, 30, channels))[0]
    found = wn.Sinusoidal(channels + 1)(torch.arange(30))[:, :channels]
    assert_close(found, expected, rtol=0, atol=30 * 4 * 2.0**-24)
    with pytest.raises(ValueError, match="even"):
        wn.Sinusoidal(channels)


@pytest.mark.parametrize(
    ("sizes", "channels"),
    [((5, 7), 16), ((5, 7), 10), ((40, 3), 64), ((3, 4, 5), 24), ((3, 4, 5), 20), ((2, 9, 2), 6)],
    ids=str,
)
def test_axes_of_a_grid(sizes, channels):
    """Each axis has a sinusoid of its own, one beside the other; what is too much is cut off."""
    axes = len(sizes)
    expected = theirs(f"PositionalEncoding{axes}D", channels)(torch.zeros(2, *sizes, channels))
    width = width_of(channels, axes)
    sinusoid, positions = wn.Sinusoidal(width), wn.positions.grid(*sizes)
    parts = [sinusoid(positions[:, axis]) for axis in range(axes)]
    found = torch.cat(parts, -1)[:, :channels].reshape(*sizes, channels).expand(2, *sizes, -1)
    errors = [
        spread(angle_error(positions[:, axis].numpy(), 10_000, width), "interleaved")
        for axis in range(axes)
    ]
    error = np.concatenate(errors, -1)[:, :channels].reshape(*sizes, channels)
    explained(found, expected, error, 1.0)


def test_added_to_the_tokens():
    module = file_of_package("positional_encodings", "torch_encodings.py")
    x = torch.randn(2, 9, 8)
    expected = module.Summer(module.PositionalEncoding1D(8))(x)
    sinusoid = wn.Sinusoidal(8)
    found = sinusoid.tokens(x, sinusoid.prepare(wn.Where(torch.arange(9))))
    assert_close(found, expected, rtol=0, atol=9 * 8 * 2.0**-24)
