"""wn.Attention: the layer around the call, its projections, its encoding and its options."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import whereness as wn
from attend.by_hand import DIM, GROUPS, HEAD_DIM, HEADS, by_hand, layer, stream
from attend.oracle import Tide, Wave, array, attend, differ, near

IDS = torch.arange(6) * 2 + 1
KEY_MASK = torch.tensor([[0, 1, 1, 1, 0, 1], [1] * 6])


# Against the oracle


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 3},
        {"causal": False, "window": 2},
        {"num_kv_heads": None},
        {"num_kv_heads": 1},
        {"num_kv_heads": 4},
        {"bias": True},
        {"head_dim": 6},
        {"implementation": "reference"},
        {"implementation": "sdpa"},
    ],
    ids=str,
)
def test_a_layer_is_its_projections_and_attention(options):
    one, x = layer(**options), stream(6)
    if options.get("bias"):
        for linear in (one.q_proj, one.k_proj, one.v_proj, one.out_proj):
            nn.init.normal_(linear.bias)
    assert one.q_proj.out_features == HEADS * options.get("head_dim", HEAD_DIM)
    near(one(x), by_hand(one, x))


@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_all_doors_but_the_first(implementation):
    one, x = layer([wn.RoPE(8), Wave(4), Tide()], implementation=implementation), stream(6)
    mask = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(3)) > 0.3
    found = one(x, where=wn.Where(IDS, key_mask=KEY_MASK), mask=mask)
    expected = by_hand(
        one,
        x,
        rotary=True,
        waves=True,
        tides=True,
        positions=IDS,
        key_mask=KEY_MASK.bool(),
        mask=mask,
    )
    near(found, expected)


def test_a_mask_serves_one_call_and_not_the_next():
    one, x = layer(), stream(6)
    plain = one(x)
    differ(one(x, mask=torch.eye(6).bool(), key_mask=torch.ones(2, 6).long()), plain)
    near(one(x), plain, 0.0)


@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_what_joins_a_layers_input(site):
    encoding = wn.LearnedAbsolute(DIM, 20, site=site)
    one, x = layer(encoding), stream(6)
    rows = array(encoding(IDS))
    found = one(x, where=IDS)
    near(found, by_hand(one, x, joined=(rows, rows), joins_values=site == "every_layer"))
    differ(found, by_hand(one, x, joined=(rows, rows), joins_values=site != "every_layer"))


@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_what_is_set_beside_a_layers_input(site):
    encoding = wn.LearnedAbsolute(5, 20, site=site, join="concat")
    one, x = layer(encoding), stream(6)
    widths = [p.in_features for p in (one.q_proj, one.k_proj, one.v_proj)]
    assert widths == [DIM + 5, DIM + 5, DIM + 5 if site == "every_layer" else DIM]
    wide = torch.cat([x, encoding(IDS).expand(2, 6, 5)], -1)
    q = (wide @ one.q_proj.weight.T).unflatten(-1, (HEADS, 8)).transpose(1, 2)
    k = (wide @ one.k_proj.weight.T).unflatten(-1, (GROUPS, 8)).transpose(1, 2)
    v = (wide if site == "every_layer" else x) @ one.v_proj.weight.T
    out = attend(q, k, v.unflatten(-1, (GROUPS, 8)).transpose(1, 2), causal=True)[0]
    out = out.swapaxes(1, 2).reshape(2, 6, -1) @ array(one.out_proj.weight).T
    near(one(x, where=IDS), out)


def test_prepared_positions_serve_all_layers_of_one_encoding():
    rope = wn.RoPE(8)
    first, second = layer(rope, owns_encoding=False), layer(rope, owns_encoding=False)
    at, x = rope.prepare(wn.Where(IDS, key_mask=KEY_MASK)), stream(6)
    for one in (first, second):
        expected = by_hand(one, x, rotary=True, positions=IDS, key_mask=KEY_MASK.bool())
        near(one(x, where=at), expected)
    with pytest.raises(ValueError, match="prepared for another RoPE"):
        layer(wn.RoPE(8))(x, where=at)
    with pytest.raises(ValueError, match="key_mask"):
        first(x, where=at, key_mask=KEY_MASK)


def test_weights_on_request():
    one, x = layer(Wave(4)), stream(6)
    out, weights = one(x, return_weights=True)
    near(out, by_hand(one, x, waves=True, positions=torch.arange(6)))
    assert weights.shape == (2, HEADS, 6, 6)
    near(weights.sum(-1), np.ones((2, HEADS, 6)))
    assert (weights.triu(1) == 0).all()


def test_the_layers_own_projections_for_an_encoding_that_asks():
    one, rows = layer(), stream(1)[:, 0]
    q, k = one.project(rows)
    assert (q.shape, k.shape) == ((HEADS, 2, 8), (HEADS, 2, 8))
    for h in range(HEADS):
        near(q[h], array(rows) @ array(one.q_proj.weight[8 * h : 8 * h + 8]).T)
        g = h // 2
        near(k[h], array(rows) @ array(one.k_proj.weight[8 * g : 8 * g + 8]).T)


# Cross-attention


@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("given", ["tensor", "where", "at"])
def test_cross_attention(given, padded, implementation):
    encoding = wn.Combined([wn.RoPE(8), Wave(4), Tide()])
    one = layer(encoding, causal=False, implementation=implementation)
    x, context = stream(4), stream(6, seed=2)
    q_ids, k_ids = (
        torch.tensor([3, 1, 4, 1]),
        torch.tensor([[2, 7, 1, 8, 2, 8], [0, 1, 2, 3, 4, 5]]),
    )
    mask = KEY_MASK if padded else None
    where = wn.Where(q_ids, k_ids, key_mask=None if given == "where" else mask)
    options = {"key_mask": mask} if given == "where" else {}
    if given == "at":
        where = encoding.prepare(where)
    expected = by_hand(
        one,
        x,
        context,
        rotary=True,
        waves=True,
        tides=True,
        positions=q_ids,
        k_positions=k_ids,
        key_mask=None if mask is None else mask.bool(),
    )
    near(one(x, context, where=where, **options), expected)


def test_cross_attention_without_positions_counts_both_streams():
    one, x, context = layer(Wave(4), causal=False), stream(4), stream(6, seed=2)
    expected = by_hand(one, x, context, waves=True, positions=range(4), k_positions=range(6))
    near(one(x, context), expected)
    # pads of the context have no place: a law; here the real ones are counted
    shifted = np.array([[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6])
    expected = by_hand(
        one, x, context, waves=True, positions=range(4), k_positions=shifted, key_mask=mask.bool()
    )
    near(one(x, context, key_mask=mask), expected)


@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_each_stream_is_joined_by_its_own_rows(site):
    encoding = wn.LearnedAbsolute(DIM, 20, site=site)
    one, x, context = layer(encoding, causal=False), stream(4), stream(6, seed=2)
    q_ids, k_ids = torch.tensor([3, 1, 4, 1]), torch.tensor([9, 2, 6, 5, 3, 5])
    rows = array(encoding(q_ids)), array(encoding(k_ids))
    expected = by_hand(one, x, context, joined=rows, joins_values=site == "every_layer")
    near(one(x, context, where=wn.Where(q_ids, k_ids)), expected)


def test_a_context_of_the_same_length_is_still_a_context():
    one, x, context = layer(Wave(4), causal=False), stream(6), stream(6, seed=2)
    expected = by_hand(one, x, context, waves=True, positions=range(6))
    near(one(x, context), expected)
    differ(expected, one(x))


def test_what_cross_attention_refuses():
    x, context = stream(4), stream(6, seed=2)
    with pytest.raises(ValueError, match="must not be causal"):
        layer()(x, context)
    with pytest.raises(ValueError, match="not with a context"):
        layer(causal=False)(x, context, cache=wn.KVCache())
    with pytest.raises(ValueError, match="context has batch size 1, x has 2"):
        layer(causal=False)(x, context[:1])
    with pytest.raises(ValueError, match=r"key_mask must be \(B, T\) with T=6"):
        layer(causal=False)(x, context, key_mask=torch.ones(2, 4).long())
    with pytest.raises(ValueError, match=r"\(B, H, S, T\) = \(2, 4, 4, 6\)"):
        layer(causal=False)(x, context, mask=torch.ones(4, 4).bool())
    with pytest.raises(ValueError, match="needed 4 queries and 6 keys, got 4 and 4"):
        layer(causal=False)(x, context, where=torch.arange(4))


def test_packed_pairs_equal_separate_ones_or_are_refused():
    """Two sentences and their translations in one row each, positions left to the layer."""
    one, x, context = layer([wn.RoPE(8), Wave(4)], causal=False), stream(5), stream(7, seed=2)
    segments, k_segments = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    try:
        packed = one(x, context, where=wn.Where(segments=segments, k_segments=k_segments))
    except ValueError:
        return
    first, second = one(x[:, :2], context[:, :4]), one(x[:, 2:], context[:, 4:])
    near(packed, torch.cat([first, second], 1).detach())
    # with pads in the context: as if they were not there
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1])
    where = wn.Where(segments=segments, k_segments=k_segments, key_mask=mask)
    first, second = one(x[:, :2], context[:, [0, 2, 3]]), one(x[:, 2:], context[:, 5:])
    near(one(x, context, where=where), torch.cat([first, second], 1).detach())


def test_streams_of_one_length_may_share_their_documents():
    one, x, context = layer([wn.RoPE(8), Wave(4)], causal=False), stream(5), stream(5, seed=2)
    segments = torch.tensor([0, 0, 1, 1, 1])
    packed = one(x, context, where=wn.Where(segments=segments))
    parts = [one(x[:, a:b], context[:, a:b]) for a, b in ((0, 2), (2, 5))]
    near(packed, torch.cat(parts, 1).detach())


class InOrder(wn.PositionalEncoding):
    reads = "order"


def test_an_encoding_that_reads_order_has_no_context():
    for encoding in (InOrder(), [wn.RoPE(8), InOrder()]):
        one = layer(encoding, causal=False)
        assert one(stream(4)).shape == (2, 4, DIM)
        with pytest.raises(ValueError, match="reads the order of tokens"):
            one(stream(4), stream(6, seed=2), where=wn.Where(torch.arange(4), torch.arange(6)))


# Whose encoding it is


def test_a_layer_owns_its_encoding():
    relative = wn.LearnedRelative(HEADS, 3)
    one = wn.Attention(DIM, HEADS, relative)
    assert one.encoding is relative
    names = {n for n in one.state_dict() if "proj" not in n}
    assert names == {"own_encoding.table"}
    assert any(p is relative.table for p in one.parameters())
    one.double()
    assert relative.table.dtype == torch.float64
    assert relative.training
    one.eval()
    assert not relative.training


def test_a_layer_may_leave_its_encoding_to_the_model():
    relative = wn.LearnedRelative(HEADS, 3)
    one = wn.Attention(DIM, HEADS, relative, owns_encoding=False)
    assert one.encoding is relative
    assert {n.split(".")[0] for n in one.state_dict()} == {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert not any(p is relative.table for p in one.parameters())
    assert relative not in list(one.modules())
    one.double()
    assert relative.table.dtype == torch.float32


def test_a_shared_encoding_is_saved_once(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = wn.LearnedRelative(HEADS, 3)
            self.layers = nn.ModuleList(
                wn.Attention(DIM, HEADS, self.positions, owns_encoding=False) for _ in range(3)
            )

    model, other = Model(), Model()
    nn.init.normal_(model.positions.table)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    state = safetensors.load_file(tmp_path / "model.safetensors")
    assert [n for n in state if "table" in n] == ["positions.table"]
    other.load_state_dict(state)
    x = torch.randn(1, 5, DIM)
    for ours, theirs in zip(model.layers, other.layers, strict=True):
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@pytest.mark.parametrize("owned", [True, False])
def test_a_copy_of_a_layer_has_an_encoding_of_its_own(owned):
    one = layer(wn.LearnedRelative(HEADS, 3), owns_encoding=owned)
    before, twin = one(stream(5)), copy.deepcopy(one)
    near(twin(stream(5)), before, 0.0)
    nn.init.normal_(twin.encoding.table)
    differ(twin(stream(5)), before)
    near(one(stream(5)), before, 0.0)


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("implementation", ["reference", "auto"])
def test_an_optimiser_step_trains_every_parameter(owned, implementation):
    encoding = wn.Combined(
        [wn.LearnedRelative(HEADS, 3), wn.LearnedAbsolute(DIM, 9, site="queries_keys")]
    )
    one = layer(encoding, owns_encoding=owned, implementation=implementation).train()
    parameters = dict(one.named_parameters()) | {
        f"e.{n}": p for n, p in encoding.named_parameters()
    }
    before = {n: p.detach().clone() for n, p in parameters.items()}
    optimiser = torch.optim.SGD({id(p): p for p in parameters.values()}.values(), lr=0.1)
    target = stream(6, seed=8)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = ((one(stream(6)) - target) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    for name, parameter in parameters.items():
        differ(parameter, before[name], 1e-6)


# Dropout and mode


@pytest.mark.parametrize("implementation", ["reference", "auto"])
def test_dropout_acts_in_training_only(implementation):
    one, x = layer(dropout=0.5, implementation=implementation), stream(6)
    near(one(x), by_hand(one, x))
    one.train()
    differ(one(x), by_hand(one, x), 0.01)
    differ(one(x), one(x), 0.01)
    near(layer(implementation=implementation).train()(x), by_hand(one, x))


# What is refused


def refused(error: type[Exception], message: str, *args, **options) -> None:
    with pytest.raises(error, match=message):
        wn.Attention(*(args or (DIM, HEADS)), **options)


def test_sizes_that_do_not_fit():
    refused(ValueError, "dim must be at least 1, got 0", 0, HEADS)
    refused(ValueError, "num_heads must be at least 1, got -1", DIM, -1)
    refused(ValueError, "num_kv_heads must be at least 1, got 0", num_kv_heads=0)
    refused(ValueError, "multiple of num_kv_heads, got 4 and 3", num_kv_heads=3)
    refused(ValueError, "multiple of num_kv_heads, got 4 and 8", num_kv_heads=8)
    refused(
        ValueError, "dim must be a multiple of num_heads, got 32 and 5; or give head_dim", DIM, 5
    )
    refused(ValueError, "head_dim must be at least 1, got 0", head_dim=0)
    assert wn.Attention(DIM, 5, head_dim=4)(torch.zeros(1, 2, DIM)).shape == (1, 2, DIM)


@pytest.mark.untyped
def test_sizes_that_are_no_integers():
    refused(TypeError, "dim must be an int, got float", 32.0, HEADS)
    refused(TypeError, "num_heads must be an int, got str", DIM, "4")
    refused(TypeError, "num_kv_heads must be an int, got float", num_kv_heads=2.0)
    refused(TypeError, "head_dim must be an int, got float", head_dim=8.0)
    refused(TypeError, "causal must be True or False, got 1", causal=1)
    refused(TypeError, "window must be an int", window=2.5)
    refused(ValueError, r"dropout must be in \[0, 1\), got None", dropout=None)


def test_encodings_that_are_not_a_layers():
    refused(
        ValueError,
        "belongs to the model.*'every_layer' or 'queries_keys'",
        DIM,
        HEADS,
        wn.Integer(DIM),
    )
    refused(ValueError, "belongs to the model", DIM, HEADS, [wn.RoPE(8), wn.Integer(DIM)])
    refused(ValueError, "ALiBi was built for num_heads=8, attention has 4", DIM, HEADS, wn.ALiBi(8))
    refused(ValueError, "RoPE was built for head_dim=16, attention has 8", DIM, HEADS, wn.RoPE(16))
    refused(ValueError, "built for head_dim=8, attention has 4", DIM, HEADS, wn.RoPE(8), head_dim=4)
    refused(ValueError, "T5 has no meaning for keys after", DIM, HEADS, wn.T5(HEADS))
    assert wn.Attention(DIM, HEADS, wn.T5(HEADS), causal=True).causal
    assert wn.Attention(DIM, HEADS, wn.T5(HEADS, bidirectional=True)).encoding.bidirectional


@pytest.mark.untyped
def test_what_is_no_encoding():
    refused(TypeError, "encoding must be a whereness encoding", DIM, HEADS, "rope")


@pytest.mark.parametrize("kernel", ["native", "triton"])
def test_kernels_of_door_3(kernel):
    refused(ValueError, f"'{kernel}' names a kernel that turns", implementation=kernel)


def test_options_that_make_no_sense():
    refused(ValueError, "implementation must be one of", implementation="fast")
    refused(ValueError, r"dropout must be in \[0, 1\)", dropout=1.0)
    refused(ValueError, "window must be at least 1, got 0", window=0)


def test_inputs_that_do_not_fit():
    one = layer()
    for bad in (stream(4)[0], stream(4)[None], stream(4)[..., :31]):
        with pytest.raises(
            ValueError,
            match=rf"x must be \(B, tokens, 32\), got {re.escape(str(tuple(bad.shape)))}",
        ):
            one(bad)
    with pytest.raises(ValueError, match=r"context must be \(B, tokens, 32\), got \(2, 4, 31\)"):
        layer(causal=False)(stream(4), stream(4)[..., :31])
    with pytest.raises(TypeError, match="x must hold floating-point numbers, got torch.int64"):
        one(stream(4).long())


def test_a_layer_without_weights_in_its_kernel_says_so():
    with pytest.raises(ValueError, match="no weights to return"):
        layer(implementation="sdpa")(stream(4), return_weights=True)
    with pytest.raises(ValueError, match="serves additive biases"):
        layer(wn.Shaw(8, 2), implementation="sdpa")(stream(4))
