"""RoPE against complex numbers, explicit matrices and mpmath.

Axes: B batch, H heads, S tokens, D head_dim, R rotary_dim.
"""

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum, turned

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LAST = 2**24 - 1


@dataclass(frozen=True)
class Setting:
    """Options of one RoPE, and the same rotation in numpy."""

    head_dim: int
    base: float
    pairing: str
    rotary_dim: int
    rotary_side: str

    def make(self) -> wn.RoPE:
        return wn.RoPE(**vars(self))

    @property
    def start(self) -> int:
        return 0 if self.rotary_side == "leading" else self.head_dim - self.rotary_dim

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """(..., S) -> (..., S, R/2)."""
        return positions[..., None].astype(np.float64) * spectrum(self.base, self.rotary_dim)

    def turned(
        self, x: torch.Tensor, positions: np.ndarray, inverse: bool = False
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """x (B, H, S, D) at positions (S,) or (B, S): (exact, size of each pair, widest angle)."""
        angles = self.angles(positions)
        angles = angles[:, None] if positions.ndim == 2 else angles
        channels = pairs(self.pairing, self.rotary_dim, self.start)
        signed = -angles if inverse else angles
        exact, size = turned(x.double().numpy(), channels, signed)
        return exact, size, float(np.abs(angles).max(initial=0.0))


@st.composite
def rope_settings(draw: st.DrawFn) -> Setting:
    head_dim = draw(st.integers(2, 13))
    return Setting(
        head_dim,
        draw(st.sampled_from([10_000.0, 1.0, 2.0, 100.0, 500_000.0, 1e12, 0.5])),
        draw(st.sampled_from(["half", "interleaved"])),
        2 * draw(st.integers(1, head_dim // 2)),
        draw(st.sampled_from(["leading", "trailing"])),
    )


WHOLE = Setting(8, 10_000.0, "half", 8, "leading")
SETTINGS = [
    WHOLE,
    Setting(8, 100.0, "interleaved", 8, "leading"),
    Setting(10, 500_000.0, "half", 6, "leading"),
    Setting(9, 20.0, "interleaved", 4, "trailing"),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def ids(seed: int, shape: tuple[int, ...], real: bool) -> torch.Tensor:
    """Positions on both sides of 0, up to a million; real ones have fractions."""
    rng = np.random.default_rng(seed)
    if real:
        return torch.from_numpy(rng.uniform(-1e6, 1e6, shape))
    return torch.from_numpy(rng.integers(-(10**6), 10**6, shape))


# What it computes


@given(
    setting=rope_settings(),
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 2),
    length=st.integers(0, 4),
    own=st.booleans(),
    real=st.booleans(),
    inverse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_pairs_are_turned_as_complex_numbers(
    setting, dtype, batch, length, own, real, inverse, seed
):
    x = drawn(seed, (batch, 3, length, setting.head_dim), dtype)
    positions = ids(seed, (batch, length) if own else (length,), real)
    found = setting.make().rotate(x, positions, inverse=inverse)
    assert found.dtype == dtype
    agree(found, *setting.turned(x, positions.numpy(), inverse))


@given(setting=rope_settings(), seed=st.integers(0, 2**32 - 1), own=st.booleans())
def test_queries_and_keys_have_ids_and_head_counts_of_their_own(setting, seed, own):
    q = drawn(seed, (2, 4, 3, setting.head_dim), torch.float32)
    k = drawn(seed + 1, (2, 2, 5, setting.head_dim), torch.bfloat16)
    q_ids = ids(seed, (2, 3) if own else (3,), False)
    k_ids = ids(seed + 1, (5,) if own else (2, 5), False)
    q_turned, k_turned = setting.make()(q, k, wn.Where(q_ids, k_ids))
    assert (q_turned.dtype, k_turned.dtype) == (torch.float32, torch.bfloat16)
    agree(q_turned, *setting.turned(q, q_ids.numpy()))
    agree(k_turned, *setting.turned(k, k_ids.numpy()))


@each_setting
def test_one_tensor_of_ids_is_for_both(setting):
    rope, q = setting.make(), drawn(0, (2, 4, 3, setting.head_dim), torch.float64)
    k = drawn(1, (2, 1, 3, setting.head_dim), torch.float64)
    positions = torch.tensor([[7, 0, 30], [-2, 5, 5]])
    for where in (positions, wn.Where(positions), rope.prepare(positions)):
        for x, found in zip((q, k), rope(q, k, where), strict=True):
            agree(found, *setting.turned(x, positions.numpy()))


@each_setting
def test_positions_are_counted_from_0_by_default(setting):
    rope, x = setting.make(), drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    counted = torch.arange(4)
    assert_close(rope.rotate(x), rope.rotate(x, counted), rtol=0, atol=0)
    for found in rope(x, x):
        agree(found, *setting.turned(x, counted.numpy()))


def block_matrix(setting: Setting, position: int) -> np.ndarray:
    """R(p), (D, D): a 2 x 2 rotation for every pair on the diagonal, then channels sorted."""
    block = np.eye(setting.head_dim)
    for pair, angle in enumerate(setting.angles(np.array(position))):
        c, s = np.cos(angle), np.sin(angle)
        block[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[c, -s], [s, c]]
    channels = pairs(setting.pairing, setting.rotary_dim, setting.start)
    turning = [c for pair in channels for c in pair]
    rest = [c for c in range(setting.head_dim) if c not in turning]
    sort = np.eye(setting.head_dim)[:, [*turning, *rest]]
    return sort @ block @ sort.T


def matrix(rope: wn.RoPE, position: int) -> np.ndarray:
    """The matrix that `rotate` multiplies by, from the unit vectors."""
    units = torch.eye(rope.head_dim, dtype=torch.float64).view(rope.head_dim, 1, 1, -1)
    return rope.rotate(units, torch.tensor([position]))[:, 0, 0].numpy().T


@given(setting=rope_settings(), a=st.integers(-(10**5), 10**5), b=st.integers(-(10**5), 10**5))
def test_it_is_a_block_diagonal_rotation_and_two_compose_to_that_of_the_offset(setting, a, b):
    rope = setting.make()
    widest = float(np.abs(setting.angles(np.array([a, b, b - a]))).max())
    tolerance = 2.0**-50 * (1 + widest)
    np.testing.assert_allclose(matrix(rope, a), block_matrix(setting, a), rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        matrix(rope, a).T @ matrix(rope, b), matrix(rope, b - a), rtol=0, atol=tolerance
    )


@given(setting=rope_settings(), seed=st.integers(0, 2**32 - 1), shift=st.integers(-1000, 1000))
def test_scores_depend_on_the_offset_alone(setting, seed, shift):
    q, k = (drawn(seed + i, (1, 1, 6, setting.head_dim), torch.float64) for i in (0, 1))
    positions, rope = torch.tensor([0, 3, 4, 9, 2, 2]), setting.make()
    scores = []
    for moved in (positions, positions + shift):
        q_turned, k_turned = rope(q, k, moved)
        scores.append(q_turned @ k_turned.mT)
    widest = float(np.abs(setting.angles(np.array(abs(shift) + 9))).max())
    size = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    assert_close(*scores, rtol=0, atol=2.0**-49 * (1 + widest) * size)


@settings(max_examples=40)
@given(
    base=st.sampled_from([2.0, 10.0, 100.0, 10_000.0, 500_000.0, 1e6, 1e7, 1e12]),
    head_dim=st.sampled_from([2, 6, 8, 64, 80, 128, 256]),
    positions=st.lists(st.integers(-LAST, LAST), min_size=1, max_size=4),
    pairing=st.sampled_from(["half", "interleaved"]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_cosines_and_sines_are_within_2_to_the_minus_24(base, head_dim, positions, pairing, dtype):
    positions = [*positions, LAST]
    first, second = zip(*pairs(pairing, head_dim), strict=True)
    x = torch.zeros(1, 1, len(positions), head_dim, dtype=dtype)
    x[..., list(first)] = 1  # (1, 0) turns to (cos, sin)
    found = wn.RoPE(head_dim, base, pairing).rotate(x, torch.tensor(positions))[0, 0]
    picked = sorted({0, 1 % (head_dim // 2), head_dim // 4, head_dim // 2 - 1})
    with mpmath.workdps(40):
        for row, p in enumerate(positions):
            for k in picked:
                angle = p * mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / head_dim)
                cos, sin = (found[row, c[k]].item() for c in (first, second))
                assert abs(mpmath.cos(angle) - cos) <= 2.0**-24
                assert abs(mpmath.sin(angle) - sin) <= 2.0**-24


def test_half_types_are_rounded_once_where_rounding_twice_is_seen():
    """Turned in bfloat16 throughout, the error would be several roundings of the largest term."""
    x = drawn(0, (1, 1, 512, 64), torch.bfloat16)
    found = wn.RoPE(64).rotate(x)
    exact, size, _ = Setting(64, 10_000.0, "half", 64, "leading").turned(x, np.arange(512))
    error = np.abs(found.double().numpy() - exact)
    assert (error <= 2.0**-8 * np.abs(exact) + 2.0**-22 * size).all()
    assert error.max() > 2.0**-9  # the bound is nearly met: it is no wider than it must be


@given(setting=rope_settings(), dtype=st.sampled_from(DTYPES[:2]), seed=st.integers(0, 10**6))
def test_the_inverse_undoes_it(setting, dtype, seed):
    rope, x = setting.make(), drawn(seed, (2, 2, 3, setting.head_dim), dtype)
    positions = ids(seed, (2, 3), real=bool(seed % 2))
    there = rope.rotate(x, positions)
    for back in (
        rope.rotate(there, positions, inverse=True),
        rope.rotate_(there.clone(), positions, inverse=True),
        rope.rotate(rope.rotate(x, positions, inverse=True), positions),
    ):
        rounding = 2.0**-53 if dtype == torch.float64 else 2.0**-24
        assert_close(back, x, rtol=0, atol=8 * rounding * float(x.abs().max()))


# Options


def test_the_two_pairings_are_one_rotation_with_channels_in_another_order():
    half, interleaved = wn.RoPE(8), wn.RoPE(8, pairing="interleaved")
    x, positions = drawn(0, (2, 3, 5, 8), torch.float32), torch.tensor([0, 3, 400, -7, 1])
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    expected = interleaved.rotate(x, positions)[..., order]
    assert_close(half.rotate(x[..., order], positions), expected, rtol=0, atol=0)
    assert not torch.allclose(half.rotate(x, positions), interleaved.rotate(x, positions))


def test_scores_are_the_same_in_both_pairings_if_q_and_k_are_reordered():
    q, k = (drawn(i, (1, 2, 4, 8), torch.float64) for i in (0, 1))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    one = wn.RoPE(8, pairing="interleaved")(q, k)
    two = wn.RoPE(8)(q[..., order], k[..., order])
    assert_close(one[0] @ one[1].mT, two[0] @ two[1].mT, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("side", "still"), [("leading", slice(4, 10)), ("trailing", slice(0, 6))])
def test_channels_that_do_not_turn_pass_untouched(pairing, side, still):
    x = drawn(0, (1, 2, 3, 10), torch.bfloat16)
    found = wn.RoPE(10, 50.0, pairing, 4, side).rotate(x, torch.tensor([1, 40, 7]))
    assert_close(found[..., still], x[..., still], rtol=0, atol=0)
    turning = [c for c in range(10) if c not in range(10)[still]]
    assert (found[..., turning] != x[..., turning]).any(0).all()
    # A partial width has the whole spectrum of its own width.
    alone = wn.RoPE(4, 50.0, pairing).rotate(x[..., turning], torch.tensor([1, 40, 7]))
    assert_close(found[..., turning], alone, rtol=0, atol=0)


@given(
    base=st.floats(1e-3, 1e300),
    rotary_dim=st.integers(1, 64).map(lambda n: 2 * n),
    rest=st.integers(0, 3),
)
def test_frequencies_are_float64_on_the_cpu(base, rotary_dim, rest):
    rope = wn.RoPE(rotary_dim + rest, base, rotary_dim=rotary_dim)
    assert rope.frequencies.dtype == torch.float64
    assert rope.frequencies.device.type == "cpu"
    # A power in floating point: its exponent is rounded, and then its value.
    slack = 2 + abs(np.log(base))
    expected = torch.from_numpy(spectrum(base, rotary_dim))
    assert_close(rope.frequencies, expected, rtol=slack * 2.0**-53, atol=0)
    assert rope.amplitude == 1.0


def test_frequencies_outlive_casts_and_the_meta_device():
    expected = wn.RoPE(8).frequencies
    with torch.device("meta"):
        born = wn.RoPE(8)
        assert_close(born.frequencies, expected, rtol=0, atol=0)
    for rope in (born, born.to("meta"), born.half(), born.to_empty(device="cpu").bfloat16()):
        assert_close(rope.frequencies, expected, rtol=0, atol=0)
    rope.frequencies.zero_()  # what is handed out is a copy
    assert_close(rope.frequencies, expected, rtol=0, atol=0)
    assert not list(rope.state_dict())


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_narrowest_head_is_one_pair_at_one_radian_a_token(pairing):
    found = wn.RoPE(2, 7.0, pairing).rotate(torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]]).double())
    expected = [[1.0, 0.0], [-np.sin(1.0), np.cos(1.0)]]
    np.testing.assert_allclose(found[0, 0], expected, rtol=0, atol=2.0**-53)


def test_base_1_turns_all_pairs_alike_and_a_huge_base_only_the_first():
    assert wn.RoPE(6, 1.0).frequencies.tolist() == [1.0, 1.0, 1.0]
    assert wn.RoPE(6, 1).frequencies.dtype == torch.float64
    x = drawn(0, (1, 1, 2, 6), torch.float32)
    found = wn.RoPE(6, 1e300).rotate(x, torch.tensor([5, LAST]))
    assert_close(found[..., [1, 2, 4, 5]], x[..., [1, 2, 4, 5]], rtol=0, atol=0)
    assert (found[..., [0, 3]] != x[..., [0, 3]]).all()


def test_differently_set_instances_do_not_share():
    x, positions = drawn(0, (1, 1, 3, 8), torch.float64), torch.tensor([4, 90, 2])
    ropes = [s.make() for s in SETTINGS if s.head_dim == 8]
    for _ in range(2):
        for setting, rope in zip([s for s in SETTINGS if s.head_dim == 8], ropes, strict=True):
            agree(rope.rotate(x, positions), *setting.turned(x, positions.numpy()))


# Where tokens are


@each_setting
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_positions_are_used_as_they_are(setting, dtype):
    x = drawn(0, (1, 2, 4, setting.head_dim), torch.float64)
    positions = torch.tensor([0.5, -3.25, 1e5 + 0.125, 0.1], dtype=dtype)
    found = setting.make().rotate(x, positions)
    agree(found, *setting.turned(x, positions.double().numpy()))


@each_setting
def test_integers_of_any_width_are_the_same_positions(setting):
    x, rope = drawn(0, (1, 2, 3, setting.head_dim), torch.float32), setting.make()
    expected = rope.rotate(x, torch.tensor([0, 127, 5]))
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64):
        found = rope.rotate(x, torch.tensor([0, 127, 5], dtype=dtype))
        assert_close(found, expected, rtol=0, atol=0)


@each_setting
@pytest.mark.parametrize("real", [False, True])
def test_a_token_without_a_place_is_not_turned(setting, real):
    rope, x = setting.make(), drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    placed = torch.tensor([[9, 3, 8, 1], [2, 4, 6, 8]])
    absent = torch.tensor([[False, True, False, False], [True, False, False, True]])
    if real:
        positions = placed.double().masked_fill(absent, float("nan"))
    else:
        positions = placed.masked_fill(absent, wn.NOWHERE)
    expected = torch.where(absent[:, None, :, None], x, rope.rotate(x, placed))
    for found in (
        rope.rotate(x, positions),
        rope.rotate_(x.clone(), positions),
        rope(x, x, positions)[0],
        rope(x, x, wn.Where(placed, positions))[1],
        rope.rotate(x, positions, inverse=True).where(absent[:, None, :, None], expected),
    ):
        assert_close(found, expected, rtol=0, atol=0)


@each_setting
def test_the_layouts_hold_the_same_tokens(setting):
    rope, x = setting.make(), drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    k = drawn(1, (2, 1, 5, setting.head_dim), torch.float32)
    own, k_own = torch.tensor([[1, 5, 2, 0], [7, 7, 3, 99]]), torch.arange(5)
    expected = rope.rotate(x, own)
    heads_last = x.transpose(1, 2).contiguous()
    found = rope.rotate(heads_last, own, layout="bshd")
    assert_close(found.transpose(1, 2), expected, rtol=0, atol=0)
    found = rope.rotate_(heads_last.clone(), own, layout="bshd")
    assert_close(found.transpose(1, 2), expected, rtol=0, atol=0)
    q_found, k_found = rope(heads_last, k.transpose(1, 2), wn.Where(own, k_own), layout="bshd")
    assert_close(q_found.transpose(1, 2), expected, rtol=0, atol=0)
    assert_close(k_found.transpose(1, 2), rope.rotate(k, k_own), rtol=0, atol=0)
    for row in range(2):
        packed = heads_last[row]  # (S, H, D)
        for found in (
            rope.rotate(packed, own[row], layout="thd"),
            rope.rotate(packed, own[row : row + 1], layout="thd"),
            rope.rotate_(packed.clone(), own[row], layout="thd"),
            rope(packed, packed[:, :1], own[row], layout="thd")[0],
        ):
            assert_close(found.transpose(0, 1), expected[row], rtol=0, atol=0)


def test_documents_packed_in_one_row_start_anew():
    rope, x = wn.RoPE(8), drawn(0, (7, 2, 8), torch.float32)
    found = rope.rotate(x, wn.positions.packed([3, 4]), layout="thd")
    parts = [rope.rotate(part, layout="thd") for part in x.split([3, 4])]
    assert_close(found, torch.cat(parts), rtol=0, atol=0)


# In place, and what happens to the inputs


@given(
    setting=rope_settings(),
    dtype=st.sampled_from(DTYPES),
    inverse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_in_place_gives_the_same_numbers_in_the_same_tensor(setting, dtype, inverse, seed):
    rope, x = setting.make(), drawn(seed, (2, 2, 3, setting.head_dim), dtype)
    positions = ids(seed, (2, 3), real=False)
    expected = rope.rotate(x, positions, inverse=inverse)
    address = x.data_ptr()
    assert rope.rotate_(x, positions, inverse=inverse) is x
    assert x.data_ptr() == address
    assert_close(x, expected, rtol=0, atol=0)


@each_setting
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_in_place_works_on_any_view_and_touches_nothing_else(setting, layout):
    rope = setting.make()
    whole = drawn(0, (2, 6, 10, setting.head_dim + 4), torch.float32)
    before = whole.clone()
    view = whole[:, 1:6:2, 3:7, 2 : 2 + setting.head_dim]  # strides on every axis
    untouched = torch.ones_like(whole, dtype=torch.bool)
    turning = slice(2 + setting.start, 2 + setting.start + setting.rotary_dim)
    untouched[:, 1:6:2, 3:7, turning] = False
    expected = rope.rotate(view.clone(), torch.arange(4) + 5)
    given_view = view.transpose(1, 2) if layout == "bshd" else view
    assert rope.rotate_(given_view, torch.arange(4) + 5, layout=layout) is given_view
    assert_close(view, expected, rtol=0, atol=0)
    assert_close(whole[untouched], before[untouched], rtol=0, atol=0)
    assert not torch.equal(view, before[:, 1:6:2, 3:7, 2 : 2 + setting.head_dim])


@each_setting
def test_in_place_turns_the_fused_projection_of_queries_and_keys(setting):
    """What serving code has: one (B, S, 3, H, D) tensor; q and k are turned inside it."""
    rope, qkv = setting.make(), drawn(0, (2, 4, 3, 2, setting.head_dim), torch.bfloat16)
    before = qkv.clone()
    for part in (0, 1):
        rope.rotate_(qkv[:, :, part], layout="bshd")
    for part in (0, 1):
        expected = rope.rotate(before[:, :, part], layout="bshd")
        assert_close(qkv[:, :, part], expected, rtol=0, atol=0)
    assert_close(qkv[:, :, 2], before[:, :, 2], rtol=0, atol=0)


@each_setting
def test_autograd_notices_what_in_place_overwrote(setting):
    leaf = drawn(0, (1, 2, 3, setting.head_dim), torch.float64).requires_grad_()
    saved = leaf.exp()  # its backward needs its own result
    version = saved._version
    setting.make().rotate_(saved)
    assert saved._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


@each_setting
@pytest.mark.parametrize("inverse", [False, True])
def test_gradients_are_turned_back(setting, inverse):
    rope = setting.make()
    shape, positions = (2, 2, 3, setting.head_dim), torch.tensor([4, 0, 31])
    weight = drawn(1, shape, torch.float64)
    expected = rope.rotate(weight, positions, inverse=not inverse)
    for in_place in (False, True):
        x = drawn(0, shape, torch.float64).requires_grad_()
        rotate = rope.rotate_ if in_place else rope.rotate
        (rotate(x * 1.0, positions, inverse=inverse) * weight).sum().backward()
        assert_close(x.grad, expected, rtol=1e-14, atol=1e-14)


@each_setting
def test_gradients_are_those_of_finite_differences(setting):
    rope = setting.make()
    q, k = (drawn(i, (1, 2, 2, setting.head_dim), torch.float64) for i in (0, 1))
    positions = torch.tensor([0.5, 2.0], dtype=torch.float64)
    for t in (q, k, positions):
        t.requires_grad_()
    assert torch.autograd.gradcheck(rope, (q, k, positions))


def test_gradients_of_half_types_have_their_type():
    x = drawn(0, (1, 1, 2, 4), torch.bfloat16).requires_grad_()
    wn.RoPE(4).rotate(x).sum().backward()
    assert x.grad.dtype == torch.bfloat16 and x.grad.isfinite().all()


@each_setting
def test_inputs_stay_as_they_are(setting):
    rope, x = setting.make(), drawn(0, (2, 3, 4, setting.head_dim), torch.float32)
    k, positions = x[:, :1].clone(), torch.tensor([3, wn.NOWHERE, 5, 9])
    kept = [t.clone() for t in (x, k, positions)]
    rope(x, k, positions)
    rope.rotate(x, positions, inverse=True)
    for now, before in zip((x, k, positions), kept, strict=True):
        assert now._version == 0
        assert_close(now, before, rtol=0, atol=0)


def test_what_comes_back_is_not_a_view_of_what_came():
    for setting in SETTINGS:
        x = drawn(0, (1, 1, 2, setting.head_dim), torch.float32)
        out = setting.make().rotate(x, torch.zeros(2, dtype=torch.int64))
        assert_close(out, x, rtol=0, atol=0)  # at position 0 nothing turns
        out.zero_()
        assert x.abs().min() > 0


# Prepared positions


def test_prepared_positions_serve_many_calls_of_their_own_encoding_only():
    rope, twin = wn.RoPE(4), wn.RoPE(4)
    at = rope.prepare(wn.Where(torch.tensor([5, 6]), torch.tensor([1, 2, 3])))
    q, k = drawn(0, (1, 2, 2, 4), torch.float32), drawn(1, (1, 1, 3, 4), torch.bfloat16)
    for _ in range(2):
        q_found, k_found = rope(q, k, at)
        assert_close(q_found, rope.rotate(q, torch.tensor([5, 6])), rtol=0, atol=0)
        assert_close(k_found, rope.rotate(k, torch.tensor([1, 2, 3])), rtol=0, atol=0)
    wide = rope(q.double(), k.double(), at)[0]  # one preparation, any dtype
    agree(wide, *Setting(4, 1e4, "half", 4, "leading").turned(q, np.array([5, 6])))
    with pytest.raises(ValueError, match="another encoding"):
        twin(q, k, at)


def test_attention_with_it_is_attention_of_turned_tensors():
    setting = Setting(8, 30.0, "interleaved", 6, "trailing")
    q, k, v = (drawn(i, (2, h, 5, 8), torch.float64) for i, h in ((0, 4), (1, 2), (2, 2)))
    positions = torch.tensor([0, 2, 3, 40, 5])
    found = wn.attention(q, k, v, setting.make(), where=positions)
    q_turned, k_turned = (setting.turned(t, positions.numpy())[0] for t in (q, k))
    k_turned, v = np.repeat(k_turned, 2, 1), np.repeat(v.numpy(), 2, 1)
    logits = q_turned @ k_turned.swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# Compiled


@pytest.mark.untyped
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[3]], ids=str)
@pytest.mark.parametrize("given", [True, False], ids=["positions", "counted"])
def test_one_compiled_graph_serves_every_length(setting, given):
    rope, graphs = setting.make(), []

    def counted(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(rope, backend=counted, fullgraph=True, dynamic=True)
    for length in (5, 9, 33):
        q, k = (drawn(i, (2, 3, length, setting.head_dim), torch.bfloat16) for i in (0, 1))
        positions = (torch.arange(length) * 3 + 1,) if given else ()
        for found, expected in zip(compiled(q, k, *positions), rope(q, k, *positions), strict=True):
            assert_close(found, expected, rtol=0, atol=0)
    assert len(graphs) == 1


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["rotate", "rotate_"])
def test_rotate_compiles_with_gradients(name):
    rope, positions = wn.RoPE(8, rotary_dim=6), torch.tensor([[3, 4, 9], [0, 1, 2]])

    def run(x, inverse):
        return getattr(rope, name)(x * 1.0, positions, inverse=inverse)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for inverse in (False, True):
        grads = []
        for f in (run, compiled):
            x = drawn(0, (2, 2, 3, 8), torch.float32).requires_grad_()
            out = f(x, inverse)
            (out * torch.arange(8.0)).sum().backward()
            grads.append((out.detach(), x.grad))
        for a, b in zip(*grads, strict=True):
            assert_close(a, b, rtol=0, atol=0)


# What is refused


def leaf(*shape: int) -> torch.Tensor:
    return drawn(0, shape or (2, 2, 3, 8), torch.float32).requires_grad_()


def without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x[1:]


KEPT = leaf()
HALFWAY = leaf() * 1
IN_INFERENCE = torch.inference_mode()(lambda: torch.ones(2, 2, 3, 8))()
NOT_WRITABLE = {
    "leaf": leaf,
    "view of a leaf": lambda: leaf()[:1],
    "view of a view of a leaf": lambda: leaf(4, 2, 3, 8)[1:].transpose(1, 2)[:2],
    "view of a leaf without gradient": lambda: without_gradient(KEPT),
    "view made without gradient": lambda: without_gradient(HALFWAY),
    "view that became a leaf": lambda: drawn(0, (4, 2, 3, 8), torch.float32)[1:].requires_grad_(
        True
    ),
    "one of several views": lambda: (leaf(2, 2, 2, 3, 8) * 1).unbind(0)[1],
    "view of one of several": lambda: (leaf(2, 2, 3, 16) * 1).chunk(2, -1)[0].transpose(1, 2),
    "made in inference mode": lambda: IN_INFERENCE,
}
OVERLAPS = {
    "batch expanded": lambda: torch.ones(1, 2, 3, 8).expand(2, 2, 3, 8),
    "heads expanded": lambda: torch.ones(2, 1, 3, 8).expand(2, 2, 3, 8),
    "tokens expanded": lambda: torch.ones(2, 2, 1, 8).expand(2, 2, 3, 8),
    "channels expanded": lambda: torch.ones(2, 2, 3, 1).expand(2, 2, 3, 8),
    "expanded with gradient": lambda: (leaf(1, 2, 3, 8) * 1).expand(2, 2, 3, 8),
    "windows": lambda: torch.arange(12.0).unfold(0, 8, 2)[None, None],
    "strides that meet": lambda: torch.arange(200.0).as_strided((1, 3, 3, 8), (1, 8, 12, 1)),
    "strides that meet at the ends": lambda: torch.arange(40.0).as_strided(
        (1, 1, 3, 8), (1, 1, 7, 1)
    ),
    "strides that meet once": lambda: torch.arange(200.0).as_strided((1, 2, 3, 8), (1, 6, 3, 9)),
    "on a device without memory": lambda: torch.ones(1, 2, 3, 8, device="meta").expand(2, 2, 3, 8),
}


@pytest.mark.parametrize("name", [*NOT_WRITABLE, *OVERLAPS])
def test_in_place_refuses_what_cannot_be_written(name):
    x = {**NOT_WRITABLE, **OVERLAPS}[name]()
    before = x.detach().clone()
    with pytest.raises(ValueError, match="^x .*(in place|in inference mode).*clone"):
        wn.RoPE(8).rotate_(x)
    assert x.device.type == "meta" or torch.equal(x.detach(), before)
    assert wn.RoPE(8).rotate(x).shape == x.shape


@pytest.mark.parametrize("name", NOT_WRITABLE)
def test_in_place_without_gradients_any_memory_will_do(name):
    """Where nothing is recorded there is no backward to go wrong, and torch allows it."""
    mode = torch.inference_mode if "inference" in name else torch.no_grad
    x = NOT_WRITABLE[name]()
    with mode():
        x = x.clone() if x is IN_INFERENCE else x
        expected = wn.RoPE(8).rotate(x)
        assert_close(wn.RoPE(8).rotate_(x), expected, rtol=0, atol=0)


def test_in_place_takes_entries_that_only_seem_to_share_memory():
    memory = torch.arange(200.0)
    for shape, strides in (
        ((1, 2, 3, 8), (0, 3, 2, 20)),  # places 0, 2, 4 and 3, 5, 7
        ((1, 2, 3, 8), (0, 8, 32, 1)),
        ((1, 1, 3, 8), (0, 0, 8, 1)),
        ((0, 2, 3, 8), (48, 0, 8, 1)),
    ):
        x = memory.clone().as_strided(shape, strides)
        expected = wn.RoPE(8).rotate(x)
        assert_close(wn.RoPE(8).rotate_(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 7}, "rotary_dim must be even.*7"),
        ({"head_dim": 8, "rotary_dim": 3}, "rotary_dim must be even.*3"),
        ({"head_dim": 8, "rotary_dim": 10}, "fit head_dim=8, got 10"),
        ({"head_dim": 8, "rotary_dim": 0}, "rotary_dim must be at least 2, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"head_dim": 8, "base": 0.0}, "base must be a finite number above 0, got 0.0"),
        ({"head_dim": 8, "base": float("nan")}, "base must be.*nan"),
        ({"head_dim": 8, "base": float("inf")}, "base must be.*inf"),
        ({"head_dim": 8, "pairing": "neox"}, "'half', 'interleaved'; got 'neox'"),
        ({"head_dim": 8, "rotary_side": "left"}, "'leading', 'trailing'; got 'left'"),
    ],
)
@pytest.mark.untyped
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.RoPE(**options)


@pytest.mark.parametrize(
    ("shape", "positions", "layout", "message"),
    [
        ((1, 2, 3, 6), torch.arange(3), "bhsd", r"head_dim=8, got \(1, 2, 3, 6\)"),
        ((2, 3, 8), torch.arange(3), "bhsd", r"'bhsd' has 4 axes, got \(2, 3, 8\)"),
        ((1, 2, 3, 8), torch.arange(3), "thd", r"'thd' has 3 axes"),
        ((1, 2, 3, 8), torch.arange(4), "bhsd", "needed 3, got 4"),
        ((1, 2, 3, 8), torch.arange(3), "bshd", "needed 2, got 3"),
        ((2, 2, 3, 8), torch.zeros(3, 3), "bhsd", r"batch size 3, got a tensor \(2, 2, 3, 8\)"),
        ((2, 2, 8), torch.zeros(2, 2), "thd", "batch size 2"),
        ((1, 2, 3, 8), torch.tensor(3), "bhsd", r"shape \(\.\.\., S\), got \(\)"),
        ((1, 2, 3, 8), torch.zeros(1, 1, 3), "bhsd", r"\(B, S\), got \(1, 1, 3\)"),
        ((1, 2, 3, 8), torch.tensor([0, float("inf"), 1]), "bhsd", "must be finite"),
        ((1, 2, 3, 8), None, "sbhd", "'bhsd', 'bshd', 'thd'; got 'sbhd'"),
    ],
)
@pytest.mark.untyped
def test_tokens_and_positions_that_do_not_fit_are_refused(shape, positions, layout, message):
    rope, x = wn.RoPE(8), torch.ones(shape)
    for call in (
        lambda: rope.rotate(x, positions, layout=layout),
        lambda: rope.rotate_(x, positions, layout=layout),
        lambda: rope(x, x, positions, layout=layout),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert (x == 1).all()  # in place: nothing was turned before it raised


@pytest.mark.untyped
def test_the_tensor_that_does_not_fit_is_named():
    rope, good = wn.RoPE(8), torch.ones(2, 2, 3, 8)
    for bad, where, error in (
        (good.long(), None, TypeError),
        (good[0], None, ValueError),
        (good[..., :6], None, ValueError),
        (good[:, :, :2], torch.arange(3), ValueError),
        (good[:1], torch.zeros(2, 3).long(), ValueError),
    ):
        for name, call in (
            ("q", lambda x, w: rope(x, good, w)),
            ("k", lambda x, w: rope(good, x, w)),
            ("x", rope.rotate),
            ("x", rope.rotate_),
        ):
            with pytest.raises(error, match=rf"^{name} must|(for|tokens of) {name}\b"):
                call(bad, where)


def test_queries_and_keys_of_different_number_need_positions():
    rope = wn.RoPE(4)
    q, k = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 5, 4)
    with pytest.raises(ValueError, match="1 queries and 5 keys need positions"):
        rope(q, k)
    with pytest.raises(ValueError, match="needed 5, got 1"):
        rope(q, k, torch.tensor([4]))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("x", "positions", "message"),
    [
        (torch.ones(1, 1, 2, 4).long(), torch.arange(2), "x must hold.*int64"),
        (torch.ones(1, 1, 2, 4, dtype=torch.complex64), torch.arange(2), "complex64"),
        (torch.ones(1, 1, 2, 4), torch.arange(2).half(), "float16"),
        (torch.ones(1, 1, 2, 4), torch.arange(2).bfloat16(), "bfloat16"),
        (torch.ones(1, 1, 2, 4), torch.ones(2, dtype=torch.bool), "bool"),
        (torch.ones(1, 1, 2, 4), [0, 1], "list"),
        (np.ones((1, 1, 2, 4)), torch.arange(2), "ndarray"),
    ],
)
def test_wrong_types_are_refused(x, positions, message):
    with pytest.raises(TypeError, match=message):
        wn.RoPE(4).rotate(x, positions)


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["rotate", "rotate_"])
def test_inverse_is_true_or_false(name):
    """A string or a tensor that happens to be true must not pick a direction."""
    for inverse in ("no", 1, None, torch.tensor(True)):
        with pytest.raises(TypeError, match="inverse"):
            getattr(wn.RoPE(4), name)(torch.ones(1, 1, 2, 4), inverse=inverse)


@pytest.mark.parametrize(
    "scaling",
    [
        wn.scaling.Linear(2**70),
        wn.scaling.NTK(1e308),
        wn.scaling.NTKByParts(4.0, 32, beta_slow=1e-320),
        wn.scaling.YaRN(4.0, 32, mscale=1e308),
        wn.scaling.YaRN(4.0, 32, attention_factor=1e-320),
        wn.scaling.LongRoPE((1.0,) * 4, (1.0,) * 4, 32, short_mscale=1.0, long_mscale=1e308),
    ],
    ids=lambda scaling: type(scaling).__name__,
)
def test_a_scaling_that_overflows_is_refused(scaling):
    with pytest.raises(ValueError, match="scaling must give"):
        wn.RoPE(8, scaling=scaling)
