"""CHK16: which keys a query sees, and learned grids at other sizes.

What a query sees is measured by what moves it: row j of a batch has another token in slot j. A
chunk after a cached prompt must see what the same rows see in one run.

Axes: S tokens; a sight is bool (S, S), True where slot i is moved by the token in slot j.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import Bench, decoded, probed, windows
from whereness.auditor.driving.restore import written
from whereness.auditor.subject import Subject

CHECK = "CHK16"
UNMOVED = 1e-7
"""Relative change in float64 below which a slot did not see the other token. Exactly 0 but for
models that route tokens to experts in float32."""
UNMOVED_SINGLE = 1e-5


def run(subject: Subject) -> None:
    """Look at the masks and the learned grids."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    _grids(bench)
    if bench.driver.takes == "pixels":
        bench.not_checked("what each token sees: the tokens cannot be chosen one by one")
        return
    whole = sight(bench)
    _whole_rows(bench, whole.seen)
    if not bench.driver.caches:
        bench.not_checked("what a chunk after a prompt sees: the model keeps no cache")
        return
    rows = differing_sight(bench, whole)
    bench.compared("keys seen")
    if rows and not lost(bench, rows):
        shown = "; ".join(f"query {i}: {got} of {wanted}" for i, got, wanted in rows[:3])
        bench.found(
            "K19",
            "error",
            expected="a query after a cache sees the keys that it sees in one run",
            measured=f"keys seen: {shown}",
            cause="The causal mask of fewer queries than keys begins at the first key (top left)"
            " instead of ending at the last.",
            remedy="Anchor the mask at the end of the keys (bottom right): query i of S sees keys"
            " up to T - S + i.",
        )


@dataclass(frozen=True)
class Sight:
    """What each slot sees, bool (S, S), and the output of the tokens as they were, (S, ...)."""

    seen: Tensor
    output: Tensor

    @property
    def causal(self) -> bool:
        """No slot sees a later one."""
        return not bool(self.seen.triu(1).any())


def sight(bench: Bench, sizes: list[int] | None = None) -> Sight:
    """What each slot sees, in one run or in chunks of these sizes."""
    moved = _moved(bench, bench.length)
    with bench.alone() as driver:
        if sizes is None:
            output = driver(moved).output
        else:
            output, _ = decoded(driver, moved, sizes)
    plain, others = output[0].double(), output[1:].double()
    size = plain.abs().flatten(1).amax(1).clamp_min(1e-30)
    gap = (others - plain).abs().flatten(2).amax(2) / size  # (changed slot, slot)
    return Sight((gap > (UNMOVED if bench.exact else UNMOVED_SINGLE)).T, output[0])


def _moved(bench: Bench, length: int) -> Tensor:
    """A row of tokens, and after it rows with one token changed in each."""
    plain = bench.driver.sample(1, length)
    other = bench.driver.sample(1, length, seed=4)
    if bench.driver.takes == "tokens":
        other = torch.where(other == plain, bench.driver.sample(1, length, seed=5), other)
    moved = plain.repeat(length + 1, *([1] * (plain.dim() - 1)))
    index = torch.arange(length, device=plain.device)
    moved[index + 1, index] = other[0]
    return moved


def differing_sight(bench: Bench, whole: Sight | None = None) -> list[tuple[int, int, int]]:
    """(slot, keys seen in chunks, keys seen in one run) where both those and the outputs differ."""
    length = bench.length
    if not bench.driver.caches or length < 6:
        return []
    found: dict[int, tuple[int, int, int]] = {}
    half = length // 2
    try:
        whole = sight(bench) if whole is None else whole
        for sizes in ([half, length - half], [half] + [1] * (length - half)):
            got = sight(bench, sizes)
            if not bench.differ(got.output, whole.output):
                continue
            for i in (got.seen != whole.seen).any(1).nonzero().flatten().tolist():
                found.setdefault(i, (i, int(got.seen[i].sum()), int(whole.seen[i].sum())))
    except Refused:
        return []
    return [found[i] for i in sorted(found)]


def lost(bench: Bench, rows: list[tuple[int, int, int]]) -> bool:
    """Whether a cache has forgotten keys: too few are seen, and only past a window. CHK4 tells."""
    narrow = [w for w in windows(bench.driver) if w < bench.length]
    return bool(narrow) and all(i >= narrow[0] and got < wanted for i, got, wanted in rows)


def _whole_rows(bench: Bench, whole: Tensor) -> None:
    """A window that the config names is kept, and not narrower."""
    if bool(whole.triu(1).any()):
        return
    length = len(whole)
    offsets = torch.arange(length)[:, None] - torch.arange(length)
    seen = int(offsets[whole.cpu()].max()) if bool(whole.any()) else 0
    reaches = _reaches(bench)
    if reaches and seen < length - 1:
        bench.compared("window")
        if seen not in reaches:
            _not_the_window(bench, seen, reaches)
    expected = _reach(bench)
    if expected is None:
        return
    bench.compared("window")
    if seen > expected and seen not in reaches:
        bench.found(
            "K19",
            "error",
            expected=f"with the config's windows no token sees further back than {expected} tokens",
            measured=f"a token that is {seen} back still moves the output",
            cause="The window is not applied in some layer or on this path.",
            remedy="Apply the window of each layer's type in its mask.",
        )


