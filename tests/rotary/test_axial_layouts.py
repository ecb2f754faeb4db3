"""The layouts and options of AxialRoPE against complex numbers, pair by pair.

Axes: B batch, H heads, S tokens, D head_dim, R rotary_dim, n axes of a position.
"""

from dataclasses import dataclass
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum, turned

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("blocks", "heads", "alternating", "shared_blocks", "shared_alternating")
SHARED = LAYOUTS[3:]


class Pair(NamedTuple):
    """Turned by coordinate `axis` and the frequency base^(-2k / width)."""

    axis: int
    k: int
    width: int
    channels: tuple[int, int]


@dataclass(frozen=True)
class Setting:
    """Options of one AxialRoPE, and which channels turn by what, listed one pair after another."""

    layout: str = "blocks"
    axis_dims: tuple[int, ...] = (4, 4)
    order: tuple[int, ...] = (0, 1)
    bases: tuple[float, ...] = (100.0, 100.0)
    pairing: str = "half"
    scale: tuple[float, ...] = (1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0)
    rest: int = 0
    """Channels that do not turn."""
    side: str = "leading"

    @property
    def rotary_dim(self) -> int:
        return sum(self.axis_dims)

    @property
    def head_dim(self) -> int:
        return self.rotary_dim + self.rest

    @property
    def num_axes(self) -> int:
        return len(self.axis_dims)

    def make(self) -> wn.AxialRoPE:
        return wn.AxialRoPE(
            self.head_dim,
            self.num_axes,
            self.bases,
            self.pairing,
            self.layout,
            self.axis_dims,
            self.order,
            self.scale,
            self.offset,
            rotary_dim=self.rotary_dim,
            rotary_side=self.side,
        )

    def plan(self) -> list[Pair]:
        """Every pair, in the order of the head."""
        start = self.rest if self.side == "trailing" else 0
        if self.layout in SHARED:
            count = self.rotary_dim // 2
            dealt = [(self.order[k % self.num_axes], k, self.rotary_dim) for k in range(count)]
            if self.layout == "shared_blocks":
                dealt = [one for axis in self.order for one in dealt if one[0] == axis]
        else:
            dealt = [
                (axis, k, self.axis_dims[axis])
                for axis in self.order
                for k in range(self.axis_dims[axis] // 2)
            ]
            if self.layout == "alternating":
                longest = max(self.axis_dims) // 2
                dealt = [one for round_ in range(longest) for one in dealt if one[1] == round_]
        channels = pairs(self.pairing, self.rotary_dim, start)
        if self.layout == "heads":
            channels = []
            for axis in self.order:
                channels += pairs(self.pairing, self.axis_dims[axis], start)
                start += self.axis_dims[axis]
        return [Pair(*one, pair) for one, pair in zip(dealt, channels, strict=True)]

    def turned(
        self, x: torch.Tensor, positions: np.ndarray, inverse: bool = False
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """x (B, H, S, D) at positions (S, n): (exact, pair sizes, widest angle)."""
        columns, plan = [], self.plan()
        for axis, k, width, _ in plan:
            placed = positions[..., axis].astype(np.float64) * self.scale[axis] + self.offset[axis]
            columns.append(placed * spectrum(self.bases[axis], width)[k])
        angles = np.stack(columns, -1)
        channels = [pair.channels for pair in plan]
        exact, size = turned(x.double().numpy(), channels, -angles if inverse else angles)
        return exact, size, float(np.abs(angles).max(initial=0.0))


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    layout = draw(st.sampled_from(LAYOUTS))
    n = draw(st.integers(1, 4))
    width = st.integers(1, 4).map(lambda k: 2 * k)
    base = st.sampled_from([10_000.0, 100.0, 1.0, 3e5])
    if layout in SHARED:
        dims, bases = (draw(width),) * n, (draw(base),) * n
    else:
        dims = tuple(draw(st.lists(width, min_size=n, max_size=n)))
        bases = tuple(draw(st.lists(base, min_size=n, max_size=n)))
    numbers = {
        name: tuple(draw(st.lists(st.sampled_from(some), min_size=n, max_size=n)))
        for name, some in (("scale", [1.0, 0.25, 1.7]), ("offset", [0.0, 1.0, -6.5]))
    }
    return Setting(
        layout,
        dims,
        tuple(draw(st.permutations(range(n)))),
        bases,
        draw(st.sampled_from(["half", "interleaved"])),
        rest=draw(st.integers(0, 3)),
        side=draw(st.sampled_from(["leading", "trailing"])),
        **numbers,
    )


SETTINGS = [
    Setting("heads", (4, 2, 2), (2, 0, 1), (100.0, 7.0, 1e4), scale=(1, 0.5, 1), offset=(0, 0, 1)),
    Setting("alternating", (2, 6, 4), (1, 2, 0), (9.0, 100.0, 5.0), "half", (1, 2, 1), (1, 1, 1)),
    Setting("shared_blocks", (4, 4), (0, 1), (1e4, 1e4), "half", rest=2),
    Setting(
        "shared_alternating", (4, 4), (1, 0), (50.0, 50.0), "interleaved", rest=3, side="trailing"
    ),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.layout)


def cells(seed: int, length: int, axes: int, reach: int = 900) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(-reach, reach, (length, axes)))


@given(
    setting=settings(),
    dtype=st.sampled_from(DTYPES),
    inverse=st.booleans(),
    real=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_pair_turns_as_a_complex_number(setting, dtype, inverse, real, seed):
    x = drawn(seed, (2, 3, 4, setting.head_dim), dtype)
    positions = cells(seed, 4, setting.num_axes)
    positions = positions / 8 if real else positions
    rope = setting.make()
    exact = setting.turned(x, positions.numpy(), inverse)
    agree(rope.rotate(x, positions, inverse=inverse), *exact)
    agree(rope.rotate_(x.clone(), positions, inverse=inverse), *exact)


@given(setting=settings(), seed=st.integers(0, 10**6), axis=st.integers(0, 3))
def test_moving_along_one_axis_changes_no_score_and_its_own_channels_only(setting, seed, axis):
    axis %= setting.num_axes
    q, k = (drawn(seed + i, (1, 1, 4, setting.head_dim), torch.float64) for i in (0, 1))
    positions, rope = cells(seed, 4, setting.num_axes), setting.make()
    moved = positions.clone()
    moved[:, axis] += 77
    before, after = rope(q, k, positions), rope(q, k, moved)
    size = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    scores = [a @ b.mT for a, b in (before, after)]
    assert_close(*scores, rtol=0, atol=2.0**-49 * 1e4 * size)
    own = {c for pair in setting.plan() if pair.axis == axis for c in pair.channels}
    still = [c for c in range(setting.head_dim) if c not in own]
    assert_close(after[0][..., still], before[0][..., still], rtol=0, atol=0)
    assert (after[0][..., sorted(own)] != before[0][..., sorted(own)]).any()


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("family", [LAYOUTS[:3], SHARED], ids=["own", "shared"])
def test_layouts_are_permutations_of_one_another(family, pairing):
    """The channels of weights can be moved from one layout to another; scores stay."""
    q, k = (drawn(i, (2, 3, 5, 12), torch.float64) for i in (0, 1))
    positions, all_scores = cells(0, 5, 3), []
    for layout in family:
        setting = Setting(
            layout, (4, 4, 4), (2, 0, 1), (100.0,) * 3, pairing, (1.0,) * 3, (0.0,) * 3
        )
        # Channels as if pairs lay by axis, then from the highest frequency.
        order = np.argsort([c for pair in sorted(setting.plan()) for c in pair.channels])
        a, b = setting.make()(q[..., order], k[..., order], positions)
        all_scores.append(a @ b.mT)
        unordered = setting.make()(q, k, positions)
        assert (unordered[0] @ unordered[1].mT - all_scores[-1]).abs().max() > 0.1
    for scores in all_scores[1:]:
        assert_close(scores, all_scores[0], rtol=0, atol=1e-11)


def test_shared_and_own_spectra_are_not_permutations():
    kinds = [wn.AxialRoPE(8, 2, 100.0, layout=layout).frequencies for layout in LAYOUTS]
    assert all(torch.equal(f, kinds[0]) for f in kinds[:3])
    assert torch.equal(kinds[3], kinds[4])
    assert_close(kinds[3].mT.flatten(), wn.RoPE(8, 100.0).frequencies, rtol=0, atol=0)
    assert not torch.equal(kinds[3], kinds[0])


def test_columns_first_is_the_same_as_positions_swapped():
    x, positions = drawn(0, (1, 2, 6, 8), torch.float32), wn.positions.grid(2, 3)
    for layout in LAYOUTS:
        columns_first = wn.AxialRoPE(8, layout=layout, axis_order=(1, 0))
        rows_first = wn.AxialRoPE(8, layout=layout)
        found = columns_first.rotate(x, positions)
        assert_close(found, rows_first.rotate(x, positions.flip(-1)), rtol=0, atol=0)
        assert not torch.equal(found, rows_first.rotate(x, positions))


def test_what_is_given_by_axis_follows_the_axis_and_not_its_place():
    options = {"base": (50.0, 7.0), "scale": (0.5, 3.0), "offset": (1.0, -2.0), "axis_dims": (6, 2)}
    swapped = {name: pair[::-1] for name, pair in options.items()}
    x, positions = drawn(0, (1, 2, 6, 8), torch.float64), wn.positions.grid(2, 3)
    one = wn.AxialRoPE(8, axis_order=(1, 0), **options).rotate(x, positions)
    two = wn.AxialRoPE(8, **swapped).rotate(x, positions.flip(-1))
    assert_close(one, two, rtol=0, atol=0)


@each_setting
def test_angles_are_exact(setting):
    """cos and sin within 2^-24 of exact at any integer coordinate below 2^24, by mpmath."""
    positions = cells(1, 40, setting.num_axes, 2**24)
    positions[0] = 2**24 - 1
    turns = setting.make().exactly(setting.make().prepare(positions).data.queries)
    with mpmath.workdps(50):
        for number, (axis, k, width, _) in enumerate(setting.plan()):
            w = mpmath.mpf(setting.bases[axis]) ** (mpmath.mpf(-2 * k) / width)
            for token, p in enumerate(positions[:, axis].tolist()):
                angle = (p * mpmath.mpf(setting.scale[axis]) + setting.offset[axis]) * w
                cos, sin = (t[0, token, 0, number].item() for t in turns)
                assert abs(cos - mpmath.cos(angle)) < 2.0**-24
                assert abs(sin - mpmath.sin(angle)) < 2.0**-24


def test_coordinates_far_out_keep_every_digit():
    far = torch.tensor([[2**40 + 1, -(2**53) + 1], [2**24 + 1, 7]])
    angles = wn.AxialRoPE(4, base=10.0).angles(far)  # one pair an axis, of frequency 1
    assert_close(angles, far.double(), rtol=0, atol=0)


@each_setting
@pytest.mark.parametrize("real", [False, True])
def test_a_token_without_a_place_is_not_turned_by_an_offset(setting, real):
    x = drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    positions = cells(1, 4, setting.num_axes)
    positions = positions.double() if real else positions
    expected = setting.make().rotate(x, positions)
    positions[1, -1] = positions[2, 0] = torch.nan if real else wn.NOWHERE
    found = setting.make().rotate(x, positions)
    assert_close(found[:, :, 1:3], x[:, :, 1:3], rtol=0, atol=0)
    assert_close(found[:, :, [0, 3]], expected[:, :, [0, 3]], rtol=0, atol=0)


@each_setting
def test_gradients_are_turned_back(setting):
    rope, positions = setting.make(), cells(0, 3, setting.num_axes)
    x = drawn(0, (1, 2, 3, setting.head_dim), torch.float64).requires_grad_()
    weight = drawn(1, (1, 2, 3, setting.head_dim), torch.float64)
    (rope.rotate(x, positions) * weight).sum().backward()
    assert_close(x.grad, rope.rotate(weight, positions, inverse=True), rtol=1e-14, atol=1e-14)


@pytest.mark.untyped
@each_setting
def test_it_compiles(setting):
    rope = setting.make()
    torch._dynamo.reset()
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (4, 7):
        q, k = (drawn(i, (1, 2, length, setting.head_dim), torch.float32) for i in (0, 1))
        positions = cells(length, length, setting.num_axes)
        for found, expected in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            assert_close(found, expected, rtol=0, atol=0)


# Frequencies that are given, scales, the centre of a grid


def test_given_frequencies_turn_their_axis():
    frequencies = ((1.0, 0.5, 0.25), (3.0,))
    x, positions = drawn(0, (1, 2, 5, 8), torch.float64), cells(0, 5, 2)
    rope = wn.AxialRoPE(8, axis_dims=(6, 2), frequencies=frequencies)
    angles = np.concatenate(
        [positions[:, [a]].numpy() * np.array(f) for a, f in enumerate(frequencies)], -1
    )
    exact, size = turned(x.numpy(), pairs("half", 8), angles)
    agree(rope.rotate(x, positions), exact, size, float(np.abs(angles).max()))
    assert [f.tolist() for f in rope.frequencies] == [list(f) for f in frequencies]


def test_a_larger_grid_is_read_as_the_reference_grid():
    """EVA-02: cell i of N stands where i n / N stands in the grid of the training, n cells."""
    x = drawn(0, (1, 1, 1, 8), torch.float64)
    trained, larger = wn.AxialRoPE(8), wn.AxialRoPE(8, scale=(4 / 8, 6 / 18))
    found = larger.rotate(x, torch.tensor([[6, 15]]))
    assert_close(found, trained.rotate(x, torch.tensor([[3, 5]])), rtol=0, atol=1e-14)


def test_the_centre_of_a_grid_may_be_anywhere():
    q, k = (drawn(i, (1, 1, 15, 8), torch.float64) for i in (0, 1))
    rope, cells_ = wn.AxialRoPE(8, base=100.0), wn.positions.grid(3, 5)
    plain = rope(q, k, cells_)
    for centre in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0]) + 0.5):
        centred = rope(q, k, cells_ - centre)
        assert_close(centred[0] @ centred[1].mT, plain[0] @ plain[1].mT, rtol=0, atol=1e-12)
    assert_close(wn.AxialRoPE(8, base=100.0, offset=(-1.0, -2.0)).rotate(q, cells_),
                 rope.rotate(q, cells_ - torch.tensor([1, 2])), rtol=0, atol=0)  # fmt: skip


