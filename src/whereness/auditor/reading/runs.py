"""The runs that see a model's attention: what is fed, and what is kept of each event.

    near   natural numbering, the same content in every slot: rotation, and whether scores are even
    silent the same under queries of zeros: what is added to the scores
    far    positions 0, 1, 2^k and 2^k + 1: the frequency of every pair, and rounding

Axes: B rows, H heads, S slots, T keys, D channels.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.reading.basis import basis_of
from whereness.auditor.reading.crosscheck import counting
from whereness.auditor.reading.events import (
    by_slots,
    first_slot,
    has_pads,
    heads_of,
    scale_of,
    table_of,
)
from whereness.auditor.reading.injecting import Injection, told_inputs
from whereness.auditor.reading.readout import turning
from whereness.auditor.reading.scores import bias_of, unevenness, unevenness_on_grid
from whereness.auditor.reading.stack import Stack
from whereness.auditor.reading.views import LayerView, Side, Table
from whereness.auditor.reading.watch import Event, Sum, Watch

AXIS_FARTHEST = 10
"""The run along one axis goes up to 2^10 + 1: grids are not larger."""
FARTHEST = 17
"""The far run goes up to 2^17 + 1."""
NEAR_SLOTS = (37, 39, 19, 21, 11, 7)
LONG_SLOTS = (67, 71, *NEAR_SLOTS)
"""Slots of the near run, the long ones where no far run says more: as many as the model takes, and
no size of its weights, so that axes are told by their size."""
SILENT_SLOTS = LONG_SLOTS
BIASED_SLOTS = (307, 311, 149, 151, *LONG_SLOTS)
"""Slots of the silent run, the most where something is added: bfloat16 holds whole numbers up to
256, and T5's buckets end at 128."""


