import math

import pytest
import torch

from whereness.lab import language
from whereness.lab.language import evaluate, windows

RISING = torch.arange(26)


def uniform(ids):
    return torch.zeros(*ids.shape, 256)


def sure_at_the_end(ids):
    """Uniform, but in the last quarter it gives the byte after its input exp(2) times as much."""
    logits = uniform(ids)
    late = torch.arange(ids.shape[1]) >= ids.shape[1] * 3 // 4
    return logits + 2.0 * late[:, None] * torch.nn.functional.one_hot(ids + 1, 256)


def test_windows_by_hand():
    inputs, targets = windows(RISING, 8, 8)
    assert inputs.tolist() == [[*range(8)], [*range(8, 16)], [*range(16, 24)]]
    assert targets.tolist() == [[*range(1, 9)], [*range(9, 17)], [*range(17, 25)]]


@pytest.mark.parametrize(("length", "count"), [(4, 6), (8, 3), (5, 4), (3, 8)])
def test_lengths_that_divide_the_longest_cover_the_same_bytes(length, count):
    inputs, targets = windows(RISING, length, 8)
    assert inputs.shape == targets.shape == (count, length)
    assert inputs.flatten().tolist() == list(range(count * length))


def test_the_last_target_must_exist():
    assert len(windows(torch.arange(25), 8, 8)[0]) == 3
    assert len(windows(torch.arange(24), 8, 8)[0]) == 2


@pytest.mark.parametrize("length", [4, 8])
def test_a_uniform_model_has_the_loss_of_chance(length):
    found = evaluate(uniform, RISING, length, 8)
    assert found.whole == pytest.approx([math.log(256)] * (24 // length))
    assert found.last_quarter == pytest.approx([math.log(256)] * (24 // length))


@pytest.mark.parametrize("length", [4, 8])
def test_the_last_quarter_is_told_apart(length):
    late = math.log(255 + math.exp(2)) - 2
    found = evaluate(sure_at_the_end, RISING, length, 8)
    assert found.whole == pytest.approx([0.75 * math.log(256) + 0.25 * late] * (24 // length))
    assert found.last_quarter == pytest.approx([late] * (24 // length))


def test_windows_keep_their_order_in_groups(monkeypatch):
    monkeypatch.setattr(language, "TOKENS_A_CALL", 9)

    def doubtful(ids):  # surer in later windows
        return uniform(ids) + ids[:, :1, None] / 8 * torch.nn.functional.one_hot(ids + 1, 256)

    wanted = [math.log(255 + math.exp(w)) - w for w in range(3)]
    assert evaluate(doubtful, RISING, 8, 8).whole == pytest.approx(wanted)


def test_gradients_are_not_kept():
    def heedful(ids):
        assert not torch.is_grad_enabled()
        return uniform(ids)

    evaluate(heedful, RISING, 8, 8)
