"""Reading tensors out of checkpoints, those of hostile files among them."""

import json
import os
import random
import struct
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from auditor.files import GGUF, gguf, gguf_file
from whereness.auditor.files.weights import STEP, has_weights, open_weights, weights_of
from whereness.interop.gguf.types import READ, TYPES

KINDS = {kind.name: number for number, kind in TYPES.items()}
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.numpy(force=True).tobytes() == expected.numpy(force=True).tobytes()


def raw(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_safetensors_is_read_as_it_is(tmp_path, dtype):
    tensor = torch.randn(5, 3).mul(100).to(dtype)
    save_file({"a": torch.zeros(3), "b": tensor}, tmp_path / "m.safetensors")
    weights = open_weights(tmp_path / "m.safetensors")
    for found, expected in (
        (weights.tensor("b"), tensor),
        (weights.rows("b", 1, 2), tensor[1:3]),
        (torch.cat(list(weights.blocks("b"))), tensor),
    ):
        assert found.dtype == dtype
        same(raw(found), raw(expected))


def test_rows_are_counted_along_the_first_axis_that_has_several(tmp_path):
    table = torch.arange(24.0).reshape(1, 1, 6, 4)
    save_file({"t": table, "one": torch.tensor(3.0)}, tmp_path / "m.safetensors")
    weights = open_weights(tmp_path)
    assert weights.tensors["t"].num_rows == 6
    same(weights.rows("t", 2, 3), table[0, 0, 2:5])
    same(weights.tensor("t"), table)
    same(weights.tensor("one"), torch.tensor(3.0))


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 7), (6, 1), (3, -1)])
def test_rows_that_are_not_there_are_refused(tmp_path, first, count):
    save_file({"t": torch.zeros(6, 4)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="'t' has 6 rows, asked for"):
        open_weights(tmp_path).rows("t", first, count)


def test_blocks_hold_little(tmp_path):
    rows = 3 * STEP // 1024
    save_file({"t": torch.arange(rows * 256.0).reshape(rows, 256)}, tmp_path / "m.safetensors")
    blocks = list(open_weights(tmp_path).blocks("t"))
    assert [len(block) for block in blocks] == [STEP // 1024] * 3
    same(torch.cat(blocks), torch.arange(rows * 256.0).reshape(rows, 256))


def test_shards_are_one_checkpoint(tmp_path):
    where = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    tensors = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    for name, file in where.items():
        save_file({name: tensors[name]}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    for path in (tmp_path, index):
        weights = open_weights(path)
        for name, tensor in tensors.items():
            same(weights.tensor(name), tensor)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "../x"}}))
    with pytest.raises(ValueError, match="a shard must be a .safetensors file beside it"):
        open_weights(index)


