"""Shaw against tensors that hold a vector for every query and key.

Axes: B batch, H heads, S queries, T keys, D head_dim, K max_distance.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from relative.support import causal, drawn, offset, repeated, softmax

both_tables = pytest.mark.parametrize("values", [False, True])


def scribbled(made: wn.Shaw) -> wn.Shaw:
    with torch.no_grad():
        for seed, table in enumerate(made.parameters()):
            table.add_(drawn(seed, *table.shape).to(table.dtype))
    return made


def rows(q_ids: torch.Tensor, k_ids: torch.Tensor, reach: int) -> np.ndarray:
    """(..., S, T)."""
    return np.clip(offset(q_ids, k_ids), -reach, reach).astype(np.int64) + reach


def by_hand(
    made: wn.Shaw,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    where: wn.Where,
    allowed: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """Equations 3 and 4 of the paper, with a_K and a_V as (B or 1, S, T, D).

    A token without a place, as query or key, meets vectors of zeros.
    """
    q, k, v = tensors
    heads = q.shape[1]
    keys, read, queries = repeated(k, heads), repeated(v, heads), q.detach().numpy()
    index = rows(where.positions, where.keys, made.max_distance)
    placed = (where.positions != wn.NOWHERE)[..., None] & (where.keys != wn.NOWHERE)[:, None]
    placed = placed.numpy()[:, None, ..., None]
    a_k = made.key_table.detach().numpy()[index][:, None] * placed  # the same for all heads
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = (queries[..., :, None, :] * (keys[..., None, :, :] + a_k)).sum(-1) * scale
    weights = softmax(logits, allowed)
    if made.value_table is None:
        return weights @ read
    a_v = made.value_table.detach().numpy()[index][:, None] * placed
    return (weights[..., None] * (read[..., None, :, :] + a_v)).sum(-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.2])
@both_tables
@given(
    reach=st.integers(0, 4),
    groups=st.sampled_from([1, 2, 4]),
    queries=st.integers(1, 4),
    more=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_attention_by_hand(is_causal, scale, values, reach, groups, queries, more, seed):
    keys, rng = queries + more, np.random.default_rng(seed)
    q, k, v = (
        drawn(seed + i, 2, h, n, 6)
        for i, (h, n) in enumerate(((4, queries), (groups, keys), (groups, keys)))
    )
    made = scribbled(wn.Shaw(6, reach, values)).double()
    where = wn.Where(
        torch.from_numpy(rng.integers(-9, 9, (2, queries))),
        torch.from_numpy(rng.integers(-9, 9, (1, keys))),
    )
    allowed = causal(queries, keys) if is_causal else None
    expected = by_hand(made, (q, k, v), where, allowed, scale)
    found = wn.attention(q, k, v, made, where=where, causal=is_causal, scale=scale)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-12, atol=1e-12)


@both_tables
def test_far_offsets_share_the_last_row(values):
    made, (q, k, v) = scribbled(wn.Shaw(4, 2, values)), (drawn(i, 1, 2, 3, 4) for i in range(3))
    made = made.double()
    near, far = (wn.Where(torch.tensor([0, 1, 2]), torch.tensor([2, 3, n])) for n in (4, 4000))
    expected = by_hand(made, (q, k, v), far)
    found = wn.attention(q, k, v, made, where=far).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert_close(found[:, :, 0], wn.attention(q, k, v, made, where=near).detach()[:, :, 0])


def test_rows_of_the_tables_as_the_paper_counts_them():
    line = torch.arange(4)
    assert wn.Shaw(2, 2).index(line, line).tolist() == [
        [2, 3, 4, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 0, 1, 2],
    ]


@given(
    reach=st.integers(0, 9),
    q_ids=st.lists(st.integers(-(2**40), 2**40) | st.integers(-9, 9), max_size=4),
    k_ids=st.lists(st.integers(-(2**40), 2**40) | st.integers(-9, 9), max_size=4),
)
def test_index_clips_the_offset(reach, q_ids, k_ids):
    q_ids, k_ids = (torch.tensor(p, dtype=torch.int64) for p in (q_ids, k_ids))
    found = wn.Shaw(2, reach).index(q_ids, k_ids)
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found, rows(q_ids, k_ids, reach))


def test_offsets_beyond_64_bits_do_not_wrap():
    far = 2**63 - 1
    for q, k in ((-far, far), (far, -far)):
        try:
            index = wn.Shaw(2, 3).index(torch.tensor([q]), torch.tensor([k]))
        except ValueError:
            continue
        assert index.item() == (6 if k > q else 0)


@both_tables
def test_a_token_without_a_place_meets_no_vector(values):
    made = scribbled(wn.Shaw(6, 2, values)).double()
    q, k, v = (drawn(i, 1, 2, 4, 6) for i in range(3))
    marked = wn.Where(torch.tensor([0, wn.NOWHERE, 2, 3]))
    found = wn.attention(q, k, v, made, where=marked).detach()
    np.testing.assert_allclose(found, by_hand(made, (q, k, v), marked), rtol=1e-12, atol=1e-12)
    # As a query it is plain attention, whatever row of the tables its offset might have had.
    plain = wn.attention(q, k, v).detach()
    assert_close(found[:, :, 1], plain[:, :, 1])


@both_tables
def test_tables_are_shared_by_heads_and_start_small(values):
    made = wn.Shaw(64, 16, values)
    shapes = {n: tuple(p.shape) for n, p in made.named_parameters()}
    assert shapes == {"key_table": (33, 64), **({"value_table": (33, 64)} if values else {})}
    bound = np.sqrt(6 / (33 + 64))  # Glorot
    for table in made.parameters():
        assert 0.9 * bound < table.abs().max() <= bound
    assert made.needs_weights == values and made.doors == ((4, 5) if values else (4,))


@both_tables
def test_gradients_are_those_of_finite_differences(values):
    made = scribbled(wn.Shaw(4, 2, values)).double()
    q, k, v = (drawn(i, 1, 2, 3, 4).requires_grad_() for i in range(3))
    where = torch.tensor([0, 4, 1])

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        named = dict(zip(("key_table", "value_table"), tensors[3:], strict=False))
        return torch.func.functional_call(
            Layer(made, where), {f"encoding.{n}": t for n, t in named.items()}, tensors[:3]
        )

    tables = tuple(t.detach().clone().requires_grad_() for t in made.parameters())
    assert torch.autograd.gradcheck(run, (q, k, v, *tables))


class Layer(torch.nn.Module):
    def __init__(self, encoding: wn.Shaw, where: torch.Tensor) -> None:
        super().__init__()
        self.encoding, self.where = encoding, where

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return wn.attention(q, k, v, self.encoding, where=self.where)


@both_tables
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(values, dtype):
    made = scribbled(wn.Shaw(8, 2, values)).to(dtype)
    q, k, v = (drawn(i, 1, 2, 5, 8, dtype=dtype) for i in range(3))
    ids = torch.arange(5)
    found = wn.attention(q, k, v, made, where=ids)
    assert found.dtype == dtype
    exact = by_hand(made.double(), (q.double(), k.double(), v.double()), wn.Where(ids), None)
    one_rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    error = np.abs(found.detach().double().numpy() - exact)
    assert (error <= one_rounding * np.abs(exact) + 2.0**-18).all()


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"max_distance": -1}, ValueError, "max_distance must be at least 0, got -1"),
        ({"max_distance": "2"}, TypeError, "max_distance must be an int, got str"),
        ({"values": None}, TypeError, "values must be True or False, got None"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.Shaw(**{"head_dim": 4, "max_distance": 2, **options})


def test_another_head_dim_is_refused():
    q = drawn(0, 1, 2, 3, 6)
    with pytest.raises(ValueError, match="Shaw was built for head_dim=4, attention has 6"):
        wn.attention(q, q, q, wn.Shaw(4, 2))


def test_fused_attention_that_is_asked_for_is_refused():
    q = drawn(0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="sdpa.*Shaw"):
        wn.attention(q, q, q, wn.Shaw(4, 2), implementation="sdpa")
