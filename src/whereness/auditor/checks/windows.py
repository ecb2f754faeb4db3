"""CHK16 by layer: how many keys the last token sees, against the window that the config gives.

The masks are those that were added to the scores; whole outputs cannot tell one layer from another.
"""

from collections.abc import Mapping

from whereness.auditor.reading.capture import seen
from whereness.auditor.reading.comparing import finding_of
from whereness.auditor.reading.views import LayerView, Observed
from whereness.auditor.subject import Subject
from whereness.interop.config.sight import Sight

CHECK = "CHK16"
KEYS = ("sliding_window", "window_size")
UNUSED = ("use_sliding_window", "layer_types", "max_window_layers", "sliding_window_pattern")
"""Keys that say that not every layer has the window, or none."""


def run(subject: Subject) -> None:
    """Compare what every layer sees with its window."""
    observed = seen(subject, CHECK)
    if observed is None:
        return
    for view in observed.layers:
        sight = _sight(subject, view)
        if sight is not None:
            _layer(subject, view, sight)
    _by_key(subject, observed)


def _sight(subject: Subject, view: LayerView) -> Sight | None:
    layers = subject.expected.get(view.part or "")
    if view.crosses or layers is None or view.index is None or view.index >= len(layers.sights):
        return None
    return layers.sights[view.index]


def seen_by_last(view: LayerView) -> tuple[int, int] | None:
    """(keys that the last token sees, keys there are), of head 0."""
    if view.bias is None or view.crosses or view.odd:
        return None
    row = view.bias.values[0, -1]
    return int((~row.isnan()).sum()), len(row)


def _both_ways(view: LayerView) -> bool:
    """Whether the first token sees others."""
    assert view.bias is not None
    return int((~view.bias.values[0, 0].isnan()).sum()) > 1


def _layer(subject: Subject, view: LayerView, sight: Sight) -> None:
    found = seen_by_last(view)
    if found is None:
        return
    got, keys = found
    if _both_ways(view):
        why = "families that see ahead read a window in ways of their own"
        subject.not_checked(CHECK, why, view.index, view.where)
        return
    if sight.kind == "window":
        want = min(keys, sight.tokens)
    else:
        want = keys - (keys - 1) // sight.tokens * sight.tokens
    subject.compared(CHECK, "window", view.index, view.where)
    if got != want:
        subject.found(
            finding_of(
                CHECK,
                view,
                "K19",
                expected=f"the last of {keys} tokens sees {sight}: {want} keys",
                measured=f"it sees {got}",
                cause="the window is counted with or without the token itself, or is not applied",
                remedy="let a query see keys at 0 <= distance < window",
            )
        )


def _by_key(subject: Subject, observed: Observed) -> None:
    """A window in the config of which no layer type speaks: it is then every layer's."""
    for name, layers in subject.expected.items():
        keys = layers.part.reading.given
        window = _window(keys)
        views = [v for v in observed.layers if v.part == name and seen_by_last(v) is not None]
        if window is None or any(sight is not None for sight in layers.sights) or not views:
            continue
        seen = [(view, seen_by_last(view) or (0, 0)) for view in views]
        narrow = [(view, got, there) for view, (got, there) in seen if got < there]
        most = seen[0][1][1]
        for view, got, there in narrow:
            if abs(got - window) == 1 and got < there:
                subject.found(
                    finding_of(
                        CHECK,
                        view,
                        "K19",
                        expected=f"the last of {there} tokens sees {window} keys",
                        measured=f"it sees {got}",
                        cause="the window is one too wide or too narrow: the token itself is "
                        "counted otherwise",
                        remedy="let a query see keys at 0 <= distance < window",
                    )
                )
        if not narrow and most > window:
            subject.found(
                finding_of(
                    CHECK,
                    views[0],
                    "K19",
                    "warning",
                    expected=f"some layers see a window of {window} tokens",
                    measured=f"in every layer the last token sees all {most}",
                    cause="the window of the config is never applied",
                    remedy="mask keys beyond the window in the layers that the config names",
                )
            )


def _window(keys: Mapping[str, object]) -> int | None:
    """The window that the config names, unless other keys say who has it."""
    if any(keys.get(key) is not None for key in UNUSED):
        return None
    given = [keys.get(key) for key in KEYS]
    found = [n for n in given if isinstance(n, int) and not isinstance(n, bool) and n > 1]
    return found[0] if found else None
