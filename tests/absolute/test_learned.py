"""LearnedAbsolute against numpy's indexing and interpolation written out.

Axes: B batch, S tokens, W width of a row, n axes of a grid.
"""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from absolute.support import bicubic, bicubic_antialiased, linear, nearest, resized

NOWHERE = wn.NOWHERE


def numbered(made: wn.LearnedAbsolute) -> wn.LearnedAbsolute:
    """Row r of the table holds r in every channel."""
    with torch.no_grad():
        made.table.copy_(torch.arange(len(made.table))[:, None].expand_as(made.table))
    return made


def rows_of(found: torch.Tensor) -> list:
    """The numbers of the rows that a numbered table gave."""
    assert (found == found[..., :1]).all()
    return found[..., 0].tolist()


# Which row a position takes


@given(st.data())
def test_a_cell_of_a_grid_takes_the_row_that_numpy_gives_it(data):
    grid = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), "grid"))
    prefix, first = data.draw(st.integers(0, 3), "prefix"), data.draw(st.integers(0, 3), "first")
    made = numbered(wn.LearnedAbsolute(2, grid, prefix, first))
    count = data.draw(st.integers(0, 6), "count")
    cells = np.array([[data.draw(st.integers(0, n - 1)) for n in grid] for _ in range(count)])
    cells = cells.reshape(count, len(grid)).astype(np.int64)
    positions = torch.from_numpy(cells if len(grid) > 1 else cells[:, 0])
    expected = np.ravel_multi_index(tuple(cells.T), grid) + prefix + first
    assert rows_of(made(positions)) == expected.tolist()
    batched = positions[None].expand(2, *positions.shape)
    assert rows_of(made(batched)) == [expected.tolist()] * 2
    assert (made.num_positions, made.num_axes) == (np.prod(grid), len(grid))
    assert len(made.table) == np.prod(grid) + prefix + first


def test_an_int_and_a_grid_of_one_axis_are_the_same():
    one, two = wn.LearnedAbsolute(2, 5), wn.LearnedAbsolute(2, [5])
    assert one.grid == two.grid == (5,)
    assert one.num_axes == 1


@given(st.data())
def test_positions_outside_the_table_are_refused(data):
    grid = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3), "grid"))
    axis = data.draw(st.integers(0, len(grid) - 1), "axis")
    bad = data.draw(st.sampled_from([-1, -7, grid[axis], grid[axis] + 9, 2**52, -(2**52)]), "bad")
    cells = torch.zeros(3, len(grid), dtype=torch.int64)
    cells[1, axis] = bad
    made = wn.LearnedAbsolute(2, grid, num_prefix=2, first_row=3)
    positions = cells if len(grid) > 1 else cells[:, 0]
    for call in (
        lambda: made(positions),
        lambda: made.prepare(wn.Where(positions, num_axes=len(grid))),
    ):
        with pytest.raises(ValueError, match=f"below.*got.*{bad}"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_positions_are_refused(dtype):
    with pytest.raises(TypeError, match="integer positions, got torch.float"):
        wn.LearnedAbsolute(2, 4)(torch.tensor([1.0], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_float32_or_float64_and_exactly_those_of_the_table(dtype):
    made = wn.LearnedAbsolute(3, 4).to(dtype)
    found = made(torch.tensor([2, 0]))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(found.to(dtype), made.table[[2, 0]].detach(), rtol=0, atol=0, check_dtype=False)


def test_gradients_fall_on_the_rows_that_were_read():
    made = wn.LearnedAbsolute(2, 5, num_prefix=1)
    made(torch.tensor([[3, NOWHERE], [3, 0]])).sum().backward()
    assert made.table.grad[:, 0].tolist() == [1, 1, 0, 0, 2, 0]


def test_rows_start_as_small_normal_numbers():
    made = wn.LearnedAbsolute(64, 1000)
    assert made.table.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(made.table.mean().item()) < 0.001


# Tokens without a place


def test_the_first_tokens_without_a_place_take_the_prefix_rows():
    made = numbered(wn.LearnedAbsolute(2, 6, num_prefix=2, first_row=1))
    assert rows_of(made(torch.tensor([NOWHERE, 0, NOWHERE, 5, NOWHERE]))) == [0, 3, 1, 8, 0]
    both = torch.tensor([[NOWHERE, 1, 2], [4, 5, NOWHERE]])
    assert rows_of(made(both)) == [[0, 4, 5], [7, 8, 0]]
    made.table.data[0] = 9  # row 0 and the zeros of the third token without a place, told apart
    assert rows_of(made(torch.tensor([NOWHERE, 0, NOWHERE, 5, NOWHERE]))) == [9, 3, 1, 8, 0]


def test_without_prefix_rows_a_token_without_a_place_gets_zeros():
    made = wn.LearnedAbsolute(2, 6, first_row=2)
    assert made(torch.tensor([NOWHERE, NOWHERE])).abs().sum() == 0


def test_one_coordinate_that_is_missing_is_enough():
    made = numbered(wn.LearnedAbsolute(2, (2, 3), num_prefix=1))
    cells = torch.tensor([[NOWHERE, 2], [1, 2], [0, 1]])
    assert rows_of(made(cells)) == [0, 6, 2]


def joined(made: wn.LearnedAbsolute, where: wn.Where) -> list:
    """Rows that the model adds to tokens of zeros."""
    at = made.prepare(where)
    batch, length = where.positions.shape[:2]
    if where.key_mask is not None:
        batch = max(batch, where.key_mask.shape[0])
    return rows_of(made.tokens(torch.zeros(batch, length, made.dim), at))


def test_pads_do_not_take_prefix_rows():
    made = numbered(wn.LearnedAbsolute(2, 6, num_prefix=2))
    made.table.data[0] = 9
    positions = torch.tensor([NOWHERE, NOWHERE, 0, NOWHERE, 1])
    assert joined(made, wn.Where(positions)) == [[9, 1, 2, 0, 3]]
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 1], [0, 0, 1, 1, 1]])
    assert joined(made, wn.Where(positions, key_mask=mask)) == [
        [0, 9, 2, 1, 3],
        [9, 1, 2, 0, 3],
        [0, 0, 2, 9, 3],
    ]