def test_what_is_no_weights_is_refused(tmp_path):
    (tmp_path / "m.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="pickled weights are refused"):
        open_weights(tmp_path / "m.bin")
    with pytest.raises(ValueError, match="pickled weights"):
        open_weights(tmp_path)
    assert not has_weights(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(64))
    with pytest.raises(ValueError, match="not a GGUF file"):
        open_weights(tmp_path / "m.gguf")
    assert has_weights(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ValueError, match="is no file"):
        open_weights(tmp_path / "pipe.gguf")
    with pytest.raises(FileNotFoundError):
        open_weights(tmp_path / "nothing.gguf")


def test_links_in_a_circle_are_told(tmp_path):
    (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
    with pytest.raises(OSError, match="symbolic links"):
        open_weights(tmp_path / "a.gguf")


# GGUF


def half(data, at):
    return struct.unpack_from("<e", data, at)[0]


def by_hand(name, block):
    """The numbers of a block in plain loops, bit by bit as the format describes them."""
    if name == "Q4_0":
        return (
            [((block[2 + i % 16] >> 4 * (i // 16)) & 15) * 1.0 - 8 for i in range(32)],
            half(block, 0),
            0,
        )
    if name == "Q4_1":
        return (
            [(block[4 + i % 16] >> 4 * (i // 16)) & 15 for i in range(32)],
            half(block, 0),
            half(block, 2),
        )
    if name in ("Q5_0", "Q5_1"):
        head, least = (2, -16) if name == "Q5_0" else (4, 0)
        bits = int.from_bytes(block[head : head + 4], "little")
        numbers = [
            ((block[head + 4 + i % 16] >> 4 * (i // 16)) & 15) + 16 * (bits >> i & 1) + least
            for i in range(32)
        ]
        return numbers, half(block, 0), 0 if name == "Q5_0" else half(block, 2)
    assert name == "Q8_0"
    return list(struct.unpack_from("<32b", block, 2)), half(block, 0), 0


def k_quant(name, b):
    """The same for blocks of 256, number by number."""
    found = []
    for i in range(256):
        if name == "Q2_K":
            q = b[16 + 32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3
            scale = b[i // 16]
            found.append(half(b, 80) * (scale & 15) * q - half(b, 82) * (scale >> 4))
        elif name == "Q3_K":
            low = b[32 + 32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3
            high = b[i % 32] >> (i // 32) & 1
            j = i // 16
            four = b[96 + j % 8] >> 4 * (j // 8) & 15
            two = b[104 + j % 4] >> 2 * (j // 4) & 3
            found.append(half(b, 108) * (four + 16 * two - 32) * (low + 4 * high - 4))
        elif name in ("Q4_K", "Q5_K"):
            j, packed = i // 32, b[4:16]
            if j < 4:
                scale, least = packed[j] & 63, packed[j + 4] & 63
            else:
                scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
                least = packed[j + 4] >> 4 | packed[j] >> 6 << 4
            data = 16 if name == "Q4_K" else 48
            q = b[data + 32 * (i // 64) + i % 32] >> 4 * (i % 64 // 32) & 15
            if name == "Q5_K":
                q += 16 * (b[16 + i % 32] >> j & 1)
            found.append(half(b, 0) * scale * q - half(b, 2) * least)
        else:
            low = b[64 * (i // 128) + i % 64] >> 4 * (i % 128 // 64) & 15
            high = b[128 + 32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3
            scale = struct.unpack_from("b", b, 192 + i // 16)[0]
            found.append(half(b, 208) * scale * (low + 16 * high - 32))
    return found


def blocks_of(name, count, seed=0):
    """Random blocks whose float16 scales are small finite numbers."""
    source = random.Random(seed)
    kind = TYPES[KINDS[name]]
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(name, (0, 2))
    places = (0,) if name in ("Q4_0", "Q5_0", "Q8_0") else places
    found = []
    for _ in range(count):
        block = bytearray(source.randbytes(kind.size))
        for at in places:
            struct.pack_into("<e", block, at, source.uniform(-2, 2))
        found.append(bytes(block))
    return found


@pytest.mark.parametrize("name", sorted(READ))
def test_quantised_numbers_are_the_formats(tmp_path, name):
    kind = TYPES[KINDS[name]]
    blocks = blocks_of(name, 6)
    path = tmp_path / "m.gguf"
    shape = (3, 2 * kind.numbers)
    path.write_bytes(gguf({}, {"a": torch.ones(3), "t": (KINDS[name], shape, b"".join(blocks))}))
    weights = open_weights(path)
    assert weights.tensors["t"].dtype == name
    expected = []
    for block in blocks:
        if kind.numbers == 256:
            expected += k_quant(name, block)
        else:
            numbers, slope, least = by_hand(name, block)
            expected += [slope * n + least for n in numbers]
    expected = torch.tensor(expected, dtype=torch.float64).reshape(shape)
    # The products are of a float16 and small integers; what is rounded is a sum of two.
    torch.testing.assert_close(weights.tensor("t").double(), expected, rtol=1e-6, atol=1e-5)
    same(weights.rows("t", 1, 1), weights.tensor("t")[1:2])


@pytest.mark.more
def test_dequantising_is_that_of_the_package_gguf():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    from whereness.interop.gguf.quants import dequantised

    for number, kind in TYPES.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (kind.numbers, kind.size)
        if kind.name in READ:
            data = torch.frombuffer(
                bytearray(b"".join(blocks_of(kind.name, 200))), dtype=torch.uint8
            )
            theirs = dequantize(data.numpy().reshape(-1, kind.size), GGMLQuantizationType(number))
            same(dequantised(data, kind.name), torch.from_numpy(theirs).flatten())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_plain_numbers_of_gguf(tmp_path, dtype):
    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
    tensor = torch.randn(4, 6).mul(9).to(dtype)
    data = bytes(raw(tensor).flatten().tolist())
    kind = KINDS[names.get(dtype, "I32")]
    (tmp_path / "m.gguf").write_bytes(gguf({}, {"t": (kind, (4, 6), data)}))
    same(raw(open_weights(tmp_path).tensor("t")), raw(tensor))


def test_a_split_gguf_is_one_checkpoint(tmp_path):
    for i, tensors in enumerate(({"a": torch.ones(2)}, {"b": torch.zeros(3)})):
        keys = {"split.count": 2, **(GGUF if i == 0 else {})}
        (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(gguf(keys, tensors))
    for path in (tmp_path, tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"):
        weights = open_weights(path)
        assert set(weights.tensors) == {"a", "b"}
        assert weights.metadata["general.architecture"] == "llama"
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(FileNotFoundError):
        open_weights(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00001-of-00002.gguf").rename(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="must be named NAME-00001-of-00002.gguf"):
        open_weights(tmp_path / "m.gguf")


def test_several_models_in_a_folder_must_be_named(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        gguf_file(tmp_path / name, {"t": torch.ones(2)})
    with pytest.raises(ValueError, match="has 2 .gguf files: name one"):
        open_weights(tmp_path)


def described(name, sizes, kind, offset):
    data = name.encode()
    head = struct.pack("<Q", len(data)) + data
    return head + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([("t", (8,), 0, 2**40)], "would end at byte .* the file has"),
        ([("t", (2**60, 2**60), 0, 0)], "is larger than any tensor"),
        ([("t", (2**40,), 24, 0)], "would end at byte"),
        ([("a", (8,), 0, 0), ("t", (8,), 0, 16)], "'t' lies upon the one before it"),
        ([("t", (33,), 2, 0)], "rows of 33 numbers, Q4_0 needs a multiple of 32"),
        ([("t", (8,), 0, 0), ("t", (8,), 0, 32)], "the tensor 't' twice"),
    ],
)
def test_headers_of_gguf_that_lie(tmp_path, tensors, says):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    head += b"".join(described(*each) for each in tensors)
    path = tmp_path / "m.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(64))
    with pytest.raises(ValueError, match=says) as error:
        open_weights(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [16, 39, 99])
def test_types_that_cannot_be_read_are_told_when_they_are_read(tmp_path, kind):
    numbers = TYPES[kind].numbers if kind in TYPES else 32
    size = TYPES[kind].size if kind in TYPES else 18
    (tmp_path / "m.gguf").write_bytes(
        gguf({}, {"t": (kind, (numbers,), bytes(size)), "a": torch.ones(2)})
    )
    weights = open_weights(tmp_path)
    same(weights.tensor("a"), torch.ones(2))
    for read in (weights.tensor, lambda name: list(weights.blocks(name))):
        with pytest.raises(ValueError, match="'t': numbers of type .* cannot be read"):
            read("t")


def test_empty_tensors_are_no_trouble(tmp_path):
    save_file({"none": torch.zeros(0, 7), "flat": torch.zeros(5, 0)}, tmp_path / "m.safetensors")
    weights = open_weights(tmp_path)
    for name, shape in (("none", (0, 7)), ("flat", (5, 0))):
        assert weights.tensor(name).shape == shape
        assert not list(weights.blocks(name))
    shape = (2**40, 0)
    (tmp_path / "m.gguf").write_bytes(gguf({}, {"t": (0, shape, b"")}))
    assert open_weights(tmp_path / "m.gguf").tensor("t").shape == shape


@pytest.mark.parametrize("shape", [(0, 2**62, 2**62), (2**63, 0), (0, 2**63)])
def test_sizes_beyond_any_tensor_are_refused(tmp_path, shape):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({}, {"t": (0, shape, b"")}))
    with pytest.raises(ValueError, match="'t' of shape .* is larger than any tensor"):
        open_weights(path)
    head = json.dumps({"t": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(ValueError, match="tensor 't'"):
        open_weights(path)


def test_opening_reads_headers_alone(tmp_path):
    # 2^31 numbers that take no place on the disk: read whole they would be 8 GiB.
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + described("t", (256, 2**23), 0, 0)
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + 2**33)
    begin = time.process_time()
    weights = open_weights(path)
    assert weights.rows("t", 2**22, 3).shape == (3, 256)
    assert next(weights.blocks("t")).numel() * 4 == STEP
    assert time.process_time() - begin < 1.0


def test_a_file_that_shrinks_is_told(tmp_path):
    path = gguf_file(tmp_path / "m.gguf", {"t": torch.ones(64)})
    weights = open_weights(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ValueError, match="ended early"):
        weights.tensor("t")


def of_one_line(error):
    assert "\n" not in str(error)


WHOLE = gguf(
    {**GGUF, "split.count": 1},
    {
        "a": torch.ones(3, 4),
        "q": (KINDS["Q4_K"], (2, 256), b"".join(blocks_of("Q4_K", 2))),
        "b": (1, (4,), bytes(8)),
    },
)


@given(st.data())
def test_damaged_files_are_one_line_or_numbers(tmp_path_factory, data):
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("x") / "m.gguf"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    try:
        weights = open_weights(path)
        for name, held in weights.tensors.items():
            assert weights.tensor(name).numel() == held.count
    except (ValueError, FileNotFoundError) as error:
        of_one_line(error)


# Live models


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 5)
        self.two = self.one
        self.register_buffer("ids", torch.arange(7)[None], persistent=False)
        self.register_buffer("nowhere", torch.zeros(2, device="meta"))


def test_a_live_model_is_read_as_a_file_is():
    model = Model()
    weights = weights_of(model)
    assert set(weights.tensors) == {"one.weight", "one.bias", "ids"}
    assert weights.tensors["ids"].dtype == "I64" and weights.tensors["ids"].num_rows == 7
    same(weights.tensor("one.weight"), model.one.weight.detach())
    same(weights.rows("one.weight", 2, 2), model.one.weight.detach()[2:4])
    same(weights.rows("ids", 3, 2), torch.tensor([3, 4]))
    same(torch.cat(list(weights.blocks("one.weight"))), model.one.weight.detach())
    weights.tensor("one.bias").zero_()
    assert model.one.bias.any()  # what is handed out is a copy
    with pytest.raises(ValueError, match="has 5 rows"):
        weights.rows("one.weight", 4, 2)


def test_blocks_of_a_live_model_hold_little(monkeypatch):
    monkeypatch.setattr("whereness.auditor.files.weights.STEP", 24)
    blocks = list(weights_of(Model()).blocks("one.weight"))
    assert [len(block) for block in blocks] == [2, 2, 1]
