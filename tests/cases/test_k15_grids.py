"""K15: the axes of a grid, of the pairs that they turn, and the coordinates of its cells.

Axes: B batch, S cells, H heads, D head_dim; positions are (row, column).
"""

import pytest
import torch

import whereness as wn
from cases.support import HEAD_DIM, HEADS, bitwise, case, differ, equal, heads, scribbled
from cases.support import model as text_model

LAYOUTS = ("blocks", "heads", "alternating", "shared_blocks", "shared_alternating")
MAKERS = {
    **{name: lambda name=name: wn.AxialRoPE(HEAD_DIM, layout=name, base=10.0) for name in LAYOUTS},
    "mixed": lambda: wn.MixedRoPE(HEAD_DIM, HEADS),
    "multimodal": lambda: wn.MultimodalRoPE(HEAD_DIM, (2, 2), "interleaved", 10.0),
}
each_encoding = pytest.mark.parametrize("name", MAKERS)


@case("P156")
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (3, 2), (1, 6), (6, 1), (4, 4)])
def test_token_n_of_a_grid_has_row_n_div_w_and_column_n_mod_w(rows, columns):
    found = wn.positions.grid(rows, columns).tolist()
    assert found == [[n // columns, n % columns] for n in range(rows * columns)]
    if (rows, columns) == (2, 3):
        assert found == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    patches = wn.DINOv3RoPE(HEAD_DIM).coordinates(rows, columns)
    by_hand = [[2 * (r + 0.5) / rows - 1, 2 * (c + 0.5) / columns - 1] for r, c in found]
    equal(patches, torch.tensor(by_hand, dtype=torch.float64), 1e-15)


@case("P156")
@each_encoding
def test_a_transposed_picture_with_swapped_axes_is_the_same_picture(name):
    """The other meshgrid order gives other numbers for a grid that is not square."""
    rope = scribbled(MAKERS[name]()).double()
    x = heads(6)
    turned = rope.rotate(x, wn.positions.grid(2, 3))
    of_transposed = [r * 3 + c for c in range(3) for r in range(2)]  # 3 x 2, row-major
    swapped = rope.rotate(x[:, :, of_transposed], wn.positions.grid(3, 2).flip(-1))
    bitwise(swapped, turned[:, :, of_transposed])
    differ(rope.rotate(x, wn.positions.grid(3, 2).flip(-1)), turned)


@case("P156")
@each_encoding
def test_rows_and_columns_that_change_places_are_seen(name):
    """Swapping two rows is not swapping two columns, nor does either leave scores alone."""
    rope = scribbled(MAKERS[name]()).double()
    q, k, cells = heads(6), heads(6, seed=3), wn.positions.grid(2, 3)
    by_rows = torch.stack([1 - cells[:, 0], cells[:, 1]], -1)
    by_columns = torch.stack([cells[:, 0], 2 - cells[:, 1]], -1)
    scores = [a @ b.mT for a, b in (rope(q, k, at) for at in (cells, by_rows, by_columns))]
    for one, two in ((0, 1), (0, 2), (1, 2)):
        differ(scores[one], scores[two])


@case("P157")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_height_first_and_width_first_are_the_same_with_channels_swapped(layout, pairing):
    cells = wn.positions.grid(2, 3)
    height, width = (
        wn.AxialRoPE(HEAD_DIM, 2, 10.0, pairing, layout, axis_order=order)
        for order in ((0, 1), (1, 0))
    )
    assert height.axis_order == (0, 1) and width.axis_order == (1, 0)
    turns = [rope.exactly(rope.prepare(cells).data.queries) for rope in (height, width)]
    if layout.startswith("shared"):  # the first axis has the higher half of the one spectrum
        flipped = height.exactly(height.prepare(cells.flip(-1)).data.queries)
        bitwise(turns[1].cos, flipped.cos)
        bitwise(turns[1].sin, flipped.sin)
    else:
        of_height = [k for k in range(4) if (k < 2 if layout != "alternating" else k % 2 == 0)]
        of_width = [k for k in range(4) if k not in of_height]
        for one, two in zip(*turns, strict=True):
            bitwise(two[..., of_width + of_height], one[..., of_height + of_width])
    differ(turns[0].cos, turns[1].cos)


@case("P157")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_move_to_the_next_column_turns_the_channels_of_the_width_alone(layout, order):
    """Which half of the channels reacts is the axis order of a model."""
    rope = wn.AxialRoPE(HEAD_DIM, 2, 10.0, "half", layout, axis_order=order)
    x = heads(1)
    before, after = (rope.rotate(x, torch.tensor([[5, column]])) for column in (7, 8))
    changed = [c for c in range(HEAD_DIM) if not torch.equal(before[..., c], after[..., c])]
    first = {
        "blocks": [0, 1, 4, 5],
        "heads": [0, 1, 2, 3],
        "alternating": [0, 2, 4, 6],
        "shared_blocks": [0, 1, 4, 5],
        "shared_alternating": [0, 2, 4, 6],
    }[layout]
    second = [c for c in range(HEAD_DIM) if c not in first]
    assert changed == (second if order == (0, 1) else first)


@case("P157")
def test_checkpoints_of_either_axis_order_give_the_same_model():
    """Weights trained width first, their channels moved, serve a spec with height first."""
    where = wn.Where(wn.positions.grid(2, 3), num_axes=2)
    ids = torch.arange(6)[None]
    made = {
        order: text_model(wn.AxialRoPE(HEAD_DIM, 2, 10.0, axis_order=order), causal=False)
        for order in ((0, 1), (1, 0))
    }
    expected = made[1, 0](ids, where=where)
    moved = [2, 3, 0, 1, 6, 7, 4, 5]
    weights = made[1, 0].state_dict()
    differ(_with(made[0, 1], weights)(ids, where=where), expected)
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weights[name] = weight.unflatten(0, (-1, HEAD_DIM))[:, moved].flatten(0, 1)
    equal(_with(made[0, 1], weights)(ids, where=where), expected)


def _with(model: wn.Transformer, weights: dict[str, torch.Tensor]) -> wn.Transformer:
    model.load_state_dict(weights)
    return model


@case("P168")
@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 14])
def test_the_centre_of_a_pixel_is_half_a_pixel_in(normalise, count):
    """(i + 1/2) / N, inside the unit interval and mirrored about its middle."""
    unit = (wn.DINOv3RoPE(HEAD_DIM, normalise=normalise).coordinates(count, count) + 1) / 2
    line = unit[::count, 0]
    equal(line, torch.tensor([(i + 0.5) / count for i in range(count)], dtype=torch.float64), 1e-15)
    assert (line > 0).all() and (line < 1).all()
    equal(line + line.flip(0), torch.ones_like(line), 1e-15)
    if count == 4:
        assert line.tolist() == [0.125, 0.375, 0.625, 0.875]
