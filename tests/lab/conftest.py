"""Tiny settings: one run takes a fraction of a second."""

import os
import random
from contextlib import contextmanager

import pytest
import torch

from whereness.lab import text
from whereness.lab.run import run_one
from whereness.lab.settings import OrderRecipe, Recipe, Run, digest

TINY = {"train_length": 8, "lengths": (8, 16), "steps": 6, "batch": 2, "width": 8, "heads": 2}


TINY_ORDER = {"steps": 4, "batch": 2, "width": 8, "heads": 2, "pairs": 5}


def ignore(done, loss):
    """Hear nothing of a run."""


class Memory:
    """Runs and results without a file."""

    def __init__(self, runs):
        self.waiting, self.runs, self.kept = list(runs), list(runs), {}

    def claim(self):
        return self.waiting.pop(0) if self.waiting else None

    def finish(self, run, result):
        assert digest(run) not in self.kept
        self.kept[digest(run)] = result

    def unfinished(self):
        return len(self.runs) - len(self.kept)

    def checkpoint(self, run):
        return None

    def results(self):
        return [self.kept[digest(run)] for run in self.runs]


@pytest.fixture
def as_nobody():
    """For root, who may read and write anything, as somebody else."""

    @contextmanager
    def as_nobody():
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(before)

    return as_nobody


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
def make_order_run():
    def make(encoding="nope", seed=0, **changes):
        return Run(encoding=encoding, seed=seed, recipe=OrderRecipe(**(TINY_ORDER | changes)))

    return make


@pytest.fixture
def in_memory():
    return Memory


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
