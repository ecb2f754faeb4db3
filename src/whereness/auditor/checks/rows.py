"""CHK10 from weights: learned tables. Shape against config, rows never trained, copies, sinusoids.

A table with fewer rows than the config counts positions ends in an error or in another token's row;
one with rows that no training reached fails just as silently.
"""

import math
import re
from typing import TYPE_CHECKING, Any

from whereness.auditor.files.owners import index_of, layers_for, owners
from whereness.auditor.findings import Finding, Severity
from whereness.auditor.subject import Subject
from whereness.interop.config.specs import Spec

if TYPE_CHECKING:
    from whereness.auditor.files.tables import Rows
    from whereness.auditor.files.weights import Held

CHECK = "CHK10"
POSITIONS = re.compile(
    r"(?:.*\.)?(?!\w*rel)(?:\w+_)?(?:position_embeddings?|positional_embeddings?|position_embd"
    r"|embed_positions|positions_embed|pos_embed(?:ding)?|pos_emb|wpe|pe)(?:\.weights?|\.emb)?",
    re.DOTALL,
)
BIASES = re.compile(
    r"(?:.*\.)?(?:relative_attention_bias\.weight|attn_rel_b\.weight|relative_position_bias_table)",
    re.DOTALL,
)
RETRAIN = "Train or resize the table (wn.LearnedAbsolute.resized), or advertise fewer positions."


def run(subject: Subject) -> None:
    """Judge every table of positions or of biases."""
    weights = subject.weights
    if weights is None:
        return
    for name, held in weights.tensors.items():
        if not subject.wants(index_of(name)):
            continue
        try:
            if POSITIONS.fullmatch(name):
                _positions(subject, held)
            elif BIASES.fullmatch(name):
                _biases(subject, held)
        except ValueError as error:
            subject.not_checked(CHECK, str(error), index_of(name), name)


def _say(
    subject: Subject,
    held: "Held",
    kind: str,
    severity: Severity,
    expected: str,
    measured: str,
    cause: str,
    remedy: str = RETRAIN,
    check: str = CHECK,
) -> None:
    subject.found(
        Finding(
            check=check,
            kind=kind,
            severity=severity,
            layer=index_of(held.name),
            where=held.name,
            expected=expected,
            measured=measured,
            cause=cause,
            remedy=remedy,
        )
    )


def _spec(subject: Subject, name: str, *kinds: str) -> Spec | None:
    """What the config gives a table of this name, None if nothing of these kinds."""
    for _, layers in owners(subject, name):
        for layer in layers_for(layers, name):
            for made in layer:
                if made.kind in kinds:
                    return made
    return None


# Tables of positions


def _positions(subject: Subject, held: "Held") -> None:
    from whereness.auditor.files import tables

    made = _spec(subject, held.name, "LearnedAbsolute", "Sinusoidal")
    if made is not None and made.kind == "Sinusoidal":
        _sinusoidal(subject, held, made)
        return
    before = 0
    if made is None:
        why = "the config gives no table of positions to compare its shape with"
        subject.not_checked(CHECK, why, index_of(held.name), held.name)
    else:
        before = (made.get("num_prefix") or 0) + (made.get("first_row") or 0)
        subject.compared(CHECK, "shape of the table", index_of(held.name), held.name)
        _shape(subject, held, made, before)
    assert subject.weights is not None
    found = tables.rows_of(tables.read(subject.weights, held.name))
    if made is None:
        before = _padding(subject, found)
    _trained(subject, held, found, before)
    if found.told:
        _note(subject, held)


def _padding(subject: Subject, found: "Rows") -> int:
    """Rows up to that of padding, where that is empty: an embedding with a padding_idx."""
    pad = None if subject.source is None else subject.source.keys.get("pad_token_id")
    return pad + 1 if type(pad) is int and (pad, pad) in found.zeros else 0


def _note(subject: Subject, held: "Held") -> None:
    """Put a trained table into the table of layers."""
    names = [name for name, _ in owners(subject, held.name)]
    for facts in subject.report.layers:
        if names == [facts.part] and facts.measured is None:
            facts.classified = "absolute"
            facts.measured = f"learned table of {held.num_rows} rows"


def _shape(subject: Subject, held: "Held", made: Spec, before: int) -> None:
    """Rows and width against the config."""
    if len(held.table) != 2:
        return  # `read` says so
    rows, width = held.table
    positions: Any = made.get("num_positions")
    grid = positions if isinstance(positions, tuple) else None
    count = math.prod(grid) if grid else positions
    wanted = f"{before + count} rows of {made.get('dim')}" + (
        f", {before} of them before position 0" if before else ""
    )
    got = f"{rows} rows of {width}"
    if width != made.get("dim"):
        cause = "the table is another model's"
        _say(subject, held, "K12", "error", wanted, got, cause)
    elif rows == before + count:
        return
    elif grid and math.isqrt(max(rows - before, 0)) ** 2 == rows - before > 0:
        side = math.isqrt(rows - before)
        cause = f"the table is of a grid of {side} x {side}, the config's is {grid[0]} x {grid[1]}"
        _say(subject, held, "K16", "error", wanted, got, cause, check="CHK16")
    elif before and rows == count:
        cause = f"the {before} rows before position 0 are missing, or the table was not resized"
        _say(subject, held, "K14", "error", wanted, got, cause)
    elif rows < before + count:
        cause = "the length was raised in the config and the table was not resized"
        _say(subject, held, "K12", "error", wanted, got, cause)
    else:
        cause = "the table was extended, or the config is that of a shorter model"
        _say(subject, held, "K12", "warning", wanted, got, cause)


