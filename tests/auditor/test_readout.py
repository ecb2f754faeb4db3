"""Rotations made by plain loops of complex numbers are read back, rounding and faults with them."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from whereness.auditor.reading.basis import basis_of
from whereness.auditor.reading.readout import turning, unwrapped
from whereness.auditor.reading.runs import far_positions
from whereness.auditor.reading.scores import bias_of, levelled, unevenness, unevenness_on_grid
from whereness.auditor.reading.speeds import Known, cause_of

FAR = far_positions(17)
RATES = (1.0, 0.1, 0.01, 1e-3)


def content(slots: int, width: int, heads: int = 1, rows: int = 13) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, heads, 1, width, generator=generator, dtype=torch.float64)
    return x.expand(-1, -1, slots, -1).clone()


def spun(x: Tensor, pairs: dict[tuple[int, int], float], positions=FAR, size=lambda p: 1.0):
    """Pairs of channels turned one number at a time."""
    x = x.clone()
    for s, p in enumerate(positions):
        for (u, v), rate in pairs.items():
            unit = cmath.exp(1j * math.fmod(rate * p, 2 * math.pi)) * size(p)
            a, b = x[:, :, s, u].clone(), x[:, :, s, v].clone()
            x[:, :, s, u] = a * unit.real - b * unit.imag
            x[:, :, s, v] = a * unit.imag + b * unit.real
    return x


@pytest.mark.parametrize(
    "pairs",
    [
        {(i, i + 4): w for i, w in enumerate(RATES)},
        {(2 * i, 2 * i + 1): w for i, w in enumerate(RATES)},
        {(0, 7): 1.0, (1, 4): 0.02, (3, 5): 3e-5},
        {(4, 6): -0.7, (5, 7): 1e-6},
    ],
    ids=["half", "interleaved", "any", "backwards and slow"],
)
def test_any_pairing_is_read(pairs):
    read = turning(spun(content(len(FAR), 8), pairs), FAR)
    assert read.pairs().keys() == pairs.keys()
    assert not read.strays()
    for pair, rate in pairs.items():
        assert read.pairs()[pair] == pytest.approx(rate, rel=1e-9)
    assert float(read.skew.max()) < 1e-9
    assert float((read.growth - 1).abs().max()) < 1e-9


def test_heads_are_read_each():
    x = content(len(FAR), 4, heads=3)
    x[:, 1:2] = spun(x[:, 1:2], {(0, 2): 0.5})
    read = turning(x, FAR)
    assert [len(read.pairs(h)) for h in range(3)] == [0, 1, 0]


def test_growth_is_read_beside_the_angle():
    pairs = {(0, 1): 0.3}
    x = spun(content(9, 2), pairs, tuple(range(9)), size=lambda p: 1.02**p)
    read = turning(x, tuple(range(9)))
    wanted = torch.tensor([1.02**p for p in range(9)], dtype=torch.float64)
    torch.testing.assert_close(read.growth[0, 0], wanted, rtol=1e-9, atol=0)
    assert read.pairs()[0, 1] == pytest.approx(0.3, rel=1e-9)


def test_a_table_of_one_layout_turned_by_the_other_is_no_rotation():
    x = content(9, 4)
    made = x.clone()
    for p in range(9):
        cos = [math.cos(p), math.cos(p / 10)] * 2  # laid out for halves
        sin = [math.sin(p), math.sin(p / 10)] * 2
        for u, v in ((0, 1), (2, 3)):  # and neighbours turned
            made[:, :, p, u] = x[:, :, p, u] * cos[u] - x[:, :, p, v] * sin[u]
            made[:, :, p, v] = x[:, :, p, v] * cos[v] + x[:, :, p, u] * sin[v]
    assert float(turning(made, tuple(range(9))).skew.max()) > 0.1


def test_channels_that_mix_have_no_partner():
    x = content(9, 6)
    mix = torch.linalg.matrix_exp(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
    for p in range(1, 9):
        x[:, :, p] = x[:, :, 0] @ torch.linalg.matrix_power(mix, p).double()
    assert turning(x, tuple(range(9))).strays() == [0, 1, 2, 3, 4, 5]


def test_what_is_added_is_told_from_what_turns():
    x = content(9, 6)
    x = x + torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert bool(turning(x, tuple(range(9))).shifted.all())
    assert not bool(
        turning(spun(content(9, 6), {(0, 1): 1.0}, tuple(range(9))), tuple(range(9))).shifted.any()
    )


def test_rounded_positions_show_as_a_bend_and_not_as_a_speed():
    rounded = tuple(float(torch.tensor(float(p)).bfloat16()) for p in FAR)
    read = turning(spun(content(len(FAR), 2), {(0, 1): 0.5}, rounded), FAR)
    assert read.pairs()[0, 1] == pytest.approx(0.5, rel=1e-9)
    bend = dict(zip(FAR, read.bend[0, 0].tolist(), strict=True))
    assert abs(bend[129]) < 1e-6
    assert bend[257] == pytest.approx(-0.5, abs=1e-6)


def test_float32_tables_are_within_the_tolerance():
    rates = torch.tensor(RATES)  # float32
    angles = torch.tensor(FAR, dtype=torch.float32)[:, None] * rates
    x = content(len(FAR), 8)
    u, v = x.chunk(2, -1)
    cos, sin = angles.cos().double(), angles.sin().double()
    made = torch.cat([u * cos - v * sin, u * sin + v * cos], -1)
    for kind in (torch.float64, torch.float32):
        read = turning(made.to(kind), FAR)
        for (u_, _), speed in read.pairs().items():
            assert abs(speed - RATES[u_]) <= read.tolerance(RATES[u_])
        at = torch.tensor(FAR, dtype=torch.float64)
        room = 4 * (2.0**-22 * read.speeds[..., None] * at + 1e-6)
        assert bool((read.bend.abs() < room / 2).all())


def test_a_base_that_is_off_by_one_in_a_hundred_thousand_is_beyond_the_tolerance():
    rates = [10_000.1 ** (-2 * i / 128) for i in range(64)]
    right = [10_000.0 ** (-2 * i / 128) for i in range(64)]
    angles = torch.tensor([[w * p for p in FAR] for w in rates], dtype=torch.float64)
    speeds, _ = unwrapped(torch.atan2(angles.sin(), angles.cos()), FAR)
    off = [abs(s - w) for s, w in zip(speeds.tolist(), right, strict=True)]
    assert max(o / (3e-6 * w + 8e-7 / 131072) for o, w in zip(off, right, strict=True)) > 1.5


def test_the_basis_is_the_latest_module_that_gave_a_channel():
    generator = torch.Generator().manual_seed(5)
    one, two = (torch.randn(13, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    heads = torch.stack([two[:, [5, 3, 4]], two[:, [0, 2, 1]]], 1) * 1.5
    basis = basis_of(heads, [one, two])
    assert basis.order.tolist() == [[2, 0, 1], [0, 2, 1]]
    torch.testing.assert_close(basis.ratio, torch.full((2, 3), 1.5, dtype=torch.float64))
    assert not basis_of(torch.randn(13, 2, 3).double(), [one, two]).found.any()


def test_unevenness_is_nought_for_offsets_alone():
    offsets = torch.arange(9)[None] - torch.arange(9)[:, None]
    even = torch.sin(offsets.double())[None, None]
    assert unevenness(even) < 1e-12
    assert unevenness(even + torch.arange(9.0).double()[:, None]) < 1e-12  # a number a row
    assert unevenness(even + torch.cos(torch.arange(9.0).double())) > 0.1


def test_unevenness_of_grids_asks_both_axes():
    rows, columns = torch.arange(9) // 3, torch.arange(9) % 3
    offset = (rows[None] - rows[:, None], columns[None] - columns[:, None])
    even = (torch.sin(offset[0].double()) + torch.cos(2.0 * offset[1].double()))[None, None]
    assert unevenness_on_grid(even) < 1e-12
    assert unevenness_on_grid(torch.sin(offset[0] * columns[None].double())[None, None]) > 0.1


def test_a_bias_is_what_stands_where_no_mask_does():
    logits = torch.zeros(2, 1, 3, 3, dtype=torch.float64)
    logits[..., 0, 1:] = -1e4
    logits[..., 2, 0] = -2.0
    bias = bias_of(logits)
    assert bias.present and bias.spread == 0
    assert bias.values[0, 0].isnan().tolist() == [False, True, True]
    assert levelled(bias.values)[0, 2].tolist() == [-2.0, 0.0, 0.0]


def known(**facts) -> Known:
    usual = {"base": 1e4, "rotary_dim": 8, "head_dim": 16, "plain": None, "others": {}}
    return Known(**{**usual, "farthest": 131072, **facts})


def geometric(base: float, width: int, pairs: int = 4) -> list[float]:
    return [base ** (-2 * i / width) for i in range(pairs)]


@pytest.mark.parametrize(
    ("got", "facts", "kind", "word"),
    [
        (geometric(5e5, 8), {}, "K02", "base is 500000"),
        (geometric(1e4, 16), {}, "K03", "width of 16"),
        ([2 * w for w in geometric(1e4, 8)], {}, "K23", "2 times"),
        ([w / 4 for w in geometric(1e4, 8)], {}, "K02", "0.25 times"),
        ([-w for w in geometric(1e4, 8)], {}, "K01", "other way"),
        (torch.tensor(geometric(1e4, 8)).bfloat16().tolist(), {}, "K06", "bfloat16"),
        (geometric(777.0, 8), {"others": {"layer 1": geometric(777.0, 8)}}, "K02", "layer 1"),
        ([1.0, 0.1, 0.009, 0.0011], {}, "K02", "2 of 4"),
    ],
)
def test_causes_are_told_apart(got, facts, kind, word):
    cause = cause_of(got, geometric(1e4, 8), known(**facts))
    assert cause.kind == kind
    assert word in cause.cause


def test_a_scaling_without_effect_is_no_second_rotation():
    want = [w / 2 for w in geometric(1e4, 8)]
    cause = cause_of(geometric(1e4, 8), want, known(plain=geometric(1e4, 8)))
    assert (cause.kind, "no effect" in cause.cause) == ("K02", True)
