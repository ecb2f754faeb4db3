"""The driver feeds any model: it finds out what a forward pass takes and gives back."""

import pytest
import torch
from torch import nn

import whereness as wn
from auditor.probes import own
from whereness.auditor.driving.drive import Driver, Refused

B, S, E, H, V = 2, 7, 16, 2, 23


def encoder(*, batch_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(E, H, 32, 0.0, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


class Plain(nn.Module):
    """Tokens to logits by a table, with whatever names a subclass takes."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Embedding(5, 3)
        self.embedding, self.head = nn.Embedding(V, E), nn.Linear(E, V)

    def answer(self, tokens):
        return self.head(self.embedding(tokens))

    def forward(self, x):
        return self.answer(x)


def test_a_decoder_of_whereness_is_fed_with_all_that_it_takes():
    driver = Driver(wn.Transformer(V, E, 2, H, wn.RoPE(E // H)))
    assert (driver.takes, driver.argument, driver.vocab, driver.dim) == ("tokens", "ids", V, E)
    assert (driver.positions, driver.mask, driver.caches, driver.first) == (
        "where",
        "key_mask",
        True,
        0,
    )
    tokens = driver.sample(B, S)
    assert tokens.shape == (B, S)
    assert int(tokens.max()) < V
    with torch.no_grad():
        whole = driver(tokens).output
        first = driver(tokens[:, :4], keep_cache=True)
        kept = first.cache.copied()
        rest = driver(tokens[:, 4:], cache=first.cache, keep_cache=True)
        again = driver(tokens[:, 4:], cache=kept)
    assert whole.shape == (B, S, V)
    torch.testing.assert_close(torch.cat([first.output, rest.output], 1), whole)
    assert [r.cache.length for r in (first, rest)] == [4, 7]
    assert kept.length == 4
    torch.testing.assert_close(again.output, rest.output)


def test_a_layer_is_fed_with_features():
    driver = Driver(wn.Attention(E, H, wn.ALiBi(H), causal=True))
    assert (driver.takes, driver.argument, driver.dim, driver.vocab) == ("features", "x", E, 1)
    x = driver.sample(B, S)
    assert driver(x).output.shape == (B, S, E)
    assert driver.caches


@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_own_encoder_gives_rows_of_the_batch_first(batch_first):
    model = encoder(batch_first=batch_first)
    driver = Driver(model)
    assert (driver.takes, driver.mask, driver.positions, driver.caches) == (
        "features",
        "src_key_padding_mask",
        None,
        False,
    )
    x = driver.sample(B, S)
    with torch.no_grad():
        found = driver(x).output
        expected = model(x) if batch_first else model(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(found, expected)


def test_masks_mean_real_tokens_whatever_the_model_calls_them():
    """torch marks pads, Hugging Face and whereness mark tokens."""
    mask = torch.ones(B, S, dtype=torch.long)
    mask[:, -2:] = 0
    for model in (encoder(batch_first=True), wn.Attention(E, H, wn.ALiBi(H)), own("own rotary")):
        driver = Driver(model)
        x, y = driver.sample(B, S), driver.sample(B, S, seed=1)
        y[:, :-2] = x[:, :-2]
        with torch.no_grad():
            a, b = driver(x, mask=mask).output, driver(y, mask=mask).output
            torch.testing.assert_close(a[:, :-2], b[:, :-2])
            if driver.takes == "features":
                assert not torch.allclose(driver(x).output[:, :-2], driver(y).output[:, :-2])


@pytest.mark.parametrize("make", [lambda: encoder(batch_first=True), lambda: own("own rotary")])
def test_full_masks_say_who_may_attend(make):
    driver = Driver(make())
    x, y = driver.sample(B, S), driver.sample(B, S, seed=1)
    y[:, 1:] = x[:, 1:]
    alone = torch.eye(S, dtype=torch.bool)[None, None].expand(B, 1, S, S)
    with torch.no_grad():
        a, b = driver(x, mask=alone).output, driver(y, mask=alone).output
    torch.testing.assert_close(a[:, 1:], b[:, 1:])
    assert not torch.allclose(a[:, 0], b[:, 0])


def test_the_vocabulary_is_that_of_the_table_that_eats_the_tokens():
    driver = Driver(Plain())
    assert (driver.vocab, driver.argument, driver.caches, driver.mask) == (V, "x", False, None)


def test_a_mask_of_doubtful_name_is_tried_out():
    class Real(Plain):
        def forward(self, tokens, mask=None):
            x = self.answer(tokens)
            mixed = x if mask is None else x * mask[..., None]
            return x + mixed.sum(1, keepdim=True)

    class Pads(Real):
        def forward(self, tokens, mask=None):
            return super().forward(tokens, None if mask is None else ~mask)

    for kind, pads in ((Real, False), (Pads, True)):
        driver = Driver(kind())
        assert (driver.mask, driver.names.pads) == ("mask", pads)


def test_explicit_ids_are_counted_from_where_the_model_begins():
    class Late(Plain):
        def __init__(self, start):
            super().__init__()
            self.table, self.start = nn.Embedding(40, E), start

        def forward(self, input_ids, position_ids=None):
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1])[None] + self.start
            return self.head(self.embedding(input_ids) + self.table(position_ids))

    assert [Driver(Late(start)).first for start in (0, 1, 2, 9)] == [0, 1, 2, None]


@pytest.mark.parametrize("given", [{"extra": torch.ones(1, 3)}, "callable"])
def test_inputs_of_the_user_stand_beside_our_tokens(given):
    class Needs(Plain):
        def forward(self, tokens, extra):
            assert extra.shape == (len(tokens), 3)
            return self.answer(tokens) + extra.sum()

    with pytest.raises(Refused, match="extra"):
        Driver(Needs())
    inputs = (lambda batch, _: {"extra": torch.ones(batch, 3)}) if given == "callable" else given
    driver = Driver(Needs(), inputs)
    assert driver(driver.sample(B, S)).output.shape == (B, S, V)


def test_an_example_of_the_tokens_names_their_argument():
    class Named(Plain):
        def forward(self, whatever, flag):
            return self.answer(whatever) * flag

    driver = Driver(Named(), {"whatever": torch.zeros(1, 4, dtype=torch.long), "flag": 2})
    assert (driver.argument, driver.takes) == ("whatever", "tokens")


def test_a_classifier_is_looked_into():
    class Pooled(Plain):
        def forward(self, input_ids):
            return self.head(self.embedding(input_ids).mean(1))

    driver = Driver(Pooled())
    assert driver(driver.sample(B, S)).output.shape == (B, S, E)


@pytest.mark.parametrize(
    "wrapped",
    [lambda x: (x, "more"), lambda x: {"logits": x, "past_key_values": None}, lambda x: [x, [x]]],
)
def test_outputs_come_in_many_wrappings(wrapped):
    class Wraps(Plain):
        def forward(self, input_ids):
            return wrapped(self.answer(input_ids))

    driver = Driver(Wraps())
    assert driver(driver.sample(B, S)).output.shape == (B, S, V)


def test_what_a_model_raises_is_told_and_nothing_stays_changed():
    class Breaks(Plain):
        def forward(self, input_ids):
            self.counter = 1
            raise KeyError("no such thing\nin here")

    model = Breaks().train()
    with pytest.raises(Refused, match="KeyError: 'no such thing"):
        Driver(model)
    assert model.training
    assert not hasattr(model, "counter")


def test_a_model_without_a_cache_or_ids_says_so():
    driver = Driver(Plain())
    tokens = driver.sample(B, S)
    for how, what in (
        ({"positions": tokens}, "positions"),
        ({"keep_cache": True}, "cache"),
        ({"mask": torch.ones(B, S)}, "mask"),
        ({"segments": tokens}, "documents"),
    ):
        with pytest.raises(Refused, match=f"no argument for .*{what}"):
            driver(tokens, **how)


class Tower(nn.Module):
    """Patches of all pictures, one after the other, and the sizes of the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, E)

    def forward(self, hidden_states, grid_thw):
        if len(hidden_states) != int(grid_thw.prod(1).sum()):
            raise ValueError("patches that are of no picture")
        return self.embed(hidden_states)


def test_patches_that_are_packed_come_with_the_sizes_of_their_pictures():
    def inputs(batch, tokens):
        sizes = torch.tensor([[1, 2, tokens]] * batch)
        return {"hidden_states": torch.randn(batch * 2 * tokens, 5), "grid_thw": sizes}

    for given in (inputs, inputs(1, 4)):
        driver = Driver(Tower(), given)
        assert (driver.takes, driver.argument) == ("pixels", "hidden_states")
        assert driver.packed
        output = driver(driver.sample(3, 9)).output
        assert output.shape == (24 if callable(given) else 8, E)
        assert not torch.equal(driver(driver.sample(3, 9, seed=1)).output, output)


@pytest.mark.more
def test_models_of_transformers_are_fed():
    from auditor import zoo

    expected = {
        "llama": ("tokens", "input_ids", "position_ids", True),
        "gpt2": ("tokens", "input_ids", "position_ids", True),
        "bloom": ("tokens", "input_ids", None, True),
        "mpt": ("tokens", "input_ids", None, True),
        "bert": ("tokens", "input_ids", "position_ids", False),
        "roberta": ("tokens", "input_ids", "position_ids", False),
        "opt": ("tokens", "input_ids", "position_ids", True),
        "t5": ("tokens", "decoder_input_ids", None, True),
        "mixtral": ("tokens", "input_ids", "position_ids", True),
        "vit": ("pixels", "pixel_values", None, False),
    }
    for name, wanted in expected.items():
        driver = Driver(zoo.build(name)[0])
        assert (driver.takes, driver.argument, driver.positions, driver.caches) == wanted, name
    assert Driver(zoo.build("roberta")[0]).first == 2
    assert Driver(zoo.build("t5")[0]).encoder is not None
