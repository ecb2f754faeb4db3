"""CHK12, from weights alone: the pairing that trained rows have, against the config's family.

What is measured, and how often it errs, stands in `whereness.auditor.files.couplings`.
"""

from dataclasses import dataclass

from whereness.auditor.files.couplings import (
    LEAST_PAIRS,
    OTHER,
    THRESHOLD,
    Coupling,
    bias_of,
    coupling_of,
)
from whereness.auditor.files.projections import LayerRows, is_known, rows_of
from whereness.auditor.findings import Finding
from whereness.auditor.subject import Subject
from whereness.interop.config.specs import Layer
from whereness.rotary.pairing import Pairing

CHECK, KIND = "CHK12", "K01"
UNDECIDED = "layers without a pattern"
"""In `subject.shared`: (part, layer) of those that the check with text may tell."""


@dataclass(frozen=True)
class Verdict:
    """What the rows of a layer say."""

    layer: LayerRows
    declared: Pairing
    coupling: Coupling

    @property
    def is_wrong(self) -> bool:
        """Whether another pairing fits better."""
        return self.coupling.worst[1] >= THRESHOLD

    @property
    def is_right(self) -> bool:
        """Whether the declared pairing fits better than any other."""
        return self.coupling.worst[1] <= -THRESHOLD


def run(subject: Subject) -> None:
    """Compare the pairing of every layer's queries and keys with what the config implies."""
    if subject.weights is None:
        return
    for name, layers in subject.expected.items():
        declared = [_pairing(layer) for layer in layers.each]
        if not any(declared):
            continue
        if not is_known(layers.part):
            what = layers.part.model_type or "this model"
            why = f"how {what} names its queries and keys is not known"
            subject.not_checked(CHECK, why, part=name)
            continue
        found = rows_of(layers.part, subject.weights)
        for index, why in found.missing:
            subject.not_checked(CHECK, why, index, part=name)
        verdicts = [
            verdict
            for layer in found.layers
            if (pairing := _at(declared, layer, layers.counted))
            and subject.wants(layer.index)
            and (verdict := _verdict(subject, layer, pairing))
        ]
        _tell(subject, name, verdicts)
        for layer in found.layers:
            _biases(subject, layer, _at(declared, layer, layers.counted))


def _at(declared: list[Pairing | None], layer: LayerRows, counted: bool) -> Pairing | None:
    """The pairing of a layer; None of one beyond those that the config counts."""
    index = layer.index if counted else 0
    return declared[index] if index < len(declared) else None


def _pairing(layer: Layer) -> Pairing | None:
    """What the rotation of a layer declares, None where nothing turns."""
    return next((made.get("pairing") for made in layer if made.get("pairing")), None)


def _verdict(subject: Subject, layer: LayerRows, declared: Pairing) -> Verdict | None:
    """What a layer's rows say; None, and why, where they can say nothing."""
    assert subject.weights is not None
    pairs = len(layer.keys.first) * layer.keys.width // 2
    if pairs < LEAST_PAIRS:
        why = f"{pairs} pairs in the key heads are too few to tell a pattern from chance"
        subject.not_checked(CHECK, why, layer.index, layer.where)
        return None
    try:
        coupling = coupling_of(layer, subject.weights, declared)
    except ValueError as error:
        _unusable(subject, layer, str(error))
        return None
    if coupling is None:
        why = "its queries and keys have the same rows, or none that differ"
        subject.not_checked(CHECK, why, layer.index, layer.where)
        return None
    return Verdict(layer, declared, coupling)


def _unusable(subject: Subject, layer: LayerRows, why: str) -> None:
    subject.found(
        Finding(
            check=CHECK,
            kind="K07",
            severity="error",
            layer=layer.index,
            where=layer.where,
            expected="finite weights",
            measured=why,
            cause="training diverged, or a tensor was saved before it was filled",
            remedy="Save the weights again from a model that runs.",
        )
    )


