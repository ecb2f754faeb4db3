"""Tables of absolute positions at the input: sinusoids by formula, learned rows by number.

What is added to the embeddings is caught as it is added, so rows are read exactly. CHK1 for
sinusoids (their frequencies, order and exponent), CHK10's side of learned tables: which row a
position reads, and how many there are.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import observe, reaches
from whereness.auditor.reading.expectation import TABLES, Expectation, expectation_of
from whereness.auditor.reading.views import LayerView, Observed, Table
from whereness.auditor.subject import Subject

CHECK = "CHK1"
ALIKE = 2e-5
"""How far a sinusoid may be from the formula: float32 tables are within 1e-5 for 67 positions."""
MOST_OFFSET = 8
"""Rows before that of position 0 that are looked for."""


def run(subject: Subject) -> None:
    """Compare every table with what the config gives the first layer that it reaches."""
    observed = observe(subject)
    paths = {view.where for view in observed.layers}
    told: set[int] = set()
    for view in observed.layers:
        if view.crosses or view.odd:
            continue
        for table in observed.tables:
            if id(table) not in told and reaches(table.where, view.where, paths):
                told.add(id(table))
                _table(subject, observed, view, table)


def _table(subject: Subject, observed: Observed, view: LayerView, table: Table) -> None:
    expected = expectation_of(subject, view)
    if isinstance(expected, str):
        subject.not_checked(CHECK, expected, None, table.where)
        return
    found = expected.of(*TABLES)
    if found is None:
        return  # the check of layers tells of a table that nobody expects
    spec, encoding = found
    if spec.kind == "Sinusoidal":
        _sinusoid(subject, expected, table, encoding)
    elif spec.kind == "LearnedAbsolute":
        _learned(subject, table, spec, encoding)
    else:
        subject.not_checked(CHECK, f"{spec.kind} is not compared", None, table.where)


# Sinusoids ----------------------------------------------------------------------------------------


def _sinusoid(subject: Subject, expected: Expectation, table: Table, encoding: Any) -> None:
    rows = table.rows
    subject.compared(CHECK, "table", None, table.where)
    if rows.shape[1] != encoding.dim:
        subject.found(
            _finding(
                table,
                "K24",
                expected=f"a table of width {encoding.dim}",
                measured=f"one of {rows.shape[1]}",
                cause="the width is counted otherwise where it is odd, or is another layer's",
                remedy="make the table as wide as the embeddings",
            )
        )
        return
    if _offset(rows, encoding) is not None:
        return
    named = _variant(rows, encoding)
    subject.found(
        _finding(
            table,
            "K24",
            expected=f"rows of {expected}",
            measured=named or f"rows are off by {_off(rows, encoding):.2g}",
            cause=(
                "another convention of the same name: order of sines and cosines, or what the "
                "exponent is divided by"
                if named
                else "frequencies are not the geometric ones of the formula, or positions are not"
            ),
            remedy="name the convention (order, exponent, base) that the weights were trained with",
        )
    )


def _offset(rows: Tensor, encoding: Any) -> int | None:
    """The position of row 0 under which the table is the encoding's."""
    for offset in range(MOST_OFFSET):
        if _off(rows, encoding, offset) <= ALIKE:
            return offset
    return None


def _off(rows: Tensor, encoding: Any, offset: int = 0) -> float:
    want = encoding(torch.arange(offset, offset + rows.shape[0])).double()
    return float((rows - want).abs().max())


def _variant(rows: Tensor, encoding: Any) -> str | None:
    """The name of the convention that the rows follow, if it is one of the others."""
    import whereness as wn

    orders: tuple[Any, ...] = ("interleaved", "sin_cos", "cos_sin")
    exponents: tuple[Any, ...] = ("dim", "dim-2")
    bases = dict.fromkeys((encoding.base, 10_000.0, 1000.0))
    for order, exponent, base in itertools.product(orders, exponents, bases):
        other = wn.Sinusoidal(encoding.dim, base, order, exponent)
        offset = _offset(rows, other)
        if offset is not None:
            return f"order {order!r}, exponent {exponent!r}, base {base:g}, from position {offset}"
    return None


# Learned rows -------------------------------------------------------------------------------------


def _learned(subject: Subject, table: Table, spec: Any, encoding: Any) -> None:
    found = _source(subject, table)
    if found is None:
        subject.not_checked(CHECK, "its rows were not found among the weights", None, table.where)
        return
    subject.compared(CHECK, "table", None, table.where)
    wanted = (spec.get("first_row") or 0) + (spec.get("num_prefix") or 0)
    if isinstance(spec.get("num_positions"), tuple):
        wanted = 0  # the prefix is part of what is added
    wrong = next((i for i, p in enumerate(found.places) if p != found.places[0] + i), None)
    if wrong is not None:
        subject.found(
            _finding(
                table,
                "K14",
                expected="every position reads a row of its own, the next one after the last",
                measured=f"{found.name}: position {wrong} reads row {found.places[wrong]}, "
                f"position 0 row {found.places[0]}",
                cause="the table of ids is damaged, or ids are multiplied, clamped or all the same",
                remedy="number tokens 0, 1, 2, ...; do not load the ids from a file",
            )
        )
    elif found.places[0] != wanted:
        subject.found(
            _finding(
                table,
                "K14",
                expected=f"position 0 reads row {wanted}",
                measured=f"{found.name}: it reads row {found.places[0]}",
                cause="the rows before position 0 (padding's) are left out, or counted twice",
                remedy=f"add {wanted} to the positions before the table is read",
            )
        )
    name, number = found.name, found.rows
    rows = encoding.num_positions if isinstance(encoding.num_positions, int) else None
    usable = number - wanted
    if rows is not None and usable < rows:
        subject.found(
            _finding(
                table,
                "K14",
                expected=f"rows for {rows} positions",
                measured=f"{name} has {usable}",
                cause="the length in the config counts rows, or the table was cut",
                remedy="take the usable length (rows less those before position 0) as the limit",
            )
        )


@dataclass(frozen=True)
class _Source:
    """The weight that holds a table, its rows, and which of them each position reads."""

    name: str
    rows: int
    places: list[int]


def _source(subject: Subject, table: Table) -> _Source | None:
    assert subject.model is not None
    width = table.rows.shape[1]
    named = itertools.chain(subject.model.named_parameters(), subject.model.named_buffers())
    for name, weight in named:
        if weight.shape[-1:] != (width,) or weight.dim() not in (2, 3) or weight.is_meta:
            continue
        rows = weight.detach().double().reshape(-1, width)
        if not 2 <= rows.shape[0] <= 1_000_000:
            continue
        places = [_place(rows, row) for row in table.rows]
        known = [place for place in places if place is not None]
        if len(known) == len(places):
            return _Source(name, rows.shape[0], known)
    return None


def _place(rows: Tensor, row: Tensor) -> int | None:
    """Which of the rows this is."""
    off = (rows - row).abs().amax(1)
    near = int(off.argmin())
    return near if float(off[near]) <= 1e-6 * float(row.abs().max()) else None


def _finding(table: Table, kind: str, **said: Any) -> Finding:
    return Finding(check=CHECK, kind=kind, severity="error", where=table.where, **said)
