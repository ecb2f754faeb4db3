"""Integers of every kind as sizes."""

import numpy as np
import pytest
import torch
from torch import nn

import whereness as wn
from whereness.checks import require_int

pytestmark = pytest.mark.untyped

KINDS = (np.int8, np.int64, np.uint16, np.array)


class Index:
    """A number of another library."""

    def __index__(self) -> int:
        return 5

    def __str__(self) -> str:
        return "another library's 5"


@pytest.mark.parametrize("number", [5, np.int64(5), np.uint8(5), np.array(5), Index()], ids=str)
def test_an_integer_of_any_kind_becomes_an_int(number):
    found = require_int("size", number, 5, 5)
    assert type(found) is int and found == 5
    with pytest.raises(ValueError, match="size must be at least 6, got 5"):
        require_int("size", number, 6)
    with pytest.raises(ValueError, match="size must be at most 4, got 5"):
        require_int("size", number, 1, 4)


@pytest.mark.parametrize(
    "value",
    [
        *(True, np.True_, 5.0, np.float64(5), 5 + 0j, np.array([5]), np.array([5, 6])),
        *(torch.tensor(n) for n in (5, True, [5, 6])),
        *(torch.tensor(5, device="meta"), "5", None, Index),
    ],
    ids=repr,
)
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(TypeError, match="size must be an int, got"):
        require_int("size", value, 1)


MADE = {
    "rope": lambda i: wn.RoPE(i(8), rotary_dim=i(4)),
    "axial": lambda i: wn.AxialRoPE(i(8), i(2), axis_dims=(i(2), i(6)), axis_order=(i(1), i(0))),
    "mixed": lambda i: wn.MixedRoPE(i(8), i(4), i(2), num_kv_heads=i(2)),
    "multimodal": lambda i: wn.MultimodalRoPE(i(18), (i(4), i(2), i(2)), rotary_dim=i(16)),
    "dinov3": lambda i: wn.DINOv3RoPE(i(8), i(2)),
    "binary": lambda i: wn.Binary(i(8), i(4)),
    "integer": lambda i: wn.Integer(i(8), i(100)),
    "sinusoidal": lambda i: wn.Sinusoidal(i(8), exponent="dim-2"),
    "learned": lambda i: wn.LearnedAbsolute(i(8), (i(3), i(2)), i(1), i(2)),
    "resized": lambda i: wn.LearnedAbsolute(8, 4).resized(i(6)),
    "extended": lambda i: wn.LearnedAbsolute(8, 4).extended(i(6)),
    "alibi": lambda i: wn.ALiBi(i(6)),
    "kerple": lambda i: wn.KERPLE(i(6)),
    "sandwich": lambda i: wn.Sandwich(i(6), i(8), "divide", i(0)),
    "t5": lambda i: wn.T5(i(2), i(8), i(100)),
    "relative": lambda i: wn.LearnedRelative(i(2), i(3)),
    "shaw": lambda i: wn.Shaw(i(8), i(3)),
    "created": lambda i: wn.create("binary", dim=i(8), num_heads=i(2), length=i(100)),
    "attention": lambda i: wn.Attention(i(8), i(4), None, i(2), head_dim=i(6), window=i(3)),
    "transformer": lambda i: wn.Transformer(i(5), i(8), i(1), i(2), hidden=i(7), num_outputs=i(3)),
}


def numbers(made: nn.Module) -> dict:
    """Every attribute that holds a number or numbers, of the module and of those inside."""
    kinds = (int, float, tuple, np.generic, np.ndarray)
    return {
        (name, key): value
        for name, module in made.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, kinds) and key != "encodings"
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MADE)
def test_numpy_sizes_give_what_python_sizes_give(name, kind):
    expected, found = MADE[name](int), MADE[name](kind)
    shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (expected, found)]
    assert shapes[0] == shapes[1]
    assert repr(numbers(found)) == repr(numbers(expected))  # NumPy's numbers show their type
    assert numbers(expected)


def test_numpy_numbers_in_functions():
    i = np.int64
    assert wn.positions.grid(i(2), i(3), prefix=i(1)).shape == (7, 2)
    assert wn.positions.packed([i(2), i(1)], i(4)).tolist() == [0, 1, 0, wn.NOWHERE]
    assert wn.positions.decode([i(5)], i(2)).tolist() == [[5, 6]]
    assert type(wn.Where(num_axes=i(2)).num_axes) is int
    assert wn.Where(torch.arange(2), lengths=i(7)).lengths.tolist() == [[7]]
    schedule = wn.schedules.every(i(2), None, otherwise=None)
    assert len(schedule.layers(i(3))) == 3 and schedule[i(1)] is schedule[1]
    q = torch.ones(1, 1, 4, 2)
    both = [wn.attention(q, q, q.cumsum(2), window=w, causal=True) for w in (2, i(2))]
    assert torch.equal(*both)
