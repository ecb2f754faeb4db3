"""What wn.attention refuses, and with which words."""

import re

import pytest
import torch

import whereness as wn
from attend.oracle import Wave, qkv

Q, K, V = qkv(dtype=torch.float32)
LONG = qkv(queries=3, keys=5, dtype=torch.float32)


def refused(error: type[Exception], message: str, *args, **options) -> None:
    with pytest.raises(error, match=message):
        wn.attention(*(args or (Q, K, V)), **options)


# Tensors


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
def test_every_tensor_has_the_axes_of_the_layout(name, layout):
    good = {"q": Q, "k": K, "v": V}
    if layout == "thd":
        good = {n: t[0].transpose(0, 1) for n, t in good.items()}
    needed = 3 if layout == "thd" else 4
    for bad in (good[name][None], good[name][0]):
        given = {**good, name: bad}
        message = rf"^{name} .*{layout}.*{needed} axes.*{re.escape(str(tuple(bad.shape)))}"
        refused(ValueError, message, *given.values(), layout=layout)


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_every_tensor_is_a_tensor_of_floating_point_numbers(name):
    for bad, message in (
        (Q.long(), "floating-point numbers, got torch.int64"),
        (Q > 0, "torch.bool"),
        (Q.tolist(), "be a tensor, got list"),
        (None, "be a tensor, got NoneType"),
    ):
        given = {"q": Q, "k": K, "v": V, name: bad}
        refused(TypeError, f"^{name} must .*{message}", *given.values())


def test_dtypes_devices_and_batches_must_agree():
    for dtype in (torch.float64, torch.bfloat16):
        refused(TypeError, f"share a dtype, got torch.float32 and {dtype}", Q, K.to(dtype), V)
        refused(TypeError, f"share a dtype, got torch.float32 and {dtype}", Q, K, V.to(dtype))
    refused(ValueError, "share a device, got cpu and meta", Q, K.to("meta"), V)
    refused(ValueError, "share a device, got cpu and meta", Q, K, V.to("meta"))
    refused(ValueError, "share a device, got meta and cpu", Q.to("meta"), K, V)
    refused(ValueError, "[Bb]atch sizes must agree, got q 2 and k 1", Q, K[:1], V[:1])
    refused(ValueError, "[Bb]atch sizes must agree, got q 2 and v 1", Q, K, V[:1])
    refused(ValueError, "[Bb]atch sizes must agree, got q 1 and k 2", Q[:1], K, V)


def test_widths_heads_and_tokens_must_fit():
    refused(ValueError, "q and k must share D, got 8 and 6", Q, K[..., :6], V)
    refused(
        ValueError,
        r"k and v must share heads and tokens, got \(2, 2, 6, 8\) and \(2, 2, 5, 8\)",
        Q,
        K,
        V[:, :, :5],
    )
    refused(ValueError, r"k and v must share heads.*\(2, 1, 6, 8\)", Q, K, V[:, :1])
    refused(ValueError, "multiple of key heads, got 3 and 2", Q[:, :3], K, V)
    refused(ValueError, "multiple of key heads, got 1 and 2", Q[:, :1], K, V)
    refused(ValueError, "multiple of key heads, got 4 and 0", Q, K[:, :0], V[:, :0])
    refused(
        ValueError, r"needs keys and a width, got k \(2, 2, 0, 8\)", Q, K[:, :, :0], V[:, :, :0]
    )
    refused(ValueError, r"needs keys and a width, got k \(2, 2, 6, 0\)", Q[..., :0], K[..., :0], V)


@pytest.mark.untyped
def test_layouts_that_do_not_exist():
    for layout in ("BHSD", "hbsd", "", None):
        refused(ValueError, "layout must be one of 'bhsd', 'bshd', 'thd'; got", layout=layout)


# Encodings


def test_an_encoding_that_joins_tokens_is_not_attentions_business():
    for site in ("tokens", "every_layer", "queries_keys"):
        encoding = wn.Sinusoidal(32, site=site)
        for given in (encoding, [wn.RoPE(8), encoding]):
            refused(ValueError, rf"site='{site}'.*doors 3 to 5", encoding=given)


def test_an_encoding_built_for_other_heads():
    refused(ValueError, "ALiBi was built for num_heads=3, attention has 4", encoding=wn.ALiBi(3))
    refused(ValueError, "RoPE was built for head_dim=16, attention has 8", encoding=wn.RoPE(16))
    refused(ValueError, "Shaw was built for head_dim=4, attention has 8", encoding=wn.Shaw(4, 2))
    refused(ValueError, "num_heads=2, attention has 4", encoding=[wn.RoPE(8), wn.ALiBi(2)])


