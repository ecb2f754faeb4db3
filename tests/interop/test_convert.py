"""`whereness convert`: what it says, and how it fails: one line and status 2."""

import json
import os

import pytest
import torch

import whereness as wn
from interop.support import LLAMA, D, E, G, H, drawn, file_of, llama, load, raw, save, save_folder
from whereness import cli
from whereness.cli import convert

pytestmark = pytest.mark.untyped


def test_it_says_what_was_done(tmp_path, capsys):
    source = save_folder(tmp_path / "a")
    (source / "pytorch_model.bin").write_bytes(b"1")
    target = tmp_path / "b"
    assert cli.main(["convert", str(source), str(target), "--to", "interleaved"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (f"{target}: interleaved, was half. 8 tensors converted, 5 unchanged.\n")
    assert captured.err == (
        "whereness: transformers turns half pairs in a llama: these weights are for code that "
        "turns interleaved ones.\nwhereness: not copied: 'pytorch_model.bin'.\n"
    )
    back = ["convert", str(target), str(tmp_path / "c"), "--to", "half", "--json", "-"]
    assert cli.main(back) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "source": str(target),
        "target": str(tmp_path / "c"),
        "from": "interleaved",
        "to": "half",
        "converted": sorted(n for n in llama() if "q_proj" in n or "k_proj" in n),
        "unchanged": 5,
        "left_out": [],
    }
    for name, tensor in llama().items():
        assert raw(load(tmp_path / "c")[name]) == raw(tensor)


def test_every_option_counts(tmp_path, capsys):
    tensors = {
        "0.wq.weight": drawn(0, H * D, E),
        "0.wk.weight": drawn(1, G * D, E),
        "0.nq.weight": drawn(2, D),
        "1.all.weight": drawn(3, (H + 2 * G) * D, E),
    }
    source = save(tmp_path / "a.safetensors", tensors)
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"old")
    line = (
        f"convert {source} {target} --to half --from interleaved --overwrite --num-heads {H} "
        f"--num-kv-heads {G} --head-dim {D} --rotary-dim 4 --side trailing --queries *.wq "
        f"--keys *.wk --norms *.nq *.nk --json {tmp_path / 'done.json'}"
    )
    assert cli.main(line.split()) == 0
    capsys.readouterr()
    found = load(target)
    for name, heads in (("wq", H), ("wk", G), ("nq", 1)):
        wanted = wn.convert_pairing(tensors[f"0.{name}.weight"], heads, D, "half", 4, "trailing")
        assert raw(found[f"0.{name}.weight"]) == raw(wanted)
    assert raw(found["1.all.weight"]) == raw(tensors["1.all.weight"])
    done = json.loads((tmp_path / "done.json").read_text(encoding="utf-8"))
    assert (done["from"], done["unchanged"]) == ("interleaved", 1)
    line = (
        f"convert {source} {target} --to half --from interleaved --overwrite --num-heads {H} "
        f"--num-kv-heads {G} --head-dim {D} --fused *.all --layout grouped"
    )
    assert cli.main(line.split()) == 0
    wanted = wn.convert_fused_qkv(tensors["1.all.weight"], H, D, G, "grouped")
    assert raw(load(target)["1.all.weight"]) == raw(wanted)


def test_a_file_whose_config_has_the_key_is_told_of_it(tmp_path, capsys):
    config = {
        "model_type": "deepseek_v3",
        "num_attention_heads": 2,
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 8,
    }
    at = "model.layers.0.self_attn."
    tensors = {f"{at}q_b_proj.weight": drawn(0, 24, 5)}
    tensors |= {f"{at}kv_a_proj_with_mqa.weight": drawn(1, 14, 5)}
    source = save_folder(tmp_path / "a", tensors, config) / "model.safetensors"
    line = ["convert", str(source), str(tmp_path / "b.safetensors"), "--to", "half"]
    assert cli.main(line) == 0
    assert capsys.readouterr().err == (
        "whereness: the config of this file must have rope_interleave set to false now.\n"
    )


