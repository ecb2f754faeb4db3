"""Tables of cos and sin against mpmath: compiled to the nearest float32, in torch within 2^-24.

Axes: B batch, S tokens, P pairs. Where nothing is compiled the tests of that route are not there.
"""

from collections.abc import Iterable
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
import torch._dynamo.testing
from mpmath import mpf
from torch.testing import assert_close

from whereness.frequencies import geometric, geometric_low
from whereness.kernels import tables
from whereness.kernels.tables import cos_sin, cos_sin_of_pairs

ROUTES = ["compiled", "torch"]
BASES = [10.0, 10_000.0, 500_000.0, 1e7]
FAR = 2**24
HALF_ULP = 0.5 + 2.0**-16
"""One rounding, and sixteen times what the polynomials may add to it."""


@pytest.fixture(params=ROUTES)
def route(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(tables, "NATIVE", None)
    return request.param


each_compiled = pytest.mark.parametrize("route", ROUTES[:-1], indirect=True)
each_base = pytest.mark.parametrize("base", BASES)


def tensor(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def spectrum(base: float, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    arguments = base, width, width // 2
    return tensor(geometric(*arguments)), tensor(geometric_low(*arguments))


@cache
def hard(base: float, width: int = 64) -> list[list[int]]:
    """For every frequency the positions that come nearest to multiples of pi/2.

    The denominators of the continued fraction of w / (pi/2): no smaller position comes nearer.
    """
    found = []
    with mpmath.workdps(60):
        for k in range(width // 2):
            x, before, last, denominators = 2 * exact(base, k, width) / mpmath.pi, 1, 0, []
            while x and last < FAR:
                whole = int(mpmath.floor(x))
                before, last = last, before + whole * last
                denominators.append(last)
                x = x - whole
                x = 1 / x if x > mpf(10) ** -40 else 0
            found.append([p for p in denominators if 0 < p < FAR])
    return found


def exact(base: float, k: int, width: int) -> mpf:
    return mpf(base) ** (mpf(-2 * k) / width)


def of_parts(positions: list[int], high: torch.Tensor, low: torch.Tensor) -> np.ndarray:
    frequencies = [mpf(h) + mpf(r) for h, r in zip(high.tolist(), low.tolist(), strict=True)]
    return np.array([[p * w for w in frequencies] for p in positions])


def ulps(found: float, true: mpf) -> float:
    """Error in units of the last place that a float32 has at the true value."""
    place = max(int(mpmath.floor(mpmath.log(abs(true), 2))) - 23, -149) if true else -149
    return float(abs(mpf(found) - true) / mpf(2) ** place)


def judged(
    route: str,
    angles: np.ndarray,
    cos: torch.Tensor,
    sin: torch.Tensor,
    amplitude: float = 1.0,
    beyond: float = 0.0,
) -> None:
    """angles: mpmath's, of the shape of cos and sin. `beyond`: error allowed beside 2^-24."""
    assert cos.dtype == sin.dtype == torch.float32
    assert tuple(cos.shape) == tuple(sin.shape) == angles.shape
    for found, function in ((cos, mpmath.cos), (sin, mpmath.sin)):
        for value, angle in zip(found.flatten().tolist(), angles.ravel(), strict=True):
            true = function(angle) * mpf(amplitude)
            if route == "compiled" and not beyond:
                assert ulps(value, true) <= HALF_ULP, (value, angle)
            else:
                assert abs(mpf(value) - true) <= 2.0**-24 * max(1, amplitude) + beyond


def probes(seed: int) -> list[int]:
    powers = [2**n + step for n in range(24) for step in (-1, 0, 1)]
    drawn = np.random.default_rng(seed).integers(0, FAR, 60).tolist()
    return [p for p in {*powers, *drawn, FAR - 1} if 0 <= p < FAR]


@each_base
@pytest.mark.parametrize("sign", [1, -1])
def test_whole_positions(route, base, sign):
    positions = [sign * p for p in probes(0)]
    high, low = spectrum(base)
    pairs = [0, 1, 7, 16, 30, 31]
    cos, sin = cos_sin(torch.tensor(positions), high, low)
    with mpmath.workdps(60):
        angles = [[p * exact(base, k, 64) for k in pairs] for p in positions]
        judged(route, np.array(angles), cos[:, pairs], sin[:, pairs])


@each_base
def test_positions_nearest_to_zeros_of_cos_and_sin(route, base):
    """Here one float64 product has no correct digit of the smaller result left."""
    high, low = spectrum(base)
    with mpmath.workdps(60):
        for k, positions in enumerate(hard(base)):
            cos, sin = cos_sin(torch.tensor(positions), high[k : k + 1], low[k : k + 1])
            angles = np.array([[p * exact(base, k, 64)] for p in positions])
            judged(route, angles, cos, sin)
            assert positions


def test_the_hard_positions_are_hard():
    """They would not tell the routes apart if a product of two float64 were good enough."""
    worst = 0.0
    with mpmath.workdps(60):
        for base in BASES:
            for k, positions in enumerate(hard(base)):
                for p in positions:
                    true = mpmath.sin(p * exact(base, k, 64))
                    worst = max(worst, ulps(float(np.float32(np.sin(p * base ** (-k / 32)))), true))
    assert worst > 100


@each_compiled
def test_many_angles(route):
    """Against NumPy, whose float64 is exact enough for angles that need no frequency."""
    generator = torch.Generator().manual_seed(9)
    angles = torch.rand(2**18, generator=generator, dtype=torch.float64) * 200 - 100
    for found, function in zip(cos_sin(angles, tensor([1.0])), (np.cos, np.sin), strict=True):
        true = function(angles.numpy())
        error = np.abs(found[:, 0].double().numpy() - true)
        assert (error <= HALF_ULP * np.spacing(np.abs(true).astype(np.float32))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_positions(route, dtype):
    generator = torch.Generator().manual_seed(1)
    positions = torch.randn(40, generator=generator, dtype=dtype) * 1000
    positions = torch.cat([positions, tensor([0.0, 0.5, -0.25, 1e-6, 1e6 + 1 / 3]).to(dtype)])
    high, low = spectrum(10_000.0)
    cos, sin = cos_sin(positions, high[5:9], low[5:9])
    with mpmath.workdps(60):
        angles = [
            [mpf(p) * exact(10_000.0, k, 64) for k in range(5, 9)] for p in positions.tolist()
        ]
        judged(route, np.array(angles), cos, sin)


def test_frequencies_without_low_parts_are_taken_as_they_are(route):
    high = torch.rand(5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    positions = probes(3)
    cos, sin = cos_sin(torch.tensor(positions), high)
    with mpmath.workdps(60):
        judged(route, np.array([[p * mpf(w) for w in high.tolist()] for p in positions]), cos, sin)


@pytest.mark.parametrize("amplitude", [1.2079441541679836, 0.25, 3.0])
def test_the_amplitude_is_applied_before_the_rounding(route, amplitude):
    high, low = spectrum(10_000.0, 16)
    positions = probes(4)
    cos, sin = cos_sin(torch.tensor(positions), high, low, amplitude)
    with mpmath.workdps(60):
        angles = [[p * exact(10_000.0, k, 16) for k in range(8)] for p in positions]
        judged(route, np.array(angles), cos, sin, amplitude)


def test_an_amplitude_a_token(route):
    high, low = spectrum(10_000.0, 16)
    positions, amplitude = torch.arange(12).reshape(2, 6), tensor([1.0, 1.5])[:, None]
    cos, sin = cos_sin(positions, high, low, amplitude)
    for row in range(2):
        expected = cos_sin(positions[row], high, low, float(amplitude[row]))
        for found, other in zip((cos[row], sin[row]), expected, strict=True):
            assert_close(found, other, rtol=0, atol=2.0**-23)


@pytest.mark.parametrize("base", [1e-4, 1e-12, 1e-15])
@each_compiled
def test_bases_below_one_turn_fast(route, base):
    """Their angles go beyond those that one reduction serves: up to 2^71 here."""
    high, low = spectrum(base, 32)
    positions = probes(5)[::3]
    cos, sin = cos_sin(torch.tensor(positions), high, low)
    with mpmath.workdps(120):
        angles = of_parts(positions, high, low)
        small = np.abs(angles.astype(float)) < 2.0**46
        judged(route, angles[small], cos[small], sin[small])
        judged(route, angles[~small], cos[~small], sin[~small], beyond=2.0**-45)
        assert small.any() and (base == 1e-4 or not small.all())


@each_compiled
def test_positions_up_to_those_that_float64_holds(route):
    high, low = spectrum(10_000.0, 16)
    positions = [2**53 - 1, -(2**53) + 1, 2**52 + 12345, 2**46, 2**46 - 1, 2**45 + 7]
    cos, sin = cos_sin(torch.tensor(positions), high, low)
    with mpmath.workdps(80):
        judged(route, of_parts(positions, high, low), cos, sin, beyond=2.0**-45)


LEADS = [((7,), ()), ((2, 5), ()), ((5,), (2, 1)), ((2, 5), (2, 1)), ((2, 5), (1, 5))]
LEADS += [((2, 5), (2, 5)), ((1, 5), (1, 1)), ((3, 2, 5), ()), ((3, 2, 5), (2, 1)), ((), ())]
LEADS += [((0,), ()), ((3, 2, 5), (3, 1, 5)), ((1,), (4, 1))]


@pytest.mark.parametrize(("lead", "each"), LEADS)
@pytest.mark.parametrize("per_pair", [False, True])
@pytest.mark.parametrize("pairs", [3, 130])  # tokens are taken many at a time, and one by one
def test_every_token_and_pair_by_itself(route, lead, each, per_pair, pairs):
    """Of any axes and strides, with frequencies of its own or not: the bits that it has alone."""
    generator = torch.Generator().manual_seed(6)
    shape = (*lead, pairs) if per_pair else lead
    coordinates = torch.randint(-1000, FAR, shape, generator=generator)
    drawn = torch.rand((2, *each, 2 * pairs), generator=generator, dtype=torch.float64)
    drawn[1] *= 2.0**-30  # as large as a low part may be
    high, low = drawn[0, ..., ::2], drawn[1, ..., 1::2]
    if per_pair:
        cos, sin = cos_sin_of_pairs(coordinates, high, low)
    else:
        cos, sin = cos_sin(coordinates, high, low)
        coordinates = coordinates.unsqueeze(-1)
    c, h, r = torch.broadcast_tensors(coordinates, high, low)
    assert cos.shape == sin.shape == c.shape
    for token in np.ndindex(*c.shape[:-1]):
        for pair in (0, 2, pairs - 1):
            place = (*token, pair)
            alone = cos_sin(c[place][None], h[place][None], r[place][None])
            assert (cos[place], sin[place]) == alone


@pytest.mark.parametrize("pairs", [1, 5, 64, 300])
def test_equal_bits_whatever_the_threads(route, pairs):
    before = torch.get_num_threads()
    positions = torch.arange(400_000 // pairs)
    high = torch.rand(pairs, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    try:
        torch.set_num_threads(1)
        one = cos_sin(positions, high)
        torch.set_num_threads(2)
        two = cos_sin(positions, high)
    finally:
        torch.set_num_threads(before)
    later = cos_sin(positions[1:], high)  # all in other lanes and blocks
    for a, b, c in zip(one, two, later, strict=True):
        assert torch.equal(a, b) and torch.equal(a[1:], c)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_positions_of_any_integer_type(route, dtype):
    high, low = spectrum(10_000.0, 8)
    found = cos_sin(torch.arange(100, dtype=dtype), high, low)
    for a, b in zip(found, cos_sin(torch.arange(100), high, low), strict=True):
        assert torch.equal(a, b)


def test_float64_tables(route):
    high, low = spectrum(10_000.0, 8)
    cos, sin = cos_sin(torch.arange(100), high, low, 2.0, torch.float64)
    angles = np.arange(100)[:, None] * high.numpy()
    assert cos.dtype == sin.dtype == torch.float64
    assert_close(cos.numpy(), 2 * np.cos(angles), rtol=0, atol=2.0**-51)
    assert_close(sin.numpy(), 2 * np.sin(angles), rtol=0, atol=2.0**-51)


@pytest.mark.parametrize("what", ["positions", "frequencies"])
def test_gradients_of_learned_frequencies_and_of_places(route, what):
    positions, high = tensor([0.5, 3.0]), tensor([1.0, 0.1, 0.01])
    learned = positions if what == "positions" else high
    learned.requires_grad_()
    cos, sin = cos_sin(positions, high, None, 1.5)
    (2 * cos - sin).sum().backward()
    p, w = positions.detach()[:, None].numpy(), high.detach().numpy()
    slope = 1.5 * (-2 * np.sin(p * w) - np.cos(p * w))
    expected = (slope * w).sum(1) if what == "positions" else (slope * p).sum(0)
    assert_close(learned.grad.numpy(), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        assert not cos_sin(positions, high)[0].requires_grad


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, None), (1, 1)])
def test_mapped_over_examples(route, in_dims):
    generator = torch.Generator().manual_seed(8)
    sizes = [4 if axis is not None else None for axis in in_dims]
    positions = torch.randint(0, FAR, (3,), generator=generator)
    high = torch.rand(5, generator=generator, dtype=torch.float64)
    given = []
    for x, axis, size in zip((positions, high), in_dims, sizes, strict=True):
        given.append(x if axis is None else torch.stack([x + n for n in range(size)], axis))
    found = torch.vmap(cos_sin, in_dims)(*given)
    for n in range(4):
        own = (x if a is None else x.select(a, n) for x, a in zip(given, in_dims, strict=True))
        for a, b in zip(found, cos_sin(*own), strict=True):
            assert torch.equal(a[n], b)


@pytest.mark.untyped
def test_compiled_by_torch_without_a_break_once_for_all_lengths(route):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    high, low = spectrum(10_000.0, 8)
    once = torch.compile(cos_sin, fullgraph=True, dynamic=True, backend=counter)
    for length in (8, 9, 64, 4096):
        positions = torch.arange(length)
        found, expected = (call(positions, high, low, 1.5) for call in (once, cos_sin))
        assert_close(found, expected, rtol=0, atol=0)
    assert counter.frame_count == 1


@pytest.mark.untyped
@each_compiled
def test_what_torch_asks_of_an_operator(route):
    high, low = spectrum(10_000.0, 8)
    for coordinates, rest in ((torch.arange(5)[:, None], low), (torch.rand(2, 3, 4), None)):
        torch.library.opcheck(
            torch.ops.whereness.cos_sin.default,
            (coordinates, high, rest, 1.5),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
        )


@pytest.mark.untyped
def test_an_exported_program_needs_nothing_of_ours(route):
    class Tables(torch.nn.Module):
        def forward(self, positions, high):
            return cos_sin(positions, high)

    high, _ = spectrum(10_000.0, 8)
    program = torch.export.export(Tables(), (torch.arange(6), high))
    assert "whereness" not in str(program.graph)
    found, expected = program.module()(torch.arange(6), high), cos_sin(torch.arange(6), high)
    assert_close(found, expected, rtol=0, atol=2.0**-24)


def test_on_the_meta_device(route):
    high, _ = spectrum(10_000.0, 8)
    cos, sin = cos_sin(torch.empty(2, 5, dtype=torch.int64, device="meta"), high.to("meta"))
    assert cos.shape == sin.shape == (2, 5, 4) and cos.dtype == torch.float32
    assert cos.device.type == "meta"
