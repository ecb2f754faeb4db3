"""Tables that depend on how long each sequence gets: every sequence has its own.

Axes: B batch, H heads, S tokens, T keys, D head_dim, P pairs.
"""

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import whereness as wn
from rotary.scaled import BY_LENGTH, EVERY, LONG, SHORT, Scaled, exact
from rotary.support import agree, drawn, pairs, turned

S = wn.scaling
NOWHERE = wn.NOWHERE
L = 8  # original length of every setting here
each_compiled = pytest.mark.parametrize(
    "setting",
    [s for s in BY_LENGTH if s.name in ("linear-several", "dynamic", "longrope-mscales")],
    ids=str,
)
each_setting = pytest.mark.parametrize("setting", BY_LENGTH, ids=str)


def content(length: int, batch: int = 1, heads: int = 2, seed: int = 0) -> Tensor:
    return drawn(seed, (batch, heads, length, 8), torch.float64)


def same(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, rtol=0, atol=0)


def expected(setting: Scaled, x: Tensor, positions: list[float], length: int) -> np.ndarray:
    """One sequence x (1, H, S, D) of `length` tokens, from exact frequencies."""
    with mpmath.workdps(40):
        frequencies = exact(setting.scaling, setting.base, 8, length)
        angles = np.array([[float(p * w) for w in frequencies] for p in positions])
    out, _ = turned(x.numpy(), pairs("half", 8), angles)
    return out * setting.make().amplitude_at(int(np.ceil(length)))


def require(setting: Scaled, found: Tensor, x: Tensor, positions: list[float], n: int) -> None:
    exact_numbers = expected(setting, x, positions, n)
    size = np.abs(exact_numbers).max() * np.ones_like(exact_numbers)
    agree(found, exact_numbers, size, float(np.abs(positions).max(initial=1)))


# What the length is


@each_setting
@pytest.mark.parametrize("length", [1, L - 1, L, L + 1, 2 * L, 2 * L + 1, 4 * L])
def test_the_length_is_the_last_position_plus_one(setting, length):
    x, rope = content(length), setting.make()
    for found in (rope.rotate(x), rope(x, x)[1], rope.rotate_(x.clone()), rope.rotate_keys(x)):
        require(setting, found, x, list(range(length)), length)
    same(rope.rotate(x, wn.Where(torch.arange(length), lengths=length)), rope.rotate(x))
    back = rope.rotate(rope.rotate(x), inverse=True)
    assert_close(back, x, rtol=1e-14, atol=1e-14)


@each_setting
def test_both_sides_of_the_threshold_differ(setting):
    """Else the tests here would prove nothing."""
    rope = setting.make()
    short, long = rope.frequencies_at(L), rope.frequencies_at(2 * L)
    assert (short[1:] - long[1:]).abs().min() > 0.004


@each_setting
def test_a_given_length_decides_whatever_the_positions_are(setting):
    x, rope = content(3), setting.make()
    for given in (0, 1, L, L + 1, 2 * L, torch.tensor([L + 1]), torch.tensor([[2 * L]])):
        where = wn.Where(torch.tensor([0, 5, 2]), lengths=given)
        require(setting, rope.rotate(x, where), x, [0, 5, 2], int(given))


@each_setting
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_lengths_of_any_integer_type(setting, dtype):
    x, rope = content(3, 2), setting.make()
    given = torch.tensor([L, 2 * L])
    positions = torch.arange(3)
    found = rope.rotate(x, wn.Where(positions, lengths=given.to(dtype)))
    same(found, rope.rotate(x, wn.Where(positions, lengths=given)))


@each_setting
def test_order_and_gaps_of_positions_do_not_matter(setting):
    x, rope = content(4), setting.make()
    positions = [3, 2 * L + 4, 0, 7]
    require(setting, rope.rotate(x, torch.tensor(positions)), x, positions, 2 * L + 5)


@each_setting
def test_real_positions(setting):
    x, rope = content(3), setting.make()
    for last in (L - 1, L - 0.75, 2 * L - 0.5):
        positions = [0.5, -3.25, last]
        at = torch.tensor(positions, dtype=torch.float64)
        require(setting, rope.rotate(x, at), x, positions, last + 1)
        same(rope.rotate(x, at.float()), rope.rotate(x, at))