@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
@pytest.mark.parametrize("chunks", [[5], [1, 1, 1, 1, 1], [2, 3], [4, 1]])
@pytest.mark.parametrize("pads", [False, True])
def test_prefix_rows_are_counted_through_the_cache(site, chunks, pads):
    made = wn.LearnedAbsolute(16, 6, num_prefix=2, site=site)
    torch.nn.init.normal_(made.table)
    torch.manual_seed(0)
    model = wn.Transformer(9, 16, 2, 2, made).double().eval()
    x = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]])
    positions = torch.tensor([[NOWHERE, 0, NOWHERE, NOWHERE, 1]])
    mask = torch.ones(2, 5, dtype=torch.bool)
    if pads:
        mask[0, 0] = False  # a pad that has no place either
    full = model(x, where=wn.Where(positions, key_mask=mask))
    caches, found, start = model.new_caches(), [], 0
    for size in chunks:
        part = slice(start, start + size)
        where = wn.Where(positions[:, part], key_mask=mask[:, part])
        found.append(model(x[:, part], where=where, caches=caches))
        start += size
    real = mask[..., None]
    assert_close(torch.cat(found, 1) * real, full * real, rtol=1e-12, atol=1e-12)


def test_queries_and_a_context_count_their_own_prefix():
    made = numbered(wn.LearnedAbsolute(4, 6, num_prefix=2, site="queries_keys"))
    made.table.data[0] = 9
    q_ids = torch.tensor([NOWHERE, 3])
    k_ids = torch.tensor([NOWHERE, NOWHERE, 0, NOWHERE])
    mask = torch.tensor([[0, 1, 1, 1]])
    at = made.prepare(wn.Where(q_ids, k_ids, key_mask=mask))
    x_q, x_k, x_v = made.inputs(torch.zeros(1, 2, 4), torch.zeros(1, 4, 4), at)
    assert (rows_of(x_q), rows_of(x_k)) == ([[9, 5]], [[0, 9, 2, 1]])
    assert (x_v == 0).all()


# Other sizes of the table

GRIDS = [
    ((5,), (9,), linear),
    ((9,), (4,), linear),
    ((1,), (3,), linear),
    ((3, 4), (6, 7), bicubic),
    ((6, 7), (3, 5), bicubic),
    ((4, 4), (4, 9), bicubic),
    ((1, 5), (2, 1), bicubic),
    ((2, 3, 2), (4, 3, 5), linear),
    ((4, 5, 3), (2, 2, 3), linear),
]


