"""K18: a table of biases is read at the right offset, on both sides, and gets its gradients.

P191, which of two conventions a DeBERTa follows, is that encoding's matter.
"""

import math

import pytest
import torch
from torch import Tensor

import whereness as wn
from cases.support import (
    GROUPS,
    HEADS,
    case,
    decoded,
    differ,
    encoding,
    equal,
    heads,
    model,
    scribbled,
    tokens,
)

BIASES = ("relative_add", "t5", "alibi", "kerple", "sandwich")


def bucket_by_logarithm(offset: int, bidirectional: bool) -> int:
    """32 buckets up to 128, as the released code computes them, with the exact logarithm."""
    count, ahead, distance = 32, 0, max(-offset, 0)
    if bidirectional:
        count, ahead, distance = 16, 16 * (offset > 0), abs(offset)
    exact = count // 2
    if distance < exact:
        return ahead + distance
    steps = math.log(distance / exact) / math.log(128 / exact) * (count - exact)
    return ahead + min(count - 1, exact + math.floor(steps + 1e-12))


@case("P182")
def test_buckets_of_t5():
    both, back = wn.T5(1, bidirectional=True), wn.T5(1)
    near = torch.arange(10)
    assert both.buckets(near).tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    assert both.buckets(-near).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    known = {15: 15, 16: 16, 17: 16, 20: 17, 127: 31, 128: 31, 10_000: 31}
    assert back.buckets(-torch.tensor(list(known))).tolist() == list(known.values())
    assert not back.buckets(near).any()


@case("P182")
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buckets_do_not_depend_on_the_type_of_anything(bidirectional, dtype):
    made = wn.T5(1, bidirectional=bidirectional).to(dtype)
    made.table.data[:, 0] = torch.arange(32)
    for sign in (-1, 1):
        offsets = sign * torch.arange(2000)
        found = made.bias(torch.tensor([0]), offsets)[0, 0].detach()
        assert found.dtype == dtype
        expected = [bucket_by_logarithm(n, bidirectional) for n in offsets.tolist()]
        assert found.tolist() == expected


@case("P184")
@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 1, 1], [2, 4]])
def test_a_decoder_has_its_bias_after_the_first_token_too(name, chunks):
    whole, ids = model(encoding(name)), tokens(6, batch=2)
    full = whole(ids)
    equal(decoded(whole, ids, chunks), full)
    without = model("nope")
    without.load_state_dict(whole.state_dict(), strict=False)
    differ(decoded(without, ids, chunks)[:, 1:], full[:, 1:])


def added(made: wn.PositionalEncoding, queries: int, keys: int, where: object) -> Tensor:
    """What attention adds to logits of 0, up to a constant of each row: (H, S, T), of weights."""
    q, k = torch.zeros(1, HEADS, queries, 8), torch.zeros(1, GROUPS, keys, 8)
    options = {"where": where, "causal": queries < keys}
    _, weights = wn.attention(
        q.double(), k.double(), k.double(), made, return_weights=True, **options
    )
    return weights[0].log().detach()


def labelled(queries: int, keys: int) -> wn.LearnedRelative:
    """Every offset has a value of its own: the offset itself."""
    reach = max(queries, keys) - 1
    made = wn.LearnedRelative(HEADS, reach).double()
    made.table.data[:] = torch.arange(-reach, reach + 1)[:, None]
    return made


def distances(queries: int, keys: int) -> Tensor:
    """k - q, written out: the queries are the last of the keys."""
    first = keys - queries
    return torch.tensor([[j - (first + i) for j in range(keys)] for i in range(queries)]).double()


