import gc

import pytest
import torch
from torch import nn

from whereness.lab.memory import kept_for_backward


@pytest.mark.parametrize("rows", [1, 7])
def test_counted_by_hand(rows):
    # A linear layer keeps its input (rows x 3); relu its output (rows x 5), which the next layer
    # keeps too: once. Parameters do not count. sum keeps nothing.
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.ones(rows, 3)
    assert kept_for_backward(model, lambda: model(x).sum()) == 4 * (3 * rows + 5 * rows)


def test_what_is_freed_is_not_kept():
    model = nn.Linear(4, 4)
    x = torch.ones(8, 4)

    def loss():
        torch.ones(1000) + 1
        return model(x).sum()

    assert kept_for_backward(model, loss) == 4 * 32


def test_nothing_is_held_afterwards():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.ones(8, 4)

    def alive():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    kept_for_backward(model, lambda: model(x).sum())
    before = alive()
    for _ in range(3):
        kept_for_backward(model, lambda: model(x).sum())
    assert alive() <= before  # others' garbage may go meanwhile