@pytest.mark.parametrize(
    ("old", "new", "weights"), GRIDS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_resized_rows_are_interpolated(old, new, weights):
    made = wn.LearnedAbsolute(3, old, num_prefix=2, first_row=1)
    torch.nn.init.normal_(made.table)
    before = made.table.detach().clone()
    found = made.resized(new if len(new) > 1 else new[0])
    assert found.grid == new and found is not made
    assert_close(found.table[:3].detach(), before[:3], rtol=0, atol=0)
    expected = resized(before[3:].double().numpy(), old, new, weights)
    # 2^-24 for each of a few float32 roundings; weights of a cubic reach past 1
    np.testing.assert_allclose(found.table[3:].detach(), expected, rtol=0, atol=2.0**-20)
    assert_close(made.table.detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("old", "new"), [g[:2] for g in GRIDS], ids=str)
def test_resized_to_the_nearest_copies_rows(old, new):
    made = wn.LearnedAbsolute(3, old, num_prefix=1)
    found = made.resized(new, mode="nearest")
    expected = resized(made.table[1:].detach().numpy(), old, new, nearest)
    np.testing.assert_array_equal(found.table[1:].detach(), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("old", "new"), [((6, 8), (3, 4)), ((7, 5), (3, 5)), ((9, 4), (2, 3)), ((3, 4), (6, 4))]
)
def test_resized_with_antialias_filters_when_shrinking(old, new):
    made = wn.LearnedAbsolute(3, old)
    torch.nn.init.normal_(made.table)
    found = made.resized(new, antialias=True).table.detach()
    expected = resized(made.table.detach().double().numpy(), old, new, bicubic_antialiased)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-20)
    assert not torch.allclose(found, made.resized(new).table.detach(), atol=1e-3)


@pytest.mark.parametrize("grid", [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["auto", "nearest"])
def test_an_equal_grid_gives_equal_bits(grid, dtype, mode):
    made = wn.LearnedAbsolute(3, grid, num_prefix=1, first_row=2).to(dtype)
    found = made.resized(grid, mode=mode)
    assert_close(found.table, made.table, rtol=0, atol=0)
    assert found.table.data_ptr() != made.table.data_ptr()
    if len(grid) == 2 and mode == "auto":
        assert_close(made.resized(grid, antialias=True).table, made.table, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_resized_and_extended_keep_type_site_and_modes(dtype):
    made = wn.LearnedAbsolute(4, 5, 1, 2, site="queries_keys", join="concat").to(dtype).eval()
    made.table.requires_grad_(False)
    for found in (made.resized(8), made.extended(8), made.extended(8, "repeat")):
        assert found.table.dtype == dtype
        assert (found.site, found.join, found.num_prefix, found.first_row) == (
            "queries_keys",
            "concat",
            1,
            2,
        )
        assert not found.training and not found.table.requires_grad
        assert isinstance(found.table, torch.nn.Parameter) and found.table.grad_fn is None
        assert (found.num_positions, len(found.table)) == (8, 11)
    fresh = wn.LearnedAbsolute(4, 5).extended(6)
    assert fresh.training and fresh.table.requires_grad


def test_a_table_in_float64_is_interpolated_in_float64():
    made = wn.LearnedAbsolute(3, (3, 4)).double()
    torch.nn.init.normal_(made.table)
    found = made.resized((5, 6)).table.detach()
    expected = resized(made.table.detach().numpy(), (3, 4), (5, 6), bicubic)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-48)


def test_a_table_in_bfloat16_is_rounded_once():
    made = wn.LearnedAbsolute(3, (3, 4)).bfloat16()
    torch.nn.init.normal_(made.table)
    found = made.resized((5, 6)).table.detach().double()
    expected = resized(made.table.detach().double().numpy(), (3, 4), (5, 6), bicubic)
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=2.0**-20)


