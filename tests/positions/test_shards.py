"""Shards of a sequence: what each rank holds, how they come together, and attention among them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness.positions import shard, shard_mask, shard_order, unshard

SCHEMES = ("zigzag", "contiguous", "striped")


def held(rank: int, world: int, part: int, scheme: str) -> list[int]:
    """Tokens of a rank, found by asking of every token whose it is. `part` tokens a chunk."""
    chunks = 2 * world if scheme == "zigzag" else world
    length = chunks * part

    def owner(token: int) -> int:
        if scheme == "striped":
            return token % world
        chunk = token // part
        return min(chunk, chunks - 1 - chunk) if scheme == "zigzag" else chunk

    return [token for token in range(length) if owner(token) == rank]


@given(st.integers(1, 5), st.integers(0, 3), st.sampled_from(SCHEMES))
@settings(max_examples=60)
def test_every_rank_holds_its_tokens(world, part, scheme):
    length = part * world * (2 if scheme == "zigzag" else 1)
    tokens = torch.arange(length) * 10
    shards, order = [], []
    for rank in range(world):
        found = shard(length, rank, world, scheme)
        assert found.dtype == torch.int64
        assert found.tolist() == held(rank, world, part, scheme)
        shards.append(tokens[found])
        order += found.tolist()
    assert shard_order(length, world, scheme).tolist() == order
    assert unshard(shards, scheme, 0).equal(tokens)
    x = torch.randn(2, length, 3)
    parts = [x[:, shard(length, rank, world, scheme)] for rank in range(world)]
    assert unshard(parts, scheme).equal(x)
    assert unshard([p.transpose(1, 2) for p in parts], scheme, dim=-1).equal(x.transpose(1, 2))


def test_a_mask_of_shards_shows_what_is_not_later():
    q, k = torch.tensor([5, 0, 2]), torch.tensor([3, 0, 5, 9, 2])
    seen = [[k[j] <= q[i] for j in range(5)] for i in range(3)]
    assert shard_mask(q, k).tolist() == seen
    for bad in (torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor([True])):
        with pytest.raises(TypeError, match="q_positions must be an int64 tensor of one axis"):
            shard_mask(bad, k)
        with pytest.raises(TypeError, match="k_positions must be an int64 tensor of one axis"):
            shard_mask(q, bad)


def test_the_scheme_is_zigzag_unless_another_is_named():
    assert shard(8, 1, 2).tolist() == shard(8, 1, 2, "zigzag").tolist() == [2, 3, 4, 5]


ENCODINGS = {
    "rope": lambda: wn.RoPE(8),
    "alibi": lambda: wn.ALiBi(2),
    "t5": lambda: wn.T5(2, 8, 16, bidirectional=True),
    "shaw": lambda: wn.Shaw(8, 3),
    "both": lambda: [wn.RoPE(8), wn.LearnedRelative(2, 4)],
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ENCODINGS)
def test_attention_gathered_over_ranks_equals_that_of_the_whole(name, scheme, causal):
    encoding, world, length = ENCODINGS[name](), 4, 16
    q, k, v = torch.randn(3, 2, 2, length, 8, dtype=torch.float64)
    whole = wn.attention(q, k, v, encoding, causal=causal)
    ids = [shard(length, rank, world, scheme) for rank in range(world)]
    # Keys arrive rank by rank, as in a ring: their own ids say where they are.
    k_ids = torch.cat(ids)
    outs = [
        wn.attention(
            q[:, :, mine],
            k[:, :, k_ids],
            v[:, :, k_ids],
            encoding,
            where=wn.Where(mine, k_ids),
            mask=shard_mask(mine, k_ids) if causal else None,
        )
        for mine in ids
    ]
    torch.testing.assert_close(unshard(outs, scheme, 2), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.untyped
def test_what_cannot_be_dealt_out():
    for make, error, message in (
        (lambda: shard(10, 0, 4, "zigzag"), ValueError, "8 divides, got 10: pad it to 16"),
        (lambda: shard(10, 0, 4, "striped"), ValueError, "4 divides, got 10: pad it to 12"),
        (lambda: shard(10, 0, 4, "contiguous"), ValueError, "4 divides, got 10: pad it to 12"),
        (lambda: shard(8, 2, 2), ValueError, "rank must be below world_size=2, got 2"),
        (lambda: shard(8, -1, 2), ValueError, "rank must be at least 0"),
        (lambda: shard(8, 0, 0), ValueError, "world_size must be at least 1"),
        (lambda: shard(8, 0, 2, "ring"), ValueError, "scheme must be one of"),
        (lambda: shard(8.0, 0, 2), TypeError, "length must be an int"),
        (lambda: unshard([]), ValueError, "got none"),
        (
            lambda: unshard([torch.zeros(1, 2), torch.zeros(1, 4)]),
            ValueError,
            r"one shape, got \[\(1, 2\), \(1, 4\)\]",
        ),
        (lambda: unshard([torch.zeros(1, 3)] * 2), ValueError, "4 divides, got 6"),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.untyped
@pytest.mark.parametrize(
    "shards", [[1, 2], torch.ones(2, 2), "ab"], ids=["numbers", "tensor", "text"]
)
def test_shards_that_are_no_list_of_tensors(shards):
    with pytest.raises(TypeError, match="shards must be a list of tensors"):
        unshard(shards)
