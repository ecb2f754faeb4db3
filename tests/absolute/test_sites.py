"""Sites and joins of all four absolute encodings: who reads Π, and how it is added.

Axes: B batch, S tokens, T keys, E model dim, W width of a row, H heads.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn

DIM, HEADS, EXTRA = 8, 2, 6
LINE = torch.tensor([3, 0, 7, 2, 5])

MAKERS: dict[str, Callable[..., wn.PositionalEncoding]] = {
    "integer": lambda dim, **o: wn.Integer(dim, 4, **o),
    "binary": lambda dim, **o: wn.Binary(dim, 5, **o),
    "sinusoidal": lambda dim, **o: wn.Sinusoidal(dim, 50.0, "cos_sin", **o),
    "learned": lambda dim, **o: scribbled(wn.LearnedAbsolute(dim, 9, 1, 2, **o)),
}
each_encoding = pytest.mark.parametrize("name", MAKERS)
each_join = pytest.mark.parametrize("join", ["add", "concat"])


def scribbled(made: wn.LearnedAbsolute) -> wn.LearnedAbsolute:
    torch.nn.init.normal_(made.table)
    return made


def made(name: str, site: str, join: str) -> wn.PositionalEncoding:
    return MAKERS[name](DIM if join == "add" else EXTRA, site=site, join=join)


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def with_rows(x: torch.Tensor, rows: torch.Tensor, join: str) -> np.ndarray:
    """x + Π or [x, Π], by numpy."""
    x, rows = x.detach().double().numpy(), rows.detach().double().numpy()
    rows = np.broadcast_to(rows, (*x.shape[:-1], rows.shape[-1]))
    return x + rows if join == "add" else np.concatenate([x, rows], -1)


def plain_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Softmax attention of every head, not causal; (B, S, H D) each."""
    q, k, v = (t.reshape(*t.shape[:2], HEADS, -1).swapaxes(1, 2) for t in (q, k, v))
    logits = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1)


def layer_by_hand(layer: wn.Attention, x_q: np.ndarray, x_k: np.ndarray, x_v: np.ndarray):
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    w_q, w_k, w_v = (p.weight.detach().numpy() for p in projections)
    out = plain_attention(x_q @ w_q.T, x_k @ w_k.T, x_v @ w_v.T)
    return out @ layer.out_proj.weight.detach().numpy().T


@each_encoding
@each_join
def test_at_the_input_the_model_joins_once(name, join):
    encoding, x = made(name, "tokens", join), drawn(0, 2, 5, DIM)
    at = encoding.prepare(LINE)
    found = encoding.tokens(x, at)
    assert found.shape[-1] == encoding.width(DIM) == (DIM if join == "add" else DIM + EXTRA)
    rows = encoding.rows(LINE).double()
    np.testing.assert_allclose(found.detach(), with_rows(x, rows, join), rtol=0, atol=1e-15)
    for same in encoding.inputs(x, x, at):  # the layers join nothing
        assert same is x
    assert encoding.doors == (1,)


@each_encoding
@each_join
def test_at_every_layer_queries_keys_and_values_read_it(name, join):
    encoding, x = made(name, "every_layer", join), drawn(0, 2, 5, DIM)
    torch.manual_seed(0)
    layer = wn.Attention(DIM, HEADS, encoding).double()
    entered = with_rows(x, encoding.rows(LINE), join)
    expected = layer_by_hand(layer, entered, entered, entered)
    np.testing.assert_allclose(layer(x, where=LINE).detach(), expected, rtol=1e-12, atol=1e-12)
    assert encoding.tokens(x, encoding.prepare(LINE)) is x
    assert encoding.doors == (1,)


@each_encoding
@each_join
def test_for_queries_and_keys_the_values_never_see_it(name, join):
    encoding, x = made(name, "queries_keys", join), drawn(0, 2, 5, DIM)
    torch.manual_seed(0)
    layer = wn.Attention(DIM, HEADS, encoding).double()
    entered = with_rows(x, encoding.rows(LINE), join)
    expected = layer_by_hand(layer, entered, entered, x.numpy())
    np.testing.assert_allclose(layer(x, where=LINE).detach(), expected, rtol=1e-12, atol=1e-12)
    x_q, x_k, x_v = encoding.inputs(x, x, encoding.prepare(LINE))
    assert x_v is x and torch.equal(x_q, x_k)
    assert encoding.tokens(x, encoding.prepare(LINE)) is x
    assert layer.v_proj.in_features == DIM
    assert encoding.doors == (2,)


@each_encoding
@each_join
@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_a_context_has_positions_of_its_own(name, join, site):
    encoding, x, context = made(name, site, join), drawn(0, 2, 3, DIM), drawn(1, 2, 5, DIM)
    q_ids, k_ids = torch.tensor([6, 1, 4]), LINE
    torch.manual_seed(0)
    layer = wn.Attention(DIM, HEADS, encoding).double()
    x_q = with_rows(x, encoding.rows(q_ids), join)
    x_k = with_rows(context, encoding.rows(k_ids), join)
    x_v = x_k if site == "every_layer" else context.numpy()
    expected = layer_by_hand(layer, x_q, x_k, x_v)
    found = layer(x, context, where=wn.Where(q_ids, k_ids)).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@each_encoding
