import subprocess
import sys
from dataclasses import fields, replace

import pytest

from whereness.lab.settings import (
    Comparison,
    OrderRecipe,
    Recipe,
    Run,
    Training,
    digest,
    plain,
)
from whereness.lab.text import Text

HERE = Text(paths=("here",), sha256="1" * 64)
RUN = Run(encoding="rope", seed=0, text=HERE, recipe=Recipe())
OTHER = {"device": "cuda", "lengths": (64, 128), "betas": (0.9, 0.99), "width": 128, "heads": 2}


def test_where_a_text_lies_does_not_matter():
    there = replace(RUN, text=replace(HERE, paths=("there", "and there")))
    assert digest(there) == digest(RUN)
    assert there == RUN


def test_what_a_text_is_matters():
    assert digest(replace(RUN, text=replace(HERE, sha256="2" * 64))) != digest(RUN)


@pytest.mark.parametrize("name", [f.name for f in fields(Recipe)])
def test_every_setting_of_the_recipe_matters(name):
    default = getattr(RUN.recipe, name)
    other = OTHER[name] if name in OTHER else default / 2 if name == "train_length" else default * 2
    other = int(other) if isinstance(default, int) else other
    lengths = RUN.recipe.lengths
    changed = replace(RUN.recipe, **{"lengths": lengths, name: other})
    assert digest(replace(RUN, recipe=changed)) != digest(RUN)


@pytest.mark.parametrize("change", [{"encoding": "alibi"}, {"seed": 1}])
def test_encoding_and_seed_matter(change):
    assert digest(replace(RUN, **change)) != digest(RUN)


def test_which_setting_has_which_value_matters():
    one, other = (Recipe(steps=a, batch=b) for a, b in ((16, 500), (500, 16)))
    assert digest(replace(RUN, recipe=one)) != digest(replace(RUN, recipe=other))


def test_plain_settings_are_what_json_holds():
    assert plain(RUN)["text"] == {"sha256": "1" * 64}
    assert plain(RUN)["recipe"]["lengths"] == [64, 128, 256, 512]


def test_runs_go_through_all_encodings_before_the_next_seed():
    comparison = Comparison(text=HERE, recipe=Recipe(), encodings=("nope", "rope"), seeds=2)
    assert [(r.encoding, r.task, r.seed) for r in comparison.runs()] == [
        (name, task, seed)
        for seed in (0, 1)
        for name in ("nope", "rope")
        for task in ("language_model", "order_task")
    ]


@pytest.mark.parametrize("name", [f.name for f in fields(OrderRecipe)])
def test_every_setting_of_the_order_task_matters(name):
    run = Run(encoding="rope", seed=0, recipe=OrderRecipe())
    default = getattr(run.recipe, name)
    other = OTHER[name] if name in OTHER else default * 2
    assert digest(replace(run, recipe=replace(run.recipe, **{name: other}))) != digest(run)


def test_the_same_sizes_for_another_task_are_another_run():
    sizes = {f.name: getattr(RUN.recipe, f.name) for f in fields(Training)}
    order = Run(encoding="rope", seed=0, recipe=OrderRecipe(**sizes), text=HERE)
    assert digest(order) != digest(RUN)
    assert (order.task, RUN.task) == ("order_task", "language_model")
    assert order.name != RUN.name


def test_lengths_follow_the_training_length_and_are_sorted():
    assert Recipe(train_length=10).lengths == (10, 20, 40, 80)
    assert Recipe(lengths=(128, 64, 128)).lengths == (64, 128)
    assert Recipe(lengths=(128, 64, 128)).longest == 128


def test_an_encoding_named_twice_runs_once():
    comparison = Comparison(text=HERE, recipe=Recipe(), encodings=("rope", "nope", "rope"))
    assert comparison.encodings == ("rope", "nope")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_length": 3}, "--train-length must be at least 4, got 3"),
        ({"lengths": (64, 63)}, "--lengths must be at least the training length, 64; got 63"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"batch": 0}, "--batch"),
        ({"width": 0}, "--width"),
        ({"depth": 0}, "--depth"),
        ({"heads": 0}, "--heads"),
        ({"heads": 3}, "--width must be a multiple of --heads, got 64 and 3"),
    ],
)
def test_recipes_that_cannot_serve(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encodings": ("nope", "rpoe")}, "'rpoe': did you mean 'rope'"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
    ],
)
def test_comparisons_that_cannot_serve(change, message):
    with pytest.raises(ValueError, match=message):
        Comparison(text=HERE, recipe=Recipe(), **change)


def test_options_and_settings_do_not_import_torch():
    code = "import sys, whereness.cli.compare, whereness.lab.compare; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
