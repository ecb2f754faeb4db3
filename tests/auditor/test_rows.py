"""CHK10 from weights: tables of positions and of biases."""

import math

import pytest
import torch

from auditor.files import CONFIG, audited, folder, gguf_file, one, subject
from whereness.auditor.checks import rows
from whereness.auditor.files import tables
from whereness.auditor.findings import LayerFacts

ROWS, WIDTH = 96, 400
BERT = {
    "model_type": "bert",
    "hidden_size": WIDTH,
    "max_position_embeddings": ROWS,
    "num_hidden_layers": 2,
}
NAME = "embeddings.position_embeddings.weight"


def trained(count=ROWS, width=WIDTH, seed=0):
    """A table whose rows move on little by little: neighbours have a cosine of 0.9."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(count, width, generator=generator)
    found = [steps[0]]
    for step in steps[1:]:
        found.append(0.9 * found[-1] + math.sqrt(1 - 0.81) * step)
    return 0.02 * torch.stack(found)


def drawn(count, width=WIDTH, seed=1):
    return 0.02 * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def report(tmp_path, table, config=BERT, name=NAME):
    return audited(rows, folder(tmp_path / "m", {name: table}, config))


def wrong(found, kind, severity="error", check="CHK10"):
    told = one(found, severity)
    assert (told.check, told.kind) == (check, kind), told
    return told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_trained_table_is_sound(tmp_path, dtype):
    found = report(tmp_path, trained().to(dtype))
    assert not found.findings and not found.not_checked
    assert {each.what for each in found.compared} == {
        "shape of the table",
        "zero and repeated rows",
        "rows as initialised",
    }


def test_a_table_of_gguf(tmp_path):
    keys = {
        "general.architecture": "bert",
        "bert.embedding_length": WIDTH,
        "bert.context_length": ROWS,
        "bert.block_count": 1,
        "bert.attention.head_count": 4,
    }
    path = gguf_file(tmp_path / "m.gguf", {"position_embd.weight": trained(ROWS - 1)}, **keys)
    assert "95 rows" in wrong(audited(rows, path), "K12").measured


def test_what_was_seen_stands_in_the_table_of_layers(tmp_path):
    seen = subject(folder(tmp_path / "m", {NAME: trained()}, BERT))
    seen.report.layers = [LayerFacts(where="layer 0", index=0)]
    rows.run(seen)
    (facts,) = seen.report.layers
    assert (facts.classified, facts.measured) == ("absolute", f"learned table of {ROWS} rows")


# Shape against config


def test_fewer_rows_than_the_config_counts(tmp_path):
    told = wrong(report(tmp_path, trained(ROWS - 1)), "K12")
    assert f"{ROWS} rows" in told.expected and f"{ROWS - 1} rows" in told.measured


def test_more_rows_and_another_width(tmp_path):
    wrong(report(tmp_path, trained(ROWS + 8)), "K12", "warning")
    wrong(report(tmp_path, trained(ROWS, WIDTH + 2)), "K12")


OPT = {"model_type": "opt", "hidden_size": WIDTH, "max_position_embeddings": ROWS}
OPT_NAME = "model.decoder.embed_positions.weight"


def test_tables_that_begin_at_another_row(tmp_path):
    assert not report(tmp_path, trained(ROWS + 2), OPT, OPT_NAME).findings
    told = wrong(report(tmp_path, trained(ROWS), OPT, OPT_NAME), "K14")
    assert "2 of them before position 0" in told.expected and "are missing" in told.cause


def test_encoder_and_decoder_have_tables_of_their_own(tmp_path):
    config = {"model_type": "bart", "d_model": WIDTH, "max_position_embeddings": ROWS}
    path = folder(
        tmp_path / "m",
        {
            "model.encoder.embed_positions.weight": trained(ROWS + 2),
            "model.decoder.embed_positions.weight": trained(ROWS),
        },
        config,
    )
    told = wrong(audited(rows, path), "K14")
    assert "decoder" in told.where


def test_a_grid_of_another_side_is_a_matter_of_resizing(tmp_path):
    config = {"model_type": "vit", "hidden_size": WIDTH, "image_size": 128, "patch_size": 16}
    name = "vit.embeddings.position_embeddings"
    assert not report(tmp_path, trained(65)[None], config, name).findings
    told = wrong(report(tmp_path, trained(50)[None], config, name), "K16", check="CHK16")
    assert "7 x 7" in told.cause and "8 x 8" in told.cause


# Rows never trained


def test_rows_of_zeros(tmp_path):
    table = trained()
    table[80:] = 0
    told = wrong(report(tmp_path, table), "K12", "warning")
    assert told.measured == "rows 80-95 zeros"


@pytest.mark.parametrize("first", [20, 40, 60, 92])
def test_rows_as_they_were_drawn(tmp_path, first):
    table = trained()
    table[first:] = drawn(ROWS - first)
    told = wrong(report(tmp_path, table), "K12", "warning")
    last = told.measured.removeprefix("rows ").removesuffix(" as initialised")
    a, b = map(int, last.split("-"))
    assert abs(a - first) <= 1 and b == ROWS - 1


def test_rows_before_position_0_may_be_what_they_will(tmp_path):
    roberta = {**BERT, "model_type": "roberta", "pad_token_id": 4}
    table = trained()
    table[4] = 0
    table[:4] = drawn(4)
    assert not report(tmp_path, table, roberta).findings


def test_the_row_of_padding_may_be_empty_in_a_family_that_is_not_known(tmp_path):
    table = trained()
    table[1] = 0
    for pad, count in ((1, 0), (2, 1)):
        config = {**BERT, "model_type": "longformer", "pad_token_id": pad}
        assert len(report(tmp_path, table, config).of("warning")) == count


def test_a_table_whose_first_trained_row_is_another(tmp_path):
    table = trained()
    table[:6] = 0
    told = wrong(report(tmp_path, table), "K14", "warning")
    assert "position 0 in row 0" in told.expected and "first trained row is 6" in told.measured


def test_a_table_without_order_is_not_judged(tmp_path):
    found = report(tmp_path, drawn(ROWS))
    assert not found.findings
    assert "not alike" in found.not_checked[0].why


def test_trained_tables_are_never_called_untrained():
    for seed in range(40):
        found = tables.rows_of(trained(200, 128, seed))
        assert found.told and not found.drawn and not found.copies and not found.outliers


# Copies, outliers, no numbers


def test_a_table_that_was_extended_by_copies(tmp_path):
    table = trained(48).repeat(2, 1)
    told = wrong(report(tmp_path, table), "K12", "warning")
    assert told.measured == "row 48 repeats row 0, 48 rows in all"
    table[48:] *= 1.0005
    assert "48 rows in all" in wrong(report(tmp_path, table), "K12", "warning").measured


def test_long_tables_are_compared_with_the_next_row():
    table = trained(tables.MOST_COMPARED + 10, 64)
    table[777] = table[776]
    assert tables.rows_of(table).copies == [(777, 776)]


def test_rows_of_another_size_are_a_note(tmp_path):
    table = trained()
    table[7] *= 50
    told = wrong(report(tmp_path, table), "K12", "note")
    assert "row 7 is" in told.measured


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_no_numbers(tmp_path, value):
    table = trained()
    table[11, 3] = value
    told = wrong(report(tmp_path, table), "K07", check="CHK9")
    assert "row 11" in told.measured


@pytest.mark.parametrize("shape", [(ROWS,), (2, 3, WIDTH), (0, WIDTH)])
def test_what_is_no_table_is_said(tmp_path, shape):
    found = report(tmp_path, torch.zeros(shape))
    assert any("has two axes" in each.why for each in found.not_checked)


# Sinusoids

MARIAN = {"model_type": "marian", "d_model": 64, "max_position_embeddings": 40}
SINES = "model.encoder.embed_positions.weight"


def waves(count, width, order, divisor, shift=0, base=10_000.0):
    """Row by row and number by number."""
    found = torch.zeros(count, width, dtype=torch.float64)
    for p in range(count):
        for k in range(width // 2):
            angle = (p - shift) * base ** (-2 * k / divisor)
            sine, cosine = math.sin(angle), math.cos(angle)
            if order == "interleaved":
                found[p, 2 * k], found[p, 2 * k + 1] = sine, cosine
            else:
                first, second = (sine, cosine) if order == "sin_cos" else (cosine, sine)
                found[p, k], found[p, k + width // 2] = first, second
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 2])
def test_a_sinusoid_is_verified(tmp_path, dtype, shift):
    table = waves(40, 64, "sin_cos", 64, shift)
    table[:shift] = 0
    found = report(tmp_path, table.to(dtype), MARIAN, SINES)
    assert not found.findings and len(found.compared) == 1


def test_a_sinusoid_whose_row_of_padding_is_empty(tmp_path):
    """As in M2M-100: no row is moved, and the second one is emptied."""
    table = waves(40, 64, "sin_cos", 64)
    table[1] = 0
    assert not report(tmp_path, table.float(), MARIAN, SINES).findings
    table[8] = 0
    wrong(report(tmp_path, table.float(), MARIAN, SINES), "K24", check="CHK1")


@pytest.mark.parametrize(
    ("order", "divisor", "says"),
    [
        ("interleaved", 64, "order interleaved, exponent over dim"),
        ("cos_sin", 64, "order cos_sin"),
        ("sin_cos", 62, "exponent over dim-2"),
    ],
)
def test_the_other_schools_are_named(tmp_path, order, divisor, says):
    table = waves(40, 64, order, divisor).float()
    told = wrong(report(tmp_path, table, MARIAN, SINES), "K24", check="CHK1")
    assert says in told.measured


def test_a_table_that_is_no_sinusoid(tmp_path):
    wrong(report(tmp_path, trained(40, 64), MARIAN, SINES), "K24", check="CHK1")
    wrong(report(tmp_path, waves(40, 32, "sin_cos", 32), MARIAN, SINES), "K24", check="CHK1")
    flat = waves(40, 64, "sin_cos", 64, base=1.0)
    wrong(report(tmp_path, flat, MARIAN, SINES), "K24", check="CHK1")
    wrong(report(tmp_path, torch.full((40, 64), math.nan), MARIAN, SINES), "K07", check="CHK9")


# Tables of biases

T5 = {"model_type": "t5", "d_model": 64, "num_heads": 4, "num_layers": 2}
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def test_t5s_table(tmp_path):
    found = report(tmp_path, torch.randn(32, 4), T5, BIAS)
    assert not found.findings and len(found.compared) == 1
    for shape in ((16, 4), (32, 8), (4, 32)):
        told = wrong(report(tmp_path, torch.randn(shape), T5, BIAS), "K18", check="CHK15")
        assert "32 buckets of 4 heads" in told.expected and str(shape) in told.measured
    wrong(report(tmp_path, torch.full((32, 4), math.nan), T5, BIAS), "K07", check="CHK9")


def test_swins_table_against_its_index(tmp_path):
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    index = torch.tensor([[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]])
    for count, right in ((9, True), (49, False)):
        tensors = {name: torch.randn(count, 3), name.replace("bias_table", "index"): index}
        found = audited(rows, folder(tmp_path / "m", tensors, CONFIG))
        assert bool(found.findings) != right and len(found.compared) == 1
        if not right:
            wrong(found, "K18", check="CHK15")
    alone = audited(rows, folder(tmp_path / "m", {name: torch.randn(9, 3)}, CONFIG))
    assert "no index beside the table" in alone.not_checked[0].why


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("transformer.wpe.weight", "positions"),
        ("bert.embeddings.position_embeddings.weight", "positions"),
        ("model.decoder.embed_positions.weight", "positions"),
        ("pos_embed", "positions"),
        ("pos_encoder.pe", "positions"),
        ("position_embd.weight", "positions"),
        ("text_model.embeddings.position_embedding.weight", "positions"),
        ("positional_embedding", "positions"),
        ("attn.relative_position_embeddings.weight", None),
        ("encoder.pos_conv_embed.conv.weight", None),
        ("model.embed_tokens.weight", None),
        ("type.weight", None),
        (BIAS, "biases"),
    ],
)
def test_names(name, kind):
    found = {"positions": rows.POSITIONS, "biases": rows.BIASES}
    assert [k for k, pattern in found.items() if pattern.fullmatch(name)] == (
        [kind] if kind else []
    )
