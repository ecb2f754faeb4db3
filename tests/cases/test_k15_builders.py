"""K15: coordinates of images and video, as builders make them and as models use them."""

import pytest
import torch

import whereness as wn
from cases.support import DIM, HEAD_DIM, HEADS, case, differ, equal, scribbled, tokens
from whereness.positions import Image, Text, Video, from_token_types, multimodal


def seeing(causal: bool = True) -> wn.Transformer:
    """A model that reads time, row and column."""
    torch.manual_seed(0)
    rope = wn.AxialRoPE(HEAD_DIM, 3, axis_dims=(4, 2, 2))
    whole = wn.Transformer(50, DIM, 2, HEADS, rope, causal=causal)
    return scribbled(whole.double()).eval()


def columns(ids: torch.Tensor) -> list[list[int]]:
    """Time, row and column of all tokens."""
    return ids.T.tolist()


@case("P159")
def test_a_still_image_has_one_time_and_all_its_rows_and_columns():
    expected = [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    types, grids = torch.ones(1, 6, dtype=torch.int64), torch.tensor([[1, 2, 3]])
    for ids in (
        wn.positions.grid(1, 2, 3),
        wn.positions.video(1, 2, 3),
        wn.positions.video(1, 2, 3, seconds_per_frame=0.5, ticks_per_second=25, times="floor"),
        multimodal([Image(2, 3)]).positions[0],
        multimodal([Image(2, 3)], ticks_per_second=25).positions[0],
        from_token_types(types, grids).positions[0],
        from_token_types(types, grids, ticks_per_second=25.0).positions[0],
        from_token_types(types, 2 * grids - torch.tensor([1, 0, 0]), merge=2).positions[0],
    ):
        assert columns(ids) == expected


@case("P159")
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 3, 2), (4, 2, 3), (2, 1, 5)], ids=str)
def test_each_axis_has_as_many_values_as_the_grid(sizes):
    frames, height, width = sizes
    ids = multimodal([Text(3), Video(frames, height, width), Text(2)]).positions[0, 3:-2]
    assert [len(axis.unique()) for axis in ids.T] == list(sizes)
    assert ids.amin(0).tolist() == [3, 3, 3]


@case("P161")
def test_half_a_second_at_two_ticks_is_one_tick():
    for times in ("exact", "floor"):
        options = {"ticks_per_second": 2.0, "times": times}
        alone = wn.positions.video(4, 1, 1, seconds_per_frame=0.5, **options)
        row = multimodal([Video(4, 1, 1, 0.5)], **options).positions[0]
        typed = from_token_types(
            torch.full((1, 4), 2),
            video_grids=torch.tensor([[4, 1, 1]]),
            seconds_per_frame=torch.tensor([0.5]),
            **options,
        ).positions[0]
        for ids in (alone, row, typed):
            assert ids[:, 0].tolist() == [0, 1, 2, 3]


@case("P161")
@pytest.mark.parametrize("rate", [2.0, 25.0])
@pytest.mark.parametrize("seconds", [0.5, 0.083, 1.5])
def test_frames_never_share_a_time_unless_whole_ticks_are_asked_for(seconds, rate):
    def ids(times: str) -> torch.Tensor:
        row = [Text(2), Video(4, 1, 2, seconds), Text(1)]
        return multimodal(row, ticks_per_second=rate, times=times).positions[0]

    exact, whole = ids("exact"), ids("floor")
    interval = seconds * rate
    expected = [2 + i * interval for i in range(4) for _ in range(2)]
    equal(exact[2:-1, 0], torch.tensor(expected, dtype=torch.float64))
    assert whole[2:-1, 0].tolist() == [2 + int(i * interval) for i in range(4) for _ in range(2)]
    assert len(exact[2:-1, 0].unique()) == 4
    # Time moves what a model sees, also by parts of a tick.
    made = wn.AxialRoPE(HEAD_DIM, 3, axis_dims=(4, 2, 2))
    x = torch.ones(1, 1, 8, HEAD_DIM, dtype=torch.float64)
    turned = made.rotate(x, wn.Where(exact[2:-1], num_axes=3))
    for frame in range(3):
        differ(turned[:, :, 2 * frame], turned[:, :, 2 * frame + 2])


@case("P163")
def test_a_model_of_several_axes_never_falls_back_to_one():
    """No ids: refused with the way to make them, in training and eval, with and without cache."""
    whole, ids = seeing(), tokens(6)
    for mode in (True, False):
        whole.train(mode)
        for options in (
            {},
            {"caches": whole.new_caches()},
            {"key_mask": torch.ones(1, 6).long()},
        ):
            with pytest.raises(ValueError, match="3 axes.*wn.positions"):
                whole(ids, **options)
        with pytest.raises(ValueError, match="num_axes=3"):
            whole(ids, where=wn.Where(torch.arange(6)))