def test_progress_is_told_of_large_files_only(tmp_path, monkeypatch, capsys):
    source = save_folder(tmp_path / "a")
    monkeypatch.setattr(convert, "LARGE", 1)
    assert cli.main(["convert", str(source), str(tmp_path / "b"), "--to", "interleaved"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0.0 of 0.0 GB" and len([line for line in lines if "GB" in line]) == 2


def broken_folder(tmp_path, **files: bytes):
    folder = save_folder(tmp_path / "a", shards=2)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def index(**where: object) -> bytes:
    return json.dumps({"weight_map": where}).encode()


FOLDERS = {
    "config NaN": ({"config__json": b'{"rope_theta": NaN}'}, "NaN is no JSON number"),
    "config twice": ({"config__json": b'{"head_dim": 1, "head_dim": 2}'}, "'head_dim' stands"),
    "config deep": ({"config__json": b"[" * 10**5}, "nested too deep"),
    "config list": ({"config__json": b"[]"}, "needed a JSON object, got list"),
    "config binary": ({"config__json": b"\x80\x04"}, "not valid JSON"),
    "model_type": ({"config__json": b'{"model_type": ["llama"]}'}, "must be a string, got a list"),
}
INDEXES = {
    "not JSON": (b"{", "not valid JSON"),
    "no map": (b"{}", "weight_map must be an object"),
    "empty map": (index(), "weight_map must be an object"),
    "a list": (b'{"weight_map": ["a"]}', "weight_map must be"),
    "up": (index(a="../model.safetensors"), "must be a .safetensors file beside it"),
    "absolute": (index(a="/etc/passwd"), "must be a .safetensors file beside it"),
    "down": (index(a="b/c.safetensors"), "must be a .safetensors file beside it"),
    "pickle": (index(a="model.bin"), "must be a .safetensors file beside it"),
    "a number": (index(a=3), "must be a .safetensors file beside it, got 3"),
    "gone": (index(a="gone.safetensors"), "gone.safetensors: No such file"),
    "another tensor": (
        index(a="model-00001-of-00002.safetensors"),
        "says that tensor 'a' is in model-00001-of-00002.safetensors, it is in None",
    ),
    "terminal": (index(**{"\x1b[2J": "\x1b[31m.safetensors/x"}), r"got '\x1b[31m.safetensors/x'"),
    "tensor twice": (b'{"weight_map": {"a": "b", "a": "c"}}', "'a' stands there twice"),
}


def refused(capsys, *arguments: object) -> str:
    assert cli.main(["convert", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("whereness: ") and captured.err.count("\n") == 1
    assert "\x1b" not in captured.err and len(captured.err) < 800
    return captured.err


@pytest.mark.parametrize("name", FOLDERS)
def test_a_broken_config_is_one_line(tmp_path, capsys, name):
    files, message = FOLDERS[name]
    source = broken_folder(tmp_path, **files)
    assert message in refused(capsys, source, tmp_path / "b", "--to", "interleaved")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", INDEXES)
def test_a_broken_index_is_one_line(tmp_path, capsys, name):
    data, message = INDEXES[name]
    source = broken_folder(tmp_path, model__safetensors__index__json=data)
    assert message in refused(capsys, source, tmp_path / "b", "--to", "interleaved")


def test_an_index_and_its_shards_must_agree(tmp_path, capsys):
    source = save_folder(tmp_path / "a", shards=2)
    file = source / "model-00001-of-00002.safetensors"
    save(file, {**load(file), "model.layers.0.self_attn.more": torch.ones(1)})
    assert "it is in model-0000" in refused(capsys, source, tmp_path / "b", "--to", "interleaved")
    save(file, llama())
    message = refused(capsys, source, tmp_path / "b", "--to", "interleaved")
    assert "two of its shards have a tensor of the same name" in message


def test_damaged_files_are_one_line(tmp_path, capsys):
    source = save_folder(tmp_path / "a")
    file, good = source / "model.safetensors", (source / "model.safetensors").read_bytes()
    for data in (good[:-1], good[:100], good[:4], b"", good + b"1", file_of({"a": []})):
        file.write_bytes(data)
        refused(capsys, source, tmp_path / "b", "--to", "interleaved")
        refused(capsys, file, tmp_path / "b.safetensors", "--to", "interleaved")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_sources_that_are_none(tmp_path, capsys):
    def told(name: str) -> str:
        return refused(capsys, tmp_path / name, tmp_path / "out.safetensors", "--to", "half")

    assert "No such file or directory" in told("gone")
    (tmp_path / "circle.safetensors").symlink_to(tmp_path / "circle.safetensors")
    assert "Too many levels of symbolic links" in told("circle.safetensors")
    (tmp_path / "circles").mkdir()
    (tmp_path / "circles" / "model.safetensors").symlink_to(
        tmp_path / "circles" / "model.safetensors"
    )
    assert "Too many levels of symbolic links" in told("circles")
    for name in ("pytorch_model.bin", "a.pt", "a.pth", "a.ckpt", "a.pkl"):
        (tmp_path / name).write_bytes(b"\x80\x04")
        assert "pickled weights are refused" in told(name)
    (tmp_path / "a.txt").write_bytes(b"1")
    assert "needed a .safetensors file, or a folder" in told("a.txt")
    (tmp_path / "empty").mkdir()
    assert "has no .safetensors file." in told("empty")
    (tmp_path / "empty" / "pytorch_model.bin").write_bytes(b"1")
    assert "pickled weights (pytorch_model.bin) are refused" in told("empty")
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "model.safetensors")
    assert "model.safetensors: is no file" in told("pipes")
    (tmp_path / "folder.safetensors").mkdir()
    assert "has no .safetensors file" in told("folder.safetensors")
    for name in ("x.safetensors", "y.safetensors"):
        save(tmp_path / "two" / name, llama())
    assert "has 2 .safetensors files and no model.safetensors.index.json" in told("two")


USAGE = [
    (["--to", "neox"], "--to"),
    ([], "--to"),
    (["--to", "half", "--from", "x"], "--from"),
    (["--to", "half", "--num-heads", "0"], "--num-heads must be at least 1, got 0"),
    (["--to", "half", "--rotary-dim", "-2"], "--rotary-dim must be at least 1, got -2"),
    (["--to", "half", "--overwite"], "did you mean --overwrite?"),
    (["--to", "half", "--queries", "a", "--queries", "b"], "--queries is given twice"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_wrong_usage_is_one_line(tmp_path, capsys, arguments, message):
    source = save_folder(tmp_path / "a")
    assert message in refused(capsys, source, tmp_path / "b", *arguments)
    assert not (tmp_path / "b").exists()


def test_a_target_that_cannot_be_written_is_one_line(tmp_path, capsys):
    source = save_folder(tmp_path / "a")
    (tmp_path / "file").write_bytes(b"1")
    message = refused(capsys, source, tmp_path / "file" / "b", "--to", "interleaved")
    assert "Not a directory" in message or "File exists" in message
    assert "is there. Give --overwrite" in refused(
        capsys, source, save_folder(tmp_path / "b"), "--to", "interleaved"
    )
    config = {**LLAMA, "whereness_pairing": "interleaved"}
    source = save_folder(tmp_path / "c", config=config)
    assert "is interleaved already" in refused(
        capsys, source, tmp_path / "d", "--to", "interleaved"
    )