@dataclass
class Look:
    """What one run saw: events by (path of the module, how often it was there before)."""

    positions: tuple[int, ...] = ()
    sides: dict[tuple[str, int], tuple[Side, Side]] = field(default_factory=dict)
    events: dict[tuple[str, int], Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    odd: dict[tuple[str, int], str] = field(default_factory=dict)
    scales: dict[tuple[str, int], float | None] = field(default_factory=dict)
    broken: set[tuple[str, int]] = field(default_factory=set)
    """Whose queries or keys are no numbers."""


@dataclass(frozen=True)
class _Shape:
    heads: int
    kv_heads: int
    width: int
    others: int
    crosses: bool
    causal: bool


@dataclass(frozen=True)
class _Seen:
    event: Event
    made: list[Tensor]


class Runs:
    """The runs of one model."""

    def __init__(self, model: nn.Module, driver: Driver) -> None:
        self.model, self.driver = model, driver
        self.first = driver.first or 0  # the driver runs the model for it: not while it is watched
        self.modules = dict(model.named_modules())
        self.attention: list[str] = []
        self.counts: set[int] = set()
        """Numbers of tokens that were attended to, where the model makes them itself."""
        self.unseen = 0
        self.single = False
        """All rows are put into one sequence, so that contents must be fed one by one."""
        self.why: list[str] = []
        self.shapes: dict[tuple[str, int], _Shape] = {}
        sizes = {n for p in model.parameters() for n in p.shape}
        self.sizes = sizes
        self.rows = next(n for n in (13, 17, 19, 23, 29, 31, 41) if n not in sizes or n == 41)

    # Runs ----------------------------------------------------------------------------------------

    def discover(self) -> None:
        """Find the attention modules."""
        self._discover(3)
        if self.driver.takes == "pixels" and self.single:
            self.attention, self.counts = [], set()
            self._discover(1)

    def _discover(self, rows: int) -> None:
        found: dict[str, None] = {}

        def on_event(event: Event) -> None:
            found.setdefault(event.module)
            if self.driver.takes == "pixels":
                self.counts |= {event.product.q.shape[-2], event.product.k.shape[-2]}
                self.single = self.single or heads_of(event.product.q, rows) is None

        watch = Watch(Stack(self.model), on_event)
        slots = min(7, self.driver.max_tokens or 7)
        tokens = self.driver.sample(rows, slots)
        with told_inputs(self.model), counting() as count, watch.watching():
            self.driver(tokens)
        self.attention = list(found)
        self.unseen = max(0, count.softmaxes - watch.seen)

    def near(self, slots: int) -> Look:
        """The run at natural numbering."""
        look = Look(tuple(range(slots)))
        flat = self.driver.takes != "pixels"
        measure = unevenness if flat else unevenness_on_grid
        rows = 1 if self.single else self.rows
        seen: dict[tuple[str, int], list[_Seen]] = {}

        def on_event(event: Event, key: tuple[str, int], made: list[Tensor]) -> None:
            logits = heads_of(event.logits, rows)
            look.events[key] = None if logits is None else measure(logits[:1])
            look.scales[key] = scale_of(event)
            if self.single:
                seen.setdefault(key, []).append(_Seen(event, list(made)))
            else:
                self._sides(look, event, key, made)

        def on_sum(added: Sum) -> None:
            table = table_of(added, slots, self.attention)
            if table is not None and not self.single:
                look.tables.append(table)

        for seed in range(self.rows if self.single else 1):
            self._run(slots, rows, on_event, on_sum=on_sum, keep=True, seed=seed)
        for key, each in seen.items():
            self._sides_of_singles(look, key, each)
        return look

    def silent(self, slots: int, ids: tuple[int, ...] | None = None) -> Look:
        """The run under queries of zeros, at natural numbering or at these ids."""
        look = Look(tuple(range(slots)) if ids is None else ids)
        rows = 1 if self.single else 3

        def on_event(event: Event, key: tuple[str, int], made: list[Tensor]) -> None:
            logits = heads_of(event.logits, rows)
            if logits is not None:
                look.events[key] = bias_of(logits)

        at = None if ids is None else torch.tensor(ids)
        self._run(slots, rows, on_event, ids=at, silence=True)
        return look

    def far(self) -> Look | None:
        """The run at far ids; None where the model takes none, or none that far."""
        if self.driver.positions is None or self.driver.takes == "pixels":
            return None
        if self.driver.first is None:
            self.why.append("explicit positions are not numbered as the model itself numbers")
        reason = ""
        for power in (FARTHEST, *self._table_powers()):
            look = Look(far_positions(power))
            try:
                self._run(
                    len(look.positions),
                    self.rows,
                    lambda event, key, made, look=look: self._sides(look, event, key, made),
                    ids=torch.tensor(look.positions),
                    keep=True,
                )
            except Refused as error:
                reason = str(error)
                continue
            return look
        self.why.append(f"far positions are refused: {reason}")
        return None

    def silent_far(self) -> Look | None:
        """The silent run at ids so far apart that bfloat16 could not hold them."""
        if self.driver.positions is None or self.driver.takes == "pixels":
            return None
        ids = far_positions(AXIS_FARTHEST)
        try:
            return self.silent(len(ids), ids)
        except Refused:
            return None

    def along(self, axis: int, axes: int) -> Look:
        """The run at positions of several axes, of which one counts and the others stay at 0.

        Raises:
            Refused: the model takes no positions of so many axes.
        """
        look = Look(far_positions(AXIS_FARTHEST))
        ids = torch.zeros(axes, len(look.positions), dtype=torch.long)
        ids[axis] = torch.tensor(look.positions)

        def on_event(event: Event, key: tuple[str, int], made: list[Tensor]) -> None:
            self._sides(look, event, key, made)

        self._run(len(look.positions), self.rows, on_event, ids=ids, keep=True)
        return look

    def _table_powers(self) -> list[int]:
        most = self.driver.max_tokens or 0
        fits = [k for k in range(3, FARTHEST) if 2**k + 1 < most]
        return fits[::-1][:2]

    def first_that_works(
        self, choices: tuple[int, ...], run: Callable[[int], Look], *, needed: bool = True
    ) -> Look | None:
        """The run with the most slots that the model takes."""
        most, reason = self.driver.max_tokens, ""
        for slots in choices:
            if slots in self.sizes or (most is not None and slots > most):
                continue
            try:
                return run(slots)
            except Refused as error:
                reason = str(error)
        if needed:
            self.why.append(reason or "the model takes too few tokens")
        return None

    def _run(
        self,
        slots: int,
        rows: int,
        on_event: Callable[[Event, tuple[str, int], list[Tensor]], None],
        *,
        ids: Tensor | None = None,
        on_sum: Callable[[Sum], None] | None = None,
        silence: bool = False,
        keep: bool = False,
        seed: int = 0,
    ) -> None:
        times: dict[str, int] = {}
        ours: list[Exception] = []
        stack = Stack(self.model)
        if keep:
            stack.reduce = lambda out: first_slot(out, rows, self._slots(slots))
            stack.wanted = frozenset(self.attention)

        def tell(event: Event) -> None:
            key = (event.module, times.get(event.module, 0))
            times[event.module] = key[1] + 1
            frame = stack.owner_frame()
            try:
                on_event(event, key, [] if frame is None else frame.made)
            except Exception as error:  # noqa: BLE001 (the driver would take it for the model's)
                ours.append(error)

        watch = Watch(stack, tell, on_sum, silence)
        injection = Injection(rows, frozenset(self._slots(slots)), seed)
        modules = [self.modules[path] for path in self.attention if path]
        with contextlib.ExitStack() as around:
            around.enter_context(self._memory(slots))
            around.enter_context(told_inputs(self.model))
            around.enter_context(watch.watching())
            around.enter_context(injection.into(modules))
            tokens = self._same_everywhere(rows, slots)
            self._feed(tokens, ids)
        if ours:
            raise ours[0]

    def _slots(self, slots: int) -> set[int]:
        return self.counts or {slots, self.driver.memory_length}

    def _feed(self, tokens: Tensor, ids: Tensor | None) -> None:
        """Give tokens at ids (S,), or (n, S) of n axes; None: as the model itself numbers them."""
        if ids is None:
            self.driver(tokens)
            return
        rows, slots = tokens.shape[:2]
        at = ids.to(tokens.device) + self.first
        at = at.unsqueeze(-2).expand(*at.shape[:-1], rows, slots).clone()
        ones = torch.ones(rows, slots, dtype=torch.long, device=tokens.device)
        self.driver(tokens, positions=at, mask=self.driver.ones(ones))

    @contextlib.contextmanager
    def _memory(self, slots: int) -> Generator[None]:
        """What an encoder reads is as long, so that its layers are read as well."""
        before = self.driver.memory_length
        self.driver.memory_length = slots
        try:
            yield
        finally:
            self.driver.memory_length = before

    def _same_everywhere(self, rows: int, slots: int) -> Tensor:
        """A content a row, the same in every slot."""
        made = self.driver.sample(rows, slots)
        if made.is_floating_point():
            made = made.to(self.driver.dtype)
        if self.driver.takes == "pixels":
            return made
        return made[:, :1].expand(made.shape).clone()

    def _sides(self, look: Look, event: Event, key: tuple[str, int], made: list[Tensor]) -> None:
        q, k = heads_of(event.product.q, self.rows), heads_of(event.product.k, self.rows)
        self._read(look, key, event, q, k, made)

    def _sides_of_singles(self, look: Look, key: tuple[str, int], seen: "list[_Seen]") -> None:
        """The same of contents that came one by one."""
        q, k = (
            torch.cat([heads for heads in each if heads is not None]) if None not in each else None
            for each in (
                [heads_of(one.event.product.q, 1) for one in seen],
                [heads_of(one.event.product.k, 1) for one in seen],
            )
        )
        made = [torch.cat(parts) for parts in zip(*(one.made for one in seen), strict=False)]
        self._read(look, key, seen[0].event, q, k, made)

    def _read(
        self,
        look: Look,
        key: tuple[str, int],
        event: Event,
        q: Tensor | None,
        k: Tensor | None,
        made: list[Tensor],
    ) -> None:
        """Read queries and keys (B, H, S, D), if that is what they are."""
        if q is None or k is None:
            look.odd[key] = "the axes of its queries and keys could not be told"
            return
        self.shapes[key] = _Shape(
            q.shape[1], k.shape[1], q.shape[3], event.others, event.crosses, event.causal
        )
        if min(q.shape[2], k.shape[2]) < 3:
            look.odd[key] = "it attends to fewer than 3 slots"
            return
        if not bool(q.isfinite().all() and k.isfinite().all()):
            look.broken.add(key)
            return
        if any(has_pads(x) for x in (q, k)):
            look.odd[key] = "it attends in blocks that are filled up with zeros"
            return
        both = []
        for x in (q, k):
            positions = look.positions
            if len(positions) != x.shape[2]:
                positions = tuple(range(x.shape[2]))
            both.append(Side(turning(x, positions), basis_of(x[:, :, 0], made)))
        look.sides[key] = (both[0], both[1])

    # What came of them ---------------------------------------------------------------------------

    def views(
        self, near: Look | None, silent: Look | None, far: Look | None, silent_far: Look | None
    ) -> tuple[LayerView, ...]:
        """A view of every attention layer, in the order in which they run."""
        empty = Look()
        near, silent, far = near or empty, silent or empty, far or empty
        keys = list({**self.shapes, **near.events, **silent.events})
        made = []
        for key in keys:
            shape = self.shapes.get(key)
            bias = silent.events.get(key)
            view = LayerView(
                where=key[0],
                near=near.sides.get(key),
                far=far.sides.get(key),
                bias=bias,
                far_bias=None if silent_far is None else silent_far.events.get(key),
                far_bias_ids=() if silent_far is None else silent_far.positions,
                uneven=near.events.get(key),
                scale=near.scales.get(key),
                odd=near.odd.get(key, ""),
                broken=(key in near.broken, key in far.broken),
            )
            if shape is not None:
                view.heads, view.kv_heads, view.head_dim = shape.heads, shape.kv_heads, shape.width
                view.crosses, view.causal = shape.crosses, shape.causal
                view.content_aware = shape.others > 0
            if bias is not None and bias.spread > 1e-6:
                view.content_aware = True
            if view.far is not None and any(map(by_slots, view.far)):
                view.ids_ignored, view.far = True, None
            made.append(view)
        return tuple(made)


def far_positions(power: int) -> tuple[int, ...]:
    """0, 1, 2, 3, 4, 5, 8, 9, ... 2^power + 1, and 7, so that their number is 37 for 2^17."""
    found = {0, 1, 7, *(2**k + more for k in range(1, power + 1) for more in (0, 1))}
    return tuple(sorted(found))