def test_resized_there_and_back_by_repeating_is_the_same():
    made = wn.LearnedAbsolute(3, (2, 3))
    back = made.resized((4, 6), "nearest").resized((2, 3), "nearest")
    assert_close(back.table, made.table, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extended_keeps_what_was_trained(dtype):
    made = wn.LearnedAbsolute(3, 4, num_prefix=1, first_row=2).to(dtype)
    torch.nn.init.normal_(made.table)
    before = made.table.detach().clone()
    fresh, repeat = made.extended(11), made.extended(11, fill="repeat")
    for found in (fresh, repeat):
        assert_close(found.table[:7].detach(), before, rtol=0, atol=0)
    order = [3, 4, 5, 6] * 2 + [3, 4, 5]
    assert_close(repeat.table[3:].detach(), before[order], rtol=0, atol=0)
    untrained = wn.LearnedAbsolute(64, 2).extended(1000).table[2:]
    assert untrained.std().item() == pytest.approx(0.02, rel=0.02)
    assert_close(made.extended(4).table, made.table, rtol=0, atol=0)
    assert_close(made.table.detach(), before, rtol=0, atol=0)
    with torch.no_grad():
        fresh.table.zero_()
    assert_close(made.table.detach(), before, rtol=0, atol=0)


def test_fresh_rows_come_from_the_generator_alone():
    made = wn.LearnedAbsolute(64, 5, 1, 2)
    before = torch.get_rng_state()
    one, same, other = (
        made.extended(200, generator=torch.Generator().manual_seed(s)).table.detach()
        for s in (1, 1, 2)
    )
    grown = (made.resized(9), made.resized(2, "nearest"), made.extended(9, "repeat"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same) and not torch.isclose(one[8:], other[8:]).all(1).any()
    assert torch.equal(one[:8], made.table) and one.unique(dim=0).shape == one.shape
    assert abs(one[8:].mean()) < 0.001 and abs(one[8:].std() - 0.02) < 0.001
    assert all(m.table.isfinite().all() for m in grown)
    wide = made.double().extended(200, generator=torch.Generator().manual_seed(1))
    assert torch.equal(wide.table[8:], one[8:].double())
    torch.manual_seed(4)
    first = made.extended(9).table
    torch.manual_seed(4)
    assert torch.equal(first, made.extended(9).table) and not torch.equal(
        first, made.extended(9).table
    )


@pytest.mark.untyped
def test_a_generator_that_makes_no_sense_is_refused():
    made = wn.LearnedAbsolute(4, 5)
    with pytest.raises(TypeError, match="generator must be a torch.Generator or None, got int"):
        made.extended(9, generator=3)
    with pytest.raises(ValueError, match="generator is for fill='fresh', got fill='repeat'"):
        made.extended(9, "repeat", generator=torch.Generator())


def test_a_resized_table_trains_like_any_other():
    found = copy.deepcopy(wn.LearnedAbsolute(3, 4)).resized(6)
    found(torch.tensor([5])).sum().backward()
    assert found.table.grad[5].tolist() == [1, 1, 1] and found.table.grad[:5].abs().sum() == 0


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_positions": 0}, ValueError, "num_positions must be at least 1, got 0"),
        ({"num_positions": (3, 0)}, ValueError, "num_positions must be at least 1, got 0"),
        ({"num_positions": ()}, ValueError, "at least one size"),
        ({"num_positions": (3, 2.0)}, TypeError, "num_positions must be an int, got float"),
        ({"num_positions": True}, TypeError, "num_positions must be an int, got bool"),
        ({"num_positions": 2.5}, TypeError, "num_positions"),
        ({"num_positions": None}, TypeError, "num_positions"),
        ({"num_positions": 4, "num_prefix": -1}, ValueError, "num_prefix must be at least 0"),
        ({"num_positions": 4, "first_row": 1.0}, TypeError, "first_row must be an int"),
        ({"num_positions": 4, "dim": 0}, ValueError, "dim must be at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wn.LearnedAbsolute(**{"dim": 4, **options})


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.resized(3), ValueError, r"2 axes \(at most 3\), got \(3,\)"),
        (lambda m: m.resized((3, 0)), ValueError, "at least 1, got 0"),
        (lambda m: m.resized(2.0), TypeError, "got .*(float|2.0)"),
        (lambda m: m.resized((2, 2), "bilinear"), ValueError, "'auto', 'nearest'; got 'bilinear'"),
        (lambda m: m.resized((2, 2), "nearest", True), ValueError, "antialias.*nearest"),
        (lambda m: m.resized((2, 2), antialias=3), TypeError, "antialias must be True or False"),
        (lambda m: m.extended(30), ValueError, "tables of 1 axis"),
    ],
)
def test_resizing_that_makes_no_sense_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(wn.LearnedAbsolute(2, (3, 4)))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.resized(3, antialias=True), ValueError, "antialias is for tables of 2 axes"),
        (lambda m: m.extended(3), ValueError, "cannot shorten.* 4 positions, got 3"),
        (lambda m: m.extended(9, "zeros"), ValueError, "'fresh', 'repeat'; got 'zeros'"),
        (lambda m: m.extended(9.0), TypeError, "num_positions must be an int"),
    ],
)
def test_extending_that_makes_no_sense_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(wn.LearnedAbsolute(2, 4))


def test_tables_of_four_axes_cannot_be_resized():
    with pytest.raises(ValueError, match="4 axes"):
        wn.LearnedAbsolute(2, (1, 2, 1, 2)).resized((2, 2, 2, 2))