@each_setting
def test_tokens_without_a_place_have_no_length(setting):
    x, rope = content(4), setting.make()
    for last in (L - 1, L):
        at = torch.tensor([0, NOWHERE, last, NOWHERE])
        found = rope.rotate(x, at)
        same(found[:, :, [1, 3]], x[:, :, [1, 3]])
        require(setting, found[:, :, ::2], x[:, :, ::2], [0, last], last + 1)
        real = at.double().masked_fill(at == NOWHERE, torch.nan)
        same(rope.rotate(x, real), found)
    nowhere = torch.full((4,), NOWHERE)
    same(rope.rotate(x, nowhere), x)


@each_setting
def test_negative_positions_are_of_a_short_sequence(setting):
    x, rope = content(3), setting.make()
    require(setting, rope.rotate(x, torch.tensor([-90, -2, -7])), x, [-90, -2, -7], 1)


@each_setting
def test_the_farthest_positions_are_finite(setting):
    rope = setting.make()
    if isinstance(setting.scaling, S.Linear):
        rope = wn.RoPE(8, scaling=S.Linear((1.0, 2.0**53), 1))
    far = torch.tensor([0, 2**53 - 1])
    assert rope.rotate(content(2), far).isfinite().all()
    if not isinstance(setting.scaling, S.Linear):
        assert rope.rotate(content(2), torch.tensor([-(2**53), 2**53])).isfinite().all()


@each_setting
def test_no_tokens(setting):
    rope, none = setting.make(), torch.zeros(0, dtype=torch.int64)
    assert rope.rotate(content(0)).shape == (1, 2, 0, 8)
    assert rope.rotate(content(0), wn.Where(none, segments=none)).shape == (1, 2, 0, 8)
    assert rope.rotate(content(0), wn.Where(none, lengths=3)).shape == (1, 2, 0, 8)
    x = content(L + 1)
    q, k = rope(x, content(0), wn.Where(torch.arange(L + 1), none))
    assert k.shape == (1, 2, 0, 8)
    require(setting, q, x, list(range(L + 1)), L + 1)
    assert rope.rotate(content(3, batch=0)).shape == (0, 2, 3, 8)


# Every sequence has its own


@each_setting
@pytest.mark.parametrize("given", [False, True])
def test_rows_of_a_batch_are_turned_as_each_alone(setting, given):
    rope, counts = setting.make(), (5, L, L + 1, 2 * L + 1, 4 * L)
    widest, x = max(counts), content(4 * L, len(counts))
    positions = torch.full((len(counts), widest), NOWHERE)
    for row, count in enumerate(counts):  # pads on the left and on the right
        start = (widest - count) // 2
        positions[row, start : start + count] = torch.arange(count)
    where = wn.Where(positions, lengths=torch.tensor(counts) if given else None)
    found = rope.rotate(x, where)
    for row, count in enumerate(counts):
        start = (widest - count) // 2
        real = slice(start, start + count)
        same(found[row : row + 1, :, real], rope.rotate(x[row : row + 1, :, real]))
        require(
            setting,
            found[row : row + 1, :, real],
            x[row : row + 1, :, real],
            list(range(count)),
            count,
        )


@each_setting
def test_masked_pads_have_no_length(setting):
    """A pad may have a position: what nobody sees makes no sequence longer."""
    rope, x = setting.make(), content(2 * L, 2)
    mask = torch.ones(2, 2 * L, dtype=torch.bool)
    mask[0, 5:] = False
    found = rope.rotate(x, wn.Where(torch.arange(2 * L), key_mask=mask))
    same(found[:1, :, :5], rope.rotate(x[:1, :, :5]))
    same(found[1:], rope.rotate(x[1:]))
    keys = wn.Where(torch.arange(3), torch.arange(2 * L), key_mask=mask)
    q, k = rope(x[:, :, :3], x, keys)
    same(k[:1, :, :5], rope.rotate(x[:1, :, :5]))
    same(q[:1], rope.rotate(x[:1, :, :5])[:, :, :3])
    same(k[1:], rope.rotate(x[1:]))


