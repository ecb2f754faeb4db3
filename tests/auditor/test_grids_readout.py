"""Axes and cells of positions, in text models and towers of transformers."""

import pytest
import torch

from auditor import zoo
from auditor.subjects_of import bad, compared, kinds, read_out
from whereness.auditor.run import audit

TEXT = ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text")
TOWERS = ("dinov3_vit", "pixtral")
SIDE = 4
"""Patches along each side of the tiny towers' images."""


@pytest.mark.more
@pytest.mark.parametrize("name", [*TEXT, *TOWERS])
def test_sound_grids_raise_nothing(name):
    model, config = zoo.build(name)
    subject = read_out(model, config.to_dict())
    assert bad(subject) == []
    assert "grid" in compared(subject)


@pytest.mark.more
@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2)], ids=["last two", "first two"])
def test_exchanged_axes_are_told(order):
    model, config = zoo.build("qwen2_vl_text")
    before = model.rotary_emb.forward
    model.rotary_emb.forward = lambda x, ids: before(x, ids[list(order)])
    found = [f for f in bad(read_out(model, config.to_dict())) if f.check == "CHK13"]
    assert {f.kind for f in found} == {"K15"} and len(found) == 2
    assert "exchanged" in found[0].cause


@pytest.mark.more
def test_an_axis_that_never_moves_is_told():
    model, config = zoo.build("qwen2_vl_text")
    before = model.rotary_emb.forward
    model.rotary_emb.forward = lambda x, ids: before(
        x, ids * torch.tensor([0, 1, 1])[:, None, None]
    )
    assert kinds(read_out(model, config.to_dict())) == {"K15"}


@pytest.mark.more
@pytest.mark.parametrize("name", TOWERS)
def test_rows_and_columns_exchanged_are_told(name):
    model, config = zoo.build(name)
    tables = [m for m in model.modules() if hasattr(m, "inv_freq")]
    (table,) = tables
    before = table.forward

    def turned(*given, **named):
        cos, sin = before(*given, **named)
        cos, sin = (t.unflatten(-2, (-1, SIDE, SIDE)).transpose(-3, -2) for t in (cos, sin))
        return cos.flatten(-4, -2), sin.flatten(-4, -2)

    table.forward = turned
    found = [f for f in bad(read_out(model, config.to_dict())) if f.check == "CHK13"]
    assert {f.kind for f in found} == {"K15"}
    assert {f.layer for f in found} == {0, 1}
    assert "rows and columns are exchanged" in found[0].cause


def packed(name, sizes, flip=False):
    """Findings and what was compared of a tower that is given pictures of these sizes in a row."""
    model, _ = zoo.build(name)
    (table,) = [m for m in model.modules() if hasattr(m, "inv_freq")]
    before = table.forward
    if flip:
        table.forward = lambda x, ids: before(x, ids.flip(-1))
    grids = torch.tensor(sizes)
    one = zoo.inputs(name, 1, 8)["hidden_states"]
    patches = torch.randn(
        int(grids.prod(1).sum()), one.shape[1], generator=torch.Generator().manual_seed(1)
    )
    report = audit(model, inputs={"hidden_states": patches, "grid_thw": grids}, checks=["CHK13"])
    return [f.kind for f in report.findings], {c.what for c in report.compared}, report


@pytest.mark.more
@pytest.mark.parametrize("sizes", [[[1, 4, 6]], [[1, 2, 12], [1, 4, 4]], [[2, 4, 2]]])
@pytest.mark.parametrize("flip", [False, True], ids=["sound", "exchanged"])
def test_cells_of_packed_pictures(sizes, flip):
    found, seen, _ = packed("qwen2_vl_vision", sizes, flip)
    assert "grid" in seen
    assert set(found) == ({"K15"} if flip else set())


@pytest.mark.more
def test_pictures_larger_than_a_window_are_not_compared():
    found, seen, report = packed("qwen2_5_vl_vision", [[1, 16, 24]])
    assert found == [] and "grid" not in seen
    assert any("windows" in each.why for each in report.not_checked)
