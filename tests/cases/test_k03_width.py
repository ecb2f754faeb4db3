"""K03: the channels that were asked for turn, with the spectrum of that width, and no others."""

import numpy as np
import pytest
import torch

import whereness as wn
from cases.support import GROUPS, HEADS, bitwise, case, differ
from rotary.support import agree, drawn, pairs, spectrum, turned

SCALINGS = {
    "none": None,
    "linear": wn.scaling.Linear(2.0),
    "yarn": wn.scaling.YaRN(4.0, 64),
    "dynamic": wn.scaling.DynamicNTK(2.0, 8),
    "resonance": wn.scaling.Resonance(),
}
CLASSES = {
    "rope": wn.RoPE,
    "xpos": wn.XPos,
    "lerope": wn.LeRoPE,
    "fope": lambda *a, **o: wn.FoPE(*a, **o, num_frequencies=2),
}


def changed(encoding: wn.RoPE, positions: torch.Tensor | None = None) -> list[int]:
    """Channels that are ever changed, of q or of k."""
    positions = torch.arange(1, 30) if positions is None else positions
    q = drawn(0, (1, HEADS, len(positions), encoding.head_dim), torch.float64)
    k = drawn(1, (1, GROUPS, len(positions), encoding.head_dim), torch.float64)
    found = torch.zeros(encoding.head_dim, dtype=torch.bool)
    for x, turned_x in zip((q, k), encoding(q, k, positions), strict=True):
        found |= (x != turned_x).flatten(0, 2).any(0)
    return found.nonzero()[:, 0].tolist()


@case("P038")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_quarter_of_16_channels_is_4_channels(name, pairing):
    rope = CLASSES[name](16, 100.0, pairing, 4)
    assert changed(rope) == [0, 1, 2, 3]
    assert changed(CLASSES[name](16, 100.0, pairing, 4, "trailing")) == [12, 13, 14, 15]


@case("P038")
@pytest.mark.parametrize("order", ["chunked", "interleaved"])
def test_a_quarter_of_the_channels_turns_where_positions_have_two_axes(order):
    rope = wn.MultimodalRoPE(16, (1, 1), order, 100.0, rotary_dim=4)
    x, ids = drawn(0, (1, HEADS, 9, 16), torch.float64), torch.arange(1, 19).reshape(9, 2)
    found = rope.rotate(x, wn.Where(ids, num_axes=2))
    bitwise(found[..., 4:], x[..., 4:])
    assert (found[..., :4] != x[..., :4]).all()
    for sections in ((4, 4), (7, 1), (1, 2)):
        with pytest.raises(ValueError, match="sections must be.*add up to rotary_dim/2 = 2"):
            wn.MultimodalRoPE(16, sections, order, 100.0, rotary_dim=4)


@case("P038")
@pytest.mark.parametrize("name", SCALINGS)
def test_no_scaling_widens_what_turns(name):
    rope = wn.RoPE(16, 100.0, rotary_dim=8, scaling=SCALINGS[name])
    assert changed(rope) == list(range(8))


@case("P039")
def test_the_width_is_that_of_the_head_unless_another_is_named():
    """What a family leaves out of its files is the business of whoever reads them: the class
    itself has one default and says it."""
    assert (wn.RoPE(16).rotary_dim, wn.RoPE(16, rotary_dim=8).rotary_dim) == (16, 8)
    assert changed(wn.RoPE(16, 100.0)) == list(range(16))
    assert changed(wn.RoPE(16, 100.0, rotary_dim=8)) == list(range(8))


@case("P040")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_exponent_and_partner_are_of_the_rotated_width(pairing):
    rope = wn.RoPE(16, 100.0, pairing, 8)
    right = [1.0, 0.316227766, 0.1, 0.0316227766]
    assert rope.frequencies.tolist() == pytest.approx(right)
    assert rope.frequencies.tolist() != pytest.approx([1.0, 0.562, 0.316, 0.178], rel=0.1)
    for pair, (i, j) in enumerate(pairs(pairing, 8)):
        x = torch.zeros(1, 1, 1, 16, dtype=torch.float64)
        x[..., i] = 1.0
        found = rope.rotate(x, torch.tensor([1]))[0, 0, 0]
        assert found.nonzero()[:, 0].tolist() == sorted((i, j))
        assert torch.atan2(found[j], found[i]).item() == pytest.approx(right[pair])


