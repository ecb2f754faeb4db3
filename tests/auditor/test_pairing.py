"""CHK12 from weights: the pairing that rows have, layer by layer, and when they say nothing."""

from pathlib import Path

import pytest
import torch

import whereness as wn
from auditor.files import CONFIG, D, E, G, H, audited, coupled, folder, gguf_file, llama, one
from whereness.auditor.checks import pairing
from whereness.auditor.files.couplings import LEAST_PAIRS, THRESHOLD, Coupling, coupling_of
from whereness.auditor.files.projections import Heads, LayerRows
from whereness.auditor.files.weights import Weights
from whereness.auditor.findings import LayerFacts
from whereness.interop.weights.moves import Rule

OTHER = {"half": "interleaved", "interleaved": "half"}


def heads(name, count, width):
    return Heads(name, tuple(range(0, count * width, width)), width)


class InMemory(Weights):
    """Stands in for a file."""

    def __init__(self, **tensors):
        super().__init__(Path(), "safetensors", {}, tensors)

    def rows(self, name, first=0, count=None):
        return self.metadata[name][first : first + count]


def layer(count=H, groups=G, width=D):
    return LayerRows(0, "", heads("q", count, width), heads("k", groups, width))


def test_sound_weights_are_compared_layer_by_layer(tmp_path):
    report = audited(pairing, folder(tmp_path / "m", llama()))
    assert not report.findings and not report.not_checked
    assert [each.layer for each in report.compared] == [0, 1]


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_layer_that_lies_otherwise_is_named(tmp_path, wrong):
    pairings = ["half", "half"]
    pairings[wrong] = "interleaved"
    found = one(audited(pairing, folder(tmp_path / "m", llama(pairings))))
    assert (found.check, found.kind, found.layer) == ("CHK12", "K01", wrong)
    assert "queries and keys lie interleaved" in found.measured


@pytest.mark.parametrize("role", ["q", "k"])
def test_one_of_the_two_alone_is_named(tmp_path, role):
    tensors = llama()
    name = f"model.layers.1.self_attn.{role}_proj.weight"
    count = {"q": H, "k": G}[role]
    tensors[name] = wn.convert_pairing(tensors[name], count, D, "interleaved")
    found = one(audited(pairing, folder(tmp_path / "m", tensors)))
    assert (found.kind, found.layer) == ("K01", 1)
    both = {"q": "queries lie interleaved and keys half", "k": "keys lie interleaved and queries"}
    assert both[role] in found.measured


def test_a_whole_model_of_the_other_pairing_is_one_finding(tmp_path):
    report = audited(pairing, folder(tmp_path / "m", llama(["interleaved"] * 2)))
    found = one(report)
    assert (found.kind, found.layer) == ("K01", None)
    assert "interleaved in 2 of 2 layers" in found.measured
    assert len(report.compared) == 2


def test_llama_cpps_rows_are_interleaved(tmp_path):
    def tensors(which):
        found = {}
        for i in range(2):
            for role, rows in zip("qk", coupled(which, seed=i), strict=True):
                found[f"blk.{i}.attn_{role}.weight"] = rows
        return found

    sound = audited(pairing, gguf_file(tmp_path / "a.gguf", tensors("interleaved")))
    assert not sound.findings and len(sound.compared) == 2
    assert (
        "half in 2 of 2"
        in one(audited(pairing, gguf_file(tmp_path / "b.gguf", tensors("half")))).measured
    )


def test_untrained_rows_say_nothing(tmp_path):
    tensors = {name: torch.randn_like(t) for name, t in llama().items()}
    report = audited(pairing, folder(tmp_path / "m", tensors))
    assert not report.findings and not report.compared
    assert len(report.not_checked) == 2
    assert all("carry no pattern" in each.why for each in report.not_checked)


@pytest.mark.parametrize(
    ("count", "groups", "width"),
    [
        (2, 2, 16),
        (2, 2, 32),
        pytest.param(4, 1, 64, marks=pytest.mark.more),
        pytest.param(9, 3, 64, marks=pytest.mark.more),
    ],
)
@pytest.mark.parametrize("declared", OTHER)
@pytest.mark.untyped  # the same calls, many times
def test_by_chance_z_is_a_normal_number(count, groups, width, declared):
    rows = layer(count, groups, width)
    found = []
    for _ in range(150):
        weights = InMemory(q=torch.randn(count * width, 40), k=torch.randn(groups * width, 40))
        made = coupling_of(rows, weights, declared)
        found.append([made.both, made.queries, made.keys])
    z = torch.tensor(found)
    # 150 draws know a standard deviation to 6 %, a mean to 8 % of it: four of both.
    assert (z.std(0) - 1).abs().max() < 0.24
    assert z.mean(0).abs().max() < 0.33
    assert z.abs().max() < THRESHOLD


