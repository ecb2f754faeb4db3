"""CHK11: what a config says, looked at without the model.

What the config reader refuses or notices, told as findings of the kind that the reader names; the
rules of `configs.lint` and `configs.limits` on what it could read; and the quarrels: keys that
libraries are known to read in different ways, as notes. A config of a family that nobody here knows
is no fault: it is "not checked".
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from whereness.auditor.configs import lint
from whereness.auditor.configs.limits import beside_parts, lengths_fit
from whereness.auditor.configs.lint import CHECK, KEYS, fault
from whereness.auditor.configs.reach import plain_speeds
from whereness.auditor.findings import Finding, LayerFacts, Severity
from whereness.auditor.subject import Subject
from whereness.interop.config.quarrels import quarrels
from whereness.interop.config.reader import REFUSED, Layers
from whereness.interop.config.specs import Spec, told

WORDS = {
    "K01": (
        "one pairing of channels, said once",
        "weights were converted and their config was not, or the other way round",
        "set the key to the pairing that the weights have",
    ),
    "K02": (
        "one base and one scaling for a layer, every setting of which has an effect",
        "a key was renamed, nested or copied from one version of a library to another",
        "keep the values that the weights were trained with, under the key that is read",
    ),
    "K03": (
        "a rotary width that is even, fits the head, and is said once",
        "a width, a share or a list was copied from another model, or is only a default of code",
        "give the width that the weights were trained with, under the key that is read",
    ),
    "K04": (
        "one amplitude for cos and sin, and one scale for the logits",
        "libraries read attention_factor, mscale and mscale_all_dim in different ways",
        "give attention_factor as a number, and compare logits with the original code",
    ),
    "K05": (
        "the same table for all keys of a sequence, whatever came before",
        "the scaling depends on the length, and libraries differ in whose",
        "compare long inputs with and without a cache, alone and in a batch",
    ),
    "K06": (
        "angles that no cast changes",
        "far positions lose digits in float32, and more in bfloat16",
        "form angles in float64, or look at far positions before relying on them",
    ),
    "K14": (
        "positions that begin where the table's usable rows do",
        "rows before position 0 are counted as positions, or the other way round",
        "count usable positions as rows minus those before position 0",
    ),
    "K15": (
        "axes, sections and their order that fit the channels",
        "one word is used for the order of axes and for the pairing of channels",
        "name the order of the axes and the pairing each by its own key",
    ),
    "K17": (
        "slopes by the published recipe for this number of heads",
        "libraries differ where the number of heads is no power of two",
        "compare the slopes with the original code",
    ),
    "K18": (
        "buckets and scale as the weights were trained with",
        "libraries scale the logits or the bias differently",
        "compare the bias with the original code",
    ),
    "K22": (
        "keys that are known, complete, of the right type, and do not contradict one another",
        "a slip, or a key of another version or library",
        "correct the key named",
    ),
    "K23": (
        "one entry for each layer, applied as it stands",
        "the number of layers was changed without its lists, or code ignores the schedule",
        "give every layer its entry, and see which layers turn in the live model",
    ),
}
"""What is expected, the likely cause, and the remedy, of what the reader tells."""
LEADING_KEY = re.compile(r"[A-Za-z]\w*(?:[._]\w+)+(?:\[\d+\])?(?= |:)")


def run(subject: Subject) -> None:
    """Tell what is wrong with a config, and what its layers should have."""
    for name, error in subject.refusals.items():
        _refused(subject, name, error)
    for name, part in subject.parts.items():
        layers = subject.expected.get(name)
        for notice in part.reading.notices:
            subject.found(_reported(name, notice, notice.kind, notice.severity))
        if layers is not None:
            _layers(subject, layers)
    for rule in (beside_parts, lengths_fit):
        for found in rule(subject):
            subject.found(found)


def _refused(subject: Subject, part: str, error: Exception) -> None:
    """A part that the reader refused: a fault, unless nobody here can read its family."""
    kind = getattr(error, "kind", "K22")
    if not kind:
        subject.not_checked(CHECK, str(error), part=part)
        return
    subject.compared(CHECK, KEYS, part=part)
    subject.found(_reported(part, str(error), kind, "error"))


def _reported(part: str, said: str, kind: str, severity: Severity) -> Finding:
    expected, cause, remedy = WORDS[kind]
    key = LEADING_KEY.match(said)
    return fault(kind, severity, key[0] if key else "", expected, said, cause, remedy, part)


def _layers(subject: Subject, layers: Layers) -> None:
    part = layers.part.name
    subject.compared(CHECK, KEYS, part=part)
    for made in layers.groups():
        for spec in made:
            if spec.kind == REFUSED:
                subject.not_checked(CHECK, str(spec.get("why")), part=part)
    for rule in lint.RULES:
        for found in rule(layers):
            subject.found(replace(found, part=part))
    limit = lint.unreached(layers)
    if limit:
        subject.not_checked(CHECK, limit, part=part)
    nested = "rope_theta" in str(layers.part.reading.given.get("rope_parameters"))
    for notice in quarrels(map(numbers, _specs(layers)), layers.length, nested=nested):
        subject.found(_reported(part, notice, notice.kind, notice.severity))
    if subject.model is None:
        _list_layers(subject, layers)


def _specs(layers: Layers) -> Iterator[Spec]:
    for made in layers.groups():
        yield from (spec for spec in made if spec.kind != REFUSED)


def numbers(spec: Spec) -> dict[str, Any]:
    """A spec as the quarrels see an encoding, without building it."""
    found: dict[str, Any] = {"encoding": spec.kind, "first_row": 0, **dict(spec.options)}
    if "head_dim" in found and "base" in found:
        found.setdefault("rotary_dim", found["head_dim"])
    scaling = found.pop("scaling", None)
    if isinstance(scaling, Spec):
        name = scaling.kind.removeprefix("scaling.")
        found["scaling"] = {"name": name, **dict(scaling.options)}
    return found


def _list_layers(subject: Subject, layers: Layers) -> None:
    """Name the layers and what the config gives them, where no model is there to measure."""
    if not layers.counted:
        return
    for index, made in enumerate(layers.each):
        if not subject.wants(index):
            continue
        refused = any(spec.kind == REFUSED for spec in made)
        said = None if refused else told(made)
        speeds = [plain_speeds(spec) for spec in made]
        subject.report.layers.append(
            LayerFacts(
                where=f"layer {index}",
                index=index,
                part=layers.part.name,
                expected=said,
                expected_speeds=next(filter(None, speeds), None),
            )
        )
