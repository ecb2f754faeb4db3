import hashlib
import sys

import pytest

from whereness.lab import text


def test_the_default_is_pythons_documentation():
    found, data = text.find(())
    assert found.source.startswith("pydoc_data.topics of Python 3.")
    assert data.startswith(b'The "assert" statement\n')
    assert len(data) > 300_000
    assert found.load() == data


def test_a_python_without_documentation_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="give --text FILE"):
        text.find(())


def test_files_are_read_as_bytes_and_joined_in_order(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\x00\r\n")
    (tmp_path / "a").write_bytes(b"last")
    found, data = text.find([tmp_path / "b", tmp_path / "a"])
    assert data == b"\xff\x00\r\nlast"
    assert found.sha256 == hashlib.sha256(b"\xff\x00\r\nlast").hexdigest()
    assert found.source == f"{tmp_path / 'b'}, {tmp_path / 'a'}"


def test_a_text_that_changed_is_refused(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"before")
    found, _ = text.find([file])
    file.write_bytes(b"after")
    with pytest.raises(ValueError, match="has changed"):
        found.load()


@pytest.mark.parametrize("size", [330, 1000, 1009])
def test_the_last_tenth_is_held_out(size):
    data = bytes(i % 251 for i in range(size))
    training, held_out = text.split(data, 16)
    assert training + held_out == data
    assert len(held_out) == size // 10


@pytest.mark.parametrize("size", [0, 1, 329])
def test_a_text_without_two_windows_is_refused(size):
    with pytest.raises(ValueError, match=f"needed 330 bytes.*2 windows of 16; got {size}"):
        text.split(bytes(size), 16)
