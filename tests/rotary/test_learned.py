"""LeRoPE: learned factors on a spectrum, plain or scaled.

Axes: B batch, H heads, S tokens, D head_dim, P pairs.
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from rotary.scaled import EVERY, exact
from rotary.support import agree, drawn, pairs, spectrum, turned

ALPHA = (-0.5, 0.25, 1.5, 0.0)
each_setting = pytest.mark.parametrize("setting", EVERY, ids=str)


def lerope(**options: object) -> wn.LeRoPE:
    made = wn.LeRoPE(8, 100.0, **options)
    made.alpha.data.copy_(torch.tensor(ALPHA))
    return made


def test_it_begins_as_rope():
    x = drawn(0, (1, 2, 5, 8), torch.float32)
    assert_close(wn.LeRoPE(8).rotate(x).detach(), wn.RoPE(8).rotate(x), rtol=0, atol=0)
    assert wn.LeRoPE(8).alpha.tolist() == [0.0] * 4
    made = lerope()
    made.reset_parameters()
    assert made.alpha.tolist() == [0.0] * 4
    assert made.alpha.requires_grad and wn.LeRoPE(10, rotary_dim=6).alpha.shape == (3,)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("side", ["leading", "trailing"])
def test_every_frequency_has_its_factor(pairing, side):
    made = wn.LeRoPE(11, 100.0, pairing, 8, side)
    made.alpha.data.copy_(torch.tensor(ALPHA))
    frequencies = spectrum(100.0, 8) * np.exp(ALPHA)
    assert_close(made.frequencies, torch.from_numpy(frequencies), rtol=1e-15, atol=0)
    x, positions = drawn(0, (2, 3, 4, 11), torch.float64), np.array([0, 7, -30, 1000])
    channels = pairs(pairing, 8, 0 if side == "leading" else 3)
    angles = positions[:, None] * frequencies
    out, size = turned(x.numpy(), channels, angles)
    found = made.rotate(x, torch.from_numpy(positions))
    agree(found, out, size, float(np.abs(angles).max()))


@each_setting
@pytest.mark.parametrize("length", [5, 30])
def test_factors_go_on_top_of_a_scaling(setting, length):
    made = lerope(scaling=setting.scaling)
    expected = [
        float(w) * math.exp(a)
        for w, a in zip(exact(setting.scaling, 100.0, 8, length), ALPHA, strict=True)
    ]
    found = made.frequencies_at(length)
    assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0)
    assert not found.requires_grad and not made.frequencies.requires_grad
    assert (made.amplitude, made.amplitude_at(length), made.logit_scale(8)) == (
        setting.make().amplitude,
        setting.make().amplitude_at(length),
        setting.make().logit_scale(8),
    )
    turned_queries = made.exactly(
        made.prepare(wn.Where(torch.tensor([1]), lengths=length)).data.queries
    )
    cos = torch.tensor(expected, dtype=torch.float64).cos() * made.amplitude_at(length)
    assert_close(turned_queries.cos[0, 0, 0].detach(), cos, rtol=0, atol=1e-13)


@each_setting
def test_the_gradient_is_that_of_finite_differences(setting):
    made = lerope(scaling=setting.scaling).double()
    x = drawn(0, (1, 1, 3, 8), torch.float64)
    weight = drawn(1, (1, 1, 3, 8), torch.float64)
    where = wn.Where(torch.tensor([0, 2, 5]), lengths=9)

    def loss() -> torch.Tensor:
        return (made.rotate(x, where) * weight).sum()

    loss().backward()
    step = 1e-6
    for pair in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                made.alpha[pair] += sign * step
                values.append(loss().item())
                made.alpha[pair] -= sign * step
        slope = (values[0] - values[1]) / (2 * step)
        assert made.alpha.grad[pair].item() == pytest.approx(slope, rel=1e-7, abs=1e-8)


ANGLES_WITH_GRADIENTS = {
    "lerope": (lerope, torch.arange(3)),
    "fope": (lambda: wn.FoPE(8, 100.0, length=40), torch.arange(3)),
    "positions": (lambda: wn.RoPE(8), torch.arange(3.0, dtype=torch.float64)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ANGLES_WITH_GRADIENTS)
def test_in_place_keeps_what_the_gradient_of_an_angle_needs(name, dtype):
    make, positions = ANGLES_WITH_GRADIENTS[name]
    torch.manual_seed(0)
    made, found = make(), []
    for in_place in (False, True):
        x = drawn(0, (1, 2, 3, 8), dtype).requires_grad_()
        ids = positions.clone().requires_grad_(positions.is_floating_point())
        made.zero_grad()
        rotate = made.rotate_ if in_place else made.rotate
        rotate(x * 1.0, ids).square().sum().backward()
        grads = [p.grad for p in made.parameters()] + ([ids.grad] if ids.requires_grad else [])
        found.append([x.grad, *(g.clone() for g in grads)])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, rtol=0, atol=0)
    assert len(found[0]) > 1


def test_a_gradient_reaches_alpha_through_attention_in_half_precision():
    made = lerope()
    q, k, v = (drawn(i, (1, 2, 6, 8), torch.bfloat16) for i in range(3))
    out = wn.attention(q, k, v, made, causal=True)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert made.alpha.grad.dtype == torch.float32
    assert made.alpha.grad.isfinite().all() and (made.alpha.grad != 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_goes_in_comes_out(dtype):
    x = drawn(0, (1, 1, 3, 8), dtype)
    for found in (*lerope()(x, x), lerope().rotate(x), lerope().to(dtype).rotate(x)):
        assert found.dtype == dtype


def test_a_cast_rounds_what_was_learned_and_nothing_else():
    made = wn.LeRoPE(8, 100.0).bfloat16()
    assert_close(made.frequencies, wn.RoPE(8, 100.0).frequencies, rtol=0, atol=0)


def test_files_hold_alpha_alone():
    assert list(lerope().state_dict()) == ["alpha"]
    with pytest.raises(RuntimeError, match="inv_freq"):
        lerope().load_state_dict({"alpha": torch.zeros(4), "inv_freq": torch.ones(4)})
    with pytest.raises(RuntimeError, match="alpha"):
        lerope().load_state_dict({})
