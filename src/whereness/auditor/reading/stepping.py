"""What is added to the scores of new tokens behind a cache, beside the same rows of one run.

Axes: B rows, H heads, S new tokens, T keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Driver
from whereness.auditor.reading.injecting import told_inputs
from whereness.auditor.reading.scores import Bias, bias_of, levelled
from whereness.auditor.reading.stack import Stack
from whereness.auditor.reading.watch import Event, Watch

ROWS, KEYS, NEW = 3, 23, 3


def biases_after_cache(driver: Driver) -> dict[str, tuple[Bias, Bias]]:
    """By module: the bias of the last tokens in one run, and behind a cache of the others.

    Raises:
        Refused: the model raised, or keeps no cache.
    """
    tokens = driver.sample(ROWS, KEYS)
    whole = _seen(driver, lambda: driver(tokens))
    kept = driver(tokens[:, :-NEW], keep_cache=True).cache
    assert kept is not None
    stepped = _seen(driver, lambda: driver(tokens[:, -NEW:], cache=kept))
    return {
        path: (whole[path], stepped[path])
        for path in whole.keys() & stepped.keys()
        if stepped[path].values.shape[-2:] == (NEW, KEYS)
    }


def _seen(driver: Driver, run: Callable[[], object]) -> dict[str, Bias]:
    found: dict[str, Bias] = {}

    def on_event(event: Event) -> None:
        logits = event.logits
        if logits.dim() == 3:  # rows and heads in one axis
            logits = logits.unflatten(0, (ROWS, -1))
        if logits.dim() == 4 and not event.crosses:
            found.setdefault(event.module, bias_of(logits))

    watch = Watch(Stack(driver.model), on_event, silence_queries=True)
    with told_inputs(driver.model), watch.watching():
        run()
    return found


def misaligned(whole: Bias, stepped: Bias) -> float:
    """The largest difference of the last rows of a bias, relative to its size."""
    values = whole.values[:, -NEW:]
    size = values.nan_to_num(0.0).abs().max().clamp_min(1e-30)
    off: Tensor = (levelled(values) - levelled(stepped.values)).abs()
    return float(torch.nan_to_num(off, 0.0).max() / size)
