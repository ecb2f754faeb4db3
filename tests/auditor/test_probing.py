import pytest
import torch

from whereness.auditor.driving.probing import change


def test_change_is_relative_to_how_much_the_second_varies():
    b = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    a = b + torch.tensor([0.0, 0.0, 0.5, 0.0])
    assert change(a, b) == pytest.approx(0.5 / (14 / 3) ** 0.5, rel=1e-12)  # variance of 3 degrees
    assert change(b, b) == 0
    assert change(a[:3], b) == float("inf")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_tables_of_whole_numbers_and_masks_are_compared(dtype):
    b = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert change(b, b) == 0
    assert change(b.flip(0).roll(1), b) > 1
