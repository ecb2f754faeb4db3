"""MultimodalRoPE against plain RoPE and complex numbers, pair by pair.

Axes: B batch, H heads, S tokens, D head_dim, n axes of a position (time, height, width).
"""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.support import agree, drawn, pairs, spectrum, turned

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
T, H, W = 0, 1, 2


def letters(text: str) -> list[int]:
    """Axes by their letters."""
    return ["THW".index(letter) for letter in text]


# head_dim, sections, order -> the axis of every pair, as the models' own code has it.
PUBLISHED = [
    (128, (16, 24, 24), "chunked", letters("T" * 16 + "H" * 24 + "W" * 24)),  # Qwen2-VL
    (64, (8, 12, 12), "chunked", letters("T" * 8 + "H" * 12 + "W" * 12)),  # GLM-4V
    (128, (24, 20, 20), "interleaved", letters("THW" * 20 + "TTTT")),  # Qwen3-VL
    (64, (11, 11, 10), "interleaved", letters("THW" * 10 + "TH")),  # Qwen3.5
    (128, (22, 22, 20), "ernie", letters("HW" * 22 + "T" * 20)),  # ERNIE-4.5-VL
    (128, (16, 16, 16, 16), "chunked", [axis for axis in range(4) for _ in range(16)]),  # XD-RoPE
    (16, (4, 4), "interleaved", [0, 1, 0, 1, 0, 1, 0, 1]),
    (16, (4, 2, 2), "interleaved", letters("THWTHWTT")),
    (16, (3, 1, 1, 3), "interleaved", [0, 1, 2, 3, 0, 0, 0, 3]),
]


@pytest.mark.parametrize(("head_dim", "sections", "order", "axes"), PUBLISHED[:-1])
def test_orders_are_those_of_the_models(head_dim, sections, order, axes):
    rope = wn.MultimodalRoPE(head_dim, sections, order)
    assert list(rope.axis_of_pair) == axes
    assert rope.num_axes == len(sections)
    assert_close(rope.frequencies, wn.RoPE(head_dim).frequencies, rtol=0, atol=0)


def test_interleaved_axes_take_every_nth_pair_from_their_own():
    with pytest.raises(ValueError, match="gives axis 3 every 4th pair, at most 2 of 8"):
        wn.MultimodalRoPE(16, (3, 1, 1, 3), "interleaved")
    assert wn.MultimodalRoPE(16, (4, 1, 1, 2), "interleaved").axis_of_pair == (
        0,
        1,
        2,
        3,
        0,
        0,
        0,
        3,
    )