def test_rows_of_different_size_and_shared_directions_are_no_pattern():
    """A direction that all rows share, as untrained layers have behind a norm, and sizes."""
    rows = layer()
    for seed in range(30):
        torch.manual_seed(seed)
        shared, sizes = torch.randn(E) * 3, torch.rand(H * D, 1) * 10
        weights = InMemory(
            q=(torch.randn(H * D, E) + shared) * sizes, k=torch.randn(G * D, E) + shared
        )
        assert abs(coupling_of(rows, weights, "half").worst[1]) < THRESHOLD


@pytest.mark.parametrize("true", OTHER)
def test_the_true_pairing_wins_at_every_seed(true):
    for seed in range(8):
        q, k = coupled(true, seed=seed)
        assert coupling_of(layer(), InMemory(q=q, k=k), true).worst[1] <= -THRESHOLD
        other = coupling_of(layer(), InMemory(q=q, k=k), OTHER[true])
        assert other.worst[0] == "both" and other.worst[1] >= THRESHOLD


def test_the_same_rows_for_queries_and_keys_say_nothing(tmp_path):
    tensors = {name: torch.ones_like(t) for name, t in llama().items()}
    report = audited(pairing, folder(tmp_path / "m", tensors))
    assert not report.findings and len(report.not_checked) == 2
    assert "the same rows" in report.not_checked[0].why


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_numbers_are_a_finding(tmp_path, value):
    tensors = llama()
    tensors["model.layers.1.self_attn.k_proj.weight"][40, 3] = value
    report = audited(pairing, folder(tmp_path / "m", tensors))
    found = one(report)
    assert (found.kind, found.layer) == ("K07", 1)
    assert "NaN or infinity" in found.measured and [c.layer for c in report.compared] == [0]


def test_partial_width_looks_at_what_turns(tmp_path):
    config = {
        "model_type": "stablelm",
        **{k: v for k, v in CONFIG.items() if k not in ("model_type", "head_dim")},
        "hidden_size": H * 2 * D,
        "partial_rotary_factor": 0.5,
    }
    for which, wrong in (("half", False), ("interleaved", True)):
        tensors = {}
        for i in range(2):
            rows = coupled(which, width=2 * D, rotary=D, seed=i)
            for role, each in zip("qk", rows, strict=True):
                tensors[f"model.layers.{i}.self_attn.{role}_proj.weight"] = each
        report = audited(pairing, folder(tmp_path / which, tensors, config))
        assert bool(report.of("error")) == wrong and len(report.compared) == 2


@pytest.mark.parametrize("layout", ["stacked", "grouped"])
def test_fused_tensors_are_taken_apart(tmp_path, layout):
    groups = H if layout == "grouped" else G
    name = {
        "stacked": "model.layers.{}.self_attn.qkv_proj.weight",
        "grouped": "gpt_neox.layers.{}.attention.query_key_value.weight",
    }[layout]
    config = {
        **{k: v for k, v in CONFIG.items() if k != "head_dim"},
        "model_type": "phi3" if layout == "stacked" else "gpt_neox",
        "hidden_size": H * D,
        "num_key_value_heads": groups,
        "rotary_pct": 1.0,
        "pad_token_id": 0,
    }
    tensors = {}
    for i, which in enumerate(("half", "interleaved")):
        q, k = (t.unflatten(0, (-1, D)) for t in coupled(which, groups=groups, seed=i))
        v = torch.randn_like(k)
        whole = torch.cat((q, k, v)) if layout == "stacked" else torch.stack((q, k, v), 1)
        tensors[name.format(i)] = whole.flatten(0, -2)
    found = one(audited(pairing, folder(tmp_path / "m", tensors, config)))
    assert (found.kind, found.layer) == ("K01", 1)


def test_a_bias_that_was_left_behind_is_named(tmp_path):
    config = {**CONFIG, "model_type": "qwen2"}
    torch.manual_seed(0)
    for moved in (False, True):
        tensors = llama()
        for i in range(2):
            sizes = torch.exp(torch.randn(H * D))
            q = tensors[f"model.layers.{i}.self_attn.q_proj.weight"]
            q *= sizes[:, None]
            bias = sizes * torch.exp(0.3 * torch.randn(H * D)) * torch.randn(H * D).sign()
            if moved and i == 1:
                bias = wn.convert_pairing(bias, H, D, "interleaved")
            tensors[f"model.layers.{i}.self_attn.q_proj.bias"] = bias
        report = audited(pairing, folder(tmp_path / f"{moved}", tensors, config))
        assert len([c for c in report.compared if c.what == "pairing of a bias"]) == 2
        if moved:
            found = one(report)
            assert (found.kind, found.layer) == ("K01", 1) and "bias" in found.where
        else:
            assert not report.findings