def test_members_of_a_list_that_were_built_for_different_heads():
    for pair in (
        [wn.ALiBi(4), wn.LearnedRelative(2, 3)],
        [wn.ALiBi(4), wn.ALiBi(2)],
        [wn.ALiBi(1), wn.ALiBi(4)],
    ):
        refused(ValueError, "agree in num_heads", encoding=pair)
    for pair in ([wn.RoPE(8), wn.Shaw(4, 2)], [wn.RoPE(4), wn.RoPE(8)]):
        refused(ValueError, "agree in head_dim", encoding=pair)


def test_an_encoding_without_a_meaning_for_later_keys_needs_a_causal_mask():
    refused(
        ValueError, "T5 has no meaning for keys after the query.*causal=True", encoding=wn.T5(4)
    )
    refused(ValueError, "Combined has no meaning for keys after", encoding=[wn.RoPE(8), wn.T5(4)])


@pytest.mark.untyped
def test_what_is_no_encoding():
    for bad in ("rope", wn.RoPE, 3, torch.nn.Linear(2, 2)):
        refused(
            TypeError,
            "encoding must be a whereness encoding, a list of them, or None",
            encoding=bad,
        )
    refused(TypeError, "takes whereness encodings, got str", encoding=["rope"])
    refused(ValueError, "at least one encoding, got an empty list", encoding=[])


# Order and masks


def test_causal_queries_cannot_outnumber_the_keys():
    q, k, v = LONG
    refused(ValueError, "6 queries need at least as many keys, got 5", Q, k, v, causal=True)
    assert wn.attention(q, k, v, causal=True).shape == q.shape


@pytest.mark.untyped
def test_flags_are_true_or_false():
    for bad in (None, 1, "yes", torch.tensor(True)):
        refused(TypeError, "causal must be True or False, got", causal=bad)
        refused(TypeError, "return_weights must be True or False, got", return_weights=bad)


@pytest.mark.untyped
def test_windows_that_make_no_sense():
    for bad in (0, -1):
        refused(ValueError, f"window must be at least 1, got {bad}", window=bad)
    for bad in (2.0, "3", True):
        refused(TypeError, "window must be an int, got", window=bad)


@pytest.mark.untyped
def test_a_mask_is_bool():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        bad = torch.zeros(6, 6, dtype=dtype)
        refused(
            TypeError, rf"mask must be bool \(True = may attend\), got {dtype}.*mask == 0", mask=bad
        )
    refused(TypeError, "mask must be a bool tensor, got list", mask=[[True] * 6] * 6)


BAD_MASKS = [(6,), (2, 6, 6), (4, 6, 6), (1, 6, 6), (1, 1, 1, 6, 6), (6, 5), (5, 6), (6, 1)]
BAD_MASKS += [(3, 1, 6, 6), (2, 2, 6, 6), (2, 3, 6, 6), (2, 4, 3, 6), (2, 4, 6, 7), (1, 1, 6, 1)]


@pytest.mark.parametrize("shape", BAD_MASKS)
def test_a_mask_of_a_shape_that_does_not_fit_or_is_ambiguous(shape):
    bad = torch.ones(shape, dtype=torch.bool)
    found = re.escape(str(shape))
    refused(ValueError, rf"^mask must .*\(B, H, S, T\).*got {found}", mask=bad)


@pytest.mark.untyped
def test_a_key_mask_is_bool_or_ones_and_zeros():
    for dtype in (torch.float32, torch.float16):
        refused(
            TypeError,
            "key_mask must hold bool or 1 and 0.*mask == 0",
            key_mask=torch.ones(2, 6, dtype=dtype),
        )
    for number in (2, -1, 255):
        bad = torch.ones(2, 6, dtype=torch.int64)
        bad[1, 3] = number
        refused(ValueError, "key_mask must hold only 1", key_mask=bad)
    refused(TypeError, "key_mask must be a tensor, got list", key_mask=[[1] * 6] * 2)


@pytest.mark.parametrize("shape", [(2, 5), (2, 7), (6, 2), (2, 6, 1), (2, 1, 1, 6), (1, 5), (5,)])
def test_a_key_mask_that_does_not_fit_the_keys(shape):
    bad = torch.ones(shape, dtype=torch.bool)
    found = re.escape(str(shape if len(shape) > 1 else (1, *shape)))
    refused(ValueError, rf"key_mask must be \(B, T\) with T=6 keys, got {found}", key_mask=bad)


