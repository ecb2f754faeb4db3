"""CHK9 from weights: what stands in a file and follows from the config, held against its formula.

Frequencies, tables of cos and sin, position ids, indices of bias tables, slopes and sinusoids. One
that agrees is told in a note: verified, and not required; one that does not is a fault, and one
whose formula is not known is not checked.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from whereness.auditor.files.owners import index_of, layers_for, owners
from whereness.auditor.findings import Finding
from whereness.auditor.subject import Subject
from whereness.interop.config.specs import build

if TYPE_CHECKING:
    from whereness.auditor.files.derived import Turns, Wrong
    from whereness.auditor.files.weights import Weights

CHECK = "CHK9"
NAMES = {
    "cos and sin": r"cos_sin_cache|freqs_cis",
    "frequencies": r"(\w+_)?inv_freq|(rotary\w*|rope|pos_emb\w*)\.freqs?",
    "cos": r"(\w+_)?cos(_cached|_cache)?|(rotary\w*|rope)\.cos\w*",
    "sin": r"(\w+_)?sin(_cached|_cache)?|(rotary\w*|rope)\.sin\w*",
    "position ids": r"(\w+_)?position_ids",
    "window index": r"relative_position_index",
    "slopes": r"(alibi_)?slopes|(alibi\w*)\.slopes",
}
"""Ends of the names of derived tensors."""
PATTERNS = {what: re.compile(rf"(?:^|.*\.)(?:{name})", re.DOTALL) for what, name in NAMES.items()}
LARGEST = 2**28
"""Bytes of what is read whole: ids, indices, slopes. Tables are read row by row."""
ONE_FORM = ("RoPE", "MultimodalRoPE")
"""Encodings whose frequencies have one form: one a pair."""
KEEP = "Leave it out of the file or fill it from the config; do not switch strict loading off."
REMEDY = (
    "Compute it from the config when the model is built, in float32 or better, and register the "
    "buffer with persistent=False, so that no file holds it."
)


def run(subject: Subject) -> None:
    """Judge every derived tensor of the weights."""
    weights = subject.weights
    if weights is None:
        return
    verified: dict[str, list[str]] = {}
    for name in weights.tensors:
        what = derived_as(name)
        if what is None or not subject.wants(index_of(name)):
            continue
        try:
            wrong = JUDGES[what](subject, weights, name)
        except ValueError as error:
            subject.not_checked(CHECK, str(error), index_of(name), name)
            continue
        subject.compared(CHECK, what, index_of(name), name)
        if wrong is None:
            verified.setdefault(what, []).append(name)
        else:
            subject.found(_finding(wrong, name, weights.format))
        _length(subject, weights, name, what)
    if weights.format == "live":
        return  # a buffer of a live model is where it belongs
    for what, names in verified.items():
        subject.found(_note(what, names))


def derived_as(name: str) -> str | None:
    """What a tensor of this name is derived as, None if it is none."""
    return next((what for what, one in PATTERNS.items() if one.fullmatch(name)), None)


def _finding(wrong: "Wrong", name: str, form: str) -> Finding:
    # What turns a live model is its spectrum; what a file keeps of one outlived its config.
    stale = form != "live" and wrong.kind == "K02"
    return Finding(
        check=CHECK if stale else wrong.check,
        kind="K07" if stale else wrong.kind,
        severity=wrong.severity,
        layer=index_of(name),
        where=name,
        expected=wrong.expected,
        measured=wrong.measured,
        cause=wrong.cause,
        remedy=REMEDY,
    )


def _note(what: str, names: list[str]) -> Finding:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Finding(
        check=CHECK,
        kind="K07",
        severity="note",
        where=f"{names[0]}{more}",
        expected=f"{what} that the config determines",
        measured="the same: verified, not required in the file",
        cause="the buffer is persistent in the code that saved the file",
        remedy=KEEP,
    )


def _length(subject: Subject, weights: "Weights", name: str, what: str) -> None:
    """Whether a table has a row for every position that the config advertises."""
    if what not in ("cos", "sin", "cos and sin", "position ids"):
        return
    rows = weights.tensors[name].num_rows
    found = owners(subject, name)
    if len(found) != 1 or found[0][1].length is None:
        subject.not_checked("CHK10", "the config advertises no length", index_of(name), name)
        return
    length = found[0][1].length
    subject.compared("CHK10", "rows against the advertised length", index_of(name), name)
    if rows < length:
        subject.found(
            Finding(
                check="CHK10",
                kind="K12",
                severity="error",
                layer=index_of(name),
                where=name,
                expected=f"a row for each of the {length} positions that the config advertises",
                measured=f"{rows} rows",
                cause="the length was raised in the config and the table was not made anew",
                remedy="Make the table for the advertised length, or advertise what it holds.",
            )
        )


def turns_of(subject: Subject, name: str) -> "list[Turns]":
    """The rotations that the layer of a tensor may have.

    Raises:
        ValueError: the config gives none, or of a kind whose code keeps frequencies in a form of
            its own.
    """
    found: list[Turns] = []
    for _, layers in owners(subject, name):
        for layer in layers_for(layers, name):
            for made in layer:
                if made.kind in ONE_FORM:
                    found += _turns(build(made), layers.length)
                elif made.get("pairing") is not None:
                    raise ValueError(f"code keeps the frequencies of {made.kind} in several forms")
    if not found:
        raise ValueError("the config gives no rotation to compare it with")
    return found


def _turns(rope: Any, length: int | None) -> "list[Turns]":
    from whereness.auditor.files.derived import Turns

    found = [Turns(rope.frequencies, float(rope.amplitude))]
    if length and getattr(rope, "needs_lengths", False):
        found.append(Turns(rope.frequencies_at(length), rope.amplitude_at(length)))
    return found


def _whole(weights: "Weights", name: str) -> Any:
    if weights.tensors[name].size > LARGEST:
        raise ValueError(f"it has {weights.tensors[name].size} bytes, more than any model's")
    return weights.tensor(name)


def _frequencies(subject: Subject, weights: "Weights", name: str) -> "Wrong | None":
    from whereness.auditor.files import derived

    return derived.frequencies(_whole(weights, name), turns_of(subject, name))


def _table(*parts: str) -> "Callable[[Subject, Weights, str], Wrong | None]":
    def judge(subject: Subject, weights: "Weights", name: str) -> "Wrong | None":
        from whereness.auditor.files import derived

        return derived.table(weights, name, turns_of(subject, name), parts)

    return judge


def _position_ids(subject: Subject, weights: "Weights", name: str) -> "Wrong | None":
    from whereness.auditor.files import indices

    return indices.position_ids(_whole(weights, name), _rows_before(weights, name))


def _rows_before(weights: "Weights", name: str) -> int:
    """Rows of the table beside the ids that are of no position: ids may begin behind them."""
    beside = name.removesuffix("ids") + "embeddings.weight"
    if beside not in weights:
        return 0
    return max(weights.tensors[beside].num_rows - weights.tensors[name].count, 0)


def _window_index(subject: Subject, weights: "Weights", name: str) -> "Wrong | None":
    from whereness.auditor.files import indices

    return indices.window_index(_whole(weights, name))


def _slopes(subject: Subject, weights: "Weights", name: str) -> "Wrong | None":
    from whereness.auditor.files import indices

    for _, layers in owners(subject, name):
        for layer in layers_for(layers, name):
            for made in layer:
                if made.kind == "ALiBi":
                    return indices.slopes(_whole(weights, name), build(made).slopes)
    raise ValueError("the config gives no ALiBi to compare it with")


JUDGES: "dict[str, Callable[[Subject, Weights, str], Wrong | None]]" = {
    "frequencies": _frequencies,
    "cos": _table("cos"),
    "sin": _table("sin"),
    "cos and sin": _table("cos", "sin"),
    "position ids": _position_ids,
    "window index": _window_index,
    "slopes": _slopes,
}
