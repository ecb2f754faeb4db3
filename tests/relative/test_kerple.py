"""KERPLE against its two formulas in mpmath.

Axes: H heads, S queries, T keys.
"""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from relative.support import causal, drawn, repeated, softmax

KINDS = ("log", "power")
ids_ = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4)
parameters = st.lists(
    st.tuples(st.floats(0.015625, 3, width=32), st.floats(0.015625, 2, width=32)),
    min_size=1,
    max_size=4,
)


def kernel(kind: str, r1: float, r2: float, distance: mpmath.mpf) -> mpmath.mpf:
    """The published formulas, 40 digits."""
    with mpmath.workdps(40):
        r1, r2, distance = mpmath.mpf(r1), mpmath.mpf(r2), mpmath.mpf(distance)
        if kind == "power":
            return -r1 * distance**r2
        return -r1 * mpmath.log1p(r2 * distance)


def made(kind: str, pairs: list, dtype: torch.dtype = torch.float32) -> wn.KERPLE:
    """With these (r1, r2)."""
    kerple = wn.KERPLE(len(pairs), kind).to(dtype)
    kerple.r1.data, kerple.r2.data = torch.tensor(pairs, dtype=dtype).T.clone()
    return kerple


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=parameters, q_ids=ids_, k_ids=ids_, wide=st.booleans())
def test_the_bias_is_the_kernel_rounded_once(kind, pairs, q_ids, k_ids, wide):
    dtype = torch.float64 if wide else torch.float32
    with torch.no_grad():
        found = made(kind, pairs, dtype).bias(torch.tensor(q_ids), torch.tensor(k_ids))
    assert found.dtype == dtype and found.shape == (len(pairs), len(q_ids), len(k_ids))
    # Some roundings of float64, and of float32 the last one alone.
    allowed = 2.0**-48 if wide else 2.0**-24 + 2.0**-48
    for h, (r1, r2) in enumerate(pairs):
        for i, q in enumerate(q_ids):
            for j, k in enumerate(k_ids):
                exact = kernel(kind, r1, r2, abs(k - q))
                assert abs(found[h, i, j].item() - exact) <= allowed * abs(exact)


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=parameters, q=st.floats(-1e6, 1e6), k=st.floats(-1e6, 1e6))
def test_real_positions_are_used_as_they_are(kind, pairs, q, k):
    with torch.no_grad():
        found = made(kind, pairs, torch.float64).bias(
            torch.tensor([q], dtype=torch.float64), torch.tensor([k], dtype=torch.float64)
        )
    for h, (r1, r2) in enumerate(pairs):
        exact = kernel(kind, r1, r2, abs(k - q))
        assert abs(found[h, 0, 0].item() - exact) <= 2.0**-47 * abs(exact) + 1e-300


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=parameters, ids=ids_, moved=st.integers(-(2**50), 2**50))
def test_it_sees_the_distance_alone_on_both_sides(kind, pairs, ids, moved):
    ids, kerple = torch.tensor(ids), made(kind, pairs)
    bias = kerple.bias(ids, ids).detach()
    assert_close(bias, bias.mT, rtol=0, atol=0)
    assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all() and (bias <= 0).all()
    assert_close(kerple.bias(ids + moved, ids + moved).detach(), bias, rtol=0, atol=0)