def test_a_part_of_the_head_is_an_axial_rope_of_that_width():
    x, positions = drawn(0, (1, 2, 6, 11), torch.float32), wn.positions.grid(2, 3)
    for layout in LAYOUTS:
        for side, start in (("leading", 0), ("trailing", 3)):
            part = wn.AxialRoPE(11, layout=layout, rotary_dim=8, rotary_side=side)
            found = part.rotate(x, positions)
            own = x[..., start : start + 8]
            expected = wn.AxialRoPE(8, layout=layout).rotate(own, positions)
            assert_close(found[..., start : start + 8], expected, rtol=0, atol=0)
            rest = slice(8, 11) if side == "leading" else slice(0, 3)
            assert_close(found[..., rest], x[..., rest], rtol=0, atol=0)


# What is refused


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": (10.0,)}, "base must be one number or one for each of 2 axes, got 1"),
        ({"base": (10.0, 0.0)}, "base of axis 1 must be a finite number above 0, got 0.0"),
        ({"scale": (1.0, -1.0)}, "scale of axis 1 must be a finite number above 0"),
        ({"scale": 0.0}, "scale must be a finite number above 0"),
        ({"offset": float("nan")}, "offset must be a finite number"),
        ({"offset": (0.0, 1.0, 2.0)}, "offset must be one number or one for each of 2 axes, got 3"),
        ({"scale": 1e300}, "finite angles"),
        ({"axis_order": (0, 0)}, r"axes 0 to 1 once, got \(0, 0\)"),
        ({"axis_order": (1, 2)}, r"axes 0 to 1 once, got \(1, 2\)"),
        ({"axis_order": (1,)}, r"axes 0 to 1 once, got \(1,\)"),
        ({"rotary_dim": 6}, "rotary_dim must be a multiple of 2 num_axes = 4, got 6"),
        ({"rotary_dim": 6, "axis_dims": (4, 4)}, r"add up to rotary_dim=6, got \(4, 4\)"),
        ({"layout": "shared_blocks", "axis_dims": (2, 6)}, "one base and equal axis_dims"),
        ({"layout": "shared_alternating", "base": (2.0, 6.0)}, "one base and equal axis_dims"),
        ({"frequencies": ((1.0, 2.0), (1.0,))}, r"must be \[2, 2\] numbers.*got \[2, 1\]"),
        ({"frequencies": ((1.0, 2.0), (1.0, float("inf")))}, "frequencies of axis 1 of axis 1"),
        ({"frequencies": ((1.0, 1e300), (1.0, 1.0))}, "finite angles"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.AxialRoPE(8, **options)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis_order": 1}, "axis_order must be a tuple of int, got 1"),
        ({"axis_order": (True, False)}, "must be an int, got bool"),
        ({"frequencies": (1.0, 2.0)}, "2 tuples of numbers"),
        ({"frequencies": ((1.0, 2.0),)}, "2 tuples of numbers"),
        ({"frequencies": torch.ones(2, 2)}, "2 tuples of numbers.*got Tensor"),
        ({"scale": "1"}, "scale must be a number, got str"),
        ({"base": (10.0, True)}, "base of axis 1 must be a number, got bool"),
    ],
)
def test_options_of_the_wrong_type_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        wn.AxialRoPE(8, **options)
