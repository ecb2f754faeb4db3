import hashlib
import os
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
    training, held_out = text.split(data, 16, 1000)
    assert training + held_out == data
    assert len(held_out) == size // 10


@pytest.mark.parametrize(("at_most", "wanted"), [(50, 51), (99, 100), (100, 100), (1, 33)])
def test_at_most_so_much_of_it_is_evaluated_but_two_windows(at_most, wanted):
    data = bytes(i % 251 for i in range(1000))
    training, held_out = text.split(data, 16, at_most)
    assert training == data[:900]
    assert held_out == data[900 : 900 + wanted]


def test_repeated_windows_by_hand():
    training = b"the door and the key and more"
    held_out = b"the key and a query and the door ..."
    windows = [held_out[i : i + 8] for i in range(0, 32, 8)]
    assert windows == [b"the key ", b"and a qu", b"ery and ", b"the door"]
    assert text.repeated(training, held_out, 8) == 0.5


def test_of_long_texts_a_part_of_the_windows_is_looked_for(monkeypatch):
    monkeypatch.setattr(text, "SEARCHED", 100)
    held_out = b"aa" + b"bb" * 19
    assert text.repeated(b"aa" * 10, held_out, 2) == 1 / 5  # of windows 0, 4, 8, 12 and 16


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"regular files.*pipe is none"):
        text.find([tmp_path / "pipe"])


def test_a_name_that_is_no_text_can_be_shown(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_bytes(b"x")
    found, _ = text.find([path])
    assert found.source == f"{tmp_path}/caf\N{REPLACEMENT CHARACTER}.txt"


@pytest.mark.parametrize("size", [0, 1, 329])
def test_a_text_without_two_windows_is_refused(size):
    with pytest.raises(ValueError, match=f"needed 330 bytes.*2 windows of 16; got {size}"):
        text.split(bytes(size), 16, 1000)


def test_what_would_steer_a_terminal_is_replaced():
    assert text.printable("a\x1b[31mred\n\N{RIGHT-TO-LEFT OVERRIDE}é") == "a�[31mred��é"


def test_a_file_that_may_not_be_read_is_named(tmp_path, as_nobody):
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with as_nobody(), pytest.raises(PermissionError, match="secret"):
        text.find([path])
