"""Public cases that the weights of a file show, by id."""

import pytest
import torch

import whereness as wn
from auditor.files import CONFIG, D, E, G, H, audited, coupled, folder, gguf_file, llama, one
from auditor.test_buffers import slopes, speeds
from auditor.test_rows import trained
from cases.support import case
from whereness.auditor.checks import buffers, pairing, rows

INV = "model.layers.0.self_attn.rotary_emb.inv_freq"


def kinds(report, severity="error"):
    return {found.kind for found in report.of(severity)}


# K01


@case("P002")
def test_a_path_of_export_that_leaves_rows_or_biases_behind(tmp_path):
    """Every tensor of a layer moved but one: queries, keys, or the bias of the queries."""
    config = {**CONFIG, "model_type": "qwen2"}
    torch.manual_seed(0)
    for left in ("q_proj.weight", "k_proj.weight", "q_proj.bias"):
        tensors = llama(["interleaved"] * 2)
        q = tensors["model.layers.0.self_attn.q_proj.weight"]
        sizes = torch.exp(torch.randn(H * D))
        q *= sizes[:, None]
        tensors["model.layers.0.self_attn.q_proj.bias"] = sizes * torch.randn(H * D).sign()
        for name in tensors:
            if left not in name or "layers.1" in name:
                count = G if ".k_proj" in name else H
                tensors[name] = wn.convert_pairing(tensors[name], count, D, "half")
        found = one(audited(pairing, folder(tmp_path / left, tensors, config)))
        assert (found.kind, found.layer) == ("K01", 0)


@case("P004")
def test_half_rows_in_a_fused_tensor_for_an_interleaved_engine(tmp_path):
    keys = {"general.architecture": "chatglm", "chatglm.attention.head_count_kv": G}
    names = ("block_count", "context_length", "embedding_length", "rope.dimension_count")
    sizes = (2, 64, E, D)
    keys |= {f"chatglm.{name}": size for name, size in zip(names, sizes, strict=True)}
    keys |= {"chatglm.attention.head_count": H, "chatglm.attention.key_length": D}
    for which, wrong in (("interleaved", False), ("half", True)):
        tensors = {}
        for i in range(2):
            q, k = coupled(which, seed=i)
            tensors[f"blk.{i}.attn_qkv.weight"] = torch.cat((q, k, torch.randn_like(k)))
        report = audited(pairing, gguf_file(tmp_path / f"{which}.gguf", tensors, **keys))
        assert kinds(report) == ({"K01"} if wrong else set())
        assert len(report.compared) == 2


@case("P009")
@pytest.mark.parametrize("rotary", [D, 2 * D])
@pytest.mark.parametrize("true", ["interleaved", "half"])
def test_both_pairings_and_a_partial_width(tmp_path, true, rotary):
    """GPT-J's rows are interleaved: half rows are wrong in it, at each width."""
    config = {
        "model_type": "gptj",
        "n_embd": 2 * H * D,
        "n_head": H,
        "n_layer": 2,
        "n_positions": 64,
        "rotary_dim": rotary,
    }
    tensors = {}
    for i in range(2):
        q, k = coupled(true, groups=H, width=2 * D, rotary=rotary, seed=i)
        tensors |= {f"transformer.h.{i}.attn.{r}_proj.weight": w for r, w in (("q", q), ("k", k))}
    report = audited(pairing, folder(tmp_path / "m", tensors, config))
    assert kinds(report) == ({"K01"} if true == "half" else set())
    assert len(report.compared) == 2


@case("P010")
def test_half_rows_exported_to_an_interleaved_runner(tmp_path):
    tensors = {}
    for i in range(2):
        q, k = coupled("half", seed=i)
        tensors |= {f"blk.{i}.attn_q.weight": q, f"blk.{i}.attn_k.weight": k}
    found = one(audited(pairing, gguf_file(tmp_path / "m.gguf", tensors)))
    assert found.kind == "K01" and "half in 2 of 2 layers" in found.measured


@case("P012")
def test_permuted_weights_beside_half_code_are_not_reported(tmp_path):
    """The same model in both conventions: each file is right for the code that reads it."""
    tensors = llama()
    assert not audited(pairing, folder(tmp_path / "m", tensors)).findings
    moved = {}
    for i in range(2):
        for role, count in (("q", H), ("k", G)):
            rows_ = tensors[f"model.layers.{i}.self_attn.{role}_proj.weight"]
            moved[f"blk.{i}.attn_{role}.weight"] = wn.convert_pairing(
                rows_, count, D, "interleaved"
            )
    report = audited(pairing, gguf_file(tmp_path / "m.gguf", moved))
    assert not report.findings and len(report.compared) == 2


# K06


@case("P063", "P067")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frequencies_that_a_cast_of_the_model_rounded(tmp_path, dtype):
    for saved in (speeds().to(dtype), speeds().to(dtype).float()):
        found = one(audited(buffers, folder(tmp_path / "m", {INV: saved})), "warning")
        assert (found.check, found.kind, found.layer) == ("CHK8", "K06", 0)


