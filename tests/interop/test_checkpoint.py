"""Checkpoints between the pairings: exactly the rows that turn move, and all else is as it was."""

import json
import subprocess
import sys
import time

import pytest
import torch

import whereness as wn
from interop.support import (
    LAYERS,
    LLAMA,
    D,
    E,
    G,
    H,
    config_of,
    drawn,
    expected,
    llama,
    load,
    metadata,
    raw,
    same,
    save,
    save_folder,
)
from processes import ROOT, clean_environment
from whereness.interop.weights.checkpoint import convert_checkpoint
from whereness.interop.weights.projections import Given


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_there_and_back(tmp_path, shards, dtype):
    tensors = llama(dtype)
    source = save_folder(tmp_path / "a", tensors, shards=shards)
    plan = convert_checkpoint(source, tmp_path / "b", "interleaved")
    assert len(plan.moves) == 4 * LAYERS and (plan.before, plan.to) == ("half", "interleaved")
    found = load(tmp_path / "b")
    same(found, expected(tensors, "interleaved"))
    assert raw(found["model.layers.0.self_attn.q_proj.weight"]) != raw(
        tensors["model.layers.0.self_attn.q_proj.weight"]
    )
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(
        p.name for p in source.iterdir()
    )
    for name in ("tokenizer.json", "model.safetensors.index.json"):
        if (source / name).exists():
            assert (tmp_path / "b" / name).read_bytes() == (source / name).read_bytes()
    assert config_of(tmp_path / "b") == {**LLAMA, "whereness_pairing": "interleaved"}
    for file in (tmp_path / "b").glob("*.safetensors"):
        assert metadata(file) == {"format": "pt", "whereness.pairing": "interleaved"}
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "half")
    same(load(tmp_path / "c"), tensors)
    assert config_of(tmp_path / "c") == LLAMA
    same(load(source), tensors)