def test_a_power_of_one_with_alibis_slopes_is_alibi():
    alibi, ids = wn.ALiBi(12), torch.arange(50)
    above = alibi.slopes >= 0.01
    assert above.sum() == 10
    pairs = [(slope, 1.0) for slope in alibi.slopes[above].double().tolist()]
    expected = alibi.bias(ids, ids)[above]
    assert_close(made("power", pairs).bias(ids, ids).detach(), expected, rtol=2.0**-22, atol=0)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("log", [(0.01, 0.01), (2.5, 7.0)], [(-1.0, 0.0), (2.5, 7.0)]),
        ("power", [(0.01, 0.01), (2.5, 2.0)], [(0.0, -3.0), (2.5, 7.0)]),
    ],
)
def test_parameters_beyond_their_bounds_act_as_the_bounds(kind, inside, outside):
    """And still get the gradient of the bound: else they could never come back."""
    ids = torch.tensor([0, 1, 5, 900])
    within, beyond = made(kind, inside, torch.float64), made(kind, outside, torch.float64)
    weights = drawn(0, 2, 4, 4)
    for kerple in (within, beyond):
        (kerple.bias(ids, ids) * weights).sum().backward()
    assert_close(beyond.bias(ids, ids), within.bias(ids, ids), rtol=1e-12, atol=1e-12)
    for name in ("r1", "r2"):
        expected = getattr(within, name).grad
        assert (expected != 0).all()
        assert_close(getattr(beyond, name).grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_derivatives_and_finite_at_the_query_itself(kind):
    pairs, ids = [(0.5, 0.25), (1.5, 1.75)], torch.tensor([0, 0, 3, 70])
    kerple = made(kind, pairs, torch.float64)
    kerple.bias(ids, ids).sum().backward()
    for h, (r1, r2) in enumerate(pairs):
        expected = [mpmath.mpf(0), mpmath.mpf(0)]
        for distance in np.abs(ids.numpy()[:, None] - ids.numpy()).ravel().tolist():
            if distance == 0:
                continue
            for n in range(2):
                expected[n] += mpmath.diff(
                    lambda a, b, d=distance: kernel(kind, a, b, d), (r1, r2), (1 - n, n)
                )
        found = [kerple.r1.grad[h].item(), kerple.r2.grad[h].item()]
        assert found == pytest.approx([float(e) for e in expected], rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_real_positions_are_finite(kind):
    ids = torch.tensor([0.0, 0.0, 2.5], dtype=torch.float64, requires_grad=True)
    made(kind, [(1.0, 0.5)]).bias(ids, ids.detach()).sum().backward()
    assert ids.grad.isfinite().all() and ids.grad[2] < 0


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values_are_those_of_the_authors_code(kind):
    torch.manual_seed(0)
    kerple = wn.KERPLE(20_000, kind)
    wide, narrow = (kerple.r1, kerple.r2) if kind == "log" else (kerple.r2, kerple.r1)
    for parameter, top in ((wide, 2.0), (narrow, 1.0)):
        values = parameter.detach().double()
        assert values.min() == np.float32(0.01) and 0.99 * top < values.max() <= top
        # Three and more standard errors of the mean, top / sqrt(12 n).
        assert values.mean().item() == pytest.approx(top / 2, abs=0.008 * top)
        assert (values < top / 4).double().mean().item() == pytest.approx(0.25, abs=0.015)
    before = kerple.r1.detach().clone()
    kerple.reset_parameters()
    assert (kerple.r1 != before).double().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_round_nothing_but_themselves(dtype):
    kerple, ids = made("log", [(0.7, 0.3)], dtype), torch.tensor([0, 3, 70_000])
    r1, r2 = kerple.r1.item(), kerple.r2.item()
    found = kerple.bias(ids[:1], ids)[0, 0].detach()
    assert found.dtype == torch.float32
    for value, distance in zip(found.tolist(), ids.tolist(), strict=True):
        exact = kernel("log", r1, r2, distance)
        assert abs(value - exact) <= 2.0**-24 * (1 + 2.0**-20) * abs(exact)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("queries", "keys", "is_causal"), [(1, 7, True), (3, 7, True), (7, 7, True), (7, 7, False)]
)
def test_attention_adds_it_after_the_scale(kind, queries, keys, is_causal):
    """From built positions (the strip of offsets) and from given ones."""
    q, k, v = drawn(0, 2, 4, queries, 8), drawn(1, 2, 2, keys, 8), drawn(2, 2, 2, keys, 8)
    pairs = [(0.5, 0.25), (2.0, 0.125), (0.0625, 1.5), (1.0, 1.0)]
    kerple, line = made(kind, pairs, torch.float64), torch.arange(keys)
    distance = np.abs(np.arange(keys) - np.arange(keys - queries, keys)[:, None])
    rows = distance.tolist()
    bias = [[[float(kernel(kind, *p, d)) for d in row] for row in rows] for p in pairs]
    logits = q.numpy() @ repeated(k, 4).swapaxes(-1, -2) / np.sqrt(8) + np.array(bias)
    expected = softmax(logits, causal(queries, keys) if is_causal else None) @ repeated(v, 4)
    for where in (None, wn.Where(line[keys - queries :], line)):
        found = wn.attention(q, k, v, kerple, where=where, causal=is_causal).detach()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_a_token_without_a_place_gets_and_gives_no_bias():
    kerple, ids = made("log", [(1.0, 0.5)] * 2), torch.tensor([3, 8, 1])
    expected = kerple.bias(ids, ids).detach().clone()
    expected[:, 1] = expected[:, :, 1] = 0
    for marked in (torch.tensor([3, wn.NOWHERE, 1]), torch.tensor([3.0, float("nan"), 1.0])):
        assert_close(kerple.bias(marked, marked).detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_farthest_positions_have_a_finite_bias(kind):
    kerple, far = made(kind, [(3.0, 2.0)]), 2**53
    found = kerple.bias(torch.tensor([-far]), torch.tensor([far]))[0, 0]
    assert found.tolist() == pytest.approx([float(kernel(kind, 3, 2, 2 * far))], rel=1e-7)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"num_heads": True}, TypeError, "num_heads must be an int, got bool"),
        ({"kind": "linear"}, ValueError, "kind must be one of 'log', 'power'; got 'linear'"),
        ({"kind": None}, ValueError, "kind must be one of 'log', 'power'; got None"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.KERPLE(**{"num_heads": 2, **options})


def test_positions_on_another_device_are_refused():
    ids = torch.zeros(2, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match="Positions must be on cpu, got meta"):
        wn.KERPLE(2).bias(ids, ids)


def test_positions_too_far_apart_for_float32_are_refused():
    ids = torch.tensor([0.0, 1e30], dtype=torch.float64)
    with pytest.raises(ValueError, match="too far apart"):
        made("power", [(1.0, 2.0)]).bias(ids, ids)