@case("P040")
@pytest.mark.parametrize("name", ["linear", "dynamic"])
def test_scalings_see_the_rotated_width(name):
    narrow = wn.RoPE(8, 100.0, scaling=SCALINGS[name])
    part = wn.RoPE(16, 100.0, rotary_dim=8, scaling=SCALINGS[name])
    for length in (8, 30):
        bitwise(part.frequencies_at(length), narrow.frequencies_at(length))
    whole = wn.RoPE(16, 100.0, scaling=SCALINGS[name])
    differ(whole.frequencies_at(30)[:4], part.frequencies_at(30), 0.01)


@case("P040")
@pytest.mark.parametrize("side", ["leading", "trailing"])
def test_a_part_of_the_head_turns_as_a_head_of_that_width(side):
    x = drawn(0, (2, 3, 5, 16), torch.float64)
    part = slice(0, 8) if side == "leading" else slice(8, 16)
    rest = slice(8, 16) if side == "leading" else slice(0, 8)
    found = wn.RoPE(16, 100.0, rotary_dim=8, rotary_side=side).rotate(x)
    angles = np.arange(5)[:, None] * spectrum(100.0, 8)
    agree(found[..., part], *turned(x[..., part].numpy(), pairs("half", 8), angles), 4.0)
    bitwise(found[..., rest], x[..., rest])


@case("P042")
def test_a_width_is_given_once_and_kept():
    """Only a number of channels can be said, so no share of them can contradict it."""
    for width in (2, 8, 16):
        assert wn.RoPE(16, rotary_dim=width).rotary_dim == width
        assert wn.RoPE(16, rotary_dim=width).frequencies.shape == (width // 2,)
    with pytest.raises(TypeError, match="partial_rotary_factor"):
        wn.RoPE(16, rotary_dim=8, partial_rotary_factor=0.5)


@case("P042")
@pytest.mark.untyped
def test_a_share_of_the_channels_is_no_width():
    with pytest.raises(TypeError, match="rotary_dim must be an int, got float"):
        wn.RoPE(16, rotary_dim=0.5)


@case("P044")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("head_dim", "width"), [(4, 3), (520 // 8, 65), (80, 25)])
def test_an_odd_width_is_refused_when_it_is_built(name, head_dim, width):
    with pytest.raises(ValueError, match=f"rotary_dim must be even, two channels.*got {width}"):
        CLASSES[name](head_dim, 100.0, "half", width)


@case("P044")
@pytest.mark.parametrize("name", CLASSES)
def test_an_odd_head_with_an_even_width_is_fine(name):
    rope = CLASSES[name](33, 100.0, "half", 32)
    assert 32 not in changed(rope)
    with pytest.raises(ValueError, match="rotary_dim must be even, two channels.*got 33"):
        CLASSES[name](33, 100.0)


@case("P046")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", CLASSES)
def test_the_smallest_heads_turn_as_they_are(name, pairing):
    for head_dim in (4, 6):
        rope = CLASSES[name](head_dim, 100.0, pairing)
        assert rope.rotary_dim == head_dim
        found = changed(rope)
        assert set(found) >= set(pairs(pairing, head_dim)[0])
        assert max(found) < head_dim
    assert wn.RoPE(2).frequencies.tolist() == [1.0]


@case("P046")
def test_a_width_is_never_changed_silently():
    with pytest.raises(ValueError, match="rotary_dim must fit head_dim=4, got 32"):
        wn.RoPE(4, rotary_dim=32)
    with pytest.raises(ValueError, match="at least 2, got 0"):
        wn.RoPE(4, rotary_dim=0)