@each_setting
def test_attention_of_a_padded_batch_is_that_of_each_row(setting):
    rope, counts = setting.make(), (L - 2, 2 * L)
    q, k, v = (content(2 * L, 2, seed=i) for i in range(3))
    mask = torch.arange(2 * L) < torch.tensor(counts)[:, None]
    found = wn.attention(q, k, v, rope, key_mask=mask, causal=True)
    for row, count in enumerate(counts):
        alone = wn.attention(*(t[row : row + 1, :, :count] for t in (q, k, v)), rope, causal=True)
        assert_close(found[row : row + 1, :, :count], alone, rtol=1e-12, atol=1e-12)


@each_setting
@pytest.mark.parametrize("given", [False, True])
def test_packed_documents_are_turned_as_each_alone(setting, given):
    rope, counts = setting.make(), [5, 2 * L, L, L + 1]
    total = sum(counts) + 3
    x, segments = content(total), wn.positions.segments(counts, total)
    positions = wn.positions.packed(counts, total)
    lengths = None
    if given:
        lengths = torch.tensor([*counts, 0])[segments][None]
        segments = None
    found = rope.rotate(x, wn.Where(positions, segments=segments, lengths=lengths))
    parts = [rope.rotate(part) for part in x[:, :, :-3].split(counts, 2)]
    same(found, torch.cat([*parts, x[:, :, -3:]], 2))
    packed = x[0].transpose(0, 1)  # (S, H, D)
    where = wn.Where(positions, segments=segments, lengths=lengths)
    same(rope.rotate(packed, where, layout="thd").transpose(0, 1), found[0])


@each_setting
def test_documents_in_pieces_with_any_numbers(setting):
    """Document 7 lies in two pieces and is long, -2 is short; a row of its own numbers."""
    rope, x = setting.make(), content(6, 2)
    segments = torch.tensor([[7, 7, -2, -2, 7, 7], [1, 1, 1, 4, 4, 4]])
    positions = torch.tensor([[0, 1, 0, 1, L, L + 1], [0, 1, 2, 0, 2 * L, 1]])
    found = rope.rotate(x, wn.Where(positions, segments=segments))
    documents = [(0, [0, 1, 4, 5]), (0, [2, 3]), (1, [0, 1, 2]), (1, [3, 4, 5])]
    for row, slots in documents:
        ids, part = positions[row, slots], x[row : row + 1, :, slots]
        same(found[row : row + 1, :, slots], rope.rotate(part, ids))
        require(setting, found[row : row + 1, :, slots], part, ids.tolist(), int(ids.max()) + 1)


@each_setting
def test_one_row_of_segments_for_rows_of_positions(setting):
    rope, x = setting.make(), content(4, 2)
    segments, positions = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 3, 0, L], [0, L, 0, 2]])
    found = rope.rotate(x, wn.Where(positions, segments=segments))
    for row in (0, 1):
        for part in (slice(0, 2), slice(2, 4)):
            alone = rope.rotate(x[row : row + 1, :, part], positions[row, part])
            same(found[row : row + 1, :, part], alone)


@each_setting
def test_a_short_sequence_is_the_same_before_and_after_a_long_one(setting):
    rope, x = setting.make(), content(4 * L)
    first = rope.rotate(x[:, :, :5])
    rope.rotate(x)
    same(rope.rotate(x[:, :, :5]), first)
    rope(x, x, wn.Where(torch.arange(4 * L), lengths=4 * L))
    same(rope.rotate(x[:, :, :5]), first)
    same(setting.make().rotate(x[:, :, :5]), first)


@each_setting
def test_queries_and_keys_are_one_sequence(setting):
    """With positions of their own both are counted: one table turns all."""
    rope, q, k = setting.make(), content(2), content(3, seed=1)
    for q_ids, k_ids in (([0, L], [0, 1, 2]), ([0, 1], [0, 1, 2 * L]), ([4, 5], [0, 1, 2])):
        length = max(q_ids + k_ids) + 1
        q_found, k_found = rope(q, k, wn.Where(torch.tensor(q_ids), torch.tensor(k_ids)))
        require(setting, q_found, q, q_ids, length)
        require(setting, k_found, k, k_ids, length)