def _reaches(bench: Bench) -> list[int]:
    """How far back a token may see if any number of layers have the config's one window."""
    config = bench.driver.text_config
    window = getattr(config, "sliding_window", None)
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    layers = next(
        (v for v in (getattr(config, n, None) for n in names) if isinstance(v, int)), None
    )
    if not isinstance(window, int) or isinstance(window, bool) or layers is None:
        return []
    return [count * (window - 1) for count in range(1, layers + 1)]


def _not_the_window(bench: Bench, seen: int, reaches: list[int]) -> None:
    bench.found(
        "K19",
        "error",
        expected=f"with a window of {reaches[0] + 1} a token is moved by those up to"
        f" {', '.join(map(str, reaches[:4]))} back (by layers that have it)",
        measured=f"by those up to {seen} back",
        cause="The window is counted from another end, or with one key more or less.",
        remedy="A key is visible if 0 <= q_slot - k_slot < window.",
    )


def _reach(bench: Bench) -> int | None:
    """How far back the windows of all layers together let a token see; None: no end, or unsaid."""
    found = [layers for layers in bench.subject.expected.values() if layers.sights]
    if len(found) != 1 or not found[0].counted:
        return None
    sights = found[0].sights
    if any(s is None or s.kind != "window" for s in sights):
        return None
    reach = sum(s.tokens - 1 for s in sights if s is not None)
    return reach if reach + 2 <= bench.length else None


# Learned grids ---------------------------------------------------------------------------------


def _grids(bench: Bench) -> None:
    """Tables that the model itself can resize (K16)."""
    for name, module in bench.model.named_modules():
        resize = getattr(module, "interpolate_pos_encoding", None)
        table = getattr(module, "position_embeddings", None)
        if callable(resize) and isinstance(table, nn.Parameter) and table.dim() == 3:
            with contextlib.suppress(TypeError, AttributeError, ValueError, RuntimeError):
                _grid(bench, name, resize, table)


def _grid(bench: Bench, name: str, resize: Any, table: nn.Parameter) -> None:
    """Prefix rows come through unchanged, every size is met, the own size is the identity."""
    side, prefix = _square(table.shape[1])
    if side is None:
        return
    patch = _patch(bench.driver)
    wrong = []
    for height, width in _targets(side):
        rows = prefix + height * width
        made = resize(table.new_zeros(1, rows, table.shape[2]), height * patch, width * patch)
        if made.shape[1] != rows:
            wrong.append(f"{height}x{width}: {made.shape[1] - prefix} rows, not {height * width}")
        elif not torch.equal(made[:, :prefix], table[:, :prefix]):
            wrong.append(f"{height}x{width}: prefix rows changed")
        elif (height, width) == (side, side) and bench.differ(made, table):
            wrong.append("the own size is not the identity")
    wrong += _turned(resize, table, side, prefix, patch)
    bench.compared("resized grid", where=name)
    if wrong:
        bench.found(
            "K16",
            "error",
            expected="exactly the asked rows, prefix rows untouched, the own size unchanged",
            measured="; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else ""),
            cause="The target size is made from a scale factor, or prefix rows are counted wrong.",
            remedy="Give the interpolation the target size and the number of prefix rows.",
            where=name,
        )


def _turned(resize: Any, table: nn.Parameter, side: int, prefix: int, patch: int) -> Iterator[str]:
    """A table that varies along its rows alone does so at another shape, as interpolated."""
    height, width = side + 2, side + 1
    zeros = table.new_zeros(1, prefix + height * width, table.shape[2])
    with written(table):
        with torch.no_grad():
            rows = torch.arange(side, dtype=table.dtype, device=table.device) ** 1.5
            table[:, prefix:] = rows[:, None].expand(side, side).reshape(1, -1, 1)
        made = resize(zeros, height * patch, width * patch)[0, prefix:, 0]
        grid = table[:, prefix:, :1].reshape(1, side, side, 1).permute(0, 3, 1, 2)
        if made.numel() != height * width:
            return
        made = made.reshape(height, width)
        if not torch.allclose(made, made[:, :1].expand_as(made), rtol=1e-4, atol=1e-4):
            yield f"{height}x{width}: rows and columns are exchanged"
            return
        for mode, smooth in (("bicubic", False), ("bicubic", True), ("bilinear", False),
                             ("bilinear", True)):  # fmt: skip
            for corners in (False, True):
                right = functional.interpolate(
                    grid.float(),
                    (height, width),
                    mode=mode,
                    antialias=smooth,
                    align_corners=corners,
                )
                if torch.allclose(made.float(), right[0, 0], rtol=1e-4, atol=1e-4):
                    return
        yield f"{height}x{width}: values of no interpolation to that size"


def _square(rows: int) -> tuple[int | None, int]:
    """(side of the grid, prefix rows): a perfect square, after at most five rows of its own."""
    for prefix in (1, 0, 2, 5, 3, 4):
        side = round((rows - prefix) ** 0.5)
        if side > 0 and side * side == rows - prefix:
            return side, prefix
    return None, 0


def _targets(side: int) -> Iterator[tuple[int, int]]:
    """Grids to resize to: every square up to 140 (some sizes fail alone), and some others."""
    yield side, side
    yield side, side + 1
    yield side + 2, max(1, side - 1)
    step = 1 if side > 20 else 3
    for size in range(1, 141, step):
        yield size, size


def _patch(driver: Driver) -> int:
    config = driver.config
    for holder in (config, getattr(config, "vision_config", None)):
        patch = getattr(holder, "patch_size", None)
        if isinstance(patch, int):
            return patch
    return 1