def test_a_key_mask_of_another_batch():
    refused(
        ValueError, "key_mask must have batch size 1 or 2, got 3", key_mask=torch.ones(3, 6) > 0
    )


def test_a_key_mask_given_twice():
    mask = torch.ones(2, 6, dtype=torch.bool)
    refused(ValueError, "key_mask was given twice", where=wn.Where(key_mask=mask), key_mask=mask)
    at = wn.NoPE().prepare(wn.Where(torch.arange(6), key_mask=mask))
    refused(ValueError, "key_mask", encoding=at.encoding, where=at, key_mask=mask)


# Positions


def test_positions_that_cannot_be_guessed():
    q, k, v = LONG
    refused(
        ValueError,
        r"3 queries and 5 keys without positions.*k_positions",
        q,
        k,
        v,
        encoding=wn.RoPE(8),
    )
    for segments in (torch.zeros(3).long(), torch.zeros(5).long()):
        where = wn.Where(segments=segments)
        with pytest.raises(ValueError, match="queries and .* keys|as long as"):
            wn.attention(q, k, v, wn.RoPE(8), where=where, causal=True)
    refused(
        ValueError, r"AxialRoPE needs positions of 2 axes.*num_axes", encoding=wn.AxialRoPE(8, 2)
    )


def test_positions_that_do_not_fit_the_tokens():
    refused(
        ValueError,
        "needed 6 queries and 6 keys, got 5 and 5",
        where=torch.arange(5),
        encoding=wn.RoPE(8),
    )
    q, k, v = LONG
    refused(ValueError, "needed 3 queries and 5 keys, got 3 and 3", q, k, v, where=torch.arange(3))
    where = wn.Where(torch.arange(3), torch.arange(4))
    refused(ValueError, "needed 3 queries and 5 keys, got 3 and 4", q, k, v, where=where)
    refused(
        ValueError, "positions must have batch size 1 or 2, got 3", where=torch.zeros(3, 6).long()
    )
    where = wn.Where(torch.arange(3), torch.zeros(4, 5).long())
    refused(ValueError, "k_positions must have batch size 1 or 2, got 4", q, k, v, where=where)
    where = wn.Where(torch.arange(6), segments=torch.zeros(3, 6).long())
    refused(ValueError, "segments must have batch size 1 or 2, got 3", where=where)
    where = wn.Where(torch.arange(6), lengths=torch.tensor([3, 4, 5]))
    refused(ValueError, "lengths must have batch size 1 or 2, got 3", where=where)
    where = wn.Where(torch.arange(6), lengths=torch.ones(2, 5).long())
    refused(
        ValueError, r"lengths must be one a sequence or one a new token, got \(2, 5\)", where=where
    )


def test_positions_of_another_number_of_axes():
    grid = wn.Where(wn.positions.grid(2, 3), num_axes=2)
    refused(ValueError, "RoPE reads positions of 1 axes, got 2", where=grid, encoding=wn.RoPE(8))
    refused(
        ValueError,
        "AxialRoPE reads positions of 2 axes, got 1",
        where=wn.Where(torch.arange(6)),
        encoding=wn.AxialRoPE(8, 2),
    )
    refused(
        ValueError, "end in num_axes=2", where=torch.zeros(6, 3).long(), encoding=wn.AxialRoPE(8, 2)
    )


def test_positions_on_another_device():
    refused(ValueError, "positions must be on cpu, got meta", where=torch.arange(6, device="meta"))


FAR = torch.ones(6, dtype=torch.int64, device="meta")
ELSEWHERE = {
    "mask": lambda ids: {"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")},
    "key_mask": lambda ids: {"key_mask": FAR, "where": ids},
    "key_mask alone": lambda ids: {"key_mask": FAR},
    "key_mask of Where": lambda ids: {"where": wn.Where(ids, key_mask=FAR)},
    "k_positions": lambda ids: {"where": wn.Where(ids, FAR)},
    "segments": lambda ids: {"where": wn.Where(ids, segments=FAR)},
    "k_segments": lambda ids: {"where": wn.Where(ids, ids, segments=ids, k_segments=FAR)},
    "lengths": lambda ids: {"where": wn.Where(ids, lengths=FAR[:1])},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_lies_on_another_device_is_named(name):
    options = ELSEWHERE[name](torch.arange(6))
    refused(ValueError, f"^{name.split()[0]} .*cpu.* meta", **options)


