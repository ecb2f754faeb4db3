"""LearnedRelative against tables looked up in numpy.

Axes: B batch, H heads, S queries, T keys, K max_distance.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from relative.support import causal, drawn, offset, repeated, softmax

KINDS = list(itertools.product(["add", "multiply"], ["logits", "weights"]))
each_kind = pytest.mark.parametrize(("operation", "on"), KINDS)
positions = st.lists(st.integers(-(2**40), 2**40) | st.integers(-9, 9), max_size=5)


def scribbled(made: wn.LearnedRelative) -> wn.LearnedRelative:
    with torch.no_grad():
        made.table += drawn(3, *made.table.shape).to(made.table.dtype)
    return made


def looked_up(made: wn.LearnedRelative, q_ids: torch.Tensor, k_ids: torch.Tensor) -> np.ndarray:
    """(..., H, S, T)."""
    reach = made.max_distance
    rows = np.clip(offset(q_ids, k_ids), -reach, reach).astype(np.int64) + reach
    return np.moveaxis(made.table.detach().double().numpy()[rows], -1, -3)


def values(made: wn.LearnedRelative, q_ids: torch.Tensor, k_ids: torch.Tensor) -> torch.Tensor:
    return (made.bias if made.operation == "add" else made.factor)(q_ids, k_ids).detach()


@given(
    num_heads=st.integers(1, 4),
    max_distance=st.integers(0, 6),
    kind=st.sampled_from(KINDS),
    q_ids=positions,
    k_ids=positions,
)
def test_every_offset_has_a_parameter_and_far_ones_share_the_last(
    num_heads, max_distance, kind, q_ids, k_ids
):
    made = scribbled(wn.LearnedRelative(num_heads, max_distance, *kind))
    q_ids, k_ids = (torch.tensor(p, dtype=torch.int64) for p in (q_ids, k_ids))
    found = values(made, q_ids, k_ids)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found, looked_up(made, q_ids, k_ids).astype(np.float32))


def test_the_two_sides_have_parameters_of_their_own():
    made = wn.LearnedRelative(1, 2)
    made.table.data[:, 0] = torch.arange(5.0)
    line = torch.arange(4)
    assert made.bias(line, line)[0].tolist() == [
        [2, 3, 4, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 0, 1, 2],
    ]


@given(
    max_distance=st.integers(0, 6),
    kind=st.sampled_from(KINDS),
    start=st.integers(-(2**40), 2**40),
    over=st.integers(1, 2**40),
    back=st.booleans(),
)
def test_offsets_too_far_are_refused_if_so_asked(max_distance, kind, start, over, back):
    made = scribbled(wn.LearnedRelative(2, max_distance, *kind, beyond="raise"))
    q_ids = torch.tensor([start, start])
    near = start + (-max_distance if back else max_distance)
    far = near + (-over if back else over)
    found = values(made, q_ids, torch.tensor([near]))
    np.testing.assert_array_equal(found, looked_up(made, q_ids, torch.tensor([near])))
    message = f"up to distance {max_distance}, got {max_distance + over}"
    with pytest.raises(ValueError, match=message):
        values(made, q_ids, torch.tensor([near, far]))
    with pytest.raises(ValueError, match=message):
        made.prepare(wn.Where(q_ids, torch.tensor([near, far])))


@pytest.mark.parametrize("beyond", ["clip", "raise"])
@pytest.mark.parametrize("place", [-(2**63) + 1, 2**63 - 1, 2**62 + 1])
def test_offsets_beyond_64_bits_do_not_wrap(beyond, place):
    """2^64 too far is not near: refused, or clipped to the side where the key is."""
    made = wn.LearnedRelative(1, 2, beyond=beyond)
    made.table.data[:, 0] = torch.arange(5.0)
    q_ids, k_ids = torch.tensor([place]), torch.tensor([-place])
    try:
        found = made.bias(q_ids, k_ids)
    except ValueError:
        return
    assert beyond == "clip"
    assert found.item() == (0 if place > 0 else 4)


@each_kind
def test_it_starts_as_plain_attention(operation, on):
    q, k, v = (drawn(i, 2, 4, 6, 8) for i in range(3))
    made = wn.LearnedRelative(4, 3, operation, on)
    assert (made.table == (1.0 if operation == "multiply" else 0.0)).all()
    found = wn.attention(q, k, v, made, causal=True)
    assert_close(found, wn.attention(q, k, v, causal=True), rtol=1e-14, atol=1e-14)
    scribbled(made).reset_parameters()
    assert_close(wn.attention(q, k, v, made, causal=True), found, rtol=0, atol=0)


@each_kind
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_by_hand(operation, on, is_causal, built, scale):
    """The factor acts on q.k * scale; on weights there is no renormalising, and no leak."""
    q, k, v = drawn(0, 2, 4, 5, 8), drawn(1, 2, 2, 5, 8), drawn(2, 2, 2, 5, 8)
    made = scribbled(wn.LearnedRelative(4, 2, operation, on)).double()
    ids = torch.arange(5) if built else torch.tensor([4, 0, 9, 2, 3])
    x = q.numpy() @ repeated(k, 4).swapaxes(-1, -2) * (scale or 8**-0.5)
    term = looked_up(made, ids, ids)
    allowed = causal(5, 5) if is_causal else np.ones((5, 5), dtype=bool)
    if on == "logits":
        weights = softmax(x + term if operation == "add" else x * term, allowed)
    else:
        weights = softmax(x, allowed)
        weights = np.where(allowed, weights + term if operation == "add" else weights * term, 0)
    where = None if built else ids
    found, given_weights = wn.attention(
        q, k, v, made, where=where, causal=is_causal, scale=scale, return_weights=True
    )
    np.testing.assert_allclose(given_weights.detach(), weights, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.detach(), weights @ repeated(v, 4), rtol=1e-12, atol=1e-13)
    same = wn.attention(q, k, v, made, where=where, causal=is_causal, scale=scale)
    np.testing.assert_allclose(same.detach(), found.detach(), rtol=1e-12, atol=1e-13)


@each_kind
def test_bias_is_for_adding_and_factor_for_multiplying(operation, on):
    made, line = wn.LearnedRelative(2, 3, operation, on), torch.arange(3)
    works, refuses = ("bias", "factor") if operation == "add" else ("factor", "bias")
    assert getattr(made, works)(line, line).shape == (2, 3, 3)
    verb = "adds" if operation == "add" else "multiplies"
    with pytest.raises(ValueError, match=rf"{verb}: use \.{works}\(\) instead of \.{refuses}\(\)"):
        getattr(made, refuses)(line, line)


@each_kind
def test_a_token_without_a_place_changes_nothing(operation, on):
    made, ids = scribbled(wn.LearnedRelative(2, 3, operation, on)), torch.tensor([0, 1, 2])
    marked = torch.tensor([0, wn.NOWHERE, 2])
    expected = values(made, ids, ids).clone()
    expected[:, 1] = expected[:, :, 1] = made.at_nowhere
    assert_close(values(made, marked, marked), expected, rtol=0, atol=0)
    assert made.at_nowhere == (1.0 if operation == "multiply" else 0.0)


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values_are_float32_or_float64_and_those_of_the_table(operation, on, dtype):
    made = scribbled(wn.LearnedRelative(2, 1, operation, on).to(dtype))
    line = torch.arange(3)
    found = values(made, line, line)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_array_equal(found.double(), looked_up(made, line, line))


def test_gradients_count_the_pairs_of_every_offset():
    made, ids = wn.LearnedRelative(2, 2), torch.tensor([0, 1, 5, 2])
    made.bias(ids, ids).sum().backward()
    rows = np.clip(offset(ids, ids), -2, 2).astype(int) + 2
    expected = [float((rows == r).sum()) for r in range(5)]
    assert made.table.grad.T.tolist() == [expected, expected]


def test_every_sequence_may_have_its_own_positions():
    made = scribbled(wn.LearnedRelative(3, 4))
    q_ids, k_ids = torch.tensor([[1, 5], [0, 2]]), torch.tensor([[3, 3, 9], [1, 4, 0]])
    found = made.bias(q_ids, k_ids).detach()
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(found, looked_up(made, q_ids, k_ids).astype(np.float32))
    assert made.bias(q_ids[0], k_ids).shape == (2, 3, 2, 3)


def test_distance_0_has_one_parameter_for_all():
    made = wn.LearnedRelative(2, 0)
    made.table.data.fill_(3)
    assert (made.bias(torch.arange(4), torch.arange(4)) == 3).all()


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["bias", "factor", "index", "t5"])
def test_real_positions_are_refused(name):
    call = {
        "bias": wn.LearnedRelative(1, 2).bias,
        "factor": wn.LearnedRelative(1, 2, "multiply").factor,
        "index": wn.Shaw(4, 2).index,
        "t5": wn.T5(1).bias,
    }[name]
    line = torch.arange(3)
    for q_ids, k_ids in ((line.float(), line), (line, line.double())):
        with pytest.raises(TypeError, match="needs integer positions, got"):
            call(q_ids, k_ids)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"max_distance": -1}, ValueError, "max_distance must be at least 0, got -1"),
        ({"max_distance": 2.0}, TypeError, "max_distance must be an int, got float"),
        ({"operation": "divide"}, ValueError, "'add', 'multiply'; got 'divide'"),
        ({"on": "values"}, ValueError, "'logits', 'weights'; got 'values'"),
        ({"beyond": "wrap"}, ValueError, "'clip', 'raise'; got 'wrap'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.LearnedRelative(**{"num_heads": 2, "max_distance": 3, **options})


@pytest.mark.untyped
@each_kind
def test_it_compiles(operation, on):
    made = scribbled(wn.LearnedRelative(2, 3, operation, on))
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k: values(made, q, k), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for length in (3, 6):
        ids = torch.arange(length) * 2
        assert_close(compiled(ids, ids), values(made, ids, ids), rtol=0, atol=0)