@given(
    order=st.sampled_from(["chunked", "interleaved", "ernie"]),
    third=st.integers(1, 4),
    more=st.integers(0, 3),
    pairing=st.sampled_from(["half", "interleaved"]),
    rest=st.integers(0, 3),
    side=st.sampled_from(["leading", "trailing"]),
    base=st.sampled_from([10_000.0, 100.0, 5e6]),
    dtype=st.sampled_from(DTYPES),
    inverse=st.booleans(),
    real=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_pair_turns_by_its_own_coordinate(
    order, third, more, pairing, rest, side, base, dtype, inverse, real, seed
):
    width = 2 * (3 * third + more)
    if order == "ernie":
        sections, axes = (third, third, third + more), letters("HW" * third + "T" * (third + more))
    elif order == "chunked":
        sections = (third + more, third, third)
        axes = letters("T" * (third + more) + "H" * third + "W" * third)
    else:
        sections, axes = (third + more, third, third), letters("THW" * third + "T" * more)
    rope = wn.MultimodalRoPE(width + rest, sections, order, base, pairing, width, side)
    x = drawn(seed, (2, 3, 4, width + rest), dtype)
    rng = np.random.default_rng(seed)
    positions = rng.uniform(-900, 900, (2, 4, 3)) if real else rng.integers(-900, 900, (2, 4, 3))
    angles = (positions[..., axes] * spectrum(base, width))[:, None]
    channels = pairs(pairing, width, rest if side == "trailing" else 0)
    exact, size = turned(x.double().numpy(), channels, -angles if inverse else angles)
    for found in (
        rope.rotate(x, torch.from_numpy(positions), inverse=inverse),
        rope.rotate_(x.clone(), torch.from_numpy(positions), inverse=inverse),
    ):
        agree(found, exact, size, float(np.abs(angles).max()))


@pytest.mark.parametrize(("head_dim", "sections", "order", "axes"), PUBLISHED[:-1])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_text_is_turned_as_by_rope(head_dim, sections, order, axes, pairing):
    q, k = (drawn(i, (2, 3, 5, head_dim), torch.float32) for i in (0, 1))
    line = torch.tensor([0, 3, 4, 900, 2**24 - 1])
    text = line[:, None].expand(-1, len(sections))
    plain = wn.RoPE(head_dim, 5e6, pairing)
    rope = wn.MultimodalRoPE(head_dim, sections, order, 5e6, pairing)
    for found, expected in zip(rope(q, k, text), plain(q, k, line), strict=True):
        assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "scaling",
    [
        wn.scaling.Linear(4.0),
        wn.scaling.YaRN(4.0, 64),
        wn.scaling.DynamicNTK(2.0, 64),
        wn.scaling.Llama3(8.0, 1.0, 4.0, 64),
    ],
    ids=lambda s: type(s).__name__,
)
def test_scalings_are_those_of_rope(scaling):
    """Also where they depend on length, and with lengths that are given."""
    options = {"base": 100.0, "rotary_dim": 16, "scaling": scaling}
    rope = wn.MultimodalRoPE(20, (4, 2, 2), "interleaved", **options)
    plain = wn.RoPE(20, **options)
    assert (rope.amplitude, rope.needs_lengths) == (plain.amplitude, plain.needs_lengths)
    assert_close(rope.frequencies_at(300), plain.frequencies_at(300), rtol=0, atol=0)
    q = drawn(0, (1, 2, 5, 20), torch.float64)
    line = torch.tensor([0, 3, 4, 90, 299])
    for lengths in (None, 500):
        found = rope.rotate(q, wn.Where(line[:, None].expand(-1, 3), lengths=lengths, num_axes=3))
        expected = plain.rotate(q, wn.Where(line, lengths=lengths))
        assert_close(found, expected, rtol=0, atol=0)
    image = torch.tensor([[7, 8, 9], [7, 8, 10], [7, 9, 9], [7, 9, 10], [11, 11, 11]])
    one = rope.rotate(q, wn.Where(image, lengths=500, num_axes=3))
    for axis in range(3):
        pairs_ = [k for k, a in enumerate(rope.axis_of_pair) if a == axis]
        channels = [*pairs_, *(k + 8 for k in pairs_)]
        expected = plain.rotate(q, wn.Where(image[:, axis], lengths=500))
        assert_close(one[..., channels], expected[..., channels], rtol=0, atol=0)


