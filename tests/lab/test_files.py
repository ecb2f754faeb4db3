import errno
import os
import stat

import pytest

from whereness.lab.files import whole, write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "file.txt"
    assert write_whole(path, "eins\n") == path
    write_whole(path, "zwei ä\n")
    assert path.read_bytes() == "zwei ä\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_others_may_read_what_a_file_of_this_user_lets_them(tmp_path):
    (tmp_path / "plain").write_text("")
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    write_whole(tmp_path / "whole", "")
    assert stat.S_IMODE((tmp_path / "whole").stat().st_mode) == mode


def test_an_error_leaves_what_was_there(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "file", "before")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")  # writing names no file

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as told:
        write_whole(path, "after")
    assert told.value.filename == str(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_what_was_there(tmp_path):
    path = write_whole(tmp_path / "file", "before")

    def write():
        with whole(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
