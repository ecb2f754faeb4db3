"""All rows, in the order in which they are run."""

from collections.abc import Sequence

from whereness.bench import attention, lab, memory, rotary, startup, tables
from whereness.bench.contest import Row

ROWS: tuple[Row, ...] = (
    *startup.ROWS,
    *rotary.ROWS,
    *tables.ROWS,
    *attention.ROWS,
    *memory.ROWS,
    *lab.ROWS,
)


def chosen(only: Sequence[str] | None) -> tuple[Row, ...]:
    """The rows that `only` names, whole or by their first parts; None: all.

    Raises:
        ValueError: a name that begins no row, or no name.
    """
    if only is None:
        return ROWS
    if not only:
        raise ValueError("--only needs a name. whereness bench --list prints them.")
    for name in only:
        if not any(_begins(row, name) for row in ROWS):
            groups = sorted({"/".join(row.name.split("/")[:2]) for row in ROWS})
            raise ValueError(
                f"--only must name rows or the first parts of them, got {name!r}. "
                f"There are {', '.join(groups)}."
            )
    return tuple(r for r in ROWS if any(_begins(r, name) for name in only))


def _begins(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name.rstrip('/')}/")