@case("P163")
def test_ids_of_an_image_block_come_from_its_grid():
    whole, ids = seeing(), tokens(9)
    types = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0, 0]])
    placed = from_token_types(types, torch.tensor([[1, 2, 3]]))
    assert len({tuple(axis.tolist()) for axis in placed.positions[0].T}) == 3
    seen = whole(ids, where=wn.Where(placed.positions, num_axes=3))
    as_text = torch.arange(9)[:, None].expand(-1, 3)
    differ(seen, whole(ids, where=wn.Where(as_text, num_axes=3)))
    by_hand = [
        [0, 0, 0],
        *([1, 1 + r, 1 + c] for r in range(2) for c in range(3)),
        [4] * 3,
        [5] * 3,
    ]
    equal(seen, whole(ids, where=wn.Where(torch.tensor(by_hand), num_axes=3)))


@case("P163")
def test_text_alone_is_text():
    types = torch.zeros(2, 5, dtype=torch.int64)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    placed = from_token_types(types, attention_mask=mask)
    for axis in placed.positions.unbind(-1):
        assert axis.equal(wn.positions.from_mask(mask))
    assert placed.delta.tolist() == [0, 0]


@case("P165")
@pytest.mark.parametrize("make", ["grid", "video", "types"])
def test_sizes_in_pixels_are_refused_by_the_number_of_tokens(make):
    """14 x 14 tokens of 16 pixels: 224 x 224 are no grid of 196 tokens."""
    good, bad = (1, 14, 14), (1, 224, 224)
    types = torch.ones(1, 196, dtype=torch.int64)
    makers = {
        "grid": lambda sizes: wn.positions.grid(*sizes, tokens=196),
        "video": lambda sizes: wn.positions.video(*sizes, tokens=196),
        "types": lambda sizes: from_token_types(types, torch.tensor([sizes])).positions[0],
    }
    assert makers[make](good).shape == (196, 3)
    with pytest.raises(ValueError, match=r"(?s)50176.*196"):
        makers[make](bad)


@case("P165")
def test_a_grid_that_is_not_the_inputs_is_refused_by_attention_too():
    x = torch.randn(1, HEADS, 6, HEAD_DIM)
    rope = wn.AxialRoPE(HEAD_DIM, 2)
    rope.rotate(x, wn.positions.grid(2, 3))
    with pytest.raises(ValueError, match="needed 6, got 9"):
        rope.rotate(x, wn.positions.grid(3, 3))


@case("P166")
@pytest.mark.parametrize("sizes", [(4, 6), (6, 4), (4, 4)], ids=str)
def test_tokens_of_a_merge_block_are_neighbours_in_row_order(sizes):
    ids = wn.positions.grid(*sizes, merge=2)
    blocks = ids.view(-1, 4, 2)
    corners = blocks[:, :1]
    assert (blocks - corners).tolist() == [[[0, 0], [0, 1], [1, 0], [1, 1]]] * len(blocks)
    merged = wn.positions.grid(sizes[0] // 2, sizes[1] // 2)
    assert (corners[:, 0] // 2).equal(merged)


MARKED = {"left": (2, 0), "right": (2, 5), "top": (0, 3), "bottom": (3, 3)}
OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}


@case("P166")
@pytest.mark.parametrize("order", ["row", "column", "merge"])
@pytest.mark.parametrize("side", MARKED)
def test_paired_opposite_probes_find_the_marked_side(side, order):
    """A query in the middle of a 4 x 6 grid, tuned to one side by the rotation itself, finds that
    side and not its opposite: what gives one answer to all would fail half."""
    options = {"merge": 2} if order == "merge" else {"order": order}
    ids = wn.positions.grid(4, 6, **options)
    rope, middle = wn.AxialRoPE(HEAD_DIM, 2), torch.tensor([[2, 3]])
    key = torch.ones(1, 1, 1, HEAD_DIM, dtype=torch.float64)
    query = rope.rotate(rope.rotate(key, torch.tensor([MARKED[side]]) - middle), middle)
    keys = rope.rotate(key.expand(-1, -1, 24, -1), ids)
    scores = (query * keys).sum(-1)[0, 0]
    places = [tuple(place) for place in ids.tolist()]
    marked, opposite = (places.index(MARKED[s]) for s in (side, OPPOSITE[side]))
    assert int(scores.argmax()) == marked
    assert scores[marked] > scores[opposite] + 1e-2


@case("P166")
def test_a_picture_seen_in_another_order_of_tokens_is_the_same_picture():
    whole = seeing(causal=False)
    picture = tokens(24).view(4, 6)

    def seen(fed: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        """Answers by place, of cells fed in one order and said to be in another."""
        where = wn.Where(torch.cat([torch.zeros(24, 1).long(), said], 1), num_axes=3)
        out = whole(picture[fed[:, 0], fed[:, 1]][None], where=where)[0].detach()
        by_place = torch.zeros(4, 6, out.shape[-1], dtype=out.dtype)
        by_place[fed[:, 0], fed[:, 1]] = out
        return by_place

    rows, merged = wn.positions.grid(4, 6), wn.positions.grid(4, 6, merge=2)
    down = wn.positions.grid(4, 6, order="column")
    expected = seen(rows, rows)
    equal(seen(down, down), expected)
    equal(seen(merged, merged), expected)
    differ(seen(merged, rows), expected)
    differ(seen(down, rows), expected)