def test_one_file_with_and_without_a_config_beside_it(tmp_path):
    tensors = llama()
    source = save(tmp_path / "a.safetensors", tensors)
    given = Given(H, G, D, queries=("*.q_proj",), keys=("*.k_proj",))
    convert_checkpoint(source, tmp_path / "b.safetensors", "half", "interleaved", given)
    same(load(tmp_path / "b.safetensors"), expected(tensors, "half"))
    with pytest.raises(ValueError, match="nothing says which pairing it has: give --from"):
        convert_checkpoint(source, tmp_path / "c.safetensors", "half", given=given)
    folder = save_folder(tmp_path / "folder", tensors)
    convert_checkpoint(folder / "model.safetensors", tmp_path / "d.safetensors", "interleaved")
    same(load(tmp_path / "d.safetensors"), expected(tensors, "interleaved"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.safetensors",
        "b.safetensors",
        "d.safetensors",
        "folder",
    ]


def test_a_second_conversion_to_the_same_pairing_is_refused(tmp_path):
    """The mark in the file is enough: whoever lost the config still cannot break the weights."""
    source = save_folder(tmp_path / "a")
    with pytest.raises(ValueError, match="is half already"):
        convert_checkpoint(source, tmp_path / "b", "half")
    convert_checkpoint(source, tmp_path / "b", "interleaved")
    (tmp_path / "b" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for before in (None, "interleaved"):
        with pytest.raises(ValueError, match="is interleaved already"):
            convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", before)
    assert not (tmp_path / "c").exists()
    # The mark in the config is enough as well: saved anew, a file has lost its metadata.
    save(tmp_path / "b" / "model.safetensors", llama())
    marked = {**LLAMA, "whereness_pairing": "interleaved"}
    (tmp_path / "b" / "config.json").write_text(json.dumps(marked), encoding="utf-8")
    with pytest.raises(ValueError, match="is interleaved already"):
        convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved")


CONTRADICTIONS = {
    "said and marked": ({}, {"whereness.pairing": "half"}, "interleaved", "--from: interleaved"),
    "file and config": (
        {"whereness_pairing": "half"},
        {"whereness.pairing": "interleaved"},
        None,
        "whereness_pairing: half; model.safetensors, metadata whereness.pairing: interleaved",
    ),
    "no pairing": ({"whereness_pairing": 1}, {}, None, "must be one of half, interleaved; got 1"),
    "file, no pairing": ({}, {"whereness.pairing": "neox"}, None, "half, interleaved; got 'neox'"),
    "said and key": (
        {"model_type": "deepseek_v3", "rope_interleave": False},
        {},
        "interleaved",
        "rope_interleave: half",
    ),
    "key": (
        {"model_type": "deepseek_v3", "rope_interleave": "yes"},
        {},
        None,
        "rope_interleave must be true or false, got 'yes'",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_all_who_speak_of_the_pairing_must_agree(tmp_path, name):
    config, marks, said, message = CONTRADICTIONS[name]
    source = save_folder(tmp_path / "a", config={**LLAMA, **config})
    save(source / "model.safetensors", llama(), **marks)
    for to in ("half", "interleaved"):
        with pytest.raises(ValueError, match=message):
            convert_checkpoint(source, tmp_path / "b", to, said)
    assert not (tmp_path / "b").exists()


def test_the_user_may_say_that_weights_are_not_as_their_family_has_them(tmp_path):
    """Meta's own Llama weights are interleaved."""
    source = save_folder(tmp_path / "a")
    convert_checkpoint(source, tmp_path / "b", "half", "interleaved")
    same(load(tmp_path / "b"), expected(llama(), "half"))
    assert config_of(tmp_path / "b") == LLAMA


def test_only_some_shards_marked_is_refused(tmp_path):
    source = save_folder(tmp_path / "a", shards=2)
    file = next(source.glob("*.safetensors"))
    save(file, load(file), **{"whereness.pairing": "half"})
    with pytest.raises(ValueError, match="some of its files are marked"):
        convert_checkpoint(source, tmp_path / "b", "interleaved")


def deepseek(q_lora: bool = True) -> tuple[dict, dict]:
    nope, rope, latent = 4, 8, 6
    config = {
        "model_type": "deepseek_v3",
        "num_attention_heads": H,
        "num_key_value_heads": H,
        "kv_lora_rank": latent,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "hidden_size": E,
    }
    at = "model.layers.0.self_attn."
    queries = "q_b_proj" if q_lora else "q_proj"
    tensors = {
        f"{at}q_a_proj.weight": drawn(1, 5, E),
        f"{at}q_a_layernorm.weight": drawn(2, 5),
        f"{at}{queries}.weight": drawn(3, H * (nope + rope), 5),
        f"{at}kv_a_proj_with_mqa.weight": drawn(4, latent + rope, E),
        f"{at}kv_a_layernorm.weight": drawn(5, latent),
        f"{at}kv_b_proj.weight": drawn(6, H * (nope + 8), latent),
    }
    return config, tensors


@pytest.mark.parametrize("q_lora", [True, False])
def test_latent_attention_says_its_pairing_in_its_own_key(tmp_path, q_lora):
    config, tensors = deepseek(q_lora)
    source = save_folder(tmp_path / "a", tensors, config)
    plan = convert_checkpoint(source, tmp_path / "b", "half")
    assert len(plan.moves) == 2
    found = load(tmp_path / "b")
    for name, tensor in tensors.items():
        heads, width = (1, 14) if "kv_a_proj" in name else (H, 12)
        moves = "kv_a_proj" in name or "q_b_proj" in name or ".q_proj" in name
        wanted = (
            wn.convert_pairing(tensor, heads, width, "half", 8, "trailing") if moves else tensor
        )
        assert raw(found[name]) == raw(wanted)
    assert config_of(tmp_path / "b") == {**config, "rope_interleave": False}
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved")
    same(load(tmp_path / "c"), tensors)
    assert config_of(tmp_path / "c") == {**config, "rope_interleave": True}
    with pytest.raises(ValueError, match="the heads of a deepseek_v3 come from its config"):
        convert_checkpoint(source, tmp_path / "d", "half", given=Given(num_heads=2))


def test_the_progress_counts_every_byte(tmp_path):
    told = []
    source = save_folder(tmp_path / "a", shards=2)
    convert_checkpoint(
        source, tmp_path / "b", "interleaved", progress=lambda done, size: told.append((done, size))
    )
    size = sum(tensor.nbytes for tensor in llama().values())
    assert [d for d, _ in told] == sorted(d for d, _ in told)
    assert {s for _, s in told} == {size} and told[-1][0] == size
    assert len(told) == len(llama())


MEMORY = """
import sys
from pathlib import Path
from whereness.interop.weights.checkpoint import convert_checkpoint

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), "interleaved")
Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is used
before = memory("VmRSS")
convert_checkpoint(Path(sys.argv[3]), Path(sys.argv[4]), "interleaved")
print(memory("VmHWM") - before)
"""


@pytest.mark.more
@pytest.mark.untyped
def test_memory_is_bounded_by_a_part_of_the_largest_tensor(tmp_path):
    """600 MB in tensors of 34 MB: a head of one is held, or a piece of one that is copied."""
    warm = save_folder(tmp_path / "warm")
    width = 4096
    config = {**LLAMA, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
    tensors = {}
    for layer in range(6):
        for name in ("q_proj", "k_proj", "v_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.zeros(
                width, width, dtype=torch.bfloat16
            )
    largest = max(tensor.nbytes for tensor in tensors.values())
    source = save_folder(tmp_path / "a", tensors, config, shards=2)
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 15 * largest
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, warm, tmp_path / "w", source, tmp_path / "b"],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    print(f"{size / 1e6:.0f} MB, peak +{grown / 1e6:.1f} MB, {time.monotonic() - started:.1f} s")
    assert 0 <= grown < largest / 2
