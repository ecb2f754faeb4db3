"""T5 against a loop over offsets, and against bucket borders in whole numbers.

Axes: B batch, H heads, S queries, T keys. N buckets of one direction, E = N // 2 exact ones,
M max_distance.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
import whereness.relative.t5 as t5_module
from relative.support import causal, drawn, offset, repeated, softmax

SETTINGS = [
    (32, 128, False),
    (32, 128, True),
    (64, 256, False),
    (320, 800, True),  # WavLM
    (8, 20, True),
    (6, 7, False),
    (2, 2, False),
    (4, 3, True),
    (9, 1000, False),
    (32, 17, False),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def bucket_by_logarithm(key_minus_query: int, num_buckets: int, far: int, both: bool) -> int:
    """One offset at a time, with math.log."""
    side = num_buckets // 2 if both else num_buckets
    ahead = side if both and key_minus_query > 0 else 0
    distance = abs(key_minus_query) if both else max(-key_minus_query, 0)
    near = side // 2
    if distance < near:
        return ahead + distance
    steps = math.log(distance / near) / math.log(far / near) * (side - near)
    return ahead + min(near + math.floor(steps), side - 1)


def bucket_by_powers(distance: int, side: int, far: int) -> int:
    """Of a distance in a direction of N buckets, without a logarithm.

    E + s is reached where (n / E)^(N - E) >= (M / E)^s: a comparison of whole numbers.
    """
    near, bucket = side // 2, distance
    if distance >= near:
        power, bucket = side - near, near
        while bucket + 1 < side and (
            distance**power * near ** (bucket + 1 - near)
            >= far ** (bucket + 1 - near) * near**power
        ):
            bucket += 1
    return bucket


@each_setting
def test_buckets_of_all_offsets_up_to_2000(setting):
    offsets = torch.arange(-2000, 2001)
    found = wn.T5(1, *setting).buckets(offsets)
    assert found.dtype == torch.int64
    assert found.tolist() == [bucket_by_logarithm(n, *setting) for n in offsets.tolist()]


@each_setting
def test_buckets_never_fall_with_distance_and_end_with_the_last(setting):
    num_buckets, far, both = setting
    t5 = wn.T5(1, *setting)
    back = t5.buckets(-torch.arange(3000))
    assert (back.diff() >= 0).all() and back[0] == 0
    side = num_buckets // 2 if both else num_buckets
    assert (back[far:] == side - 1).all()
    ahead = t5.buckets(torch.arange(1, 3000))
    assert_close(ahead, back[1:] + side if both else torch.zeros_like(ahead), rtol=0, atol=0)


@given(st.data())
def test_borders_between_buckets_are_those_of_whole_numbers(data):
    """Where (n / E)^(N - E) is just (M / E)^s, a logarithm may fall short of s by one rounding."""
    side = data.draw(st.integers(2, 24), "N")
    near = side // 2
    root = data.draw(st.sampled_from([d for d in range(1, 24) if (side - near) % d == 0]), "root")
    number = data.draw(st.integers(2, 12), "k")
    far = near * number**root
    assume(far < 2**31)
    step = data.draw(st.integers(1, root), "step")
    border = near * number**step
    both = data.draw(st.booleans(), "bidirectional") and side > 1
    t5 = wn.T5(1, 2 * side if both else side, far, both)
    distances = [border - 1, border, border + 1]
    found = t5.buckets(-torch.tensor(distances)).tolist()
    assert found == [bucket_by_powers(n, side, far) for n in distances]


@pytest.mark.parametrize(
    ("num_buckets", "far", "both", "distance", "bucket"),
    [
        (9, 128, False, 8, 5),
        (20, 160, True, 10, 6),
        (20, 160, True, 80, 9),
        (19, 16, False, 12, 14),
    ],
)
def test_borders_that_a_logarithm_misses(num_buckets, far, both, distance, bucket):
    """For (20, 160): n / E = 2 = 32^(1/5) = (M / E)^(1 / (N - E)), so n = 10 begins bucket 6.

    The released code, in float32, gives these numbers as well.
    """
    side = num_buckets // 2 if both else num_buckets
    assert bucket_by_powers(distance, side, far) == bucket
    assert wn.T5(1, num_buckets, far, both).buckets(torch.tensor([-distance])).item() == bucket


def first_distances(side: int, far: int) -> list[int]:
    """Smallest distance of buckets 1, 2, ...: whole numbers, halving what is left."""
    near = side // 2
    power = side - near
    found = list(range(1, near + 1))
    for step in range(1, power):
        below, enough = near, far
        while enough - below > 1:
            middle = (below + enough) // 2
            reached = middle**power >= far**step * near ** (power - step)
            below, enough = (below, middle) if reached else (middle, enough)
        found.append(enough)
    return found


@st.composite
def odd_settings(draw: st.DrawFn) -> tuple[int, int]:
    """N and M; often M is E times a power of a fraction, or one beside it: borders are whole."""
    side = draw(st.integers(2, 80), "N")
    near = side // 2
    top, bottom = draw(st.integers(2, 9), "top"), draw(st.integers(1, 4), "bottom")
    power = draw(st.integers(1, 16), "power")
    whole = near * top**power // bottom**power + draw(st.integers(-1, 1), "beside")
    far = draw(st.just(whole) | st.integers(near + 1, near + 4) | st.integers(near + 1, 2**53))
    assume(near < far <= 2**53)
    return side, far


@given(odd_settings())
def test_every_border_is_that_of_whole_numbers(setting):
    side, far = setting
    borders = first_distances(side, far)
    distances = [n - below for n in borders for below in (1, 0)]
    found = wn.T5(1, side, far).buckets(-torch.tensor(distances)).tolist()
    assert found == [sum(border <= n for border in borders) for n in distances]


def test_whole_numbers_decide_where_the_fixed_point_is_too_coarse(monkeypatch):
    """With 26 digits many a whole number lies where the guess may be; with 200 hardly ever one."""
    monkeypatch.setattr(t5_module, "FRACTION", 26)
    for side in (31, 50, 77):
        for far in range(2000, 30_000, 713):
            expected = first_distances(side, far)
            distances = [n - below for n in expected for below in (1, 0)]
            found = wn.T5(1, side, far).buckets(-torch.tensor(distances)).tolist()
            assert found == [sum(border <= n for border in expected) for n in distances]


@pytest.mark.parametrize(("num_buckets", "far"), [(4096, 2**20), (2**16, 2**20)])
def test_borders_of_huge_tables(num_buckets, far):
    """With a power of whole numbers for every bucket these take minutes."""
    near = num_buckets // 2
    t5 = wn.T5(1, num_buckets, far)
    for step in (1, near // 2, near - 1):  # near = N - E steps
        power = near // math.gcd(step, near)
        needed = far ** (step * power // near) * near ** (power - step * power // near)
        guess = int(near * (far / near) ** (step / near))
        border = next(n for n in range(guess - 99, guess + 99) if n**power >= needed)
        assert t5.buckets(torch.tensor([1 - border, -border])).diff().item() >= 1
        assert (t5.buckets(torch.tensor([-border])) >= near + step).all()
        assert (t5.buckets(torch.tensor([1 - border])) < near + step).all()


@pytest.mark.parametrize("both", [False, True])
def test_whole_borders_of_huge_tables(both):
    """E = N - E = 15 000 and M = 3^5 E: bucket E + 3000 s begins at 3^s E, and not one earlier."""
    t5 = wn.T5(1, 60_000 if both else 30_000, 15_000 * 3**5, both)
    for s in range(5):
        border = 15_000 * 3**s
        found = t5.buckets(torch.tensor([1 - border, -border, -1 - border])).tolist()
        assert found[0] < found[1] == 15_000 + 3000 * s <= found[2]


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-300, 300), max_size=6))
def test_offsets_of_any_size_have_a_bucket(offsets):
    for setting in SETTINGS[:2]:
        found = wn.T5(1, *setting).buckets(torch.tensor(offsets, dtype=torch.int64))
        assert found.tolist() == [bucket_by_logarithm(n, *setting) for n in offsets]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("both", [False, True])
def test_offsets_of_narrow_types_do_not_wrap(dtype, both):
    ends = torch.iinfo(dtype)
    offsets = [ends.min, ends.min + 1, 0, 3, ends.max]
    found = wn.T5(1, bidirectional=both).buckets(torch.tensor(offsets, dtype=dtype))
    assert found.tolist() == [bucket_by_logarithm(n, 32, 128, both) for n in offsets]


def test_the_least_of_all_integers_is_far_away():
    """Its negative does not exist in 64 bits."""
    for both in (False, True):
        found = wn.T5(1, bidirectional=both).buckets(torch.tensor([-(2**63)]))
        assert found.item() == (15 if both else 31)


@pytest.mark.untyped
@pytest.mark.parametrize(
    "offsets", [torch.tensor([1.0]), torch.tensor([True]), torch.tensor([1j]), [1], 3, None]
)
def test_offsets_that_are_no_integers_are_refused(offsets):
    with pytest.raises(TypeError, match="T5 needs|offset"):
        wn.T5(1).buckets(offsets)


def scribbled(made: wn.T5) -> wn.T5:
    with torch.no_grad():
        made.table += drawn(3, *made.table.shape).to(made.table.dtype)
    return made


def looked_up(made: wn.T5, q_ids: torch.Tensor, k_ids: torch.Tensor) -> np.ndarray:
    """(..., H, S, T)."""
    options = (made.num_buckets, made.max_distance, made.bidirectional)
    distances = offset(q_ids, k_ids)
    rows = np.array([bucket_by_logarithm(n, *options) for n in distances.ravel()], dtype=int)
    table = made.table.detach().double().numpy()
    return np.moveaxis(table[rows].reshape(*distances.shape, -1), -1, -3)


@each_setting
@pytest.mark.parametrize("num_heads", [1, 3])
def test_the_bias_is_the_row_of_the_bucket(setting, num_heads):
    made = scribbled(wn.T5(num_heads, *setting))
    q_ids, k_ids = torch.tensor([[0, 90], [5, 1000]]), torch.tensor([[0, 7, 89], [100, 4, 5]])
    found = made.bias(q_ids, k_ids).detach()
    assert found.dtype == torch.float32 and found.shape == (2, num_heads, 2, 3)
    np.testing.assert_array_equal(found, looked_up(made, q_ids, k_ids).astype(np.float32))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("built", [False, True])
def test_attention_by_hand(scaled, both, is_causal, built):
    """T5 itself leaves out 1/sqrt(head_dim); an explicit scale replaces either."""
    q, k, v = drawn(0, 2, 4, 6, 16), drawn(1, 2, 2, 6, 16), drawn(2, 2, 2, 6, 16)
    made = scribbled(wn.T5(4, 8, 9, both, scaled=scaled)).double()
    ids = torch.arange(6) if built else torch.tensor([30, 0, 9, 2, 3, 17])
    where = None if built else ids
    if not both and not is_causal:
        with pytest.raises(ValueError, match="no meaning for keys after the query"):
            wn.attention(q, k, v, made, where=where)
        with pytest.raises(ValueError, match="no meaning for keys after the query"):
            wn.Attention(64, 4, made)
        return
    products = q.numpy() @ repeated(k, 4).swapaxes(-1, -2)
    allowed = causal(6, 6) if is_causal else None
    for scale, factor in ((None, 0.25 if scaled else 1.0), (0.3, 0.3)):
        weights = softmax(products * factor + looked_up(made, ids, ids), allowed)
        found = wn.attention(q, k, v, made, where=where, causal=is_causal, scale=scale).detach()
        np.testing.assert_allclose(found, weights @ repeated(v, 4), rtol=1e-12, atol=1e-13)


def test_causal_alone_and_both_directions():
    assert wn.T5(2).causal_only and not wn.T5(2, bidirectional=True).causal_only
    line = torch.arange(4)
    bias = scribbled(wn.T5(2)).bias(line, line)
    # all keys after the query share what the query's own position has
    own = bias.diagonal(dim1=-2, dim2=-1)
    for i in range(4):
        assert (bias[:, i, i:] == own[:, i : i + 1]).all()


def test_a_token_without_a_place_gets_and_gives_no_bias():
    made, ids = scribbled(wn.T5(2)), torch.tensor([0, 50, 2])
    marked = torch.tensor([0, wn.NOWHERE, 2])
    expected = made.bias(ids, ids).detach().clone()
    expected[:, 1] = expected[:, :, 1] = 0
    assert_close(made.bias(marked, marked).detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values_are_float32_or_float64_and_those_of_the_table(dtype):
    made = scribbled(wn.T5(2).to(dtype))
    ids = torch.tensor([0, 300, 40])
    found = made.bias(ids, ids).detach()
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_array_equal(found.double(), looked_up(made, ids, ids))
    assert made.buckets(torch.tensor([-127, -128])).tolist() == [31, 31]


def test_gradients_count_the_pairs_of_every_bucket():
    made, ids = wn.T5(2, 8, 16), torch.tensor([0, 3, 30, 31])
    made.bias(ids, ids).sum().backward()
    buckets = [bucket_by_logarithm(n, 8, 16, False) for n in offset(ids, ids).ravel()]
    expected = [float(buckets.count(b)) for b in range(8)]
    assert made.table.grad.T.tolist() == [expected, expected]


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"num_buckets": 1}, ValueError, "num_buckets must be at least 2, got 1"),
        ({"num_buckets": 2, "bidirectional": True}, ValueError, "num_buckets must be at least 4"),
        ({"num_buckets": 7, "bidirectional": True}, ValueError, "num_buckets must be even.*7"),
        ({"max_distance": 16}, ValueError, "max_distance must be at least 17, got 16"),
        ({"max_distance": 8, "bidirectional": True}, ValueError, "max_distance.*at least 9, got 8"),
        ({"max_distance": 1e3}, TypeError, "max_distance must be an int, got float"),
        ({"bidirectional": "yes"}, TypeError, "bidirectional must be True or False, got 'yes'"),
        ({"scaled": 1}, TypeError, "scaled must be True or False, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.T5(**{"num_heads": 2, **options})


@pytest.mark.untyped
def test_it_compiles():
    made = scribbled(wn.T5(2, bidirectional=True))
    torch._dynamo.reset()
    compiled = torch.compile(made.bias, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 9):
        ids = torch.arange(length) * 11
        assert_close(compiled(ids, ids), made.bias(ids, ids), rtol=0, atol=0)