def _trained(subject: Subject, held: "Held", found: "Rows", before: int) -> None:
    """Rows that training did not reach, copies, and what is no number."""
    index = index_of(held.name)
    if found.broken is not None:
        measured = f"NaN or infinity in row {found.broken}"
        cause = "training diverged, or the tensor was saved before it was filled"
        _say(subject, held, "K07", "error", "finite rows", measured, cause, check="CHK9")
        return
    subject.compared(CHECK, "zero and repeated rows", index, held.name)
    if found.told:
        subject.compared(CHECK, "rows as initialised", index, held.name)
    else:
        why = (
            f"neighbouring rows are not alike (nine of ten cosines below {found.alike:.2f}): "
            "which were trained cannot be told"
        )
        subject.not_checked(CHECK, why, index, held.name)
    _untrained(subject, held, found, before)
    if found.copies:
        (row, of), count = found.copies[0], len(found.copies)
        measured = f"row {row} repeats row {of}" + (f", {count} rows in all" if count > 1 else "")
        cause = "the table was extended by copies: positions so far apart cannot be told apart"
        _say(subject, held, "K12", "warning", "a row of its own for each position", measured, cause)
    for row, times in found.outliers[:4]:
        measured = f"row {row} is {times:.0f} times as large as the median row"
        cause = "a damaged row, or a position that the model uses as an anchor"
        _say(subject, held, "K12", "note", "rows of like size", measured, cause)


def _untrained(subject: Subject, held: "Held", found: "Rows", before: int) -> None:
    each = [(a, b, "zeros") for a, b in found.zeros] + [
        (a, b, "as initialised") for a, b in found.drawn
    ]
    rows = held.num_rows
    for a, b, what in sorted(each):
        span = f"row {a}" if a == b else f"rows {a}-{b}"
        if b < before:
            continue  # no position's
        if a <= before and b < rows - 1 and b >= before:
            expected = f"position 0 in row {before}"
            measured = f"{span} {what}: the first trained row is {b + 1}"
            cause = "positions began at another row in training"
            remedy = "Number positions as in training: first_row, or padding_idx + 1."
            _say(subject, held, "K14", "warning", expected, measured, cause, remedy)
            continue
        expected = "every row trained"
        cause = "no training sequence was so long, or the table was extended without training"
        _say(subject, held, "K12", "warning", expected, f"{span} {what}", cause)


def _sinusoidal(subject: Subject, held: "Held", made: Spec) -> None:
    """A table that the config computes, against its formula."""
    from whereness.auditor.files import sinusoids

    assert subject.weights is not None
    wrong = sinusoids.sinusoid(subject.weights, held.name, dict(made.options))
    subject.compared("CHK1", "sinusoidal table", index_of(held.name), held.name)
    if wrong is not None:
        remedy = "Compute the table from its formula instead of loading it."
        _say(
            subject,
            held,
            wrong.kind,
            wrong.severity,
            wrong.expected,
            wrong.measured,
            wrong.cause,
            remedy,
            wrong.check,
        )


# Tables of biases


def _biases(subject: Subject, held: "Held") -> None:
    assert subject.weights is not None
    made = _spec(subject, held.name, "T5")
    index = index_of(held.name)
    if held.name.endswith("relative_position_bias_table"):
        _window_table(subject, held)
    elif made is None:
        why = "the config gives no bias table to compare its shape with"
        subject.not_checked("CHK15", why, index, held.name)
    else:
        wanted = (made.get("num_buckets"), made.get("num_heads"))
        subject.compared("CHK15", "buckets and heads", index, held.name)
        if held.shape != wanted:
            expected = f"{wanted[0]} buckets of {wanted[1]} heads"
            cause = (
                "the buckets or heads of the config are another model's, or the table lies across"
            )
            remedy = "Take the config that the weights were trained with."
            measured = f"a table of shape {held.shape}"
            _say(subject, held, "K18", "error", expected, measured, cause, remedy, "CHK15")
    for part in subject.weights.blocks(held.name):
        if not bool(part.isfinite().all()):
            cause = "training diverged, or the tensor was saved before it was filled"
            _say(
                subject,
                held,
                "K07",
                "error",
                "finite biases",
                "NaN or infinity",
                cause,
                check="CHK9",
            )
            return


def _window_table(subject: Subject, held: "Held") -> None:
    """Rows of Swin's table against the index beside it."""
    weights = subject.weights
    assert weights is not None
    beside = held.name.removesuffix("table").removesuffix("bias_") + "index"
    if beside not in weights:
        why = "no index beside the table says how many rows a window needs"
        subject.not_checked("CHK15", why, index_of(held.name), held.name)
        return
    needed = 0
    for part in weights.blocks(beside):
        needed = max(needed, int(part.max()) + 1)
    subject.compared("CHK15", "rows of the table", index_of(held.name), held.name)
    if held.num_rows != needed:
        expected = f"{needed} rows, as its index has entries"
        cause = "table and index are of different windows: one was not resized"
        remedy = "Resize the table and make the index anew for the same window."
        measured = f"{held.num_rows} rows"
        _say(subject, held, "K18", "error", expected, measured, cause, remedy, "CHK15")
