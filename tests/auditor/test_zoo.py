"""Every tiny model of the zoo runs, is tiny, lively and the same at every build."""

import pytest
import torch

from auditor import zoo

pytestmark = pytest.mark.more

MIXED = ["gemma2", "gemma3_text", "cohere2", "exaone4", "olmo3", "gpt_oss", "qwen3_next"]
"""Architectures whose layers are of two kinds or more."""


def run(name: str) -> torch.Tensor:
    model, _ = zoo.build(name)
    with torch.no_grad():
        return model(**zoo.inputs(name, batch=2, tokens=12))[0]


def test_the_zoo_is_large():
    assert len(set(zoo.names())) >= 85


@pytest.mark.parametrize("name", zoo.names())
def test_a_plain_forward_pass_runs_and_tells_inputs_apart(name):
    output = run(name)
    assert output.isfinite().all()
    assert output.std() > 0.01


@pytest.mark.parametrize("name", zoo.names()[::10])
def test_a_model_is_the_same_at_every_build(name):
    (first, _), (second, _) = zoo.build(name), zoo.build(name)
    assert not first.training
    for (key, weight), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(weight, other), key
        assert weight.dtype == torch.float32


@pytest.mark.parametrize("name", MIXED)
def test_every_kind_of_layer_appears(name):
    from transformers import CONFIG_MAPPING

    entry = zoo.ARCHITECTURES[name]
    every = set(CONFIG_MAPPING[entry.model_type]().layer_types)
    assert set(zoo.config_of(name).layer_types) == every
    assert len(every) > 1


def test_a_layer_without_positions_appears_where_a_family_has_one():
    assert set(zoo.config_of("smollm3").no_rope_layers) == {0, 1}
    assert set(zoo.config_of("llama4_text").no_rope_layers) == {0, 1}


def test_a_model_that_is_not_tiny_is_refused(monkeypatch):
    monkeypatch.setattr(zoo, "MOST_PARAMETERS", 1000)
    with pytest.raises(ValueError, match="parameters"):
        zoo.build("llama")
