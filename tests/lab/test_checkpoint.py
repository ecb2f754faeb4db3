from pathlib import Path

import pytest
import torch

from whereness.lab.checkpoint import Checkpoint

STATE = {"a.b": torch.arange(6.0).view(2, 3), "c": torch.tensor([True, False])}
OTHER = {"a.b": torch.zeros(2, 3)}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "kept.safetensors"


def test_what_was_saved_last_is_loaded(path):
    checkpoint = Checkpoint(path)
    assert checkpoint.load() is None
    checkpoint.save(STATE)
    assert same(checkpoint.load(), STATE)
    checkpoint.save(OTHER)
    assert same(Checkpoint(path).load(), OTHER)
    assert list(path.parent.iterdir()) == [path]


def test_tensors_that_are_not_contiguous_are_kept(path):
    Checkpoint(path).save({"t": STATE["a.b"].T})
    assert torch.equal(Checkpoint(path).load()["t"], STATE["a.b"].T)


def test_without_a_path_nothing_is_kept():
    checkpoint = Checkpoint()
    checkpoint.save(STATE)
    assert checkpoint.load() is None
    assert not checkpoint.due(50)


def test_when_it_is_due(path):
    assert [s for s in range(1, 8) if Checkpoint(path, every=3).due(s)] == [3, 6]


@pytest.mark.parametrize("content", [b"", b"no such format", b"\xff" * 100])
def test_a_file_that_cannot_be_read_is_none(path, content):
    Checkpoint(path).save(STATE)
    path.write_bytes(content)
    assert Checkpoint(path).load() is None


def test_half_a_file_is_none(path):
    Checkpoint(path).save(STATE)
    path.write_bytes(path.read_bytes()[:-3])
    assert Checkpoint(path).load() is None


def test_a_save_that_fails_leaves_what_was_kept(path, monkeypatch):
    checkpoint = Checkpoint(path)
    checkpoint.save(STATE)

    def full(tensors, name):
        Path(name).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("whereness.lab.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(OTHER)
    assert same(checkpoint.load(), STATE)
    assert list(path.parent.iterdir()) == [path]
