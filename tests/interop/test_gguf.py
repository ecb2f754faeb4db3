"""GGUF: the header of a file, and its metadata in other keys."""

import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whereness as wn
from interop.toy import close, llama3, plain, quiet, told, yarn
from whereness.interop.gguf.header import read_header

SMALL = {
    "general.architecture": "qwen2",
    "qwen2.embedding_length": 64,
    "qwen2.attention.head_count": 4,
    "qwen2.block_count": 2,
    "qwen2.context_length": 64,
    "qwen2.rope.freq_base": 1_000_000.0,
}


def metadata(arch="qwen2", **changes):
    keys = {k.replace("qwen2", arch): v for k, v in SMALL.items()}
    keys["general.architecture"] = arch
    for key, value in changes.items():
        keys[f"{arch}.{key}"] = value
    return keys


def scaling(kind, **changes):
    return {f"rope.scaling.{key}": value for key, value in {"type": kind, **changes}.items()}


@pytest.mark.parametrize(("arch", "pairing"), [("qwen2", "half"), ("llama", "interleaved")])
def test_the_pairing_is_llama_cpps_own(arch, pairing):
    found = quiet(metadata(arch))
    assert (found.head_dim, found.pairing) == (16, pairing)
    close(found.frequencies, plain(1_000_000.0, 16))


def test_widths():
    found = quiet(metadata(**{"attention.key_length": 32, "rope.dimension_count": 8}))
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (32, 8, "leading")


def test_a_missing_base_is_llama_cpps():
    keys = metadata()
    del keys["qwen2.rope.freq_base"]
    assert quiet(keys).base == 10_000.0


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        (scaling("linear", factor=4.0), 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        (scaling("linear", factor=0.0), 1.0),
        (scaling("none", factor=4.0), 1.0),
        ({}, 1.0),
    ],
)
def test_linear_scaling(more, factor):
    close(quiet(metadata(**more)).frequencies, [w / factor for w in plain(1_000_000.0, 16)])


def test_yarn():
    more = scaling("yarn", factor=4.0, original_context_length=32, attn_factor=1.5)
    found = quiet(metadata(**more))
    close(found.frequencies, yarn(1_000_000.0, 16, 4.0, 32))
    assert found.amplitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))


def test_deepseeks_tenth_of_mscale():
    more = {
        "attention.key_length": 48,
        "rope.dimension_count": 16,
        **scaling("yarn", factor=4.0, original_context_length=32, yarn_log_multiplier=0.1),
    }
    found = quiet(metadata("deepseek2", **more))
    assert (found.head_dim, found.rotary_dim, found.rotary_side) == (48, 16, "trailing")
    assert found.amplitude == pytest.approx(1.0)
    assert found.logit_scale(48) == pytest.approx((1 + 0.1 * math.log(4)) ** 2)


def test_schedules_that_stand_in_llama_cpps_code():
    keys = metadata("gemma3", **{"block_count": 12, **scaling("linear", factor=8.0)})
    near, far = quiet(keys, layer=4), quiet(keys, layer=5)
    close(near.frequencies, plain(10_000.0, 16))
    close(far.frequencies, [w / 8 for w in plain(1_000_000.0, 16)])
    smollm3 = metadata("smollm3", block_count=8)
    assert [i for i in range(8) if type(quiet(smollm3, layer=i)) is wn.NoPE] == [3, 7]


def test_other_encodings():
    assert type(quiet(metadata("bloom"))) is wn.ALiBi
    table = quiet(metadata("gpt2"))
    assert (table.num_positions, table.dim) == (64, 64)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (metadata(**{"rope.freq_bas": 1.0}), "qwen2.rope.freq_bas is an unknown key. Did you mean"),
        (metadata("qwen9"), "architecture 'qwen9' is not known"),
        (metadata("lfm2"), "has layers without rotary positions"),
        (metadata(**scaling("longrope")), "its factors are weights of the file, rope_factors_long"),
        (metadata(**scaling("spiral")), "must be none, linear, yarn or longrope"),
        (metadata(**{"rope.freq_base": -1.0}), "rope_theta must be above 0"),
        (metadata(**{"attention.head_count": [2, 4]}), "differs between layers"),
    ],
)
def test_what_is_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        quiet(keys)


def test_metadata_alone_cannot_say_whether_weights_scale():
    assert "rope_freqs.weight" in told(metadata())


# Files


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if value and isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def file_of(keys, tensors=(), version=3):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    entries = b"".join(entry(key, value) for key, value in keys.items())
    names = b"".join(text(t) + struct.pack("<IQQIQ", 2, 4, 4, 0, 0) for t in tensors)
    return head + entries + names + b"\0" * 64  # weights, never read