@each_setting
def test_documents_of_queries_and_of_keys(setting):
    rope, q, k = setting.make(), content(2), content(4, seed=1)
    where = wn.Where(
        torch.tensor([0, 0]),
        torch.tensor([3, L, 1, 2]),
        segments=torch.tensor([9, 5]),
        k_segments=torch.tensor([5, 5, 9, 9]),
    )
    q_found, k_found = rope(q, k, where)
    for found, x, slots, ids, length in (
        (q_found, q, [0], [0], 3),
        (q_found, q, [1], [0], L + 1),
        (k_found, k, [0, 1], [3, L], L + 1),
        (k_found, k, [2, 3], [1, 2], 3),
    ):
        require(setting, found[:, :, slots], x[:, :, slots], ids, length)


@each_setting
def test_a_batch_of_queries_against_one_row_of_keys(setting):
    rope, q, k = setting.make(), content(2, 2), content(3, 2, seed=1)
    where = wn.Where(torch.tensor([[0, 1], [0, L]]), torch.arange(3))
    q_found, k_found = rope(q, k, where)
    for row, last in ((0, 3), (1, L + 1)):
        part = slice(row, row + 1)
        require(setting, q_found[part], q[part], where.positions[row].tolist(), last)
        require(setting, k_found[part], k[part], [0, 1, 2], last)


@each_setting
def test_cross_attention_through_the_layer_and_the_function(setting):
    rope, q = setting.make(), content(3)
    k, v = content(L + 2, seed=1), content(L + 2, seed=2)
    found = wn.attention(q, k, v, rope, where=wn.Where(torch.arange(3), torch.arange(L + 2)))
    given = wn.Where(torch.arange(3), torch.arange(L + 2), lengths=L + 2)
    assert_close(wn.attention(q, k, v, rope, where=given), found, rtol=0, atol=0)
    short = wn.Where(torch.arange(3), torch.arange(L + 2), lengths=L)
    assert (wn.attention(q, k, v, rope, where=short) - found).abs().max() > 1e-4


@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_lengths_mean_nothing_to_the_others(setting):
    if not setting.by_length:
        x, rope = content(5), setting.make()
        same(rope.rotate(x, wn.Where(torch.arange(5), lengths=1000)), rope.rotate(x))


# Nothing is read on the way


@pytest.mark.untyped
@each_compiled
def test_one_compiled_graph_serves_both_sides_of_the_threshold(setting):
    rope, graphs = setting.make(), []

    def counted(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    compiled, first = torch.compile(rope, backend=counted, fullgraph=True, dynamic=True), 0
    for length in (5, 2 * L, 7, 3 * L, L + 1):
        q, k = content(length, 2), content(length, 2, seed=1)
        for a, b in zip(compiled(q, k), rope(q, k), strict=True):
            assert_close(a, b, rtol=1e-14, atol=1e-14)
        first = first or len(graphs)  # dynamo may begin anew within one compilation
    assert len(graphs) == first


@pytest.mark.untyped
@each_compiled
def test_one_compiled_graph_serves_all_given_lengths_and_documents(setting):
    rope, graphs = setting.make(), []

    def counted(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def run(x: Tensor, positions: Tensor, segments: Tensor | None, lengths: Tensor | None):
        return rope.rotate(x, wn.Where(positions, segments=segments, lengths=lengths))

    torch._dynamo.reset()
    compiled = torch.compile(run, backend=counted, fullgraph=True, dynamic=True)
    x, positions = content(6, 2), torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2]])
    segments, counts = torch.tensor([4, 4, 4, 1, 1, 1]), []
    for given in ([3, L], [L + 1, 2 * L]):
        args = x, positions, None, torch.tensor(given)
        assert_close(compiled(*args), run(*args), rtol=1e-14, atol=1e-14)
        counts.append(len(graphs))
    for last in (2, 2 * L):
        moved = positions.clone()
        moved[:, 2] = last
        args = x, moved, segments, None
        assert_close(compiled(*args), run(*args), rtol=1e-14, atol=1e-14)
        counts.append(len(graphs))
    assert counts[0] == counts[1] < counts[2] == counts[3]


