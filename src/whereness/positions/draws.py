"""Positions drawn at random for training, and positions of digits. Maps: `whereness.maps`.

Axes: B batch, S tokens, L max_position.
"""

import torch
from torch import Tensor

from whereness.checks import LARGEST_SIZE, require_int
from whereness.where import as_mask


def randomized(
    length: int,
    max_position: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """`length` different integers of 0 .. max_position-1, in order, (length,).

    A model that has seen these knows positions that its texts never reached. One draw serves a
    batch. Every subset is as likely; two neighbours lie (max_position + 1) / (length + 1) apart on
    average.

    Source: Ruoss et al. 2023, arXiv:2305.16843, section 3.

    Args:
        generator: the draw is made on its device, then moved to `device`.

    >>> randomized(3, 3)
    tensor([0, 1, 2])
    """
    length = require_int("length", length, 0)
    max_position = require_int("max_position", max_position, 0, LARGEST_SIZE)
    if length > max_position:
        raise ValueError(f"max_position must hold all tokens: needed {length}, got {max_position}.")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}.")
    drawn_on = device if generator is None else generator.device
    drawn = torch.randperm(max_position, generator=generator, device=drawn_on)[:length]
    return drawn.sort().values.to(device or drawn_on)


def abacus(is_digit: Tensor) -> Tensor:
    """Place of every digit in its number, from 1; 0 elsewhere: (S,) or (B, S) bool -> the same.

    Numbers are written with the units first in the source, so that equal places have equal
    positions.

    Source: McLeish et al. 2024, arXiv:2405.17399, section 3.

    >>> abacus(torch.tensor([True, True, False, True]))
    tensor([1, 2, 0, 1])
    """
    digit = as_mask(is_digit, "is_digit")
    if digit.dim() not in (1, 2):
        raise ValueError(f"is_digit must be (S,) or (B, S), got {tuple(digit.shape)}.")
    slots = torch.arange(1, digit.shape[-1] + 1, device=digit.device)
    # The last slot before this one that holds no digit.
    break_before = slots.expand_as(digit).masked_fill(digit, 0).cummax(-1).values
    return (slots - break_before) * digit
