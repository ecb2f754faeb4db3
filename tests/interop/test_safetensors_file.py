"""Headers are read as the safetensors library reads them, and what breaks a rule is refused."""

import contextlib
import json
import os
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interop.support import drawn, file_of, load, metadata, save
from whereness.interop.weights.safetensors_file import BITS, copy_bytes, read_header, write_header

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


def test_a_file_of_the_library_is_read_and_written_as_it_is(tmp_path):
    tensors = {name: drawn(0, 2, 3).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(1.0), "empty": torch.zeros(0, 3), "née 😀": torch.ones(1)}
    path = save(tmp_path / "a.safetensors", tensors, format="pt")
    header = read_header(path)
    assert {entry.name for entry in header.entries} == set(tensors)
    for entry in header.entries:
        assert entry.shape == tuple(tensors[entry.name].shape)
        assert entry.size == tensors[entry.name].nbytes
        if entry.name in DTYPES:
            assert entry.dtype == entry.name
    assert header.metadata == {"format": "pt"}
    copy = tmp_path / "b.safetensors"
    with path.open("rb") as source, copy.open("wb") as target:
        write_header(target, header, {"x": "ü"})
        source.seek(header.start)
        copy_bytes(source, target, header.size, path)
    assert metadata(copy) == {"x": "ü"}
    found = load(copy)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name].to(torch.complex64), tensor.to(torch.complex64))
    assert read_header(copy).start % 8 == 0


def test_a_file_without_tensors_is_a_file(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of({}))
    header = read_header(path)
    assert header.entries == () and header.size == 0 and header.metadata == {}


def test_a_header_longer_than_the_format_allows(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 100_000_009)  # a hole: it takes no room
    with pytest.raises(ValueError, match="has 100000001 bytes; the format allows 100000000"):
        read_header(path)


def one(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


EIGHT = b"01234567"
TWO = {
    "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
    "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]},
}
BROKEN = {
    "empty": (b"", "not a safetensors file"),
    "short": (b"1234567", "not a safetensors file"),
    "no header": (b"\0" * 8, "not valid JSON"),
    "long header": (file_of({}, length=3), "its header has 3 bytes.*the file 10"),
    "huge header": (file_of({}, length=2**63), "its header has 9223372036854775808 bytes"),
    "pickle": (b"\x80\x04\x95" + b"\0" * 40, "not a safetensors file"),
    "not JSON": (file_of(b"{a: 1}"), "not valid JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not valid JSON.*decode"),
    "not an object": (file_of([]), "needed a JSON object, got list"),
    "deep": (file_of(b"[" * 100_000), "nested too deep"),
    "long number": (file_of(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "NaN": (file_of(b'{"a": NaN}'), "NaN is no JSON number"),
    "key twice": (file_of(b'{"a": 1, "a": 2}'), "the key 'a' stands there twice"),
    "field twice": (file_of(b'{"a": {"dtype": 1, "dtype": 2}}'), "the key 'dtype'"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "__metadata__ must be an object of strings"),
    "metadata list": (file_of({"__metadata__": ["a"]}), "__metadata__ must be"),
    "no fields": (file_of({"a": {}}), "'a' must have a dtype, a shape and two offsets"),
    "not a field": (file_of({"a": 3}), "'a' must have a dtype"),
    "offsets": (file_of(one(data_offsets=[0]), EIGHT), "two offsets"),
    "three offsets": (file_of(one(data_offsets=[0, 8, 8]), EIGHT), "two offsets"),
    "float offsets": (file_of(one(data_offsets=[0, 8.0]), EIGHT), "two offsets"),
    "bool offsets": (file_of(one(data_offsets=[False, 8]), EIGHT), "two offsets"),
    "text shape": (file_of(one(shape="2"), EIGHT), "a shape"),
    "negative shape": (file_of(one(shape=[-2]), EIGHT), "a shape"),
    "two negatives": (file_of(one(shape=[-1, -2]), EIGHT), "a shape"),
    "dtype": (file_of(one(dtype="F31"), EIGHT), "unknown dtype, 'F31'"),
    "dtype list": (file_of(one(dtype=[]), EIGHT), "unknown dtype"),
    "shape and bytes": (
        file_of(one(shape=[3]), EIGHT),
        "must have 12 bytes, its offsets tell of 8",
    ),
    "huge shape": (file_of(one(shape=[2**62, 2**62]), EIGHT), "must have"),
    "half a byte": (
        file_of({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"1"),
        "must have 1.5 bytes",
    ),
    "backwards": (file_of(one(data_offsets=[8, 0]), EIGHT), "must have 8 bytes"),
    "gap": (file_of(one(data_offsets=[8, 16]), EIGHT * 2), "must begin at byte 0, got 8"),
    "overlap": (
        file_of({**TWO, "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}, EIGHT),
        "'b' must begin at byte 4, got 2",
    ),
    "same bytes": (
        file_of({**TWO, "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, EIGHT[:4]),
        "must begin at byte 4, got 0",
    ),
    "truncated": (file_of(TWO, EIGHT[:7]), "truncated or damaged"),
    "too long": (file_of(TWO, EIGHT + b"8"), "truncated or damaged"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused(tmp_path, name):
    data, message = BROKEN[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_header(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 400


def test_tensors_that_end_early_are_told(tmp_path):
    """A file that is cut while it is read."""
    path = tmp_path / "a"
    path.write_bytes(b"123")
    with (
        path.open("rb") as source,
        (tmp_path / "b").open("wb") as target,
        pytest.raises(ValueError, match="ended early"),
    ):
        copy_bytes(source, target, 4, path)


@given(st.data())
def test_whatever_bytes_are_changed_it_is_read_or_refused(tmp_path_factory, data):
    """And what is read lies within the file."""
    good = file_of({**TWO, "__metadata__": {"format": "pt"}}, EIGHT)
    broken = bytearray(good)
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        broken[place] = data.draw(st.sampled_from([*b'0123456789-.,:[]{}"\\ \x00\xff']))
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(broken[: data.draw(st.integers(len(good) - 3, len(good)))])
    with contextlib.suppress(ValueError):
        header = read_header(path)
        assert header.start + header.size == path.stat().st_size


def test_every_type_of_the_format_has_its_size():
    sizes = {name: 8 * torch.empty(1, dtype=dtype).element_size() for name, dtype in DTYPES.items()}
    assert {name: BITS[name] for name in sizes} == sizes


def test_a_long_key_does_not_fill_the_screen(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of(b'{"%s": 1, "%s": 2}' % (b"k" * 10_000, b"k" * 10_000)))
    with pytest.raises(ValueError, match="twice") as caught:
        read_header(path)
    assert len(str(caught.value)) < 400
    path.write_bytes(file_of(json.dumps({"k" * 10_000: 3}).encode()))
    with pytest.raises(ValueError, match="must have a dtype"):
        read_header(path)
