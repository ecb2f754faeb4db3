"""Weights, gradients of logits and their sums along diagonals, against loops over numbers."""

import math

import pytest
import torch
from torch import Tensor

from whereness.kernels import diagonals


@pytest.fixture(params=["native", "torch"])
def kernel(request, monkeypatch):
    """With the compiled kernel where there is one, and without."""
    if request.param == "torch":
        monkeypatch.setattr(diagonals, "NATIVE", None)


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("heads", "rows", "keys"), [(3, 5, 7), (1, 1, 1), (1, 160, 210)])
def test_one_pass_is_what_loops_give(heads, rows, keys, threads, dtype):
    scores, grads = (drawn(heads, rows, keys, seed=s, dtype=dtype) for s in (1, 2))
    bias = drawn(heads, rows + keys + 3, seed=3, dtype=dtype)[:, 2 : rows + keys + 1]
    bias[:, : keys // 2] = -torch.inf
    powers, delta = (drawn(rows, heads, seed=s, dtype=dtype).T for s in (4, 5))
    powers = powers + 3
    whole = drawn(heads, rows + keys + 4, seed=6, dtype=dtype)
    sums = whole[:, 1 : rows + keys]
    expected = [t.double().tolist() for t in (scores, grads, sums)]
    given = [t.double().tolist() for t in (bias, powers, delta)]
    for h in range(heads):
        for i in range(rows):
            for j in range(keys):
                weight = math.exp(expected[0][h][i][j] * 0.5 + given[0][h][i + j] - given[1][h][i])
                grad = weight * (expected[1][h][i][j] - given[2][h][i])
                expected[0][h][i][j], expected[1][h][i][j] = weight, grad
                expected[2][h][i + j] += grad
    edges = whole[:, :1].clone(), whole[:, rows + keys :].clone()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        diagonals.form_(scores, grads, bias, powers, delta, 0.5, sums)
    finally:
        torch.set_num_threads(before)
    for found, right in zip((scores, grads, sums), expected, strict=True):
        exact = torch.tensor(right, dtype=torch.float64)
        off = 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), exact, rtol=off, atol=off)
    assert torch.equal(whole[:, :1], edges[0])
    assert torch.equal(whole[:, rows + keys :], edges[1])


@pytest.mark.usefixtures("kernel")
def test_exp_at_its_ends():
    """Nothing below the normal numbers, NaN through, and each power to 2 units in the last."""
    x = torch.cat([torch.linspace(-87.3, 0, 5001), torch.tensor([-88.0, -1e30, -torch.inf])])
    scores = torch.zeros(1, 1, len(x))
    zero = torch.zeros(1, 1)
    diagonals.form_(
        scores, scores.clone(), x[None].clone(), zero, zero, 1.0, torch.zeros(1, len(x))
    )
    exact = x.double().exp()
    assert ((scores[0, 0].double() - exact).abs() <= 2 * 2**-23 * exact + 2.0**-126).all()
    assert (scores[0, 0, -2:] == 0).all()
    scores = torch.tensor([[[torch.nan, 0.0]]])
    diagonals.form_(scores, scores.clone(), torch.zeros(1, 2), zero, zero, 1.0, torch.zeros(1, 2))
    assert scores[0, 0].isnan().tolist() == [True, False]