def _tell(subject: Subject, part: str, verdicts: list[Verdict]) -> None:
    """Report the layers; one finding for all where no layer has the declared pairing."""
    wrong = [each for each in verdicts if each.is_wrong]
    alike = len(wrong) > 1 and {each.coupling.worst[0] for each in wrong} == {"both"}
    if alike and not any(each.is_right for each in verdicts):
        subject.found(_everywhere(part, wrong, len(verdicts)))
    else:
        for each in wrong:
            subject.found(_finding(part, each))
    for each in verdicts:
        index, where = each.layer.index, each.layer.where
        if each.is_right or each.is_wrong:
            subject.compared(CHECK, "pairing of the weights", index, where)
            _note(subject, part, each)
        else:
            name, z = each.coupling.worst
            why = (
                "the rows carry no pattern that tells their pairing, as untrained ones do "
                f"({name} in the other pairing: z {z:.1f}, needed {THRESHOLD:g} or -{THRESHOLD:g})"
            )
            subject.not_checked(CHECK, why, index, where)
            subject.shared.setdefault(UNDECIDED, []).append((part, index))


def _note(subject: Subject, part: str, found: Verdict) -> None:
    """Put what the rows tell into the table of layers: only what turns couples in pairs."""
    for facts in subject.report.layers:
        if (facts.part, facts.index) == (part, found.layer.index) and facts.pairing is None:
            facts.classified = "relative"
            facts.rotary_dim = found.layer.queries.width
            both = found.coupling.worst[0] == "both"
            if found.is_right:
                facts.pairing = found.declared
            elif both:
                facts.pairing = OTHER[found.declared]


def _finding(part: str, found: Verdict) -> Finding:
    name, z = found.coupling.worst
    declared, other = found.declared, OTHER[found.declared]
    which = {
        "both": f"queries and keys lie {other}",
        "queries": f"queries lie {other} and keys {declared}",
        "keys": f"keys lie {other} and queries {declared}",
    }[name]
    cause = {
        "both": "the rows of this layer were permuted, or those of all others were",
        "queries": "a conversion moved the rows of queries alone, or of keys alone",
        "keys": "a conversion moved the rows of keys alone, or of queries alone",
    }[name]
    return Finding(
        check=CHECK,
        kind=KIND,
        severity="error",
        layer=found.layer.index,
        where=found.layer.where,
        part=part,
        expected=f"{declared} pairing of queries and keys",
        measured=f"{which} (z {z:.0f}; {_norms(found)})",
        cause=cause,
        remedy=_remedy(declared),
    )


def _everywhere(part: str, wrong: list[Verdict], count: int) -> Finding:
    declared, other = wrong[0].declared, OTHER[wrong[0].declared]
    least = min(each.coupling.worst[1] for each in wrong)
    return Finding(
        check=CHECK,
        kind=KIND,
        severity="error",
        part=part,
        expected=f"{declared} pairing of queries and keys, which the config's family implies",
        measured=f"{other} in {len(wrong)} of {count} layers, no other in any (z {least:.0f} or "
        f"more; in the first, {_norms(wrong[0])})",
        cause="the file was converted for other code (llama.cpp and Meta's code take interleaved "
        "rows, Hugging Face's mostly half), or its config is another model's",
        remedy=_remedy(declared),
    )


def _norms(found: Verdict) -> str:
    own, other = found.coupling.norms
    return f"log row norms correlate {own:.2f} in the declared pairs, {other:.2f} in the others"


def _remedy(declared: Pairing) -> str:
    return (
        f"Move the rows into the {declared} pairing (wn.convert_pairing; `whereness convert` for "
        "a whole checkpoint), or convert again from the source."
    )


def _biases(subject: Subject, layer: LayerRows, declared: Pairing | None) -> None:
    """Whether the biases lie as their rows do."""
    if declared is None or subject.weights is None or not subject.wants(layer.index):
        return
    silent = []
    for bias, rows in layer.biases:
        try:
            z = bias_of(bias, rows, subject.weights, declared)
        except ValueError as error:
            _unusable(subject, layer, str(error))
            continue
        if z is None or abs(z) < THRESHOLD:
            silent.append(bias.name)
            continue
        subject.compared(CHECK, "pairing of a bias", layer.index, bias.name)
        if z > 0:
            subject.found(
                Finding(
                    check=CHECK,
                    kind=KIND,
                    severity="error",
                    layer=layer.index,
                    where=bias.name,
                    expected="a bias in the pairing of its rows",
                    measured=f"it fits them in the other pairing (z {z:.0f})",
                    cause="a conversion moved the rows and left the bias, or the other way about",
                    remedy="Move bias, scales and rows together: `whereness convert` does.",
                )
            )
    if silent:
        why = f"nothing tells whether {' and '.join(dict.fromkeys(silent))} lies as its rows do"
        subject.not_checked(CHECK, why, layer.index, layer.where)
