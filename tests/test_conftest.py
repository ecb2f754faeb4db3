"""The settings in conftest.py hold, in both runs."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

import whereness as wn

TYPED = os.environ.get("WHERENESS_TYPED") == "1"


def test_torch_has_one_thread():
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("turn", ["first", "second"])
def test_every_test_starts_from_the_same_random_state(turn):
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3)), turn


def test_hypothesis_is_repeatable_and_has_no_deadline():
    assert settings().derandomize
    assert settings().deadline is None


def test_hypothesis_seeds_torch_for_each_example():
    drawn = []

    @given(st.integers())
    @settings(max_examples=5)
    def draw(_):
        drawn.append(torch.rand(()).item())

    draw()
    assert len(drawn) > 1
    assert len(set(drawn)) == 1


@pytest.mark.skipif(not TYPED, reason="types are checked in the typed run only")
def test_the_typed_run_names_the_argument_that_has_a_wrong_type():
    with pytest.raises(TypeCheckError, match="typechecking parameter 'dim'"):
        wn.Integer("4")


@pytest.mark.skipif(not TYPED, reason="types are checked in the typed run only")
def test_the_typed_run_takes_an_int_for_a_float():
    assert wn.Sinusoidal(4, base=100).base == 100.0