@pytest.mark.parametrize("order", ["chunked", "interleaved", "ernie"])
def test_scores_depend_on_the_offset_of_every_axis_alone(order):
    rope = wn.MultimodalRoPE(24, None, order, 100.0)
    q, k = (drawn(i, (1, 2, 6, 24), torch.float64) for i in (0, 1))
    positions = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (6, 3)))
    scores = [
        a @ b.mT
        for a, b in (rope(q, k, positions), rope(q, k, positions + torch.tensor([9, -4, 1000])))
    ]
    assert_close(*scores, rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", ["chunked", "interleaved", "ernie"])
def test_angles_are_exact(order):
    rope = wn.MultimodalRoPE(24, None, order)
    positions = torch.tensor([[2**24 - 1, 12_345_678, 1], [3, 0, 16_000_001]])
    cos, sin = rope.exactly(rope.prepare(positions).data.queries)
    with mpmath.workdps(50):
        for pair, axis in enumerate(rope.axis_of_pair):
            for token in range(2):
                w = mpmath.mpf(10_000) ** (mpmath.mpf(-2 * pair) / 24)
                angle = int(positions[token, axis]) * w
                assert abs(cos[0, token, 0, pair].item() - mpmath.cos(angle)) < 2.0**-24
                assert abs(sin[0, token, 0, pair].item() - mpmath.sin(angle)) < 2.0**-24


@pytest.mark.parametrize("pairs_", range(3, 40))
@pytest.mark.parametrize("order", ["chunked", "interleaved", "ernie"])
def test_default_sections_fit_every_width(order, pairs_):
    rope = wn.MultimodalRoPE(2 * pairs_, order=order)
    counts = [rope.axis_of_pair.count(axis) for axis in range(3)]
    assert sum(counts) == pairs_
    assert counts[H] == counts[W] == pairs_ // 3


def test_equal_sections_interleaved_share_a_spectrum_as_axial_rope_does():
    """NeoMME's vision and text layers: two axes of one spectrum in turn."""
    x, positions = drawn(0, (1, 2, 6, 16), torch.float32), wn.positions.grid(2, 3)
    one = wn.MultimodalRoPE(16, (4, 4), "interleaved").rotate(x, positions)
    two = wn.AxialRoPE(16, layout="shared_alternating").rotate(x, positions)
    assert_close(one, two, rtol=0, atol=0)


# Decoding


def prompt() -> torch.Tensor:
    """Text, an image of 2 x 3 patches, text again from the largest position on."""
    text = torch.arange(3)[:, None].expand(-1, 3)
    patches = torch.cat([torch.zeros(6, 1, dtype=torch.int64), wn.positions.grid(2, 3)], 1) + 3
    return torch.cat([text, patches, torch.arange(6, 10)[:, None].expand(-1, 3)])


@pytest.mark.parametrize("order", ["chunked", "interleaved", "ernie"])
@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (4, 4, 5), (9, 1, 1, 1, 1)])
def test_decoding_equals_the_full_pass(order, chunks):
    """Repeated positions (patches of a row share two coordinates) do not leak the future."""
    torch.manual_seed(0)
    rope = wn.MultimodalRoPE(8, (2, 1, 1) if order != "ernie" else (1, 1, 2), order, 50.0)
    layer = wn.Attention(32, 4, rope, 2, causal=True).double().eval()
    x, ids = drawn(1, (2, 13, 32), torch.float64), prompt()
    full = layer(x, where=wn.Where(ids, num_axes=3))
    cache, found, start = wn.KVCache(), [], 0
    for size in chunks:
        new = slice(start, start + size)
        found.append(layer(x[:, new], where=wn.Where(ids[new], num_axes=3), cache=cache))
        start += size
    assert_close(torch.cat(found, 1), full, rtol=1e-12, atol=1e-12)
    changed = x.clone()
    changed[:, 8:] += 1
    again = layer(changed, where=wn.Where(ids, num_axes=3))
    assert_close(again[:, :8], full[:, :8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("real", [False, True])
def test_a_token_without_a_place_is_not_turned(real):
    rope, x = wn.MultimodalRoPE(12), drawn(0, (1, 2, 3, 12), torch.float32)
    positions = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    positions = positions.double() if real else positions
    expected = rope.rotate(x, positions)
    positions[1, 2] = torch.nan if real else wn.NOWHERE
    found = rope.rotate(x, positions)
    assert_close(found[:, :, 1], x[:, :, 1], rtol=0, atol=0)
    assert_close(found[:, :, [0, 2]], expected[:, :, [0, 2]], rtol=0, atol=0)


@pytest.mark.untyped
def test_it_compiles():
    rope = wn.MultimodalRoPE(16, (4, 2, 2), "interleaved")
    torch._dynamo.reset()
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (4, 7):
        q, k = (drawn(i, (1, 2, length, 16), torch.float32) for i in (0, 1))
        positions = torch.arange(3 * length).view(length, 3)
        for found, expected in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            assert_close(found, expected, rtol=0, atol=0)


# What is refused


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sections": (16, 24, 23)}, r"rotary_dim/2 = 64, got \(16, 24, 23\), which make 63"),
        ({"sections": (32, 48, 48)}, "which make 128"),
        ({"sections": (64,)}, "at least two numbers"),
        ({"sections": (64, 0, 0)}, "every entry of sections must be at least 1, got 0"),
        ({"sections": (16, 24, 24), "rotary_dim": 64}, "rotary_dim/2 = 32, got"),
        ({"sections": (16, 24, 24), "order": "interleaved"}, "axis 1 every 3th pair, at most 21"),
        ({"sections": (20, 22, 22), "order": "ernie"}, "as many pairs for the height"),
        ({"sections": (16, 16, 16, 16), "order": "ernie"}, "height, width, time"),
        ({"order": "glm"}, "'chunked', 'interleaved', 'ernie'; got 'glm'"),
        ({"rotary_dim": 4}, "at least 3 pairs of channels, got 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wn.MultimodalRoPE(128, **options)


@pytest.mark.untyped
def test_sections_of_the_wrong_type_are_refused():
    with pytest.raises(TypeError, match="sections must be a tuple of int, got 64"):
        wn.MultimodalRoPE(128, 64)
    with pytest.raises(TypeError, match=r"must be an int, got float \(0.25\)"):
        wn.MultimodalRoPE(128, (0.25, 0.25, 0.5))


def test_positions_of_another_number_of_axes_are_refused():
    rope, x = wn.MultimodalRoPE(16), drawn(0, (1, 2, 4, 16), torch.float32)
    for positions in (torch.arange(4), torch.zeros(4, 2), wn.Where(torch.arange(4))):
        with pytest.raises(ValueError, match="axes|shape"):
            rope.rotate(x, positions)
    with pytest.raises(ValueError, match=r"needs positions \(S, 3\)"):
        rope.rotate(x)
