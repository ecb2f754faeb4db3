import pytest
import torch

from whereness.lab.model import build, doors, first_of, make_encoding, positional, stream
from whereness.lab.settings import DEFAULT_ENCODINGS


def other_weights(model):
    """By name, without those of encodings: told by where a model keeps them."""
    named = dict(model.named_parameters())
    return {n: p for n, p in named.items() if not n.startswith(("members.", "inputs."))}


@pytest.mark.parametrize("name", DEFAULT_ENCODINGS)
def test_all_encodings_of_a_seed_meet_the_same_model(make_run, name):
    ours, plain = (other_weights(build(make_run(e, seed=3))) for e in (name, "nope"))
    assert ours.keys() == plain.keys()
    for key, value in ours.items():
        assert torch.equal(value, plain[key]), key


@pytest.mark.parametrize("name", ["learned", "shaw", "t5"])
def test_seeds_differ_in_all_that_is_drawn(make_run, name):
    first, second = (build(make_run(name, seed=s)) for s in (0, 1))
    assert not torch.equal(first.embedding.weight, second.embedding.weight)
    for a, b in zip(positional(first), positional(second), strict=True):
        assert not torch.equal(a, b)


def test_the_caller_keeps_its_random_numbers(make_run):
    before = torch.get_rng_state()
    build(make_run("shaw"))
    assert torch.equal(torch.get_rng_state(), before)


# Heads 2, head_dim 4, width 8, longest 16, depth 3; per layer where the literature has it so.
PARAMETERS = {
    "nope": 0,
    "sinusoidal": 0,
    "alibi": 0,
    "rope": 0,
    "sandwich": 0,
    "learned": 16 * 8,
    "t5": 32 * 2,
    "kerple": 2 * 2,
    "relative_add": 3 * 31 * 2,
    "relative_multiply": 3 * 31 * 2,
    "shaw": 3 * 2 * 31 * 4,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_who_has_parameters_of_its_own_in_every_layer(make_run, name):
    model = build(make_run(name, depth=3))
    assert sum(p.numel() for p in positional(model)) == PARAMETERS[name]


def test_layers_draw_their_own_values(make_run):
    tables = positional(build(make_run("shaw")))
    assert len(tables) == 4
    assert not torch.equal(tables[0], tables[2])


@pytest.mark.parametrize(
    ("name", "wanted"), [("nope", []), ("sinusoidal", [1]), ("rope", [3]), ("shaw", [4, 5])]
)
def test_doors(make_run, name, wanted):
    assert doors(build(make_run(name))) == wanted


@pytest.mark.parametrize(
    ("name", "kind"), [("nope", "NoPE"), ("learned", "LearnedAbsolute"), ("shaw", "Shaw")]
)
def test_the_first_encoding_is_the_one_that_is_there(make_run, name, kind):
    model = build(make_run(name))
    first = first_of(model)
    assert type(first).__name__ == kind
    if kind == "Shaw":
        assert first is model.encodings[0]


def test_an_encoding_of_grids_is_refused(recipe):
    with pytest.raises(ValueError, match="positions of 2 axes"):
        make_encoding("axial_rope", recipe())


def test_streams_are_unrelated():
    assert len({stream(s, n) for s in range(50) for n in ("model", "encoding", "batches")}) == 150