def test_all_that_lies_on_another_device_is_named():
    ids = torch.arange(6)
    where = wn.Where(ids, segments=FAR, key_mask=FAR, lengths=FAR[:1])
    message = "^segments, key_mask, lengths must be on cpu, got meta"
    refused(ValueError, message, where=where)
    with pytest.raises(ValueError, match=message):
        wn.RoPE(8).prepare(where)
    with pytest.raises(ValueError, match=message):
        wn.LearnedAbsolute(8, 9, 1).prepare(where)
    with pytest.raises(ValueError, match=message):
        wn.Transformer(5, 8, 1, 2)(ids[None], where=where)
    refused(
        ValueError, "^k_positions must be on cpu", encoding=wn.RoPE(8), where=wn.Where(ids, FAR)
    )


def test_a_cache_on_another_device_is_named():
    layer, cache = wn.Attention(8, 2, wn.RoPE(4), causal=True), wn.KVCache()
    layer(torch.ones(1, 2, 8), cache=cache)
    for call in (
        lambda: layer.to("meta")(torch.ones(1, 1, 8, device="meta"), cache=cache),
        lambda: cache.evict(FAR[:1]),
        lambda: cache.reorder(FAR[:1]),
    ):
        with pytest.raises(ValueError, match="^(The cached keys|slots|rows) must be on .*, got"):
            call()
    cache = wn.KVCache()
    layer = layer.to_empty(device="cpu")
    layer(torch.ones(1, 2, 8), cache=cache)
    with pytest.raises(ValueError, match="^key_mask must be on cpu, got meta"):
        layer(torch.ones(1, 4, 8), cache=cache, key_mask=FAR)


@pytest.mark.untyped
def test_positions_of_a_wrong_kind():
    for bad in ([0, 1, 2, 3, 4, 5], 6, "all", range(6)):
        refused(TypeError, "where must be a tensor, a wn.Where or what prepare", where=bad)
    for dtype in (torch.bfloat16, torch.float16, torch.bool):
        refused(
            TypeError, f"int64, float32 or float64, got {dtype}", where=torch.zeros(6, dtype=dtype)
        )


def test_positions_prepared_by_another_encoding():
    one, other = wn.RoPE(8), wn.RoPE(8)
    at = one.prepare(torch.arange(6))
    refused(ValueError, "prepared for another RoPE", where=at, encoding=other)
    refused(ValueError, "prepared for another RoPE", where=at)
    refused(ValueError, "prepared for another RoPE", where=at, encoding=[one])
    refused(ValueError, "needed 6 queries", where=one.prepare(torch.arange(4)), encoding=one)
    assert wn.attention(Q, K, V, one, where=at).shape == Q.shape


# Options


@pytest.mark.untyped
def test_dropout_is_a_probability_below_one():
    for bad in (1.0, 1, -0.1, 1.5, float("nan"), "0.1", None, False, torch.tensor(0.1)):
        refused(ValueError, r"dropout must be in \[0, 1\), got", dropout=bad)


@pytest.mark.untyped
def test_scale_is_a_number():
    for bad in ("1", torch.tensor(0.5), [1.0], True):
        refused(TypeError, f"scale must be a number or None, got {type(bad).__name__}", scale=bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scale_is_finite(bad):
    """Anything else makes every output NaN in silence."""
    refused(ValueError, "scale", scale=bad)


@pytest.mark.parametrize("kernel", ["native", "triton"])
def test_kernels_of_door_3_are_no_implementations_of_attention(kernel):
    refused(
        ValueError,
        f"'{kernel}' names a kernel that turns queries and keys.*one of auto, blocks",
        implementation=kernel,
    )


@pytest.mark.untyped
def test_implementations_that_do_not_exist():
    for bad in ("flash", "SDPA", "", None):
        refused(
            ValueError,
            "implementation must be one of 'auto', 'blocks', 'flex', 'reference', 'sdpa', "
            "'toeplitz'; got",
            implementation=bad,
        )


def test_an_implementation_that_cannot_serve_the_call_says_so():
    refused(
        ValueError,
        "has no weights to return: use 'reference'",
        implementation="sdpa",
        return_weights=True,
    )
    ids = torch.arange(6)
    for encoding in (
        Wave(4, "multiply"),
        Wave(4, "add", "weights"),
        wn.Shaw(8, 2),
        wn.Shaw(8, 2, False),
    ):
        name = type(encoding).__name__
        refused(
            ValueError,
            f"serves additive biases on logits only, not {name}: use 'reference'",
            implementation="sdpa",
            encoding=encoding,
            where=ids,
        )
    refused(
        ValueError,
        "not Combined",
        implementation="sdpa",
        encoding=[wn.RoPE(8), wn.Shaw(8, 2)],
        where=ids,
    )
