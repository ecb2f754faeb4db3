"""wn.Transformer: what a model owes its encodings, and that it is the model it says it is."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whereness as wn
from attend.by_hand import by_hand
from attend.oracle import Wave, array, differ, near

VOCAB, DIM, HEADS, GROUPS = 20, 32, 4, 2


def model(encoding: Any = None, depth: int = 2, **options: Any) -> wn.Transformer:
    """A model in float64, every parameter of the encodings at random."""
    torch.manual_seed(0)
    made = wn.Transformer(VOCAB, DIM, depth, HEADS, encoding, **{"num_kv_heads": GROUPS, **options})
    made = made.double().eval()
    with torch.no_grad():
        for module in (made.inputs, made.members):
            for parameter in module.parameters():
                parameter.normal_()
    return made


def tokens(length: int, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, length), generator=generator)


# The model itself, worked out from its weights


def norm(x: np.ndarray, module: nn.LayerNorm) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + module.eps)
    return scaled * array(module.weight) + array(module.bias)


def linear(x: np.ndarray, module: nn.Linear) -> np.ndarray:
    y = x @ array(module.weight).T
    return y if module.bias is None else y + array(module.bias)


gelu = np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)


def worked_out(
    whole: wn.Transformer, ids: Tensor, added: Any = 0.0, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(states, logits); `added` joins the embedded tokens, options are those of `by_hand`."""
    x = array(whole.embedding.weight)[ids.numpy()] + added
    for block in whole.blocks:
        x = x + by_hand(block.attention, norm(x, block.attention_norm), **options)
        hidden = gelu(linear(norm(x, block.feed_forward_norm), block.up))
        x = x + linear(hidden, block.down)
    states = norm(x, whole.norm)
    return states, linear(states, whole.head)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 2},
        {"depth": 0},
        {"depth": 3, "num_kv_heads": None},
        {"num_outputs": 5},
        {"hidden": 7},
        {"implementation": "reference"},
    ],
    ids=str,
)
def test_logits_are_those_of_a_pre_norm_transformer(options):
    whole, ids = model([wn.RoPE(8), Wave(4)], **options), tokens(5)
    states, logits = worked_out(whole, ids, rotary=True, waves=True, positions=range(5))
    near(whole(ids), logits)
    near(whole.states(ids), states)
    assert whole(ids).shape == (2, 5, options.get("num_outputs", VOCAB))


def test_sizes_of_the_feed_forward_part():
    assert model().blocks[0].up.out_features == 4 * DIM
    assert model(hidden=7).blocks[1].up.out_features == 7
    assert len(model(depth=3).blocks) == 3


def test_positions_pads_and_masks_reach_every_layer():
    whole, ids = model([wn.RoPE(8), Wave(4)]), tokens(5)
    places = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    key_mask = torch.tensor([[1, 1, 0, 1, 1], [1] * 5])
    mask = torch.rand(2, 4, 5, 5, generator=torch.Generator().manual_seed(2)) > 0.3
    expected = worked_out(
        whole,
        ids,
        rotary=True,
        waves=True,
        positions=places,
        key_mask=key_mask.bool(),
        mask=mask,
    )[1]
    near(whole(ids, where=wn.Where(places, key_mask=key_mask), mask=mask), expected)
    near(whole(ids, where=places, key_mask=key_mask, mask=mask), expected)
    near(
        whole.states(ids, where=places, key_mask=key_mask, mask=mask) @ whole.head.weight.T,
        expected,
    )


def test_a_key_mask_counts_real_tokens_as_a_run_alone_does():
    whole = model([wn.RoPE(8), Wave(4)])
    ids, mask = tokens(6), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    out = whole(ids, key_mask=mask)
    near(out[:1, 2:], whole(ids[:1, 2:]).detach())
    near(out[1:, :5], whole(ids[1:, :5]).detach())
    differ(out[:1, 2:], whole(ids)[:1, 2:])


def test_a_decoder_sees_no_later_token_and_an_encoder_does():
    ids = tokens(6)
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % VOCAB], 1)
    decoder, encoder = model(wn.RoPE(8)), model(wn.RoPE(8), causal=False)
    assert (decoder.causal, encoder.causal) == (True, False)
    near(decoder(other)[:, :-1], decoder(ids)[:, :-1].detach())
    differ(encoder(other)[:, :-1], encoder(ids)[:, :-1])


