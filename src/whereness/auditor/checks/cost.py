"""CHK21: what positions cost: bytes of tables, S x S tensors, tables kept by length, host syncs."""

import itertools
import math

from torch import Tensor, nn

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.operations import Watch
from whereness.auditor.driving.probing import Bench, probed, teller
from whereness.auditor.subject import Subject

CHECK = "CHK21"
BATCH, LENGTH = 3, 29
"""Rows and tokens unlike any model's number of heads, so that axes are known by their sizes."""
LARGE = 2**20
"""Bytes of a table from which on it is mentioned: 1 MiB."""
LENGTHS = (23, 19, 17, 13, 11)
"""Falling, so that one table that grows once does not grow again."""


def run(subject: Subject) -> None:
    """Look at what positions cost."""
    probed(subject, CHECK, _look, exact=False)


def _look(bench: Bench) -> None:
    _buffers(bench)
    driver = bench.driver
    tokens = driver.sample(BATCH, LENGTH)
    with bench.alone():
        driver(tokens)
        tensors = [*bench.model.parameters(), *bench.model.buffers()]
        sizes = frozenset(n for t in tensors for n in t.shape)
        with Watch(BATCH, LENGTH, sizes=sizes) as watch:
            driver(tokens)
    bench.compared("cost")
    if watch.seen.syncs:
        _found(
            bench,
            f"{watch.seen.syncs} values are read back in a forward pass",
            "none: each one waits for the device",
            (
                "A check or a branch looks at a tensor's value (.item(), bool(), .tolist()).",
                "Compare shapes, or leave the check to tensor operations.",
            ),
            "warning" if watch.seen.read else "note",
        )
    if driver.takes == "pixels":
        return
    if watch.seen.long:
        _found(
            bench,
            f"a tensor {watch.seen.long} is made in a forward pass of {LENGTH} tokens",
            "tables for the tokens at hand, or kept",
            (
                "The table of all advertised positions is made anew in each pass.",
                "Make the rows that are asked for, or keep one table.",
            ),
            "warning",
        )
    made = {shape: n for shape, n in watch.seen.squares.items() if n}
    if made:
        shape, times = max(made.items(), key=lambda item: math.prod(item[0]))
        _found(
            bench,
            f"a tensor {shape} without the batch is made {times} times in a forward pass",
            "bias as slopes or one row by offset, made once",
            (
                "The bias is written out for every pair of tokens.",
                "Give attention the slopes, or share one strip by offset among layers.",
            ),
            "warning" if times > 8 * _layers(bench.model) else "note",
        )
    _per_length(bench)


def _layers(model: nn.Module) -> int:
    """The longest list of layers."""
    return max((len(m) for m in model.modules() if isinstance(m, nn.ModuleList)), default=1)


def _buffers(bench: Bench) -> None:
    """Tables with two axes of the same many tokens, and large ones."""
    for name, buffer in bench.model.named_buffers():
        size = buffer.numel() * buffer.element_size()
        shape = tuple(buffer.shape)
        square = len(shape) >= 2 and shape[-1] == shape[-2] >= 64
        if square and size >= LARGE:
            _found(
                bench,
                f"{name} {shape}: {size / 2**20:.1f} MiB",
                "no table with an entry for every pair of tokens",
                (
                    "A mask or a bias is kept for the longest length.",
                    "Make it from the ids, or keep it by offset.",
                ),
                "warning",
                name,
            )


def _per_length(bench: Bench) -> None:
    """Tables kept for every length seen."""
    driver = bench.driver
    with bench.alone():
        try:
            driver(driver.sample(1, LENGTH))
            held = [_bytes(bench.model)]
            for length in LENGTHS:
                driver(driver.sample(1, length))
                held.append(_bytes(bench.model))
        except Refused:
            return
    if all(b > a for a, b in itertools.pairwise(held)):
        _found(
            bench,
            f"each new length keeps {(held[-1] - held[0]) // len(LENGTHS)} bytes more",
            "one table that grows",
            ("A table is kept for every length.", "Keep the longest, and slice it."),
            "warning",
        )


def _bytes(model: nn.Module) -> int:
    """Bytes of all tensors that modules hold, in containers as well."""
    found: dict[int, Tensor] = {}

    def add(value: object, depth: int = 3) -> None:
        if isinstance(value, Tensor):
            found[id(value)] = value
        elif isinstance(value, dict) and depth:
            for inner in value.values():
                add(inner, depth - 1)
        elif isinstance(value, (list, tuple)) and depth:
            for inner in value:
                add(inner, depth - 1)

    for module in model.modules():
        for value in vars(module).values():
            add(value)
    return sum(t.numel() * t.element_size() for t in found.values())


_found = teller("K25", "note")
