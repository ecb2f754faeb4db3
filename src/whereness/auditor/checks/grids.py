"""CHK13: positions of several axes: which pairs each axis turns, and which cell a patch stands in.

Text models of several axes are given ids along one axis at a time. Towers number their patches
themselves: the angle of every patch is compared with that of its cell, in a square image and in
one that is not, where rows and columns cannot be exchanged unseen.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import driver_of
from whereness.auditor.driving.restore import in_float64, restored
from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import observe
from whereness.auditor.reading.comparing import NAMES, is_picture
from whereness.auditor.reading.expectation import Expectation, expectation_of, sides_at
from whereness.auditor.reading.runs import NEAR_SLOTS, Look, Runs
from whereness.auditor.reading.views import LayerView, Observed, Side
from whereness.auditor.subject import Subject

CHECK = "CHK13"
ALIKE = 1e-4
"""How far the angle of a patch may be off, in radians; float32 grids are within 1e-6."""
MOST_PREFIX = 8


def run(subject: Subject) -> None:
    """Compare the axes of every layer that is to have several."""
    observed = observe(subject)
    driver = driver_of(subject)
    if isinstance(driver, str) or not observed.layers:
        subject.not_checked(CHECK, "; ".join(observed.why) or "no attention was found")
        return
    wanted = [
        (view, expected)
        for view in observed.layers
        if not isinstance(expected := expectation_of(subject, view), str)
        and any(each.num_axes > 1 for each in expected.encodings)
        and expected.turns
    ]
    if not wanted:
        subject.not_checked(CHECK, "no layer is to have positions of several axes")
        return
    look = _patches if is_picture(subject) else _axes
    try:
        with (in_float64 if observed.exact else restored)(driver.model), torch.no_grad():
            driver.model.eval()
            look(subject, observed, driver, wanted)
    except Refused as error:
        subject.not_checked(CHECK, str(error))


# Text: ids along one axis at a time ---------------------------------------------------------------


def _axes(
    subject: Subject,
    observed: Observed,
    driver: Driver,
    wanted: list[tuple[LayerView, Expectation]],
) -> None:
    if driver.positions is None:
        subject.not_checked(CHECK, "the model takes no positions")
        return
    axes = max(each.num_axes for _, expected in wanted for each in expected.encodings)
    runs = _runs(observed, driver)
    looks = [runs.along(axis, axes) for axis in range(axes)]
    for view, expected in wanted:
        found = _of_axes(view, expected, looks)
        if found is not None:
            subject.found(found)
        subject.compared(CHECK, "grid", view.index, view.where)


def _of_axes(view: LayerView, expected: Expectation, looks: list[Look]) -> Finding | None:
    got = [_moved(look, view) for look in looks]
    want = [
        _expected_moved(expected, look, axis, len(looks), view) for axis, look in enumerate(looks)
    ]
    for axis, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine is None or mine == theirs:
            continue
        others = [i for i, pairs in enumerate(want) if pairs == mine and i != axis]
        cause = (
            f"ids of axis {axis} turn what axis {others[0]} is to turn: two axes are exchanged"
            if others
            else "axes take their pairs in another order: blocks where they are dealt out one by "
            "one, or the other way round"
        )
        return _finding(
            view,
            expected=f"ids of axis {axis} turn the pairs {_told(theirs)}",
            measured=f"they turn {_told(mine)}",
            cause=cause,
            remedy="give every axis the pairs of its section, in the order of the family",
        )
    return None


def _moved(look: Look, view: LayerView) -> set[tuple[int, int]] | None:
    """Pairs of queries that turn in a run."""
    sides = next((s for (path, _), s in look.sides.items() if path == view.where), None)
    return None if sides is None else _turning_pairs(sides[0])


def _turning_pairs(side: Side) -> set[tuple[int, int]]:
    reach = side.turning.farthest
    return {pair for pair, speed in side.pairs().items() if abs(speed) * reach > 1e-4}


def _expected_moved(
    expected: Expectation, look: Look, axis: int, axes: int, view: LayerView
) -> set[tuple[int, int]]:
    places = torch.zeros(len(look.positions), axes, dtype=torch.long)
    places[:, axis] = torch.tensor(look.positions)
    return _turning_pairs(sides_at(expected, places, look.positions, view.head_dim)[0])


# Pictures: every patch in its cell ----------------------------------------------------------------


def _patches(
    subject: Subject,
    observed: Observed,
    driver: Driver,
    wanted: list[tuple[LayerView, Expectation]],
) -> None:
    if driver.packed:
        _packed(subject, observed, driver, wanted)
        return
    told: set[str] = set()
    for narrow in (1, 2):
        try:
            with _cut(driver, narrow):
                runs = _runs(observed, driver)
                runs.discover()
                look = runs.near(NEAR_SLOTS[0])
        except Refused as error:
            subject.not_checked(CHECK, f"an image that is not square: {error}")
            continue
        for view, expected in wanted:
            sides = next((s for (path, _), s in look.sides.items() if path == view.where), None)
            if sides is None or view.where in told:
                continue
            found = _of_patches(view, expected, sides, narrow)
            if isinstance(found, str):
                subject.not_checked(CHECK, found, view.index, view.where)
                continue
            if found is not None:
                told.add(view.where)
                subject.found(found)
            subject.compared(CHECK, "grid", view.index, view.where)


@contextmanager
def _cut(driver: Driver, narrow: int) -> Generator[None]:
    """Images of which only one of `narrow` parts of the width is there."""
    kept = driver.extra
    pixels = kept[driver.argument]
    if narrow > 1:
        width = pixels.shape[-1] // narrow
        driver.extra = {**kept, driver.argument: pixels[..., :width].contiguous()}
    try:
        yield
    finally:
        driver.extra = kept


def _of_patches(
    view: LayerView, expected: Expectation, sides: tuple[Side, Side], narrow: int
) -> Finding | str | None:
    slots = len(sides[0].turning.positions)
    cells = [
        n for n in range(narrow, slots + 1, narrow) if 0 <= slots - n * n // narrow <= MOST_PREFIX
    ]
    if not cells:
        return f"{slots} tokens are no grid with a few tokens before it"
    high, across = cells[-1], cells[-1] // narrow
    prefix = slots - high * across
    try:
        right = _angles(expected, view, high, across, prefix, exchanged=False)
        other = _angles(expected, view, high, across, prefix, exchanged=True)
    except (ValueError, TypeError) as error:
        return str(error)
    return _compared(view, sides, right, other, f"a {high} x {across} grid")


def _packed(
    subject: Subject,
    observed: Observed,
    driver: Driver,
    wanted: list[tuple[LayerView, Expectation]],
) -> None:
    """Patches of all pictures in one row: the sizes are an argument, and blocks may be merged.

    Attention takes the row whole, or one picture or frame after the other.
    """
    if _larger_than_windows(driver):
        subject.not_checked(CHECK, "windows put the patches in an order of their own")
        return
    places = _packed_places(driver)
    if places is None:
        subject.not_checked(CHECK, "no argument (n, 3) gives the sizes of its pictures")
        return
    runs = _runs(observed, driver)
    runs.discover()
    look = runs.near(NEAR_SLOTS[0])
    for view, expected in {view.where: (view, expected) for view, expected in wanted}.values():
        rows = [sides for (path, _), sides in sorted(look.sides.items()) if path == view.where]
        lengths = [len(sides[0].turning.positions) for sides in rows]
        if sum(lengths) != len(places):
            why = "its patches are not those of the sizes that were given"
            subject.not_checked(CHECK, why, view.index, view.where)
            continue
        for sides, cells in zip(rows, places.split(lengths), strict=True):
            right, other = (_angles_at(expected, view, each) for each in (cells, cells.flip(-1)))
            found = _compared(view, sides, right, other, "the grids that were given")
            if found is not None:
                subject.found(found)
                break
        subject.compared(CHECK, "grid", view.index, view.where)


def _sizes(driver: Driver) -> list[list[int]]:
    """(frames, rows, columns) of every picture; empty if no argument gives them."""
    given = driver._base(1, 1)  # noqa: SLF001 (the same arguments as a run)
    found = [
        value.tolist()
        for name, value in given.items()
        if name.endswith("grid_thw") and isinstance(value, Tensor) and value.shape[1:] == (3,)
    ]
    return found[0] if len(found) == 1 else []


def _larger_than_windows(driver: Driver) -> bool:
    """Whether a picture has several windows, by which Qwen2.5-VL sorts its patches."""
    window: int | None = getattr(driver.config, "window_size", None)
    if not window:
        return False
    side = window // getattr(driver.config, "patch_size", 1)
    return any(max(rows, columns) > side for _, rows, columns in _sizes(driver))


def _packed_places(driver: Driver) -> Tensor | None:
    """(row, column) of every patch, by the argument of (frames, rows, columns) of every picture."""
    import whereness as wn

    merge = getattr(driver.config, "spatial_merge_size", 1)
    made = [
        wn.positions.grid(rows, columns, merge=merge).repeat(frames, 1)
        for frames, rows, columns in _sizes(driver)
    ]
    return torch.cat(made) if made else None


Angles = tuple[dict[tuple[int, int], Tensor], ...]
"""Of queries and of keys: by pair, the angle at every patch."""


def _compared(
    view: LayerView, sides: tuple[Side, Side], right: Angles, other: Angles, grid: str
) -> Finding | None:
    """The first head whose patches turn by other angles; `other` are those of exchanged axes."""
    for name, got, i in zip(NAMES, sides, (0, 1), strict=True):
        for head in range(got.turning.partner.shape[0]):
            mine = got.angles(head)
            off = _apart(mine, right[i])
            if off > ALIKE:
                swapped = _apart(mine, other[i]) <= ALIKE
                return _finding(
                    view,
                    expected=f"patches of {grid} turn by their row and column",
                    measured=f"head {head} of the {name}: angles differ by up to {off:.3g}",
                    cause="rows and columns are exchanged"
                    if swapped
                    else "patches are numbered, scaled or ordered in another way",
                    remedy="number patches (row, column) in the order in which they are flattened",
                )
    return None


def _angles(
    expected: Expectation, view: LayerView, high: int, across: int, prefix: int, *, exchanged: bool
) -> Angles:
    """Angles of every pair of queries and keys at every patch, by the expected encodings."""
    encoding = next(each for each in expected.encodings if each.num_axes > 1)
    places = _places(encoding, high, across, prefix)
    if exchanged:
        places = places.flip(-1)
    return _angles_at(expected, view, places)


def _angles_at(expected: Expectation, view: LayerView, places: Tensor) -> Angles:
    slots = tuple(range(len(places)))
    return tuple(side.angles() for side in sides_at(expected, places, slots, view.head_dim))


def _places(encoding: Any, high: int, across: int, prefix: int) -> Tensor:
    import whereness as wn

    if not hasattr(encoding, "coordinates"):
        return wn.positions.grid(high, across, prefix=prefix)
    found = encoding.coordinates(high, across)
    before = torch.full((prefix, found.shape[-1]), torch.nan, dtype=found.dtype)
    return torch.cat([before, found]) if found.shape[0] == high * across else found


def _apart(mine: dict[tuple[int, int], Tensor], right: dict[tuple[int, int], Tensor]) -> float:
    """The largest difference of angles, whole turns apart; pairs that one lacks do not turn."""
    worst = 0.0
    for pair in mine.keys() | right.keys():
        a, b = mine.get(pair), right.get(pair)
        off = (torch.zeros(1) if a is None else a) - (torch.zeros(1) if b is None else b)
        off = off - 2 * torch.pi * (off / (2 * torch.pi)).round()
        worst = max(worst, float(off.abs().max()))
    return worst


# Both ---------------------------------------------------------------------------------------------


def _runs(observed: Observed, driver: Driver) -> Runs:
    runs = Runs(driver.model, driver)
    runs.attention = list(dict.fromkeys(view.where for view in observed.layers))
    return runs


def _told(pairs: set[tuple[int, int]] | None) -> str:
    shown = sorted(pairs or ())
    few = ", ".join(f"{a}-{b}" for a, b in shown[:8])
    return (few or "none") + (", ..." if len(shown) > 8 else "")


def _finding(view: LayerView, **said: str) -> Finding:
    return Finding(
        check=CHECK,
        kind="K15",
        severity="error",
        layer=view.index,
        where=view.where,
        **said,
    )