@case("P185", "P188")
@pytest.mark.parametrize("length", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("built", [True, False])
def test_every_entry_is_that_of_its_own_offset_on_both_sides(length, built):
    made, ids = labelled(length, length), torch.arange(length)
    expected = distances(length, length).expand(HEADS, -1, -1)
    assert made.bias(ids, ids).tolist() == expected.tolist()
    found = added(made, length, length, None if built else ids)
    equal(found - found[..., :1], expected - expected[..., :1])


@case("P188")
def test_the_shift_that_is_right_under_a_causal_mask_alone_would_be_seen():
    """The trick pads and reshapes L distances a row: what is right of the diagonal is another's."""
    length = 5
    scores = torch.arange(length).flip(0).repeat(length, 1).double()  # distance L-1 .. 0
    padded = torch.cat([torch.zeros(length, 1).double(), scores], 1)
    shifted = padded.reshape(length + 1, length)[1:]
    right = -distances(length, length)
    equal(shifted.tril(), right.tril())
    assert shifted[0].tolist() == [0, 0, 4, 3, 2]
    differ(shifted.triu(2), right.triu(2))


@case("P189")
@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("queries", [1, 3, 6])
def test_under_a_causal_mask_what_is_seen_is_right(name, queries):
    made, line = encoding(name), torch.arange(6)
    q, k, v = heads(queries), heads(6, GROUPS, seed=3), heads(6, GROUPS, seed=4)
    strip = wn.attention(q, k, v, made, causal=True)
    table = made.bias(line[6 - queries :], line).detach().double()
    seen = line <= line[6 - queries :, None]
    logits = q @ k.repeat_interleave(HEADS // GROUPS, 1).mT * made.logit_scale(8) / math.sqrt(8)
    # Future entries of the table may be anything.
    logits = (logits + table.masked_fill(~seen, 7.0)).masked_fill(~seen, -math.inf)
    expected = logits.softmax(-1) @ v.repeat_interleave(HEADS // GROUPS, 1)
    equal(strip, expected, 1e-7)


@case("P187")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "auto"])
@pytest.mark.parametrize("name", ["relative_add", "t5", "kerple"])
def test_a_learned_table_gets_the_gradient_of_dense_attention(name, causal, implementation):
    length = 8
    makers = {
        "relative_add": lambda: wn.LearnedRelative(HEADS, length - 1),
        "t5": lambda: wn.T5(HEADS, 8, 6, bidirectional=True),
        "kerple": lambda: wn.KERPLE(HEADS),
    }
    made, line = scribbled(makers[name]()).double(), torch.arange(length)
    q, k, v = heads(length), heads(length, GROUPS, seed=3), heads(length, GROUPS, seed=4)
    wanted = heads(length, seed=5)
    fused = wn.attention(q, k, v, made, causal=causal, implementation=implementation)
    (fused * wanted).sum().backward()
    found = [p.grad.clone() for p in made.parameters()]
    made.zero_grad()
    logits = q @ k.repeat_interleave(HEADS // GROUPS, 1).mT * made.logit_scale(8) / math.sqrt(8)
    logits = logits + made.bias(line, line)
    if causal:
        logits = logits.masked_fill(line > line[:, None], -math.inf)
    dense = logits.softmax(-1) @ v.repeat_interleave(HEADS // GROUPS, 1)
    (dense * wanted).sum().backward()
    for got, parameter in zip(found, made.parameters(), strict=True):
        equal(got, parameter.grad)
        assert got.abs().max() > 1e-3


@case("P192")
@pytest.mark.parametrize("name", ["relative_add", "relative_multiply", "t5-bidirectional"])
def test_learned_tables_tell_before_from_after(name):
    made = (
        scribbled(wn.T5(HEADS, 8, 16, bidirectional=True))
        if name == "t5-bidirectional"
        else encoding(name)
    )
    read = made.factor if name == "relative_multiply" else made.bias
    before, after = read(torch.tensor([10]), torch.tensor([7, 13])).detach()[:, 0].unbind(-1)
    differ(before, after)


@case("P192")
def test_shaw_has_a_row_for_each_side():
    rows = wn.Shaw(8, 4).index(torch.tensor([10]), torch.tensor([7, 13]))
    assert rows.tolist() == [[1, 7]]


@case("P192")
@pytest.mark.parametrize("name", [*BIASES, "relative_multiply", "shaw"])
def test_who_sees_the_distance_alone_is_told_by_measure(name):
    """The asymmetry of scores of a bidirectional layer: 0 says that |k - q| is all there is."""
    made = encoding(name)
    if made.causal_only:
        made = scribbled(wn.T5(HEADS, 8, 16, bidirectional=True))
    measured = wn.measure(made, num_positions=24)
    if name in ("alibi", "kerple", "sandwich"):
        assert measured.symmetry == 0
    else:
        assert measured.symmetry > 1e-3
