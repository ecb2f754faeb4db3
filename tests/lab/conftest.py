"""Tiny settings: one run takes a fraction of a second."""

import random

import pytest
import torch

from whereness.lab import text
from whereness.lab.run import run_one
from whereness.lab.settings import Recipe, Run

TINY = {"train_length": 8, "lengths": (8, 16), "steps": 6, "batch": 2, "width": 8, "heads": 2}


def ignore(done, loss):
    """Hear nothing of a run."""


@pytest.fixture
def recipe():
    return lambda **changes: Recipe(**(TINY | changes))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    words = ["door ", "key ", "query ", "value ", "\n"]
    path.write_text("".join(random.Random(0).choices(words, k=400)))
    return path


@pytest.fixture
def make_run(recipe, text_file):
    def make(encoding="nope", seed=0, **changes):
        found, _ = text.find([text_file])
        return Run(encoding=encoding, seed=seed, text=found, recipe=recipe(**changes))

    return make


@pytest.fixture
def result_of(make_run):
    def result(*args, **changes):
        return run_one(make_run(*args, **changes), ignore)

    return result


@pytest.fixture
def seen_in_training():
    """The ids that models in training mode get, in order."""
    seen = []

    def look(module, arguments):
        from whereness.transformer import Transformer

        if isinstance(module, Transformer) and module.training:
            seen.append(arguments[0].clone())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    yield seen
    handle.remove()