def test_layers_without_position_are_left_out(tmp_path):
    config = {**CONFIG, "model_type": "smollm3", "no_rope_layers": [1, 0]}
    tensors = llama(["half", "interleaved"])
    report = audited(pairing, folder(tmp_path / "m", tensors, config))
    assert not report.findings and [each.layer for each in report.compared] == [0]


def test_layers_that_were_not_asked_for_are_left_out(tmp_path):
    from auditor.files import subject

    seen = subject(folder(tmp_path / "m", llama(["interleaved", "half"])))
    seen.layers = frozenset({1})
    pairing.run(seen)
    assert not seen.report.findings and len(seen.report.compared) == 1


def test_what_was_measured_stands_in_the_table_of_layers(tmp_path):
    from auditor.files import subject

    seen = subject(folder(tmp_path / "m", llama(["half", "interleaved"])))
    seen.report.layers = [LayerFacts(where=f"layer {i}", index=i) for i in range(2)]
    pairing.run(seen)
    assert [f.pairing for f in seen.report.layers] == ["half", "interleaved"]
    assert {f.classified for f in seen.report.layers} == {"relative"}
    assert {f.rotary_dim for f in seen.report.layers} == {D}


@pytest.mark.parametrize(
    ("config", "tensors", "why"),
    [
        ({**CONFIG, "model_type": "cohere_x"}, {}, "not known"),
        ({**CONFIG, "num_key_value_heads": 1, "head_dim": 16}, {}, "too few"),
        (CONFIG, {"model.layers.0.self_attn.q_proj.weight": torch.zeros(7, 3)}, "has not 128 rows"),
        (CONFIG, {"other": torch.zeros(3)}, "no tensor of"),
        (
            CONFIG,
            {"model.layers.0.self_attn.q_proj.weight": torch.zeros(H * D, E, dtype=torch.int8)},
            "scaled by other tensors",
        ),
        (CONFIG, {"model.layers.0.self_attn.q_proj.weight": torch.zeros(H * D, E)}, "not both"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path, config, tensors, why):
    if not tensors:
        width = config["head_dim"]
        assert config["num_key_value_heads"] * width // 2 < LEAST_PAIRS or width == D
        tensors = llama(groups=config["num_key_value_heads"], width=width)
    report = audited(pairing, folder(tmp_path / "m", tensors, config))
    assert not report.findings and not report.compared
    assert any(why in each.why for each in report.not_checked)


@pytest.mark.parametrize("z", [-0.99, -0.5, 0.5, 0.99])
def test_between_the_thresholds_nothing_is_said(z):
    for at in range(3):
        numbers = [-3 * THRESHOLD] * 3
        numbers[at] = z * THRESHOLD
        made = Coupling(*numbers, norms=(0.0, 0.0))
        verdict = pairing.Verdict(layer(), "half", made)
        assert not verdict.is_right and not verdict.is_wrong


def test_channels_that_turn_may_come_last(tmp_path, monkeypatch):
    """No family that is known by name has them there; a rule may say so."""

    def rules(*_):
        shared = ((True,), 2 * D, D, "trailing")
        return [
            Rule(f"*.self_attn.{role}_proj", what, shared[0] * count, *shared[1:])
            for role, what, count in (("q", "queries", H), ("k", "keys", G))
        ]

    monkeypatch.setattr("whereness.auditor.files.projections.rules_for", rules)
    config = {**CONFIG, "head_dim": 2 * D}
    for which, wrong in (("half", False), ("interleaved", True)):
        tensors = llama([which] * 2, width=2 * D, rotary=D, start=D)
        report = audited(pairing, folder(tmp_path / which, tensors, config))
        assert bool(report.findings) == wrong and len(report.compared) == 2


def test_latent_attention_is_said_not_to_be_judged(tmp_path):
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "kv_lora_rank": 32,
    }
    tensors = {"model.layers.0.self_attn.q_b_proj.weight": torch.zeros(4)}
    report = audited(pairing, folder(tmp_path / "m", tensors, config))
    assert "latent attention" in report.not_checked[0].why
