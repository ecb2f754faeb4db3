"""CHK20: which layers know of position, and by what: rotation, bias, a table at the input.

Every layer is classified, and the class compared with what the config gives the layer.
"""

from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.expectation import BIASES, TABLES, Expectation, expectation_of
from whereness.auditor.reading.views import LayerView, Observed
from whereness.auditor.subject import Subject

CHECK = "CHK20"


def run(subject: Subject) -> None:
    """Compare the class of every layer with the config's."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    if observed.unseen:
        subject.not_checked(
            CHECK,
            f"{observed.unseen} softmaxes could not be read as attention (custom code, or chunks)",
        )
    for view in observed.layers:
        if view.crosses:
            continue
        if view.odd:
            subject.not_checked(CHECK, view.odd, view.index, view.where)
            continue
        expected = expectation_of(subject, view)
        if isinstance(expected, str):
            subject.not_checked(CHECK, expected, view.index, view.where)
            continue
        _layer(subject, view, expected)
    _missing(subject, observed)


def _layer(subject: Subject, view: LayerView, expected: Expectation) -> None:
    for kind, wanted, there, what in _doors(view, expected):
        if wanted != there and what == "a rotation" and wanted and _by_heads(view):
            subject.found(_along_heads(view))
        elif wanted != there and not any(view.broken):
            subject.found(_finding(view, expected, kind, wanted=wanted, what=what))
    subject.compared(CHECK, "classification", view.index, view.where)


def _doors(view: LayerView, expected: Expectation) -> list[tuple[str, bool, bool, str]]:
    """(kind, whether it is to be there, whether it is there, what) of each way to know."""
    if view.content_aware and expected.classified == "content-aware":
        return []
    table = expected.of(*TABLES)
    absolute = view.classified == "absolute" and not _only_uneven(view)
    of_table = "K24" if table is not None and table[0].kind == "Sinusoidal" else "K14"
    bias = expected.of(*BIASES)
    of_bias = "K17" if bias is not None and bias[0].kind == "ALiBi" else "K18"
    return [
        ("K23", expected.turns, view.turns and not absolute_inside(view), "a rotation"),
        (of_bias, bias is not None, view.biased, "a bias on its scores"),
        (of_table, table is not None, absolute, "a table of absolute positions before it"),
    ]


def absolute_inside(view: LayerView) -> bool:
    """Whether something that is no content is added to queries or keys."""
    return any(bool(side.turning.shifted.any()) for side in view.best or ())


def _only_uneven(view: LayerView) -> bool:
    """It is called absolute because its scores are uneven, not for a table."""
    return (view.turns or view.biased) and not view.tabled and not absolute_inside(view)


def _by_heads(view: LayerView) -> bool:
    """Whether heads were turned by their number: head 0 is as projected, the others are not."""
    for side in view.best or ():
        found = side.basis.found
        if found.shape[0] > 1 and bool(found[0].all()) and not bool(found[1:].all(1).any()):
            return True
    return False


def _along_heads(view: LayerView) -> Finding:
    return Finding(
        check=CHECK,
        kind="K13",
        severity="error",
        layer=view.index,
        where=view.where,
        expected="queries and keys turn by their position",
        measured="they do not; heads above the first are turned all the same, by their number",
        cause="the table runs along the axis of heads: two axes were exchanged",
        remedy="put the table's axis of positions on that of the tokens",
    )


def _finding(
    view: LayerView, expected: Expectation, kind: str, *, wanted: bool, what: str
) -> Finding:
    has = "has" if wanted else "does not have"
    return Finding(
        check=CHECK,
        kind=kind,
        severity="error",
        layer=view.index,
        where=view.where,
        expected=f"the layer {has} {what}: {expected}",
        measured=f"it has {'none' if wanted else 'one'}; the layer is {view.classified}",
        cause=(
            "the encoding never reaches this layer: a flag, a layer type or an argument is lost"
            if wanted
            else "the layer's number or type is read wrongly, so it gets what others have"
        ),
        remedy="apply to every layer what the config's layer list says of it",
    )


def _missing(subject: Subject, observed: Observed) -> None:
    """Layers that the config gives a position and in which no attention was seen."""
    for name, layers in subject.expected.items():
        seen = {view.index for view in observed.layers if view.part == name}
        if not layers.counted or not seen:
            continue
        for i, layer in enumerate(layers.each):
            plain = all(spec.kind in ("NoPE", *TABLES) for spec in layer)
            if i not in seen and not plain:
                subject.not_checked(CHECK, "no attention was seen in this layer", i, name)
