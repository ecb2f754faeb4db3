"""Builders look at no value: on an accelerator they never wait, on meta and compiled they work."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import whereness as wn
from whereness import positions
from whereness.positions.rows import next_position


class NoLook(TorchDispatchMode):
    """Refuses what makes an accelerator wait: to read a value, or to size a tensor by values."""

    LOOKS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.startswith(self.LOOKS):
            raise AssertionError(f"looked at a value: {func}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def like_an_accelerator(monkeypatch):
    """Checks take the path of an accelerator, on which no value may be looked at."""
    # At its first use Dynamo keeps the functions that it knows: the true one must be among them.
    torch.compile(torch.neg, backend="eager")(torch.zeros(1))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


TYPES = torch.tensor([[0, 1, 1, 0, 2, 2, 2, 2]])
IMAGES, VIDEOS = torch.tensor([[1, 1, 2]]), torch.tensor([[2, 1, 2]])
SECONDS = torch.tensor([0.5])

MAKERS = {
    "packed": lambda n: positions.packed(n, 9),
    "segments": lambda n: positions.segments(n, 9),
    "decode": lambda n: positions.decode(n, 2),
    "decode on axes": lambda n: positions.decode(n, 2, 3),
    "prefill": lambda n: positions.prefill(n, 0, 2, n),
    "continued": lambda n: positions.continued(n, 2),
    "next_position": lambda n: next_position(n[None], before=n[:1]),
    "from_mask": lambda n: positions.from_mask(n > 0),
    "from ones and zeros": positions.from_mask,
    "grid": lambda n: positions.grid(2, 2, merge=2, prefix=1, device=n.device),
    "video": lambda n: positions.video(2, 1, 2, seconds_per_frame=0.5, device=n.device),
    "multimodal": lambda n: (
        positions.multimodal(
            [
                [positions.Text(2), positions.Image(1, 2)],
                [positions.Film(positions.Video(2, 1, 1, 0.5), positions.Audio(2))],
            ],
            device=n.device,
        ).positions
    ),
    "from_token_types": lambda n: (
        positions.from_token_types(
            TYPES.to(n.device),
            IMAGES.to(n.device),
            VIDEOS.to(n.device),
            seconds_per_frame=SECONDS.to(n.device),
            attention_mask=torch.ones_like(TYPES, device=n.device),
            after="side",
        ).positions
    ),
    "tree": lambda n: positions.tree(n - 2, 4),
    "tree in rows": lambda n: positions.tree(n[None] - 2, n[:1]),
    "tree_mask": lambda n: positions.tree_mask(n - 2, 4),
    "shard": lambda n: positions.shard(8, 1, 2, device=n.device),
    "unshard": lambda n: positions.unshard([n[:2], n[:2]], dim=0),
    "abacus": lambda n: positions.abacus(n > 0),
    "randomized": lambda n: positions.randomized(3, 3, device=n.device),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_ids_are_made_where_the_lengths_are(make):
    found = make(torch.ones(3, dtype=torch.int64, device="meta"))
    assert found.device.type == "meta"
    assert found.shape == make(torch.ones(3, dtype=torch.int64)).shape


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_no_value_is_looked_at(make, like_an_accelerator):
    ones = torch.ones(3, dtype=torch.int64)
    with NoLook():
        found = make(ones)
    assert found.nan_to_num(-1).tolist() == make(ones).nan_to_num(-1).tolist()


@pytest.mark.untyped
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_builders_compile_in_one_graph(make):
    ones = torch.ones(3, dtype=torch.int64)
    compiled = torch.compile(make, fullgraph=True, backend="eager")
    assert compiled(ones).nan_to_num(-1).tolist() == make(ones).nan_to_num(-1).tolist()


def test_the_watch_for_looks_is_in_force(like_an_accelerator):
    lengths = torch.ones(3, dtype=torch.int64)
    with NoLook(), pytest.raises(AssertionError, match="looked at a value"):
        positions.packed(lengths)  # a sum that nobody gave has to be looked at
    with NoLook(), pytest.raises(RuntimeError, match="."):
        positions.packed(lengths, 2)  # what is wrong is still refused, without waiting


@pytest.mark.parametrize("encoding", ["rope", "alibi", "relative_add", "t5", "shaw"])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_attention_looks_at_no_value(encoding, implementation, like_an_accelerator):
    made = wn.create(encoding, dim=16, num_heads=2)
    q, lengths = torch.ones(2, 2, 5, 8), torch.tensor([2, 3])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    with NoLook():
        for where in (
            None,
            positions.packed(lengths, 5),
            wn.Where(key_mask=mask),
            wn.Where(segments=positions.segments(lengths, 5), lengths=lengths),
        ):
            wn.attention(q, q, q, made, where=where, causal=True, implementation=implementation)


def test_a_layer_with_a_cache_looks_at_no_value(like_an_accelerator):
    layer = wn.Attention(16, 2, [wn.RoPE(8), wn.ALiBi(2)], causal=True)
    cache, x = wn.KVCache(), torch.ones(2, 4, 16)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    with NoLook():
        layer(x, cache=cache, key_mask=mask[:, :4])
        layer(x[:, :1], cache=cache, key_mask=mask)
        cache.reorder(torch.tensor([1, 0]))
        cache.trim(3)
        layer(x[:, :1], cache=cache)