@each_join
@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
def test_every_sequence_may_have_its_own_positions(name, join, site):
    encoding, x = made(name, site, join), drawn(0, 2, 5, DIM)
    own = torch.stack([LINE, LINE.flip(0)])
    at = encoding.prepare(own)
    found = encoding.tokens(x, at) if site == "tokens" else encoding.inputs(x, x, at)[0]
    expected = with_rows(x, torch.stack([encoding.rows(o) for o in own]), join)
    np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=1e-15)


@each_encoding
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
def test_sums_in_half_types_are_rounded_once(name, dtype, site):
    """Π rounded to the half type before the sum would be a second rounding."""
    encoding = MAKERS[name](64, site=site)
    x = drawn(0, 2, 5, 64, dtype=dtype)
    at = encoding.prepare(LINE)
    found = encoding.tokens(x, at) if site == "tokens" else encoding.inputs(x, x, at)[0]
    assert found.dtype == dtype
    exact = torch.from_numpy(with_rows(x, encoding.rows(LINE), "add"))
    half_step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    error = (found.detach().double() - exact).abs()
    assert (error <= half_step * exact.abs() + 2.0**-22).all()
    if name in ("sinusoidal", "learned"):  # rows that the half type does not hold
        twice = (x + encoding(LINE).to(dtype)).double()
        assert ((twice - exact).abs() > half_step * exact.abs() + 2.0**-22).any()


@each_encoding
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_concatenated_rows_are_rounded_to_the_type_of_the_tokens(name, dtype):
    encoding, x = made(name, "tokens", "concat"), drawn(0, 1, 5, DIM, dtype=dtype)
    found = encoding.tokens(x, encoding.prepare(LINE))
    assert found.dtype == dtype
    assert_close(found[..., :DIM], x, rtol=0, atol=0)
    rows = encoding.rows(LINE).double()
    assert_close(found[0, :, DIM:], rows.to(dtype), rtol=0, atol=0)


@each_encoding
@each_join
def test_the_rows_reach_the_tokens_they_belong_to_and_x_stays(name, join):
    encoding, x = made(name, "tokens", join), drawn(0, 2, 5, DIM)
    before, at = x.clone(), encoding.prepare(LINE)
    whole = encoding.tokens(x, at)
    assert_close(x, before, rtol=0, atol=0)
    order = torch.tensor([4, 2, 0, 1, 3])
    moved = encoding.tokens(x[:, order], encoding.prepare(LINE[order]))
    assert_close(moved, whole[:, order], rtol=0, atol=0)


@each_encoding
@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
@pytest.mark.parametrize("join", ["add", "concat"])
def test_a_token_without_a_place_is_left_alone(name, site, join):
    encoding, x = made(name, site, join), drawn(0, 1, 3, DIM)
    where = wn.Where(
        torch.tensor([1, wn.NOWHERE, wn.NOWHERE]), key_mask=torch.tensor([True, True, False])
    )
    at = encoding.prepare(where)
    found = encoding.tokens(x, at) if site == "tokens" else encoding.inputs(x, x, at)[0]
    last = torch.cat([x[:, 2], torch.zeros(1, EXTRA)], -1) if join == "concat" else x[:, 2]
    assert_close(found[:, 2].detach(), last.double(), rtol=0, atol=0)
    touched = name == "learned"  # it has a prefix row for the first such token
    assert torch.equal(found[:, 1, :DIM].detach(), x[:, 1]) != (touched and join == "add")


@each_encoding
@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_addition_needs_rows_as_wide_as_the_tokens(name, site):
    for width in (DIM - 2, DIM + 2):
        encoding = MAKERS[name](width, site=site)
        with pytest.raises(ValueError, match=f"dim={width}.*width {DIM}: use dim={DIM} or"):
            encoding.inputs(drawn(0, 1, 5, DIM), drawn(0, 1, 5, DIM), encoding.prepare(LINE))


@each_encoding
def test_a_site_that_is_not_theirs_is_refused(name):
    q = drawn(0, 1, HEADS, 5, 4)
    for site in ("tokens", "every_layer", "queries_keys"):
        with pytest.raises(ValueError, match=f"joins tokens \\(site='{site}'\\)"):
            wn.attention(q, q, q, MAKERS[name](DIM, site=site), where=LINE)
    with pytest.raises(ValueError, match="belongs to the model"):
        wn.Attention(DIM, HEADS, MAKERS[name](DIM, site="tokens"))


@pytest.mark.untyped
@each_encoding
@pytest.mark.parametrize("site", ["tokens", "queries_keys"])
def test_they_compile(name, site):
    encoding = MAKERS[name](DIM, site=site)

    def run(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        at = encoding.prepare(positions)
        return encoding.tokens(x, at) if site == "tokens" else encoding.inputs(x, x, at)[0]

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 8):
        x, positions = drawn(0, 2, length, DIM, dtype=torch.bfloat16), torch.arange(length)
        assert_close(compiled(x, positions), run(x, positions), rtol=0, atol=0)
