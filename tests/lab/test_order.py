import pytest
import torch

from whereness.lab import order
from whereness.lab.model import build
from whereness.lab.order import WORDS, draw, loss_of, margins, score
from whereness.lab.run import run_one
from whereness.lab.settings import SOLVED, OrderRecipe, Run


def ignore(done, loss):
    """Hear nothing of a run."""


def sentences(pairs=200, seed=0):
    return draw(pairs, torch.Generator().manual_seed(seed))


def words(ids):
    return [WORDS[i] for i in ids]


def test_sentences_are_a_clause_among_fillers_and_a_question():
    drawn = sentences()
    assert drawn.ids.shape == (400, 11)
    begins = set()
    for ids, actor, other in zip(*map(torch.Tensor.tolist, drawn), strict=True):
        said = words(ids)
        begin = said.index("the")
        begins.add(begin)
        the, first, verb, again, second = said[begin : begin + 5]
        assert (the, again, said[-1]) == ("the", "the", "who?")
        assert (first, second) == (WORDS[actor], WORDS[other])
        assert first != second
        assert {first, second} <= set(order.NOUNS)
        assert verb in order.VERBS
        assert set(said[:begin] + said[begin + 5 : -1]) <= set(order.FILLERS)
    assert begins == set(range(6))
    assert {WORDS[i] for i in drawn.ids.unique().tolist()} == set(WORDS)


def test_the_words_are_all_different():
    assert len(set(WORDS)) == len(WORDS) == 2 + 24 + 12 + 12


def test_a_mirror_has_the_nouns_swapped_and_the_same_words():
    drawn = sentences()
    for i in range(200):
        one, two = words(drawn.ids[i].tolist()), words(drawn.ids[200 + i].tolist())
        a, b = WORDS[drawn.actor[i]], WORDS[drawn.other[i]]
        assert two == [{a: b, b: a}.get(w, w) for w in one]
        assert (WORDS[drawn.actor[200 + i]], WORDS[drawn.other[200 + i]]) == (b, a)


def test_distances_without_direction_suffice():
    # Solved by |i - j| alone: the actor is the noun next to the verb.
    drawn = sentences()
    for ids, actor in zip(drawn.ids.tolist(), drawn.actor.tolist(), strict=True):
        said = words(ids)
        (verb,) = (i for i, w in enumerate(said) if w in order.VERBS)
        nouns = [i for i, w in enumerate(said) if w in order.NOUNS]
        assert sorted(abs(i - verb) for i in nouns) == [1, 2]
        assert said[min(nouns, key=lambda i: abs(i - verb))] == WORDS[actor]


def test_margin_loss_and_accuracy_by_hand():
    class Fixed(torch.nn.Module):
        """Prefers the word with the smaller id, by their distance."""

        def forward(self, ids):
            logits = -torch.arange(len(WORDS), dtype=torch.float64)
            return logits.expand(*ids.shape, len(WORDS))

    drawn = sentences(50)
    wanted = (drawn.other - drawn.actor).double()
    assert torch.equal(margins(Fixed(), drawn), wanted)
    logs = torch.log1p(torch.exp(-wanted))
    assert loss_of(Fixed(), drawn).item() == pytest.approx(logs.mean().item())
    assert score(Fixed(), drawn) == (0.5, pytest.approx(logs.mean().item()))

    class Knows(torch.nn.Module):
        def forward(self, ids):
            (begin,) = {int(i) for i in (ids == order.THE).int().argmax(1).unique()} or {0}
            return torch.nn.functional.one_hot(ids[:, begin + 1], len(WORDS))[:, None].double()

    one = type(drawn)(*(part[:1] for part in drawn))
    assert score(Knows(), one).accuracy == 1.0
    assert score(Knows(), type(one)(one.ids, one.other, one.actor)).accuracy == 0.0


@pytest.mark.parametrize("name", ["nope", "integer"])
@pytest.mark.parametrize("steps", [1, 30])
def test_a_model_that_sees_no_order_is_at_chance_exactly(name, steps):
    run = Run(encoding=name, seed=1, recipe=OrderRecipe(steps=steps, width=16))
    assert run_one(run, ignore)["accuracy"] == 0.5


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["alibi", "rope"])
def test_an_encoding_solves_it(name):
    result = run_one(Run(encoding=name, seed=0, recipe=OrderRecipe(steps=200)), ignore)
    assert result["accuracy"] >= SOLVED


def test_t5_comes_in_its_form_for_encoders(make_order_run):
    (encoding,) = build(make_order_run("t5")).encodings
    assert encoding.bidirectional


def test_all_encodings_of_a_seed_get_the_same_sentences_and_test(make_order_run, seen_in_training):
    seen = {}
    for name, seed in (("nope", 0), ("shaw", 0), ("nope", 1)):
        run_one(make_order_run(name, seed), ignore)
        seen[name, seed] = torch.cat(seen_in_training)
        seen_in_training.clear()
    assert torch.equal(seen["nope", 0], seen["shaw", 0])
    assert not torch.equal(seen["nope", 0], seen["nope", 1])


def test_weights_that_are_not_finite_are_no_result(make_order_run):
    result = run_one(make_order_run(steps=1, learning_rate=1e38), ignore)
    assert (result["status"], result["diverged"]) == ("failed", True)
    assert result["reason"] == "the loss on test sentences is not finite"
