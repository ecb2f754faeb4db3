"""K23: which layers rotate, and how often."""

import math

import pytest
import torch

import whereness as wn
from cases.support import HEADS, case, differ, equal, heads
from interop.toy import YARN, config, quiet, scaled, yarn

SMOLLM3 = config(model_type="smollm3", num_hidden_layers=36, no_rope_layer_interval=4, head_dim=8)


def silent(keys: dict) -> list[int]:
    """Layers without position."""
    layers = range(keys["num_hidden_layers"])
    return [i for i in layers if isinstance(quiet(keys, layer=i), wn.NoPE)]


@case("P218")
def test_every_fourth_layer_of_smollm3_has_no_position():
    assert silent(SMOLLM3) == [3, 7, 11, 15, 19, 23, 27, 31, 35]
    listed = {**SMOLLM3, "no_rope_layers": [1, 0] * 18, "no_rope_layer_interval": None}
    assert silent(listed) == list(range(1, 36, 2))


@case("P218")
def test_llama_4s_list_says_which_layers_do_rotate():
    """Its name says the contrary."""
    keys = config(model_type="llama4_text", num_hidden_layers=4, no_rope_layers=[1, 1, 0, 1])
    assert [i for i in range(4) if isinstance(quiet(keys, layer=i), wn.RoPE)] == [0, 1, 3]


@case("P218")
@pytest.mark.parametrize("layer", range(4))
def test_a_layer_without_position_sees_its_keys_as_a_set(layer):
    made = quiet({**SMOLLM3, "num_hidden_layers": 4}, layer=layer)
    q, k, v = heads(1), heads(6, seed=3), heads(6, seed=4)
    where = wn.Where(torch.tensor([5]), torch.arange(6))
    shuffled = torch.tensor([3, 0, 5, 1, 4, 2])
    ordered = wn.attention(q, k, v, made, where=where)
    mixed = wn.attention(q, k[:, :, shuffled], v[:, :, shuffled], made, where=where)
    if layer == 3:
        equal(ordered, mixed)
    else:
        differ(ordered, mixed)


@case("P221")
def test_the_config_turns_exactly_once():
    found = quiet(scaled(**YARN))
    x = torch.zeros(1, HEADS, 2, 16, dtype=torch.float64)
    x[..., :8] = 1.0
    once = found.rotate(x, torch.tensor([0, 1]))
    amplitude = 0.1 * math.log(4.0) + 1
    for k, w in enumerate(yarn(10_000.0, 16, 4.0, 32)):
        cos, sin = once[0, 0, 1, k].item(), once[0, 0, 1, k + 8].item()
        assert math.atan2(sin, cos) == pytest.approx(w, rel=1e-12)
        assert math.hypot(sin, cos) == pytest.approx(amplitude, rel=1e-12)


@case("P221")
def test_twice_is_told_from_once_by_twice_the_speed_and_the_square_of_the_amplitude():
    found = quiet(scaled(**YARN))
    x = torch.zeros(1, HEADS, 2, 16, dtype=torch.float64)
    x[..., :8] = 1.0
    positions = torch.tensor([0, 1])
    twice = found.rotate(found.rotate(x, positions), positions)
    for k, w in enumerate(yarn(10_000.0, 16, 4.0, 32)):
        cos, sin = twice[0, 0, 1, k].item(), twice[0, 0, 1, k + 8].item()
        assert math.atan2(sin, cos) == pytest.approx(2 * w, rel=1e-12)
        assert math.hypot(sin, cos) == pytest.approx(found.amplitude**2, rel=1e-12)
