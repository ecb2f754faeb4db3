"""What lies beside the weights: copied where a copy needs it, else told."""

import os

from interop.support import (
    expected,
    llama,
    load,
    same,
    save_folder,
)
from whereness.interop.weights.checkpoint import convert_checkpoint


def test_files_beside_the_weights(tmp_path):
    source = save_folder(tmp_path / "a")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    (source / "blob").write_bytes(b"vocabulary")
    (source / "vocab.txt").symlink_to(source / "blob")
    left = ["pytorch_model.bin", "model.gguf", "consolidated.safetensors", ".cache", "a.pt"]
    left += ["pytorch_model.bin.index.json", "around", "gone.txt", "circle.txt"]
    for name in left[:6]:
        (source / name).write_bytes(b"1")
    (source / "around").symlink_to(source)
    (source / "gone.txt").symlink_to(source / "nowhere")
    (source / "circle.txt").symlink_to(source / "circle.txt")
    os.mkfifo(source / "pipe")
    plan = convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert plan.source.left_out == tuple(sorted([*left, "pipe"]))
    found = sorted(str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*"))
    assert found == [
        *("1_Pooling", "1_Pooling/config.json", "blob", "config.json", "model.safetensors"),
        *("tokenizer.json", "vocab.txt"),
    ]
    assert (tmp_path / "b" / "vocab.txt").read_bytes() == b"vocabulary"
    assert not (tmp_path / "b" / "vocab.txt").is_symlink()
    convert_checkpoint(source, tmp_path / "b", "interleaved", overwrite=True)


def test_a_cache_of_links_as_the_hub_has_it(tmp_path):
    """Every file of a snapshot is a link to a blob."""
    blobs = save_folder(tmp_path / "blobs", shards=2)
    (tmp_path / "snapshot").mkdir()
    for file in blobs.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    convert_checkpoint(tmp_path / "snapshot", tmp_path / "b", "interleaved")
    same(load(tmp_path / "b"), expected(llama(), "interleaved"))
    assert not any(file.is_symlink() for file in (tmp_path / "b").iterdir())
