"""Weights between the pairings: there and back bit for bit, and the same scores.

Axes: H query heads, G key heads, D head_dim, R rotary_dim, E model dim, S tokens.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn

OTHER = {"half": "interleaved", "interleaved": "half"}
EXACT = 1e-12  # float64: sums of some hundred products of numbers near 1


def pairs(width: int, pairing: str) -> list[tuple[int, int]]:
    """The two channels of every pair, from the definitions."""
    half = width // 2
    return [(k, k + half) if pairing == "half" else (2 * k, 2 * k + 1) for k in range(half)]


def moved(rows: list, heads: list[bool], head_dim: int, to: str, rotary_dim: int, side: str):
    """The rows as a list in the order that `to` wants, one by one."""
    out = list(rows)
    first = 0 if side == "leading" else head_dim - rotary_dim
    for h, turns in enumerate(heads):
        for old, new in zip(pairs(rotary_dim, OTHER[to]), pairs(rotary_dim, to), strict=True):
            for i, j in zip(old, new, strict=True):
                if turns:
                    out[h * head_dim + first + j] = rows[h * head_dim + first + i]
    return out


def turned(x: np.ndarray, positions: np.ndarray, pairing: str, width: int, side: str) -> np.ndarray:
    """(heads, S, D), every pair as a complex number."""
    out = x.copy()
    first = 0 if side == "leading" else x.shape[-1] - width
    for k, (i, j) in enumerate(pairs(width, pairing)):
        z = x[..., first + i] + 1j * x[..., first + j]
        z = z * np.exp(1j * positions * 100.0 ** (-2 * k / width))
        out[..., first + i], out[..., first + j] = z.real, z.imag
    return out


widths = st.sampled_from(
    [
        (2, 2, "leading"),
        (8, 8, "leading"),
        (8, 4, "leading"),
        (10, 6, "trailing"),
        (12, 8, "trailing"),
    ]
)
groups = st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 1), (6, 3)])
pairings = st.sampled_from(["half", "interleaved"])


@given(widths, st.integers(1, 5), pairings)
def test_every_row_goes_where_the_definition_says(width, heads, to):
    head_dim, rotary_dim, side = width
    rows = list(range(heads * head_dim))
    found = wn.convert_pairing(torch.tensor(rows), heads, head_dim, to, rotary_dim, side)
    assert found.tolist() == moved(rows, [True] * heads, head_dim, to, rotary_dim, side)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_there_and_back_is_bit_equal_for_every_type_on_every_axis(dtype, dim, to):
    shape = [3, 3, 3]
    shape[dim] = 4 * 8
    raw = torch.randint(0, 120, shape, dtype=torch.uint8)
    weight = raw.to(dtype)
    kept = weight.clone()
    there = wn.convert_pairing(weight, 4, 8, to, dim=dim)
    back = wn.convert_pairing(there, 4, 8, OTHER[to], dim=dim)
    assert there.dtype == back.dtype == dtype and there.shape == weight.shape
    for a, b in ((back, weight), (weight, kept)):
        assert bytes(a.contiguous().view(torch.uint8).numpy()) == bytes(
            b.contiguous().view(torch.uint8).numpy()
        )
    assert not torch.equal(there.to(torch.complex64), weight.to(torch.complex64))


def test_bits_that_are_no_number_are_moved_as_they_are():
    weight = torch.tensor([float("nan"), -0.0, 0.0, float("-inf")])
    found = wn.convert_pairing(weight, 1, 4)
    assert found.view(torch.int32).tolist() == weight.view(torch.int32)[[0, 2, 1, 3]].tolist()


def scores(wq, wk, bq, bk, x, groups, head_dim, positions, pairing, width, side):
    """(H, S, S) in NumPy, q and k read from x by the rows of the weights."""
    q, k = (
        (x @ w.T + b).reshape(len(x), -1, head_dim).swapaxes(0, 1) for w, b in ((wq, bq), (wk, bk))
    )
    q, k = (turned(t, positions, pairing, width, side) for t in (q, k))
    return q @ np.repeat(k, len(q) // groups, 0).swapaxes(-1, -2)


@given(widths, groups, pairings, st.integers(0, 2**16))
def test_scores_are_unchanged(width, counts, to, seed):
    head_dim, rotary_dim, side = width
    (H, G), rng = counts, np.random.default_rng(seed)
    wq, wk, bq, bk = (
        torch.from_numpy(rng.standard_normal(shape))
        for shape in ((H * head_dim, 6), (G * head_dim, 6), (H * head_dim,), (G * head_dim,))
    )
    x, positions = rng.standard_normal((5, 6)), np.array([0, 1, 7, 30, 1000])
    before = scores(
        *(t.numpy() for t in (wq, wk, bq, bk)),
        *(x, G, head_dim, positions, OTHER[to], rotary_dim, side),
    )
    new = [
        wn.convert_pairing(t, n, head_dim, to, rotary_dim, side).numpy()
        for t, n in ((wq, H), (wk, G), (bq, H), (bk, G))
    ]
    after = scores(*new, x, G, head_dim, positions, to, rotary_dim, side)
    np.testing.assert_allclose(after, before, rtol=EXACT, atol=EXACT * np.abs(before).max())


@given(widths, groups, pairings)
def test_attention_with_the_other_rope_is_the_same(width, counts, to):
    head_dim, rotary_dim, side = width
    H, G = counts
    old, new = (wn.RoPE(head_dim, 100.0, p, rotary_dim, side) for p in (OTHER[to], to))
    layers = [wn.Attention(H * head_dim, H, rope, G, causal=True).double() for rope in (old, new)]
    state = layers[0].state_dict()
    for name, heads in (("q_proj", H), ("k_proj", G)):
        for part in ("weight", "bias"):
            if f"{name}.{part}" in state:
                state[f"{name}.{part}"] = wn.convert_pairing(
                    state[f"{name}.{part}"], heads, head_dim, to, rotary_dim, side
                )
    layers[1].load_state_dict(state)
    x, where = (
        torch.randn(2, 6, H * head_dim, dtype=torch.float64),
        torch.tensor([0, 1, 5, 9, 9, 50]),
    )
    assert_close(layers[1](x, where=where), layers[0](x, where=where), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("to", ["half", "interleaved"])
@pytest.mark.parametrize("width", [(8, 8, "leading"), (8, 4, "leading"), (8, 6, "trailing")])
def test_a_norm_over_a_head_moves_with_it(to, width):
    """Query and key norms: one weight a channel of a head, or one for every row."""
    head_dim, rotary_dim, side = width
    rng = np.random.default_rng(0)
    q, positions = rng.standard_normal((2, 5, head_dim)), np.array([0, 3, 4, 90, 1000])
    shared, own = rng.standard_normal(head_dim), rng.standard_normal(2 * head_dim)

    def normed(q, weight, pairing):
        q = q / np.sqrt((q**2).mean(-1, keepdims=True))
        return turned(q * weight.reshape(-1, 1, head_dim), positions, pairing, rotary_dim, side)

    def convert(rows, heads):
        rows = torch.from_numpy(np.ascontiguousarray(rows))
        return wn.convert_pairing(rows, heads, head_dim, to, rotary_dim, side).numpy()

    rows = convert(q.swapaxes(1, 2).reshape(-1, 5), 2).reshape(2, head_dim, 5).swapaxes(1, 2)
    for weight, heads in ((shared, 1), (own, 2)):
        before = normed(q, weight, OTHER[to])
        after = normed(rows, convert(weight, heads), to)
        expected = before @ before.swapaxes(-1, -2)
        np.testing.assert_allclose(after @ after.swapaxes(-1, -2), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_the_shared_key_head_of_latent_attention(to):
    """DeepSeek: of kv_a_proj_with_mqa the rows after the latent turn, of every query the last."""
    latent, nope, rope, H, E = 6, 4, 8, 3, 5
    rng = np.random.default_rng(1)
    q_b, kv_a = rng.standard_normal((H * (nope + rope), E)), rng.standard_normal((latent + rope, E))
    x, positions = rng.standard_normal((4, E)), np.array([0, 2, 11, 300])
    new_q = wn.convert_pairing(torch.from_numpy(q_b), H, nope + rope, to, rope, "trailing").numpy()
    new_k = wn.convert_pairing(
        torch.from_numpy(kv_a), 1, latent + rope, to, rope, "trailing"
    ).numpy()
    np.testing.assert_array_equal(new_k[:latent], kv_a[:latent])
    assert not (new_k[latent:] == kv_a[latent:]).all()

    def found(q_b, kv_a, pairing):
        q = (x @ q_b.T).reshape(4, H, nope + rope).swapaxes(0, 1)
        k = turned((x @ kv_a[latent:].T)[None], positions, pairing, rope, "leading")
        return turned(q, positions, pairing, rope, "trailing")[..., nope:] @ k.swapaxes(-1, -2)

    np.testing.assert_allclose(found(new_q, new_k, to), found(q_b, kv_a, OTHER[to]), rtol=1e-11)


FUSED = {
    ("stacked", 4, 2): "qqqqkkvv",
    ("stacked", 3, 3): "qqqkkkvvv",
    ("grouped", 4, 2): "qqkvqqkv",
    ("grouped", 3, 3): "qkvqkvqkv",
    ("grouped", 3, 1): "qqqkv",
    ("codegen", 8, 8): "qqvvkkqqvvkkqqvvkkqqvvkk",
}


@pytest.mark.parametrize("to", ["half", "interleaved"])
@pytest.mark.parametrize(("layout", "H", "G"), FUSED)
def test_fused_weights_keep_their_values_where_they_were(layout, H, G, to):
    heads = [letter != "v" for letter in FUSED[layout, H, G]]
    for head_dim, rotary_dim, side in ((8, 8, "leading"), (8, 6, "trailing"), (6, 2, "leading")):
        rows = list(range(len(heads) * head_dim))
        options = (H, head_dim, G, layout, to, rotary_dim, side)
        found = wn.convert_fused_qkv(torch.tensor(rows), *options)
        assert found.tolist() == moved(rows, heads, head_dim, to, rotary_dim, side)
        transposed = torch.tensor(rows).expand(3, -1)
        other_axis = wn.convert_fused_qkv(transposed, *options, dim=1)
        assert_close(other_axis, found.expand(3, -1), rtol=0, atol=0)


def test_fused_weights_without_num_kv_heads_have_as_many_keys_as_queries():
    rows = torch.arange(3 * 2 * 4)
    assert_close(
        wn.convert_fused_qkv(rows, 2, 4), wn.convert_fused_qkv(rows, 2, 4, 2, "stacked", "half")
    )


def test_scales_and_zero_points_of_rows_move_with_their_rows():
    """A weight in int8 with a scale and a zero point for each row, or for each group in a row."""
    rng = np.random.default_rng(2)
    packed = torch.from_numpy(rng.integers(-128, 128, (2 * 8, 12), dtype=np.int8))
    for shape in ((16,), (16, 1), (16, 3)):
        scale = torch.from_numpy(rng.random(shape))
        zero = torch.from_numpy(rng.integers(-9, 9, shape))

        def wide(packed, scale, zero):
            grouped = packed.reshape(16, scale.numel() // 16, -1).double()
            return ((grouped - zero.reshape(16, -1, 1)) * scale.reshape(16, -1, 1)).reshape(16, 12)

        expected = wn.convert_pairing(wide(packed, scale, zero), 2, 8)
        found = wide(*(wn.convert_pairing(t, 2, 8) for t in (packed, scale, zero)))
        assert_close(found, expected, rtol=0, atol=0)


def test_gradients_go_to_the_rows_that_they_come_from():
    weight = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(8, 3, dtype=torch.float64)
    (wn.convert_pairing(weight, 2, 4) * upstream).sum().backward()
    assert_close(weight.grad, wn.convert_pairing(upstream, 2, 4, "interleaved"), rtol=0, atol=0)


def test_the_input_stays_and_the_copy_is_no_view_of_it():
    weight = torch.arange(8.0).expand(2, 8).T
    found = wn.convert_pairing(weight, 1, 8)
    found.zero_()
    assert weight[:, 1].tolist() == list(range(8))
    assert wn.convert_pairing(torch.empty(8, 4, device="meta"), 2, 4).shape == (8, 4)
    assert wn.convert_pairing(torch.nn.Parameter(torch.ones(8)), 2, 4).shape == (8,)


BAD = [
    ({"num_heads": 3}, "3 heads of 4 rows, 12, on axis 0; got 8"),
    ({"num_heads": 4}, "4 heads of 4 rows, 16, on axis 0; got 8"),
    ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
    ({"head_dim": 8}, "2 heads of 8 rows"),
    ({"head_dim": 0}, "head_dim must be at least 1"),
    ({"head_dim": 1, "num_heads": 8}, "rotary_dim must be even.*got 1"),
    ({"rotary_dim": 3}, "rotary_dim must be even.*got 3"),
    ({"rotary_dim": 6}, "fit head_dim=4; got 6"),
    ({"rotary_dim": 0}, "rotary_dim must be at least 2"),
    ({"to": "neox"}, "to must be one of 'half', 'interleaved'; got 'neox'"),
    ({"side": "left"}, "side must be one of 'leading', 'trailing'; got 'left'"),
    ({"dim": 1}, r"on axis 1; got 5 of shape \(8, 5\)"),
    ({"dim": 2}, r"dim must be an axis of weight, \(8, 5\); got 2"),
    ({"dim": -3}, "dim must be an axis of weight"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.convert_pairing(torch.zeros(8, 5), **{"num_heads": 2, "head_dim": 4, **options})


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "megatron"}, "layout must be one of 'stacked', 'grouped', 'codegen'"),
        ({"num_kv_heads": 3}, "multiple of num_kv_heads, got 4 and 3"),
        ({"num_kv_heads": 8}, "multiple of num_kv_heads, got 4 and 8"),
        ({"num_kv_heads": 2, "layout": "codegen"}, "'codegen' has four parts"),
        ({"num_kv_heads": 2}, "8 heads of 4 rows, 32, on axis 0; got 48"),
        ({"num_heads": 6, "layout": "codegen"}, "num_heads=6"),
    ],
)
def test_fused_weights_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.convert_fused_qkv(torch.zeros(48, 5), **{"num_heads": 4, "head_dim": 4, **options})


@pytest.mark.untyped
def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="weight must be a tensor, got ndarray"):
        wn.convert_pairing(np.zeros((8, 5)), 2, 4)
    for name in ("num_heads", "head_dim", "rotary_dim", "dim"):
        for value in (True, 2.0, "2"):
            with pytest.raises(TypeError, match=f"{name} must be an int"):
                wn.convert_pairing(
                    torch.zeros(8, 5), **{"num_heads": 2, "head_dim": 4, name: value}
                )
