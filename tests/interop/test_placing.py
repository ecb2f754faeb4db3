"""Targets appear whole or not at all, and nothing is overwritten unless asked."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from interop.support import expected, llama, load, same, save_folder
from processes import ROOT, clean_environment
from whereness.interop.weights import checkpoint, placing
from whereness.interop.weights.checkpoint import convert_checkpoint


def test_nothing_is_overwritten_unless_asked(tmp_path):
    source = save_folder(tmp_path / "a")
    target = save_folder(tmp_path / "b", {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="is there. Give --overwrite"):
        convert_checkpoint(source, target, "interleaved")
    assert set(load(target)) == {"x"}
    convert_checkpoint(source, target, "interleaved", overwrite=True)
    same(load(target), expected(llama(), "interleaved"))
    (target / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="has notes.txt, which the conversion would not write"):
        convert_checkpoint(source, target, "interleaved", overwrite=True)
    assert (target / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_is_not_overwritten_unless_asked(tmp_path):
    source = save_folder(tmp_path / "a") / "model.safetensors"
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"mine")
    with pytest.raises(ValueError, match="Give --overwrite"):
        convert_checkpoint(source, target, "interleaved")
    assert target.read_bytes() == b"mine"
    convert_checkpoint(source, target, "interleaved", overwrite=True)
    same(load(target), expected(llama(), "interleaved"))
    for odd in (tmp_path / "folder.safetensors", tmp_path / "link.safetensors"):
        odd.mkdir() if "folder" in odd.name else odd.symlink_to(target)
        with pytest.raises(ValueError, match="is there and is not a file"):
            convert_checkpoint(source, odd, "interleaved", overwrite=True)


def test_source_and_target_must_be_apart(tmp_path):
    source = save_folder(tmp_path / "a")
    (tmp_path / "link").symlink_to(source)
    for target in (source, source / "b", tmp_path, tmp_path / "link", tmp_path / "link" / "b"):
        with pytest.raises(ValueError, match="must be apart"):
            convert_checkpoint(source, target, "interleaved", overwrite=True)
    file = source / "model.safetensors"
    with pytest.raises(ValueError, match="must be apart"):
        convert_checkpoint(file, tmp_path / "link" / "model.safetensors", "interleaved")
    with pytest.raises(ValueError, match="ends in .safetensors"):
        convert_checkpoint(file, tmp_path / "b", "interleaved")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("folder", [True, False])
def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch, error, folder):
    source = save_folder(tmp_path / "a", shards=1 if not folder else 2)
    source = source if folder else source / "model.safetensors"
    target = tmp_path / ("b" if folder else "b.safetensors")
    count = 0

    def failing(*arguments):
        nonlocal count
        count += 1
        if count == 4:
            raise error
        return original(*arguments)

    original = checkpoint.copy_bytes
    monkeypatch.setattr(checkpoint, "copy_bytes", failing)
    with pytest.raises(type(error)):
        convert_checkpoint(source, target, "interleaved")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    source = save_folder(tmp_path / "a")
    target = save_folder(tmp_path / "b", {"x": torch.ones(1)})

    def rename(self, other):
        if len(calls := [*seen, self]) == 2:
            seen.append(self)
            raise OSError(5, "Input/output error")
        seen[:] = calls
        return original(self, other)

    seen, original = [], Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        convert_checkpoint(source, target, "interleaved", overwrite=True)
    assert set(load(target)) == {"x"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.untyped
@pytest.mark.parametrize("folder", [True, False])
def test_a_run_that_is_killed_leaves_no_half_target_and_the_next_cleans_up(tmp_path, folder):
    source = save_folder(tmp_path / "a")
    source = source if folder else source / "model.safetensors"
    target = tmp_path / ("b" if folder else "b.safetensors")
    code = (
        "import sys, time; from whereness.interop.weights import checkpoint\n"
        "def slow(*arguments):\n"
        "    print('there', flush=True); time.sleep(60)\n"
        "checkpoint.copy_bytes = slow\n"
        "from pathlib import Path\n"
        "checkpoint.convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), 'interleaved')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(target)],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 2  # the source, and the part
    other = tmp_path / f".{target.name}.part"
    other.write_text("another's", encoding="utf-8")
    convert_checkpoint(source, target, "interleaved")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([other.name, "a", target.name])


def test_a_target_that_appears_meanwhile_is_not_overwritten(tmp_path):
    def meanwhile() -> None:
        with placing.appearing(tmp_path / "b", None, False) as part:
            part.write_text("ours", encoding="utf-8")
            (tmp_path / "b").write_text("theirs", encoding="utf-8")

    with pytest.raises(ValueError, match="is there"):
        meanwhile()
    assert (tmp_path / "b").read_text(encoding="utf-8") == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