def test_dropout_acts_in_training_only():
    plain, dropping = model(wn.RoPE(8)), model(wn.RoPE(8), dropout=0.4)
    ids = tokens(5)
    near(dropping(ids), plain(ids).detach())
    dropping.train()
    differ(dropping(ids), dropping(ids))
    assert {b.attention.dropout for b in dropping.blocks} == {0.4}


@pytest.mark.parametrize("where", ["weights", "branches"])
def test_dropout_acts_on_weights_and_on_what_joins_the_stream(where):
    whole, ids = model(wn.RoPE(8), dropout=0.4).train(), tokens(5)
    for block in whole.blocks:
        if where == "weights":
            block.dropout = 0.0
        else:
            block.attention.dropout = 0.0
    differ(whole(ids), whole(ids))
    for block in whole.blocks:
        block.dropout = block.attention.dropout = 0.0
    near(whole(ids), whole(ids).detach(), 0.0)


def test_the_same_seed_gives_the_same_other_weights_with_any_encoding():
    made = []
    for encoding in (wn.NoPE(), wn.RoPE(8), wn.LearnedRelative(4, 9), wn.LearnedAbsolute(DIM, 9)):
        torch.manual_seed(3)
        made.append(wn.Transformer(VOCAB, DIM, 2, HEADS, encoding))
    first = dict(made[0].named_parameters())
    for other in made[1:]:
        shared = dict(other.named_parameters())
        for name, parameter in first.items():
            assert torch.equal(shared[name], parameter), name


# Door 1: what joins the input


@pytest.mark.parametrize("given", ["alone", "list", "combined"])
def test_rows_are_added_to_the_embedded_tokens_once(given):
    learned = wn.LearnedAbsolute(DIM, 30)
    encoding = learned if given == "alone" else [learned, Wave(4)]
    encoding = wn.Combined(encoding) if given == "combined" else encoding
    whole, ids = model(encoding), tokens(5)
    assert whole.inputs is learned
    waves = given != "alone"
    places = torch.tensor([7, 3, 0, 29, 5])
    rows = array(learned(places))
    expected = worked_out(whole, ids, added=rows, waves=waves, positions=places)[1]
    near(whole(ids, where=places), expected)
    members = {type(m) for e in whole.encodings for m in e.members()}
    assert members == ({Wave} if waves else {wn.NoPE})


def test_rows_set_beside_the_tokens_are_narrowed_back():
    whole, ids = model(wn.LearnedAbsolute(6, 30, join="concat"), depth=0), tokens(5)
    assert whole.narrow.weight.shape == (DIM, DIM + 6)
    rows = whole.inputs(torch.arange(5)).expand(2, 5, 6)
    wide = torch.cat([whole.embedding(ids), rows], -1)
    near(whole.states(ids), norm(array(wide) @ array(whole.narrow.weight).T, whole.norm))
    assert isinstance(model(wn.LearnedAbsolute(DIM, 30)).narrow, nn.Identity)


@pytest.mark.parametrize("site", ["every_layer", "queries_keys"])
def test_what_joins_in_every_layer_is_left_to_the_layers(site):
    learned = wn.LearnedAbsolute(DIM, 30, site=site)
    whole, ids, places = model(learned), tokens(5), torch.tensor([7, 3, 0, 29, 5])
    assert type(whole.inputs) is wn.NoPE
    assert list(whole.encodings) == [learned]
    rows = array(learned(places))
    options = {"joined": (rows, rows), "joins_values": site == "every_layer"}
    near(whole(ids, where=places), worked_out(whole, ids, **options)[1])


def test_one_thing_joins_the_tokens():
    with pytest.raises(ValueError, match="At most one member may join X"):
        model([wn.Integer(DIM), wn.Sinusoidal(DIM)])
    with pytest.raises(ValueError, match="cannot be added to tokens of width 32"):
        model(wn.Sinusoidal(16))(tokens(3))


