"""K17: ALiBi's slopes are the published ones; its bias falls with distance from the diagonal."""

import math

import pytest
import torch

import whereness as wn
from cases.support import HEAD_DIM, HEADS, bitwise, case, differ, equal, heads

COUNTS = (*range(1, 18), 40)
FOUR = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]


def published(count: int) -> list[float]:
    """The authors' recursion: a geometric series for powers of two, else every second slope of
    the next power of two fills up what is missing."""

    def series(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(count).is_integer():
        return series(count)
    closest = 2 ** math.floor(math.log2(count))
    return series(closest) + published(2 * closest)[0::2][: count - closest]


@case("P174")
@pytest.mark.parametrize("count", COUNTS)
def test_slopes_are_those_of_the_published_recursion(count):
    slopes = wn.ALiBi(count).slopes
    torch.testing.assert_close(slopes, torch.tensor(published(count)), rtol=2e-7, atol=0)
    assert slopes.dtype == torch.float32


@case("P174")
def test_slopes_of_6_and_12_heads():
    assert wn.ALiBi(6).slopes.tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    halves = [2.0 ** -(n + 0.5) for n in range(4)]
    expected = torch.tensor([*(2.0**-n for n in range(1, 9)), *halves])
    torch.testing.assert_close(wn.ALiBi(12).slopes, expected, rtol=1e-7, atol=0)


@case("P174")
def test_instances_share_nothing():
    ids = torch.arange(5)
    few, many = wn.ALiBi(4), wn.ALiBi(6)
    before = few.bias(ids, ids)
    many.bias(torch.arange(9), torch.arange(9))
    bitwise(few.bias(ids, ids), before)
    assert few.slopes.tolist() == FOUR
    assert many.bias(ids, ids).shape == (6, 5, 5)


@case("P174")
@pytest.mark.parametrize("count", [1, 3, 6, 12])
def test_every_head_gets_its_own_slope_in_attention(count):
    q, k = (torch.zeros(1, count, n, HEAD_DIM) for n in (1, 2))
    _, weights = wn.attention(q, k, k, wn.ALiBi(count), causal=True, return_weights=True)
    lost = (weights[0, :, 0, 1] / weights[0, :, 0, 0]).log()
    torch.testing.assert_close(lost, torch.tensor(published(count)), rtol=1e-5, atol=1e-6)


@case("P176")
@pytest.mark.parametrize("count", [1, 4, 6])
def test_the_bias_is_0_on_the_diagonal_and_falls_with_distance(count):
    ids = torch.arange(9)
    bias = wn.ALiBi(count).bias(ids, ids)
    slopes = torch.tensor(published(count))
    equal(bias[:, 7, 4], -3 * slopes, 1e-6)
    equal(bias[:, 4, 7], -3 * slopes, 1e-6)
    assert (bias <= 0).all()
    assert not bias.diagonal(dim1=1, dim2=2).any()
    for query in range(9):
        assert (bias[:, query, : query + 1].diff() > 0).all()
        assert (bias[:, query, query:].diff() < 0).all()


@case("P176")
@pytest.mark.parametrize("causal", [True, False])
def test_attention_favours_near_tokens(causal):
    q = torch.zeros(1, HEADS, 7, HEAD_DIM)
    _, weights = wn.attention(q, q, q, wn.ALiBi(HEADS), causal=causal, return_weights=True)
    row = weights[0, :, 4]
    assert (row[:, :5].diff() > 0).all()
    if not causal:
        assert (row[:, 4:].diff() < 0).all()
        equal(row[:, 3], row[:, 5], 1e-6)


class ByKeyAlone(wn.PositionalEncoding):
    """ALiBi as some code has it: slope times the key's position, whatever the query's."""

    def bias(self, q_positions, k_positions):
        slopes = torch.tensor(FOUR, dtype=torch.float64)[:, None, None]
        return (slopes * k_positions[..., None, None, :]).expand(-1, -1, q_positions.shape[-1], -1)


@case("P177")
def test_a_bias_by_key_alone_gives_the_same_causal_output_and_another_one_without():
    q, k, v = (heads(8, seed=s) for s in (1, 2, 3))
    ours, theirs = (
        lambda causal, e=e: wn.attention(q, k, v, e, causal=causal)
        for e in (wn.ALiBi(HEADS), ByKeyAlone())
    )
    equal(ours(True), theirs(True))
    differ(ours(False), theirs(False), 0.01)


@case("P180")
def test_the_diagonal_stands_at_the_end_of_the_keys():
    alibi, q = wn.ALiBi(HEADS), torch.zeros(1, HEADS, 2, HEAD_DIM)
    k, v = torch.zeros(1, HEADS, 5, HEAD_DIM), torch.eye(5).expand(1, HEADS, -1, -1)
    out, weights = wn.attention(q, k, v, alibi, causal=True, return_weights=True)
    # Equal logits: weights are the softmax of the bias alone.
    distance = torch.tensor([[3.0, 2, 1, 0, math.inf], [4, 3, 2, 1, 0]])
    expected = (-torch.tensor(FOUR)[:, None, None] * distance).softmax(-1)
    equal(weights[0], expected, 1e-6)
    equal(out[0], expected, 1e-6)
    equal(wn.attention(q, k, v, alibi, causal=True)[0], expected, 1e-6)
    # The bias itself, at the positions that attention fills in.
    bias = alibi.bias(torch.tensor([3, 4]), torch.arange(5))
    assert bias[:, 0, 3].tolist() == bias[:, 1, 4].tolist() == [0.0] * HEADS


@case("P180")
def test_memory_in_front_moves_the_diagonal_for_alibi_heads_only():
    """Half of the heads without ALiBi: a bias of slope 0 there, not a shifted one."""

    class Half(wn.ALiBi):
        def by_offset(self, offset):
            bias = super().by_offset(offset).clone()
            bias[2:] = 0
            return bias

    q, k = (torch.zeros(1, HEADS, n, HEAD_DIM) for n in (2, 5))
    _, weights = wn.attention(q, k, k, Half(HEADS), causal=True, return_weights=True)
    equal(weights[0, 2:, 1], torch.full((2, 5), 0.2), 1e-6)
    expected = (-torch.tensor(FOUR[:2])[:, None] * torch.tensor([4.0, 3, 2, 1, 0])).softmax(-1)
    equal(weights[0, :2, 1], expected, 1e-6)
