"""AxialRoPE against complex numbers, one spectrum and one coordinate an axis.

Axes: B batch, H heads, S tokens, D head_dim, n axes of a position.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum, turned

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Setting:
    """Options of one AxialRoPE, and the same rotation in numpy."""

    axis_dims: tuple[int, ...]
    base: float
    pairing: str
    layout: str
    equal: bool = False
    """Leave the widths to the default."""

    @property
    def head_dim(self) -> int:
        return sum(self.axis_dims)

    @property
    def num_axes(self) -> int:
        return len(self.axis_dims)

    def make(self) -> wn.AxialRoPE:
        widths = None if self.equal else self.axis_dims
        return wn.AxialRoPE(
            self.head_dim, self.num_axes, self.base, self.pairing, self.layout, widths
        )

    def channels(self) -> list[list[tuple[int, int]]]:
        """The pairs of every axis."""
        if self.layout == "heads":
            starts = np.cumsum([0, *self.axis_dims[:-1]]).tolist()
            return [pairs(self.pairing, d, s) for d, s in zip(self.axis_dims, starts, strict=True)]
        left, found = pairs(self.pairing, self.head_dim), []
        for d in self.axis_dims:
            found.append(left[: d // 2])
            left = left[d // 2 :]
        return found

    def turned(
        self, x: torch.Tensor, positions: np.ndarray, inverse: bool = False
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """x (B, H, S, D) at positions (S, n) or (B, S, n): (exact, pair sizes, widest angle)."""
        columns = [
            positions[..., axis, None].astype(np.float64) * spectrum(self.base, d)
            for axis, d in enumerate(self.axis_dims)
        ]
        angles = np.concatenate(columns, -1)
        angles = angles[:, None] if positions.ndim == 3 else angles
        channels = [pair for axis in self.channels() for pair in axis]
        exact, size = turned(x.double().numpy(), channels, -angles if inverse else angles)
        return exact, size, float(np.abs(angles).max(initial=0.0))


@st.composite
def axial_settings(draw: st.DrawFn) -> Setting:
    equal = draw(st.booleans())
    width = st.integers(1, 4).map(lambda n: 2 * n)
    num_axes = draw(st.integers(1, 4))
    if equal:
        widths = (draw(width),) * num_axes
    else:
        widths = tuple(draw(st.lists(width, min_size=num_axes, max_size=num_axes)))
    return Setting(
        widths,
        draw(st.sampled_from([10_000.0, 100.0, 1.0, 1e9])),
        draw(st.sampled_from(["half", "interleaved"])),
        draw(st.sampled_from(["blocks", "heads"])),
        equal,
    )


SETTINGS = [
    Setting((4, 4), 100.0, "half", "blocks", equal=True),
    Setting((4, 4), 100.0, "half", "heads", equal=True),
    Setting((2, 6, 4), 10_000.0, "half", "blocks"),
    Setting((2, 6, 4), 10_000.0, "half", "heads"),
    Setting((6, 2, 2, 4), 7.0, "interleaved", "heads"),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def cells(seed: int, shape: tuple[int, ...], real: bool = False) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    draw = rng.uniform if real else rng.integers
    return torch.from_numpy(draw(-5000, 5000, shape))


@given(
    setting=axial_settings(),
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 2),
    length=st.sampled_from([0, 2, 3]),
    own=st.booleans(),
    real=st.booleans(),
    inverse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_axis_turns_its_pairs_as_complex_numbers(
    setting, dtype, batch, length, own, real, inverse, seed
):
    x = drawn(seed, (batch, 3, length, setting.head_dim), dtype)
    shape = (batch, length, setting.num_axes) if own else (length, setting.num_axes)
    positions = cells(seed, shape, real)
    rope = setting.make()
    for found in (
        rope.rotate(x, positions, inverse=inverse),
        rope.rotate_(x.clone(), positions, inverse=inverse),
    ):
        assert found.dtype == dtype
        agree(found, *setting.turned(x, positions.numpy(), inverse))


@given(setting=axial_settings(), seed=st.integers(0, 10**6), axis=st.integers(0, 3))
def test_an_axis_turns_its_own_pairs_only(setting, seed, axis):
    axis %= setting.num_axes
    positions = torch.zeros(3, setting.num_axes, dtype=torch.int64)
    positions[:, axis] = torch.tensor([1, 40, -7])
    x = drawn(seed, (1, 2, 3, setting.head_dim), torch.float32)
    found = setting.make().rotate(x, positions)
    turning = sorted(c for pair in setting.channels()[axis] for c in pair)
    still = [c for c in range(setting.head_dim) if c not in turning]
    assert_close(found[..., still], x[..., still], rtol=0, atol=0)
    if setting.base < 1e9:
        assert (found[..., turning] != x[..., turning]).any(2).all()


@given(setting=axial_settings(), seed=st.integers(0, 10**6))
def test_queries_and_keys_have_positions_of_their_own(setting, seed):
    q = drawn(seed, (2, 4, 3, setting.head_dim), torch.float64)
    k = drawn(seed + 1, (2, 2, 5, setting.head_dim), torch.float64)
    q_ids, k_ids = cells(seed, (2, 3, setting.num_axes)), cells(seed + 1, (5, setting.num_axes))
    if setting.num_axes == 1:
        q_ids, k_ids = q_ids[..., 0], k_ids[..., 0]
    q_turned, k_turned = setting.make()(q, k, wn.Where(q_ids, k_ids, num_axes=setting.num_axes))
    if setting.num_axes == 1:
        q_ids, k_ids = q_ids[..., None], k_ids[..., None]
    agree(q_turned, *setting.turned(q, q_ids.numpy()))
    agree(k_turned, *setting.turned(k, k_ids.numpy()))


@given(
    setting=axial_settings(),
    seed=st.integers(0, 10**6),
    shift=st.lists(st.integers(-1000, 1000), min_size=4, max_size=4),
)
def test_scores_depend_on_the_offset_of_every_axis_alone(setting, seed, shift):
    q, k = (drawn(seed + i, (1, 1, 4, setting.head_dim), torch.float64) for i in (0, 1))
    positions, rope = cells(seed, (4, setting.num_axes)), setting.make()
    moved = positions + torch.tensor(shift[: setting.num_axes])
    scores = [a @ b.mT for a, b in (rope(q, k, positions), rope(q, k, moved))]
    size = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    assert_close(*scores, rtol=0, atol=2.0**-49 * 6000 * size)


@each_setting
def test_the_inverse_undoes_it(setting):
    x = drawn(0, (2, 2, 5, setting.head_dim), torch.float64)
    positions = cells(1, (2, 5, setting.num_axes))
    rope = setting.make()
    back = rope.rotate(rope.rotate(x, positions), positions, inverse=True)
    assert_close(back, x, rtol=0, atol=2.0**-50 * float(x.abs().max()))


# Shapes of positions


@pytest.mark.parametrize("layout", ["blocks", "heads"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_one_axis_is_rope(pairing, layout):
    axial, rope = wn.AxialRoPE(8, 1, 50.0, pairing, layout), wn.RoPE(8, 50.0, pairing)
    x, line = drawn(0, (2, 3, 4, 8), torch.float32), torch.tensor([3, 0, 900, -4])
    own = torch.stack([line, line + 1])
    expected, expected_own = rope.rotate(x, line), rope.rotate(x, own)
    for positions, wanted in (
        (line, expected),
        (line[:, None], expected),
        (wn.Where(line), expected),
        (wn.Where(line[:, None]), expected),
        (wn.Where(own[..., None]), expected_own),
        (wn.Where(line[:, None], line[:, None]), expected),
        (own, expected_own),
        (own[..., None], expected_own),
    ):
        assert_close(axial.rotate(x, positions), wanted, rtol=0, atol=0)
        assert_close(axial.rotate_(x.clone(), positions), wanted, rtol=0, atol=0)
        for found in axial(x, x, positions):
            assert_close(found, wanted, rtol=0, atol=0)
    assert_close(axial.rotate(x), rope.rotate(x), rtol=0, atol=0)


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_one_axis_attends_like_rope(queries):
    """Coordinates of one axis, as grid(4) gives them, are the same in and outside of a Where."""
    axial, rope, cells = wn.AxialRoPE(8, 1), wn.RoPE(8), wn.positions.grid(4) * 3
    q, k = drawn(0, (4, 2, queries, 8), torch.float32), drawn(1, (4, 2, 4, 8), torch.float32)
    line, last = cells[:, 0], cells[4 - queries :]
    # Beside other tensors a batch axis keeps (S, 1) from being S sequences of one token.
    where = wn.Where(last, cells) if queries == 4 else wn.Where(last[None], cells[None])
    expected = wn.attention(q, k, k, rope, where=wn.Where(line[4 - queries :], line))
    assert_close(wn.attention(q, k, k, axial, where=where), expected, rtol=0, atol=0)
    combined = [wn.ALiBi(2), axial]
    wanted = wn.attention(q, k, k, [wn.ALiBi(2), rope], where=wn.Where(line[4 - queries :], line))
    assert_close(wn.attention(q, k, k, combined, where=where), wanted, rtol=0, atol=0)
    for found, same in zip(
        axial(q, k, where), rope(q, k, wn.Where(line[-queries:], line)), strict=True
    ):
        assert_close(found, same, rtol=0, atol=0)
    if queries == 4:
        for given in (cells, wn.Where(cells)):
            assert_close(wn.attention(q, k, k, axial, where=given), expected, rtol=0, atol=0)
            with pytest.raises(ValueError, match="needed 4 queries and 4 keys, got 1 and 1"):
                wn.attention(q, k, k, rope, where=given)
            with pytest.raises(ValueError, match="needed 4, got 1"):
                rope.rotate(q, given)


@pytest.mark.parametrize("layout", ["blocks", "heads"])
def test_one_axis_and_one_token_is_still_rope(layout):
    """A decoding step: (B, 1) is one token a sequence, and so is (B, 1, 1)."""
    axial, rope = wn.AxialRoPE(8, 1, layout=layout), wn.RoPE(8)
    x, own = drawn(0, (3, 2, 1, 8), torch.float32), torch.tensor([[4], [9], [2]])
    for positions in (own, own[..., None], wn.Where(own), wn.Where(own[..., None])):
        assert_close(axial.rotate(x, positions), rope.rotate(x, own), rtol=0, atol=0)
    one = torch.tensor([5])
    for positions in (one, one[None], one[None, None]):
        assert_close(axial.rotate(x, positions), rope.rotate(x, one), rtol=0, atol=0)


@each_setting
def test_rows_of_a_grid_are_the_first_coordinate(setting):
    sizes = (2, 3, 2, 2)[: setting.num_axes]
    x = drawn(0, (1, 1, 1 + int(np.prod(sizes)), setting.head_dim), torch.float32)
    found = setting.make().rotate(x, wn.positions.grid(*sizes, prefix=1))
    assert_close(found[:, :, 0], x[:, :, 0], rtol=0, atol=0)  # a token without a place
    by_hand = np.array(list(np.ndindex(*sizes)))
    agree(found[:, :, 1:], *setting.turned(x[:, :, 1:], by_hand))


@each_setting
@pytest.mark.parametrize("real", [False, True])
def test_a_token_that_lacks_one_coordinate_is_not_turned(setting, real):
    x = drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    positions = cells(1, (2, 4, setting.num_axes), real)
    marked = positions.clone()
    marked[0, 1, -1] = marked[1, 2, 0] = float("nan") if real else wn.NOWHERE
    marked[1, 3] = float("nan") if real else wn.NOWHERE
    expected = setting.make().rotate(x, positions)
    for b, s in ((0, 1), (1, 2), (1, 3)):
        expected[b, :, s] = x[b, :, s]
    assert_close(setting.make().rotate(x, marked), expected, rtol=0, atol=0)


@each_setting
def test_the_layouts_of_tensors_hold_the_same_tokens(setting):
    rope, x = setting.make(), drawn(0, (2, 3, 4, setting.head_dim), torch.bfloat16)
    own = cells(0, (2, 4, setting.num_axes))
    expected = rope.rotate(x, own)
    heads_last = x.transpose(1, 2)
    found = rope.rotate(heads_last, own, layout="bshd")
    assert_close(found.transpose(1, 2), expected, rtol=0, atol=0)
    found = rope.rotate_(heads_last.clone(), own, layout="bshd")
    assert_close(found.transpose(1, 2), expected, rtol=0, atol=0)
    found = rope.rotate(heads_last[1], own[1], layout="thd")
    assert_close(found.transpose(0, 1), expected[1], rtol=0, atol=0)


# Layouts of channels, options, gradients


def test_layouts_differ_in_pairing_half_and_are_the_same_interleaved():
    x, positions = drawn(0, (1, 2, 5, 12), torch.float32), cells(0, (5, 3))
    for pairing, same in (("half", False), ("interleaved", True)):
        a, b = (
            wn.AxialRoPE(12, 3, 100.0, pairing, layout, (2, 6, 4)).rotate(x, positions)
            for layout in ("blocks", "heads")
        )
        assert torch.equal(a, b) == same


def test_layout_heads_is_a_rope_for_every_axis():
    x, positions = drawn(0, (1, 2, 5, 12), torch.float32), cells(0, (5, 3))
    axial = wn.AxialRoPE(12, 3, 100.0, "half", "heads", (2, 6, 4))
    blocks = [
        wn.RoPE(block.shape[-1], 100.0).rotate(block, positions[:, axis])
        for axis, block in enumerate(x.split((2, 6, 4), -1))
    ]
    assert_close(axial.rotate(x, positions), torch.cat(blocks, -1), rtol=0, atol=0)


@given(setting=axial_settings())
def test_frequencies_are_those_of_each_axis_width(setting):
    found = setting.make().frequencies
    if len(set(setting.axis_dims)) == 1:
        assert found.shape == (setting.num_axes, setting.axis_dims[0] // 2)
    else:
        assert isinstance(found, tuple)
    assert len(found) == setting.num_axes
    for f, width in zip(found, setting.axis_dims, strict=True):
        assert f.dtype == torch.float64 and f.device.type == "cpu"
        assert_close(f, torch.from_numpy(spectrum(setting.base, width)), rtol=2.0**-48, atol=0)
    assert setting.make().amplitude == 1.0


@each_setting
def test_in_place_works_on_views_and_autograd_notices(setting):
    rope, positions = setting.make(), cells(0, (3, setting.num_axes))
    whole = drawn(0, (2, 6, 3, setting.head_dim + 2), torch.float32)
    before, view = whole.clone(), whole[:, ::2, :, 1:-1]
    expected = rope.rotate(view.clone(), positions)
    assert rope.rotate_(view, positions) is view
    assert_close(view, expected, rtol=0, atol=0)
    assert_close(whole[:, 1::2], before[:, 1::2], rtol=0, atol=0)
    assert_close(whole[..., [0, -1]], before[..., [0, -1]], rtol=0, atol=0)
    saved = drawn(0, (1, 1, 3, setting.head_dim), torch.float64).requires_grad_().exp()
    rope.rotate_(saved, positions)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


@each_setting
def test_gradients_are_turned_back(setting):
    rope, positions = setting.make(), cells(0, (3, setting.num_axes))
    x = drawn(0, (1, 2, 3, setting.head_dim), torch.float64).requires_grad_()
    weight = drawn(1, (1, 2, 3, setting.head_dim), torch.float64)
    (rope.rotate(x, positions) * weight).sum().backward()
    assert_close(x.grad, rope.rotate(weight, positions, inverse=True), rtol=1e-14, atol=1e-14)


@pytest.mark.untyped
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[3]], ids=str)
def test_it_compiles(setting):
    rope = setting.make()
    torch._dynamo.reset()
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (4, 7):
        q, k = (drawn(i, (1, 2, length, setting.head_dim), torch.float32) for i in (0, 1))
        positions = cells(length, (length, setting.num_axes))
        for found, expected in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            assert_close(found, expected, rtol=0, atol=0)


# What is refused


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 10, "num_axes": 2}, "multiple of 2 num_axes = 4, got 10"),
        ({"head_dim": 8, "num_axes": 3}, "multiple of 2 num_axes = 6, got 8"),
        ({"head_dim": 8, "num_axes": 0}, "num_axes must be at least 1, got 0"),
        ({"head_dim": 8, "axis_dims": (4, 2)}, r"add up to head_dim=8, got \(4, 2\)"),
        ({"head_dim": 8, "axis_dims": (5, 3)}, r"even widths.*got \(5, 3\)"),
        ({"head_dim": 8, "axis_dims": (8,)}, r"2 even widths.*got \(8,\)"),
        ({"head_dim": 8, "axis_dims": (8, 0)}, "axis_dims must be at least 2, got 0"),
        ({"head_dim": 8, "base": -1.0}, "base must be.*-1.0"),
        ({"head_dim": 8, "layout": "rows"}, "'blocks', 'heads', 'alternating', .*; got 'rows'"),
        ({"head_dim": 8, "pairing": "full"}, "'half', 'interleaved'; got 'full'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.AxialRoPE(**options)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (None, r"needs positions \(S, 2\)"),
        (torch.arange(3), r"shape \(\.\.\., S, n\), got \(3,\)"),
        (torch.zeros(3, 3), r"num_axes=2 coordinates a token, got \(3, 3\)"),
        (torch.zeros(4, 2), "needed 3, got 4"),
        (torch.zeros(2, 3, 2), "batch size 2"),
        (torch.zeros(1, 1, 3, 2), r"\(B, S, n\), got \(1, 1, 3, 2\)"),
        (wn.Where(torch.arange(3)), "2 axes, got 1"),
    ],
)
def test_positions_that_do_not_fit_are_refused(positions, message):
    with pytest.raises(ValueError, match=message):
        wn.AxialRoPE(8).rotate(torch.ones(1, 2, 3, 8), positions)
