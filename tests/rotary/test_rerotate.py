"""Cached keys moved to other positions and other encodings: as if they had been cached there.

Axes: B batch, G key heads, T keys, D head_dim.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import whereness as wn
from rotary.scaled import EVERY, LONG, SHORT
from rotary.support import ROUNDING, drawn

S = wn.scaling


def learned(alpha: float) -> wn.LeRoPE:
    made = wn.LeRoPE(8, 100.0)
    made.alpha.data.fill_(alpha)
    return made


ENCODINGS = {
    "plain": lambda: wn.RoPE(8, 100.0),
    "base": lambda: wn.RoPE(8, 5e5),
    "partial": lambda: wn.RoPE(8, 100.0, rotary_dim=6),
    "trailing": lambda: wn.RoPE(8, 100.0, rotary_dim=4, rotary_side="trailing"),
    "yarn": lambda: wn.RoPE(8, 100.0, scaling=S.YaRN(16.0, 32)),
    "deepseek": lambda: wn.RoPE(
        8, 100.0, scaling=S.YaRN(40.0, 64, school="deepseek", mscale=1.0, mscale_all_dim=0.5)
    ),
    "dynamic": lambda: wn.RoPE(8, 100.0, scaling=S.DynamicNTK(2.0, 8)),
    "longrope": lambda: wn.RoPE(
        8, 100.0, scaling=S.LongRoPE(SHORT, LONG, 8, short_mscale=1.1, long_mscale=1.5)
    ),
    "linear": lambda: wn.RoPE(8, 100.0, scaling=S.Linear((1.0, 4.0, 16.0), 8)),
    "xpos": lambda: wn.XPos(8, 100.0, scale_base=50.0, centre=3.0),
    "xpos-other": lambda: wn.XPos(8, 100.0, scale_base=90.0, gamma=0.8),
    "lerope": lambda: learned(0.3),
    "fope": lambda: wn.FoPE(8, 100.0, length=40),
    "axial": lambda: wn.AxialRoPE(8, 1),
}
LENGTHS = {"old": torch.tensor([8, 30]), "new": torch.tensor([9, 90])}


def cached(encoding: wn.RoPE, k: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    return encoding.rotate_keys(k, wn.Where(ids, lengths=lengths)).detach()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("new", ENCODINGS)
@pytest.mark.parametrize("old", ENCODINGS)
def test_from_any_encoding_and_position_to_any_other(old, new, dtype):
    k, (before, after) = (
        drawn(0, (2, 3, 5, 8), torch.float64),
        (
            ENCODINGS[old](),
            ENCODINGS[new](),
        ),
    )
    ids = torch.tensor([[0, 1, 2, 3, 7], [4, 20, 11, 29, 0]])
    moved_ids = ids + torch.tensor([[1], [60]])
    turned = cached(before, k, ids, LENGTHS["old"])
    found = wn.rerotate(
        turned.to(dtype),
        before,
        after,
        wn.Where(ids, lengths=LENGTHS["old"]),
        wn.Where(moved_ids, lengths=LENGTHS["new"]),
    )
    expected = cached(after, k, moved_ids, LENGTHS["new"])
    assert found.dtype == dtype and not torch.equal(found, turned.to(dtype))
    # What was cached was rounded once, and the result is: sizes of pairs change between the two.
    growth = float(expected.abs().max() / turned.abs().max()) * 4
    largest = float(turned.abs().max()) * (1 + growth)
    assert_close(found.double(), expected, rtol=0, atol=4 * ROUNDING[dtype] * largest)


@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_from_one_length_to_another(setting):
    rope, k = setting.make(), drawn(0, (1, 2, 6, 8), torch.float64)
    ids = torch.arange(6)
    short, long = (wn.Where(ids, lengths=n) for n in (6, 30))
    found = wn.rerotate(rope.rotate_keys(k, short), rope, rope, short, long)
    assert_close(found, rope.rotate_keys(k, long), rtol=1e-14, atol=1e-14)
    assert torch.allclose(found, rope.rotate_keys(k, short)) != setting.by_length


def test_positions_stay_where_no_new_ones_are_given():
    rope, other, k = (
        ENCODINGS["plain"](),
        ENCODINGS["yarn"](),
        drawn(0, (1, 2, 4, 8), torch.float64),
    )
    for ids in (torch.tensor([4, 0, 90, 7]), wn.Where(torch.tensor([4, 0, 90, 7]))):
        found = wn.rerotate(rope.rotate(k, ids), rope, other, ids)
        assert_close(found, other.rotate(k, ids), rtol=1e-13, atol=1e-13)


def test_a_cache_that_moves_up_after_it_dropped_its_first_tokens():
    rope, k = wn.RoPE(8), drawn(0, (1, 2, 9, 8), torch.float64)
    old = rope.rotate(k)[:, :, 4:]
    found = wn.rerotate(old, rope, rope, torch.arange(4, 9), torch.arange(5))
    assert_close(found, rope.rotate(k[:, :, 4:]), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_rounds_once(dtype):
    """Back and forth in a half type would round thrice."""
    rope, other = wn.RoPE(64), wn.RoPE(64, scaling=S.YaRN(16.0, 256))
    old, ids = drawn(0, (1, 2, 300, 64), dtype), torch.arange(300)
    content = rope.rotate(old.double(), ids, inverse=True)
    exact = other.rotate(content, ids)
    found = wn.rerotate(old, rope, other, ids).double()
    assert ((found - exact).abs() <= ROUNDING[dtype] * exact.abs() + 2.0**-25).all()


def test_tokens_without_a_place_stay():
    rope, other, k = wn.RoPE(8), wn.RoPE(8, 100.0), drawn(0, (1, 2, 3, 8), torch.float32)
    ids = torch.tensor([5, wn.NOWHERE, 2])
    found = wn.rerotate(k, rope, other, ids, ids + torch.tensor([1, 0, 1]))
    assert_close(found[:, :, 1], k[:, :, 1], rtol=0, atol=0)
    assert (found[:, :, [0, 2]] - k[:, :, [0, 2]]).abs().min() > 0


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_layouts(layout):
    rope, other, k = wn.RoPE(8), ENCODINGS["yarn"](), drawn(0, (1, 2, 5, 8), torch.float64)
    ids, moved = torch.arange(5), torch.arange(5) * 3
    expected = wn.rerotate(k, rope, other, ids, moved).transpose(1, 2)
    given = k.transpose(1, 2)
    if layout == "thd":
        given, expected = given[0], expected[0]
    found = wn.rerotate(given, rope, other, ids, moved, layout=layout)
    assert_close(found, expected, rtol=0, atol=0)


def test_the_keys_that_came_are_not_changed():
    k = drawn(0, (1, 2, 3, 8), torch.float64)
    before = k.clone()
    wn.rerotate(k, wn.RoPE(8), wn.RoPE(8, 5.0), torch.arange(3))
    assert_close(k, before, rtol=0, atol=0)


def test_gradients_pass():
    k = drawn(0, (1, 1, 2, 8), torch.float64).requires_grad_()
    old, new = ENCODINGS["yarn"](), ENCODINGS["xpos"]()
    ids = torch.arange(2)
    assert torch.autograd.gradcheck(lambda k: wn.rerotate(k, old, new, ids, ids + 3), (k,))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        (wn.ALiBi(2), wn.RoPE(8), TypeError, "old must be a rotary encoding, got ALiBi"),
        (wn.RoPE(8), None, TypeError, "new must be a rotary encoding, got NoneType"),
        (wn.RoPE(8), wn.Temperature(), TypeError, "new must be a rotary encoding, got Temperature"),
        (wn.RoPE(8), wn.RoPE(10), ValueError, "got 8, 'half' and 10, 'half'"),
        (wn.RoPE(8), wn.RoPE(8, pairing="interleaved"), ValueError, "8, 'half' and 8, 'inter.*con"),
    ],
    ids=["old", "new", "temperature", "head_dim", "pairing"],
)
def test_encodings_of_other_channels_are_refused(old, new, kind, message):
    with pytest.raises(kind, match=message):
        wn.rerotate(torch.ones(1, 2, 3, 8), old, new, torch.arange(3))


@pytest.mark.untyped
def test_keys_that_do_not_fit_are_refused():
    rope = wn.RoPE(8)
    for k, ids, kind, message in (
        (torch.ones(1, 2, 3, 6), torch.arange(3), ValueError, "built for head_dim=8"),
        (torch.ones(1, 2, 3, 8), torch.arange(4), ValueError, "needed 3, got 4"),
        (torch.ones(1, 2, 3, 8), None, TypeError, "positions must say where k was.*got NoneType"),
        (torch.ones(1, 2, 3, 8).long(), torch.arange(3), TypeError, "k must hold floating"),
        (torch.ones(1, 2, 3, 8), torch.arange(3).half(), TypeError, "got torch.float16"),
    ):
        with pytest.raises(kind, match=message):
            wn.rerotate(k, rope, rope, ids)
