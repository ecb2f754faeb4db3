"""CHK9 from weights: derived tensors in files, right and wrong."""

import math

import pytest
import torch

from auditor.files import CONFIG, D, audited, folder, one
from whereness.auditor.checks import buffers
from whereness.auditor.checks.buffers import derived_as
from whereness.auditor.files.weights import weights_of
from whereness.auditor.findings import Report
from whereness.auditor.subject import Subject
from whereness.interop.config import files as configs

LENGTH = 64
BASE = 10_000.0
INV = "model.rotary_emb.inv_freq"


def speeds(base=BASE, width=D):
    return torch.tensor([base ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)


def angles(rows=LENGTH, base=BASE):
    return torch.arange(rows, dtype=torch.float64)[:, None] * speeds(base)


def report(tmp_path, tensors, config=None):
    return audited(buffers, folder(tmp_path / "m", tensors, config))


def sound(found, count=1):
    assert not found.of("error") and not found.of("warning") and not found.not_checked
    assert len(found.compared) >= count
    (note,) = found.of("note")
    assert (note.check, note.kind) == ("CHK9", "K07") and "not required" in note.measured


def wrong(found, check, kind, severity="error"):
    told = one(found, severity)
    assert (told.check, told.kind) == (check, kind), told
    return told


# Frequencies


@pytest.mark.parametrize(
    "name",
    [
        INV,
        "model.layers.1.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq",
        "rope.freqs",
    ],
)
def test_right_frequencies_are_verified_and_not_required(tmp_path, name):
    sound(report(tmp_path, {name: speeds().float()}))


def test_frequencies_as_float32_code_makes_them_are_right(tmp_path):
    made = 1.0 / (BASE ** (torch.arange(0, D, 2, dtype=torch.int64).float() / D))
    sound(report(tmp_path, {INV: made}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("back", [False, True])
def test_rounded_frequencies_are_named_also_if_they_came_back(tmp_path, dtype, back):
    made = speeds().to(dtype)
    found = report(tmp_path, {INV: made.float() if back else made})
    told = wrong(found, "CHK8", "K06", "warning")
    assert str(dtype) in told.measured


@pytest.mark.parametrize("base", [10_000.1, 500_000.0, 100.0])
def test_another_base_is_named(tmp_path, base):
    told = wrong(report(tmp_path, {INV: speeds(base).float()}), "CHK9", "K07")
    assert f"base {base:.6g}" in told.measured


def test_frequencies_without_the_configs_scaling_are_named(tmp_path):
    config = {**CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    sound(report(tmp_path, {INV: speeds().float() / 4}, config))
    told = wrong(report(tmp_path, {INV: speeds().float()}, config), "CHK9", "K07")
    assert "base 10000" in told.measured
    told = wrong(report(tmp_path, {INV: speeds().float() / 8}, config), "CHK9", "K07")
    assert "another one" in told.measured


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30, 6.9e-18, 0.0])
def test_buffers_that_were_never_filled_are_named(tmp_path, poison):
    wrong(report(tmp_path, {INV: torch.full((D // 2,), poison)}), "CHK9", "K07")


def test_numbers_without_order_are_no_spectrum(tmp_path):
    wrong(report(tmp_path, {INV: torch.rand(D // 2).clamp_min(0.01)}), "CHK9", "K07")


def test_another_width_is_named(tmp_path):
    told = wrong(report(tmp_path, {INV: speeds(width=2 * D).float()}), "CHK9", "K03")
    assert f"{D // 2} frequencies" in told.expected and f"{D} frequencies" in told.measured


def test_layers_with_bases_of_their_own(tmp_path):
    config = {
        "model_type": "gemma3_text",
        **{k: v for k, v in CONFIG.items() if k not in ("model_type", "rope_theta")},
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    }
    both = {
        "model.rotary_emb.inv_freq": speeds(1e6).float(),
        "model.rotary_emb_local.inv_freq": speeds(1e4).float(),
    }
    sound(report(tmp_path, both, config), 2)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    wrong(report(tmp_path, {name: speeds(1e6).float()}, config), "CHK9", "K07")


def test_without_a_config_nothing_is_said_to_be_right(tmp_path):
    config = {"model_type": "bert", "hidden_size": 64, "max_position_embeddings": 8}
    found = report(tmp_path, {INV: speeds().float()}, config)
    assert not found.findings and not found.compared
    assert "gives no rotation" in found.not_checked[0].why


# Tables of cos and sin


def forms(part):
    """The forms of a table in released code, part being cos or sin."""
    one = getattr(torch, part)(angles())
    return {
        "pairs": one,
        "halves": torch.cat((one, one), 1),
        "twice": one.repeat_interleave(2, 1),
        "axes": torch.cat((one, one), 1)[None, None],
    }


@pytest.mark.parametrize("form", ["pairs", "halves", "twice", "axes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_right_tables_are_verified_whatever_their_form(tmp_path, form, dtype):
    tensors = {f"model.rotary_emb.{p}_cached": forms(p)[form].to(dtype) for p in ("cos", "sin")}
    found = report(tmp_path, tensors)
    assert not found.of("error") and not found.of("warning") and not found.not_checked
    assert len(found.compared) == 4


def test_a_table_of_complex_numbers_and_one_of_both_parts(tmp_path):
    turns = torch.polar(torch.ones(LENGTH, D // 2).double(), angles()).to(torch.complex64)
    both = torch.cat((angles().cos(), angles().sin()), 1).float()
    found = report(tmp_path, {"freqs_cis": turns, "model.rotary_emb.cos_sin_cache": both})
    sound(found, 4)


def test_a_table_as_float32_code_makes_it_is_right_far_out(tmp_path):
    rows = 20_000
    config = {**CONFIG, "max_position_embeddings": rows}
    made = torch.arange(rows).float()[:, None] * speeds().float()
    sound(report(tmp_path, {"rotary_emb.cos_cached": made.cos()}, config), 2)


def test_a_scaled_table_has_the_amplitude(tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = {**CONFIG, "rope_scaling": rope}
    import whereness as wn

    built = wn.from_config(config)
    angle = torch.arange(LENGTH).double()[:, None] * built.frequencies
    right = built.amplitude * angle.cos()
    sound(report(tmp_path, {"rotary_emb.cos_cached": right.float()}, config), 2)
    assert built.amplitude > 1.1
    wrong(report(tmp_path, {"rotary_emb.cos_cached": angle.cos().float()}, config), "CHK9", "K07")


@pytest.mark.parametrize("what", ["frequencies", "positions", "frequencies and positions"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_was_rounded_before_the_angles_is_named(tmp_path, what, dtype):
    config = {**CONFIG, "max_position_embeddings": 3000}
    positions = torch.arange(3000).double()
    slow = speeds()
    if "positions" in what:
        positions = positions.to(dtype).double()
    if "frequencies" in what:
        slow = slow.to(dtype).double()
    for store in (torch.float32, dtype):
        table = (positions[:, None] * slow).cos().to(store)
        told = wrong(report(tmp_path, {"rotary_emb.cos_cached": table}, config), "CHK8", "K06")
        assert what.split()[0] in told.cause


def test_tables_of_another_base_or_of_nothing_are_named(tmp_path):
    name = "rotary_emb.sin_cached"
    wrong(report(tmp_path, {name: angles(base=10_100.0).sin().float()}), "CHK9", "K07")
    wrong(report(tmp_path, {name: torch.full((LENGTH, D), 1e30)}), "CHK9", "K07")
    wrong(report(tmp_path, {name: torch.full((LENGTH, D), math.nan)}), "CHK9", "K07")


def test_tables_shorter_than_the_advertised_length(tmp_path):
    short = {"rotary_emb.cos_cached": angles(40).cos().float()}
    told = wrong(report(tmp_path, short), "CHK10", "K12")
    assert "40 rows" in told.measured and "64 positions" in told.expected
    sound(report(tmp_path, {"rotary_emb.cos_cached": angles(80).cos().float()}), 2)


# Ids, indices, slopes

IDS = "embeddings.position_ids"


def test_position_ids(tmp_path):
    sound(report(tmp_path, {IDS: torch.arange(LENGTH)[None]}), 2)
    told = wrong(report(tmp_path, {IDS: torch.arange(40)}), "CHK10", "K12")
    assert "40 rows" in told.measured
    garbage = torch.arange(LENGTH)
    garbage[37] = 5
    told = wrong(report(tmp_path, {IDS: garbage}), "CHK9", "K07")
    assert "row 37 is 5" in told.measured and "1 of 64 ids are missing: 37" in told.measured


def test_position_ids_that_were_cast_or_merged(tmp_path):
    told = wrong(report(tmp_path, {IDS: torch.arange(LENGTH).float()}), "CHK9", "K14", "warning")
    assert "float32" in told.measured
    told = wrong(report(tmp_path, {IDS: (torch.arange(LENGTH) * 0.583).half()}), "CHK9", "K14")
    assert "row 1 is 0.58" in told.measured and "ids are missing: 1, 2, 3" in told.measured
    told = wrong(report(tmp_path, {IDS: torch.arange(LENGTH) + 1}), "CHK9", "K14")
    assert "row 0 is 1" in told.measured
    rounded = torch.arange(512).bfloat16()
    found = report(tmp_path, {IDS: rounded}, {**CONFIG, "max_position_embeddings": 512})
    assert "row 257 is 256" in wrong(found, "CHK9", "K14").measured


def test_position_ids_may_begin_behind_the_rows_of_no_position(tmp_path):
    ids, table = torch.arange(LENGTH) + 2, "embeddings.position_embeddings.weight"
    sound(report(tmp_path, {IDS: ids, table: torch.randn(LENGTH + 2, 8)}), 2)
    for rows in (LENGTH, LENGTH + 1):
        wrong(report(tmp_path, {IDS: ids, table: torch.randn(rows, 8)}), "CHK9", "K14")


def swin(height, width):
    """The index in plain loops."""
    places = [(y, x) for y in range(height) for x in range(width)]
    return torch.tensor(
        [
            [(a - c + height - 1) * (2 * width - 1) + b - d + width - 1 for c, d in places]
            for a, b in places
        ]
    )


def beit(height, width):
    inner, count = swin(height, width), (2 * height - 1) * (2 * width - 1)
    whole = torch.zeros(len(inner) + 1, len(inner) + 1, dtype=torch.int64)
    whole[1:, 1:] = inner
    whole[0, :], whole[:, 0], whole[0, 0] = count, count + 1, count + 2
    return whole


@pytest.mark.parametrize("index", [swin(4, 4), swin(2, 6), beit(3, 3), beit(2, 5)], ids="abcd")
def test_indices_of_windows(tmp_path, index):
    name = "encoder.layers.0.attn.relative_position_index"
    sound(report(tmp_path, {name: index}))
    moved = index.clone()
    moved[1, 2] += 1
    wrong(report(tmp_path, {name: moved}), "CHK9", "K18")
    wrong(report(tmp_path, {name: index.T}), "CHK9", "K18")
    sound(report(tmp_path, {name: index.flatten()}))


ALIBI = {"model_type": "bloom", "hidden_size": 96, "n_head": 12, "n_layer": 2}


def slopes(heads):
    """As published, with the odd exponents of the authors' code."""
    power = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][::2]
    return torch.tensor([*first, *more][:heads])


def test_slopes(tmp_path):
    name = "transformer.h.0.attn.alibi_slopes"
    sound(report(tmp_path, {name: slopes(12)}, ALIBI))
    sound(report(tmp_path, {name: -slopes(12)[:, None, None]}, ALIBI))
    told = wrong(report(tmp_path, {name: slopes(12).bfloat16()}, ALIBI), "CHK8", "K06", "warning")
    assert "bfloat16" in told.measured
    plain = torch.tensor([2.0 ** (-8 * (i + 1) / 12) for i in range(12)])
    wrong(report(tmp_path, {name: plain}, ALIBI), "CHK15", "K17")
    wrong(report(tmp_path, {name: slopes(8)}, ALIBI), "CHK15", "K17")


# Names and limits


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "frequencies"),
        ("visual.rotary_pos_emb.inv_freq", "frequencies"),
        ("rope.freqs", "frequencies"),
        ("encoder.position_ids", "position ids"),
        ("model.embed_positions.weight", None),
        ("model.layers.0.mlp.cosine_scale", None),
        ("model.layers.0.self_attn.q_proj.weight", None),
        ("model.sincere", None),
    ],
)
def test_names(name, what):
    assert derived_as(name) == what


def test_a_live_models_buffers_are_judged_without_a_note():
    model = torch.nn.Module()
    model.register_buffer("inv_freq", speeds().float(), persistent=False)
    model.register_buffer("position_ids", torch.arange(LENGTH))
    seen = Subject(
        "it", Report(target="it"), source=configs.read(CONFIG), weights=weights_of(model)
    )
    buffers.run(seen)
    assert not seen.report.findings and len(seen.report.compared) == 3
    model.inv_freq.mul_(1.001)
    buffers.run(seen)
    assert one(seen.report).kind == "K02"


def test_rotations_whose_frequencies_have_several_forms_are_not_compared(tmp_path):
    config = {"model_type": "pixtral", "hidden_size": 64, "num_attention_heads": 2}
    found = report(tmp_path, {"x.inv_freq": torch.ones(8)}, config)
    assert not found.findings and "in several forms" in found.not_checked[0].why


def test_tables_that_cannot_be_compared_say_so(tmp_path):
    found = report(tmp_path, {"rotary_emb.cos_cached": torch.zeros(LENGTH, 7)})
    assert not found.findings and "no form of the config's pairs" in found.not_checked[0].why
    found = report(tmp_path, {"a.relative_position_index": torch.zeros(3, 4)})
    assert "no square of places" in found.not_checked[0].why