def test_the_input_does_not_differ_by_layer():
    tokens_site = wn.Sinusoidal(DIM)
    for schedule in (
        wn.schedules.every(2, tokens_site, otherwise=wn.NoPE()),
        wn.schedules.listed([wn.NoPE(), [wn.RoPE(8), tokens_site]]),
        wn.schedules.shared(tokens_site),
        lambda: wn.Sinusoidal(DIM),
    ):
        with pytest.raises(ValueError, match=r"site='tokens' joins the input once.*every_layer"):
            model(schedule)


# Each encoding once: owned, moved, prepared


class Counting(wn.PositionalEncoding):
    """Counts its preparations and moves; bias of a learned number, so that it has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.ones(()))
        self.prepared, self.moves, self.generators = [], 0, []

    def tables(self, where: wn.Where) -> None:
        self.prepared.append(where.positions.tolist())

    def move(self, where: wn.Where, generator: torch.Generator | None = None) -> wn.Where:
        self.moves += 1
        self.generators.append(generator)
        return where

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        apart = k_positions[..., None, :] - q_positions[..., :, None]
        return (self.number * apart.abs())[..., None, :, :]


def test_one_encoding_is_prepared_once_for_all_layers():
    counting = Counting()
    whole = model(counting, depth=5)
    whole(tokens(4))
    assert counting.prepared == [[[0, 1, 2, 3]]]
    assert counting.moves == 1
    whole(tokens(3))
    assert len(counting.prepared) == counting.moves == 2


def test_every_distinct_encoding_is_prepared_once():
    one, two = Counting(), Counting()
    whole = model(wn.schedules.every(3, one, otherwise=two), depth=7)
    whole(tokens(4))
    assert [len(e.prepared) for e in (one, two)] == [1, 1]
    assert [e.moves for e in (one, two)] == [1, 1]
    assert set(whole.encodings) == {one, two}
    assert len(whole.encodings) == 2
    assert [b.attention.encoding is one for b in whole.blocks] == [i in (2, 5) for i in range(7)]


def test_a_function_gives_every_layer_its_own():
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting())
        return made[-1]

    whole = model(make, depth=3)
    whole(tokens(4))
    assert [len(e.prepared) for e in made] == [1, 1, 1]
    assert list(whole.encodings) == made
    assert sum(p.numel() == 1 for n, p in whole.named_parameters() if "number" in n) == 3


def test_a_step_prepares_once_as_well():
    counting = Counting()
    whole = model(counting, depth=3)
    caches = whole.new_caches()
    for part in tokens(5).split([3, 1, 1], 1):
        whole(part, caches=caches)
    assert counting.prepared == [[[0, 1, 2]], [[3]], [[4]]]
    assert counting.moves == 3


def test_members_of_a_list_are_prepared_and_moved_once():
    one, two = Counting(), Counting()
    model([one, two], depth=3)(tokens(4))
    assert [len(e.prepared) for e in (one, two)] == [1, 1]
    assert [e.moves for e in (one, two)] == [1, 1]


class Jump(wn.PositionalEncoding):
    """Moves all positions by a random number in training."""

    reads = "nothing"

    def move(self, where: wn.Where, generator: torch.Generator | None = None) -> wn.Where:
        if not self.training:
            return where
        return where.shifted(int(torch.randint(1, 1000, (), generator=generator)))


def test_the_generator_reaches_what_moves_positions_at_random():
    counting = Counting()
    generator = torch.Generator().manual_seed(0)
    model(counting)(tokens(3), generator=generator)
    model(counting).states(tokens(3), generator=generator)
    model(counting)(tokens(3))
    assert counting.generators == [generator, generator, None]


def test_all_encodings_see_the_same_moved_positions():
    seen = Counting(), Counting()
    whole = model([Jump(), *seen], depth=3).train()
    drawn = set()
    for seed in (1, 1, 2):
        for counting in seen:
            counting.prepared.clear()
        whole(tokens(3), generator=torch.Generator().manual_seed(seed))
        assert seen[0].prepared == seen[1].prepared
        (row,) = seen[0].prepared[0]
        assert row[0] > 0
        assert row == list(range(row[0], row[0] + 3))
        drawn.add(row[0])
    assert len(drawn) == 2
    whole.eval()(tokens(3))
    assert seen[0].prepared[-1] == [[0, 1, 2]]


def test_what_joins_the_input_moves_with_the_rest():
    counting = Counting()
    whole = model([Jump(), wn.LearnedAbsolute(DIM, 2000), counting], depth=1).train()
    moved = whole(tokens(3), generator=torch.Generator().manual_seed(1))
    (row,) = counting.prepared[0]
    assert row[0] > 0
    near(moved, whole.eval()(tokens(3), where=torch.tensor(row)).detach())


class JumpingRows(wn.Sinusoidal, Jump):
    """Rows of the input, at positions moved at random."""

    reads = "positions"


def test_what_joins_the_input_may_move_all_the_rest():
    counting = Counting()
    whole = model([JumpingRows(DIM), counting], depth=2).train()
    whole(tokens(3), generator=torch.Generator().manual_seed(1))
    (row,) = counting.prepared[0]
    assert row[0] > 0
    assert row == list(range(row[0], row[0] + 3))


def test_positions_are_asked_for_by_what_joins_the_input_as_well():
    whole = model(wn.LearnedAbsolute(DIM, (4, 5)))
    with pytest.raises(ValueError, match="LearnedAbsolute needs positions of 2 axes"):
        whole(tokens(4))
    where = wn.Where(torch.tensor([[0, 0], [3, 4], [1, 1], [2, 0]]), num_axes=2)
    near(
        whole(tokens(4), where=where),
        worked_out(whole, tokens(4), added=array(whole.inputs(where.positions[0])))[1],
    )


def table_keys(whole: wn.Transformer) -> list[str]:
    return [n for n in whole.state_dict() if n.endswith("table")]


def test_a_shared_encoding_is_owned_once():
    relative, learned = wn.LearnedRelative(HEADS, 3), wn.LearnedAbsolute(DIM, 30)
    assert table_keys(model(relative, depth=4)) == ["members.0.table"]
    assert table_keys(model(learned, depth=4)) == ["inputs.table"]
    both = table_keys(model([learned, relative], depth=4))
    assert both == ["inputs.table", "members.0.table"]
    schedule = wn.schedules.every(2, relative, otherwise=wn.NoPE())
    assert table_keys(model(schedule, depth=4)) == ["members.1.table"]
    assert len(table_keys(model(lambda: wn.LearnedRelative(HEADS, 3), depth=4))) == 4


def test_a_member_of_two_lists_is_owned_prepared_and_moved_once():
    counting = Counting()
    schedule = wn.schedules.every(2, [counting, wn.RoPE(8)], otherwise=[counting, wn.NoPE()])
    whole = model(schedule, depth=4)
    whole(tokens(3))
    addresses = [t.data_ptr() for t in whole.state_dict().values()]
    assert len(addresses) == len(set(addresses))
    assert counting.moves == 1


SAVED = {
    "one": lambda r, t: r,
    "list": lambda r, t: [wn.LearnedAbsolute(DIM, 30), r, wn.RoPE(8)],
    "schedule": lambda r, t: wn.schedules.every(2, r, otherwise=t),
    "function": lambda r, t: lambda: wn.T5(HEADS),
    "in two lists": lambda r, t: wn.schedules.every(2, [r, wn.RoPE(8)], otherwise=[r, t]),
}


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_a_model_can_be_saved_and_loaded(make, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    whole = model(make(wn.LearnedRelative(HEADS, 3), wn.T5(HEADS)), depth=4)
    path, out = tmp_path / "model.safetensors", whole(tokens(4)).detach()
    safetensors.save_file(whole.state_dict(), path)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()
    whole.load_state_dict(safetensors.load_file(path))
    near(whole(tokens(4)), out, 0.0)


# Caches


def test_a_cache_for_every_layer():
    whole = model(wn.RoPE(8), depth=3)
    caches = whole.new_caches()
    assert [type(c) for c in caches] == [wn.KVCache] * 3
    assert len({id(c) for c in caches}) == 3
    whole(tokens(4), caches=caches)
    assert [len(c) for c in caches] == [4, 4, 4]
    for count in (0, 2, 4):
        with pytest.raises(ValueError, match=f"Needed 3 caches, one a layer; got {count}"):
            whole(tokens(1), caches=[wn.KVCache() for _ in range(count)])
    assert model(depth=0).new_caches() == []
    assert model(depth=0)(tokens(2), caches=[]).shape == (2, 2, VOCAB)


def test_steps_equal_the_whole_with_rows_of_different_length():
    whole = model([wn.LearnedAbsolute(DIM, 30), wn.RoPE(8), Wave(4)])
    ids, mask = tokens(7), torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    caches, outs = whole.new_caches(), []
    for a, b in ((0, 4), (4, 5), (5, 7)):
        outs.append(whole(ids[:, a:b], caches=caches, key_mask=mask[:, :b]))
    real = mask.bool()
    near(torch.cat(outs, 1)[real], whole(ids, key_mask=mask)[real].detach())
    assert caches[0].next_position.tolist() == [5, 7]


def test_a_mask_may_hide_cached_tokens_from_a_step():
    whole, ids = model([wn.RoPE(8), Wave(4)]), tokens(6)
    caches = whole.new_caches()
    whole(ids[:, :4], caches=caches)
    mask = torch.tensor([[1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]])
    hidden = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    hidden[:, :, 4:] = mask.bool()[:, None, None]
    found = whole(ids[:, 4:], caches=caches, key_mask=mask)
    near(found, whole(ids, mask=hidden)[:, 4:].detach())


def test_a_mixed_model_counts_on_in_its_caches():
    schedule = wn.schedules.every(2, wn.NoPE(), otherwise=wn.RoPE(8))
    whole, ids = model(schedule), tokens(6)
    caches = whole.new_caches()
    outs = [whole(part, caches=caches) for part in ids.split([3, 1, 2], 1)]
    near(torch.cat(outs, 1), whole(ids).detach())


# What is refused


def refused(error: type[Exception], message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(error, match=message):
        wn.Transformer(*(args or (VOCAB, DIM, 2, HEADS)), **options)


def test_sizes_that_make_no_sense():
    refused(ValueError, "vocab_size must be at least 1, got 0", 0, DIM, 2, HEADS)
    refused(ValueError, "depth must be at least 0, got -1", VOCAB, DIM, -1, HEADS)
    refused(ValueError, "dim must be a multiple of num_heads, got 32 and 5", VOCAB, DIM, 1, 5)
    refused(ValueError, "multiple of num_kv_heads, got 4 and 3", num_kv_heads=3)
    refused(ValueError, "window must be at least 1", window=0)
    refused(ValueError, "implementation must be one of", implementation="fast")
    refused(ValueError, "'native' names a kernel that turns", implementation="native")
    refused(ValueError, r"dropout must be in \[0, 1\)", dropout=1.5)
    refused(ValueError, "built for num_heads=8, attention has 4", encoding=wn.ALiBi(8))
    refused(ValueError, "T5 has no meaning for keys after", encoding=wn.T5(HEADS), causal=False)


@pytest.mark.untyped
def test_arguments_of_a_wrong_type():
    refused(TypeError, "vocab_size must be an int", 20.0, DIM, 2, HEADS)
    refused(TypeError, "depth must be an int", VOCAB, DIM, "2", HEADS)
    refused(TypeError, "causal must be True or False", causal=None)
    refused(TypeError, "encoding must be a whereness encoding", encoding="rope")


def test_ids_that_do_not_fit():
    whole = model(wn.RoPE(8))
    for shape in ((5,), (1, 2, 3)):
        with pytest.raises(ValueError, match=rf"ids must be \(B, S\), got \({shape[0]},"):
            whole(torch.zeros(shape).long())
    with pytest.raises(ValueError, match=r"key_mask must be \(B, T\) with T=4"):
        whole(tokens(4), key_mask=torch.ones(2, 5).long())
    with pytest.raises(ValueError, match="4 queries and 4 keys, got 5 and 5"):
        whole(tokens(4), where=torch.arange(5))
    with pytest.raises(ValueError, match="needs positions of 2 axes"):
        model(wn.AxialRoPE(8, 2))(tokens(4))


@pytest.mark.untyped
def test_positions_that_are_prepared_already_are_refused_in_words_that_are_true():
    """A model prepares for all its encodings: it takes no `At`, and must not say that it does."""
    whole = model(wn.RoPE(8))
    at = whole.encodings[0].prepare(torch.arange(4))
    with pytest.raises(TypeError, match="where must be") as caught:
        whole(tokens(4), where=at)
    assert "prepare() gave, got At" not in str(caught.value)
