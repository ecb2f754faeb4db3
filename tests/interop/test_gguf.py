"""GGUF: the header of a file, and its metadata in other keys."""

import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whereness as wn
from interop.toy import close, plain, quiet, told, yarn
from whereness.interop.gguf import read_header

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
        (metadata(**scaling("longrope")), "its factors are weights"),
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


def test_a_tensor_that_scales_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of(SMALL, ["token_embd.weight", "rope_freqs.weight"]))
    with pytest.raises(ValueError, match="tensor rope_freqs.weight, which scales the frequencies"):
        wn.from_config(path)


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


WHOLE = file_of({**SMALL, "general.quantized": True, "a.list": [1, 2]}, ["token_embd.weight"])


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