@each_setting
def test_it_runs_on_a_device_without_values(setting):
    rope, x = setting.make(), torch.empty(2, 3, 5, 8, device="meta")
    ids = torch.arange(5, device="meta")
    for where in (
        None,
        wn.Where(ids, lengths=torch.empty(2, dtype=torch.int64, device="meta")),
        wn.Where(ids, lengths=9),
        wn.Where(ids, segments=torch.empty(5, dtype=torch.int64, device="meta")),
        wn.Where(ids, key_mask=torch.empty(2, 5, dtype=torch.bool, device="meta")),
    ):
        assert rope.rotate(x, where).shape == (2, 3, 5, 8)


# What is refused


@pytest.mark.untyped
@each_setting
def test_lengths_that_make_no_sense_are_refused(setting):
    rope, x, ids = setting.make(), content(3), torch.arange(3)
    for given, kind, message in (
        (3.0, TypeError, "lengths must be a tensor of integers, got float"),
        (True, TypeError, "lengths must be a tensor of integers, got bool"),
        (torch.tensor([3.0]), TypeError, "lengths must hold integers, got torch.float32"),
        (torch.tensor([True]), TypeError, "lengths must hold integers, got torch.bool"),
        (-1, ValueError, "lengths must be at least 0, got -1"),
        (torch.tensor([-1]), ValueError, "lengths must not be negative"),
        (2**53 + 1, ValueError, "lengths must be at most 9007199254740992"),
        (torch.tensor([2**53 + 2]), ValueError, r"lengths must be at most 2\^53"),
        (torch.zeros(1, 1, 3, dtype=torch.int64), ValueError, r"an int, \(B,\) or \(B, S\), got"),
        (torch.tensor([[1, 2]]), ValueError, r"one for each of 3 \w+, got \(1, 2\)"),
    ):
        with pytest.raises(kind, match=message):
            rope.rotate(x, wn.Where(ids, lengths=given))


@each_setting
def test_lengths_a_token_must_fit_queries_and_keys(setting):
    """Queries and keys of other numbers cannot share lengths that are one a token."""
    rope, q, k = setting.make(), content(3), content(5)
    for count in (3, 5):
        where = wn.Where(torch.arange(3), torch.arange(5), lengths=torch.full((1, count), 9))
        with pytest.raises(ValueError, match=r"one a sequence or one for each of \d \w+, got"):
            rope(q, k, where)
    where = wn.Where(torch.arange(3), torch.arange(5), lengths=torch.full((1, 1), 9))
    assert rope(q, k, where)[1].shape == k.shape


def test_a_sequence_beyond_the_last_factor_is_refused():
    rope = wn.RoPE(8, scaling=S.Linear((1.0, 2.0), L))
    rope.rotate(content(2 * L))
    with pytest.raises(ValueError, match="largest factor's reach, 16 tokens; got 17"):
        rope.rotate(content(2 * L + 1))
    with pytest.raises(ValueError, match="largest factor's reach, 16 tokens; got 40"):
        rope.rotate(content(3, 2), wn.Where(torch.arange(3), lengths=torch.tensor([3, 40])))


def test_amplitudes_of_a_batch_are_of_each_sequence():
    rope = wn.RoPE(8, scaling=S.LongRoPE(SHORT, LONG, L, short_mscale=1.0, long_mscale=1.4))
    x = content(3, 2)
    found = rope.rotate(x, wn.Where(torch.arange(3), lengths=torch.tensor([L, L + 1])))
    ratio = found.norm(dim=-1) / x.norm(dim=-1)
    assert_close(ratio[0], torch.full_like(ratio[0], 1.0))
    assert_close(ratio[1], torch.full_like(ratio[1], 1.4))
    back = rope.rotate(
        found, wn.Where(torch.arange(3), lengths=torch.tensor([L, L + 1])), inverse=True
    )
    assert_close(back, x, rtol=1e-14, atol=1e-14)