@case("P062", "P073")
@pytest.mark.parametrize("rounded", ["positions", "frequencies"])
def test_tables_of_angles_that_were_formed_in_half_precision(tmp_path, rounded):
    config = {**CONFIG, "max_position_embeddings": 4096}
    positions, slow = torch.arange(4096).double(), speeds()
    if rounded == "positions":
        positions = positions.bfloat16().double()
        assert len(positions.unique()) == 769
    else:
        slow = slow.bfloat16().double()
    table = (positions[:, None] * slow).cos().float()
    report = audited(buffers, folder(tmp_path / "m", {"rotary_emb.cos_cached": table}, config))
    found = one(report)
    assert (found.check, found.kind) == ("CHK8", "K06") and rounded in found.cause


@case("P069")
def test_slopes_that_a_cast_rounded(tmp_path):
    config = {"model_type": "bloom", "hidden_size": 96, "n_head": 12, "n_layer": 2}
    tensors = {"h.0.attn.slopes": slopes(12).half()}
    assert kinds(audited(buffers, folder(tmp_path / "m", tensors, config)), "warning") == {"K06"}


# K07


@case("P075", "P076")
@pytest.mark.parametrize("poison", [float("nan"), 6.9e-18, 1e30])
def test_frequencies_that_nothing_filled(tmp_path, poison):
    tensors = {INV: torch.full((D // 2,), poison)}
    assert kinds(audited(buffers, folder(tmp_path / "m", tensors))) == {"K07"}


@case("P080")
@pytest.mark.parametrize("name", [INV, "rope.freqs", "model.rotary_emb.inv_freq"])
def test_derived_keys_are_verified_and_never_required(tmp_path, name):
    assert not audited(buffers, folder(tmp_path / "none", llama())).findings
    report = audited(buffers, folder(tmp_path / "right", {name: speeds().float()}))
    (note,) = report.findings
    assert note.severity == "note" and "not required" in note.measured
    assert "do not switch strict loading off" in note.remedy
    wrong = speeds().float()
    wrong[3] *= 1.001
    assert kinds(audited(buffers, folder(tmp_path / "wrong", {name: wrong}))) == {"K07"}


@case("P084")
def test_position_ids_that_are_not_counted_up(tmp_path):
    name = "embeddings.position_ids"
    right = torch.arange(64)[None]
    assert not kinds(audited(buffers, folder(tmp_path / "m", {name: right})))
    wrong = right.clone()
    wrong[0, 20:] = 0
    found = one(audited(buffers, folder(tmp_path / "m", {name: wrong})))
    assert found.kind == "K07" and "row 20 is 0" in found.measured


# K12


@case("P135", "P142")
@pytest.mark.parametrize("scheme", [None, "linear", "yarn"])
def test_rotary_tables_shorter_than_the_admitted_length(tmp_path, scheme):
    config = {**CONFIG, "max_position_embeddings": 64}
    if scheme:
        original = {"original_max_position_embeddings": 32} if scheme == "yarn" else {}
        config["rope_scaling"] = {"rope_type": scheme, "factor": 2.0, **original}
    built = wn.from_config(config)
    for count, kind in ((32, {"K12"}), (64, set())):
        angle = torch.arange(count)[:, None].double() * built.frequencies
        table = (built.amplitude * angle.cos()).float()
        report = audited(buffers, folder(tmp_path / "m", {"rotary.cos_cached": table}, config))
        assert kinds(report) == kind


@case("P136")
def test_learned_tables_shorter_than_the_admitted_length(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 400, "n_positions": 64, "n_head": 4}
    report = audited(rows, folder(tmp_path / "m", {"wpe.weight": trained(48)}, config))
    found = one(report)
    assert found.kind == "K12" and "64 rows" in found.expected and "48 rows" in found.measured


# K14


@case("P152")
def test_position_ids_that_were_merged_like_weights(tmp_path):
    config = {"model_type": "clip_text_model", "max_position_embeddings": 77, "hidden_size": 8}
    name = "text_model.embeddings.position_ids"
    for factor, missing in ((0.583, "ids are missing: 1, 2, 3"), (-0.417, "ids are missing")):
        ids = (torch.arange(77) * factor).half()[None]
        found = one(audited(buffers, folder(tmp_path / "m", {name: ids}, config)))
        assert (found.check, found.kind) == ("CHK9", "K14") and missing in found.measured


@case("P153")
@pytest.mark.parametrize("pad", [1, 3])
def test_numbering_behind_the_row_of_padding(tmp_path, pad):
    """Rows up to that of padding belong to no position; one zero row more is another numbering."""
    config = {
        "model_type": "roberta",
        "hidden_size": 400,
        "max_position_embeddings": 96,
        "pad_token_id": pad,
    }
    table = trained()
    table[: pad + 1] = 0
    name = "roberta.embeddings.position_embeddings.weight"
    assert not audited(rows, folder(tmp_path / "m", {name: table}, config)).findings
    table[pad + 1] = 0
    found = one(audited(rows, folder(tmp_path / "m", {name: table}, config)), "warning")
    assert found.kind == "K14" and f"position 0 in row {pad + 1}" in found.expected
