"""What an audit tells of each layer: as measured, and as the config has it."""

from whereness.auditor.findings import LayerFacts
from whereness.auditor.reading.comparing import Compare, compare
from whereness.auditor.reading.curves import curves_of, told
from whereness.auditor.reading.expectation import ROTARY, expectation_of
from whereness.auditor.reading.views import LayerView, Observed, Side
from whereness.auditor.subject import Subject


def fill(subject: Subject, observed: Observed) -> None:
    """Add the facts of every layer to the report."""
    for view in observed.layers:
        if subject.wants(view.index):
            subject.report.layers.append(_facts(subject, view))


def _facts(subject: Subject, view: LayerView) -> LayerFacts:
    expected = expectation_of(subject, view)
    said = LayerFacts(
        where=view.where,
        index=view.index,
        part=view.part or "",
        classified=view.classified,
        expected=None if isinstance(expected, str) else str(expected),
        pairing=view.pairing,
        rotary_dim=view.rotary_dim or None,
        bias=_bias(view),
    )
    if view.best is not None and view.rotary_dim:
        said.speeds = view.speeds
        said.amplitudes = _amplitudes(view.best[1])
    if (curves := curves_of(view, expected)) is not None:
        said.bias = told(curves)
        said.bias_offsets, said.bias_curves = curves.offsets, curves.measured
        said.expected_bias_curves = curves.expected
    each = compare(subject, view)
    if isinstance(each, Compare) and each.expected.of(*ROTARY):
        pairs = each.want[0].pairs()
        said.expected_speeds = tuple(speed for _, speed in sorted(pairs.items()))
        ratio = _amplitudes(each.want[1])
        said.expected_amplitude = None if ratio is None or not ratio else ratio[0]
    return said


def _amplitudes(side: Side) -> tuple[float, ...] | None:
    """Amplitude of cos and sin of every pair of head 0, in the order of the channels."""
    pairs = sorted(
        (min(side.basis.order[0][u], side.basis.order[0][v]).item(), u)
        for u, v in side.turning.pairs()
    )
    if not pairs or not bool(side.basis.found[0].all()):
        return None
    return tuple(float(side.basis.ratio[0][u]) for _, u in pairs)


def _bias(view: LayerView) -> str | None:
    """A few words on what is added to the scores."""
    if not view.biased or view.bias is None:
        return None
    values = view.bias.values
    last = values[:, -1]
    near, far = last[:, -1].nan_to_num(0.0), last[:, 0].nan_to_num(0.0)
    heads, slots = values.shape[0], values.shape[-1]
    return (
        f"{heads} heads; at distance 0 {float(near.min()):.4g} to {float(near.max()):.4g}, at "
        f"{slots - 1} {float(far.min()):.4g} to {float(far.max()):.4g}"
    )