WORDS = {"tokenizer.ggml.tokens": ["a"] * 5000, "tokenizer.ggml.scores": [1] * 5000}


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_is_read_as_its_metadata(tmp_path, version):
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of({**SMALL, **WORDS}, ["token_embd.weight"], version))
    for source in (path, tmp_path):
        close(wn.from_config(source).frequencies, plain(1_000_000.0, 16))


def with_factors(keys, factors, kind=0, alignment=32):
    """A file whose tensors are a dummy and these divisors, each at an aligned offset."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(factors) + 1, len(keys))
    head += b"".join(entry(key, value) for key, value in keys.items())
    head += text("token_embd.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)
    data = struct.pack("<8f", *range(8))
    for name, numbers in factors.items():
        data += b"\xff" * (-len(data) % alignment)
        head += text(name) + struct.pack("<IQIQ", 1, len(numbers), kind, len(data))
        data += struct.pack(f"<{len(numbers)}f", *numbers)
    return head + b"\xff" * (-len(head) % alignment) + data


LLAMA_8B = {
    "general.architecture": "llama",
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.block_count": 2,
    "llama.context_length": 131_072,
    "llama.rope.dimension_count": 128,
    "llama.rope.freq_base": 500_000.0,
}


def llama_cpps(base, dim, factor):
    """What its converter writes for Llama 3.1, in float32."""
    found = []
    for k in range(dim // 2):
        wavelength = 2 * math.pi * base ** (2 * k / dim)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192 / 1:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("aligned", [{}, {"general.alignment": 64}])
def test_llama_3s_divisors_are_its_scaling(tmp_path, factor, aligned):
    path = tmp_path / "model.gguf"
    rope = {"rope_freqs.weight": llama_cpps(500_000.0, 128, factor)}
    alignment = aligned.get("general.alignment", 32)
    path.write_bytes(with_factors({**LLAMA_8B, **aligned}, rope, alignment=alignment))
    found = quiet(path)
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": scaling,
    }
    assert type(found.scaling) is wn.scaling.Llama3
    assert not told(path)
    close(found.frequencies, quiet(config).frequencies.tolist(), 1e-6)
    close(found.frequencies, llama3(500_000.0, 128, factor, 1.0, 4.0, 8192), 1e-6)


@pytest.mark.parametrize("width", [{}, {"qwen2.rope.dimension_count": 16}])
def test_other_divisors_are_taken_as_they_are(tmp_path, width):
    path = tmp_path / "model.gguf"
    divisors = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 8.0, 9.5]
    path.write_bytes(with_factors({**SMALL, **width}, {"rope_freqs.weight": divisors}))
    found = quiet(path)
    expected = [w / d for w, d in zip(plain(1_000_000.0, 16), divisors, strict=True)]
    for length in (8, 64, 65, 4096):
        close(found.frequencies_at(length), expected)
    assert found.amplitude == 1.0
    keys = {**SMALL, "qwen2.rope.scaling.attn_factor": 1.25}
    path.write_bytes(with_factors(keys, {"rope_freqs.weight": divisors}))
    assert quiet(path).amplitude == 1.25


LONG, SHORT = (
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.5],
    [1.0, 1.0, 1.0, 1.25, 1.25, 1.5, 1.5, 2.0],
)
PHI3 = metadata("phi3", **{"rope.scaling.original_context_length": 16})


@pytest.mark.parametrize(
    ("more", "amplitude"),
    [
        ({"phi3.rope.scaling.attn_factor": 1.1875}, 1.1875),
        ({"phi3.rope.scaling.type": "longrope"}, 1.0),
    ],
)
def test_phi_3s_two_sets_of_divisors(tmp_path, more, amplitude):
    path = tmp_path / "model.gguf"
    rope = {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}
    path.write_bytes(with_factors({**PHI3, **more}, rope))
    found = quiet(path)
    for length, divisors in ((16, SHORT), (17, LONG)):
        expected = [w / d for w, d in zip(plain(1_000_000.0, 16), divisors, strict=True)]
        close(found.frequencies_at(length), expected)
    assert found.amplitude == amplitude
    assert ("attn_factor is missing" in told(path)) == (amplitude == 1.0)


ONES = {"rope_freqs.weight": [1.0] * 8}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_factors(SMALL, ONES, kind=1), "rope_freqs.weight of type 1; float32"),
        (with_factors(SMALL, {"rope_freqs.weight": []}), "of 0 numbers"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 5000}), "of 5000 numbers"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 7}), "one number a pair, 8, got 7"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 7 + [0.0]}), "0 in rope_freqs.weight"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 7 + [-1.0]}), "-1 in rope_freqs"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 7 + [math.inf]}), "inf in rope_freqs"),
        (with_factors(SMALL, {"rope_freqs.weight": [1.0] * 7 + [math.nan]}), "nan in rope_freqs"),
        (with_factors(SMALL, ONES)[:-1], "an end within rope_freqs.weight"),
        (with_factors({**SMALL, "general.alignment": 0}, ONES), "general.alignment 0"),
        (with_factors({**SMALL, "general.alignment": "x"}, ONES), "general.alignment 'x'"),
        (with_factors(SMALL, {"blk.0.rope_freqs.weight": [1.0]}), "of single layers"),
        (with_factors(SMALL, {"rope_factors_long.weight": LONG}), "needed rope_freqs.weight alone"),
        (with_factors(SMALL, {**ONES, "rope_factors_long.weight": LONG}), "alone, or"),
        (
            with_factors(metadata(**scaling("yarn", factor=4.0)), ONES),
            "asks for 'yarn' with factor 4.0 as well",
        ),
        (
            with_factors(metadata(**scaling("linear", factor=4.0)), ONES),
            "asks for 'linear' with factor 4.0 as well",
        ),
        (with_factors(metadata(**scaling("longrope")), {}), "are not here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_divisors_that_are_refused(tmp_path, data, says):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=says):
        quiet(path)


def test_divisors_beyond_the_file_or_twice_are_refused():
    twice = struct.pack("<IQQ", 3, 2, 0) + 2 * (
        text("rope_freqs.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)
    )
    far = struct.pack("<IQQ", 3, 1, 0) + text("rope_freqs.weight")
    for data, says in (
        (twice, "the tensor 'rope_freqs.weight' twice"),
        (far + struct.pack("<IQIQ", 1, 8, 0, 2**64 - 32), "beyond any file"),
        (far + struct.pack("<IQIQ", 1, 8, 0, 2**40), "an end within rope_freqs.weight"),
        (far + struct.pack("<IQQIQ", 2, 2**63, 4, 0, 0), "numbers; 1 .. "),
    ):
        with pytest.raises(ValueError, match=says):
            read_header(io.BytesIO(data), "x.gguf")


def test_a_part_of_a_split_file_cannot_say_whether_weights_scale(tmp_path):
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(file_of({**SMALL, "split.count": 2}, ["token_embd.weight"]))
    assert "if it has rope_freqs.weight" in told(path)
    path.write_bytes(with_factors({**SMALL, "split.count": 2}, ONES))
    assert not told(path)
    path.write_bytes(file_of({**SMALL, "split.count": 1}, ["token_embd.weight"]))
    assert not told(path)


def test_two_spellings_of_a_key_must_agree():
    more = scaling("yarn", factor=4.0, original_context_length=32, attn_factor=1.5)
    same = quiet(metadata(**more, **{"rope.scaling.yarn_attn_factor": 1.5}))
    assert same.amplitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))
    with pytest.raises(ValueError, match="two spellings of the same key and differ"):
        quiet(metadata(**more, **{"rope.scaling.yarn_attn_factor": 1.25}))


def test_long_arrays_are_passed_over():
    header = read_header(io.BytesIO(file_of({**SMALL, **WORDS}, ["a", "b"])[4:]), "x.gguf")
    assert header.metadata["tokenizer.ggml.tokens"] is None
    assert header.metadata["tokenizer.ggml.scores"] is None
    assert header.metadata["qwen2.block_count"] == 2
    assert header.tensors == {"a", "b"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack("<I", 1), "version 1"),
        (struct.pack("<IQQ", 3, 2**60, 1), "tensors; at most"),
        (struct.pack("<IQQ", 3, 0, 2**60), "metadata entries; at most"),
        (struct.pack("<IQQQ", 3, 0, 1, 2**60), "bytes in a string; at most"),
        (struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "unknown type 77"),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 2**60),
            "items in an array; at most",
        ),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1),
            "array of type 9",
        ),
        (struct.pack("<IQQ", 3, 0, 1), "an end within its header"),
        (struct.pack("<IQQ", 3, 0, 2) + 2 * entry("a", 1), "the key 'a' twice"),
        (struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 9), "tensor of 9 axes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_header_that_lies(data, says):
    with pytest.raises(ValueError, match=says):
        read_header(io.BytesIO(data), "x.gguf")


WHOLE = with_factors({**SMALL, "general.quantized": True, "a.list": [1, 2]}, ONES)


def of_one_line(error):
    assert "\n" not in str(error)


@given(st.data())
def test_a_damaged_header_is_one_error(data):
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(4, len(damaged)))
    try:
        read_header(io.BytesIO(bytes(damaged[4:cut])), "x.gguf")
    except ValueError as error:
        of_one_line(error)
