"""What an audit finds: the words of every report, without torch.

A check that could compare something says so (`Compared`), what it found wrong is a `Finding`, and
what has no probe or no expectation is `NotChecked`: never silence.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from whereness import __version__
from whereness.auditor.kinds import TEACHING

SCHEMA = 1
"""Version of what `Report.to_dict` gives, which `schema.json` describes: counts up when a key goes
or changes its meaning. New keys may come without."""

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Class = Literal["relative", "absolute", "none", "content-aware", "unknown"]
Verdict = Literal["errors", "warnings", "clean", "nothing compared"]

KINDS = {
    "K01": "Layout agreement",
    "K02": "Spectrum = config",
    "K03": "Rotary width",
    "K04": "Amplitude",
    "K05": "One sequence, one table",
    "K06": "Casts never change angles",
    "K07": "Table life cycle",
    "K08": "Prefill == decode",
    "K09": "Pad invariance",
    "K10": "Pack == separate",
    "K11": "Shards == whole",
    "K12": "Bounds",
    "K13": "Ids are honoured, on the right axis",
    "K14": "Absolute numbering",
    "K15": "Grids",
    "K16": "Resize",
    "K17": "ALiBi",
    "K18": "Relative bias tables",
    "K19": "Mask alignment",
    "K20": "Trace, export, device",
    "K21": "Kernel == eager",
    "K22": "Config hygiene",
    "K23": "Layer map",
    "K24": "Sinusoid and time-step formula",
    "K25": "Cost",
}
"""Kinds of fault, each named by the invariant that it breaks."""

CHECKS = {
    "CHK1": "spectrum",
    "CHK2": "shift",
    "CHK3": "warp",
    "CHK4": "cache",
    "CHK5": "pads",
    "CHK6": "packs",
    "CHK7": "shards",
    "CHK8": "casts",
    "CHK9": "life",
    "CHK10": "bounds",
    "CHK11": "config",
    "CHK12": "channels",
    "CHK13": "grids",
    "CHK15": "bias",
    "CHK16": "masks",
    "CHK17": "trace",
    "CHK18": "paths",
    "CHK19": "state",
    "CHK20": "layers",
    "CHK21": "cost",
}
"""Checks and their short names; either is what --check takes."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong, or worth knowing.

    layer: index within its part, None where it concerns the whole. where: the module, tensor or
    config key. part: of a composite model ("text_config"), where it is known. expected, measured:
    in words and numbers.
    """

    check: str
    kind: str
    severity: Severity
    expected: str
    measured: str
    cause: str
    remedy: str
    layer: int | None = None
    where: str = ""
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Something that a check measured against an expectation: `what` as "spectrum", "bias"."""

    check: str
    what: str
    layer: int | None = None
    where: str = ""
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class NotChecked:
    """What a check could not do, and why."""

    check: str
    why: str
    layer: int | None = None
    where: str = ""
    part: str = ""


@dataclass(kw_only=True)
class LayerFacts:
    """One attention layer, as measured and as its config has it; None where that is not known.

    measured: its encoding in a few words, where the numbers below do not tell ("learned table of
    512 rows"). speeds: radians a token of every pair, in the order of the channels of head 0; 0 for
    one that does not turn. bias: a few words ("ALiBi slopes 1/2 .. 1/256"). bias_curves: what is
    added to the logits, a row a head, at `bias_offsets` (key minus query, ascending).
    """

    where: str
    index: int | None = None
    part: str = ""
    classified: Class = "unknown"
    measured: str | None = None
    expected: str | None = None
    pairing: str | None = None
    rotary_dim: int | None = None
    speeds: tuple[float, ...] | None = None
    expected_speeds: tuple[float, ...] | None = None
    amplitudes: tuple[float, ...] | None = None
    expected_amplitude: float | None = None
    bias: str | None = None
    bias_offsets: tuple[int, ...] | None = None
    bias_curves: tuple[tuple[float, ...], ...] | None = None
    expected_bias_curves: tuple[tuple[float, ...], ...] | None = None


@dataclass(kw_only=True)
class Report:
    """All that an audit can say of a target.

    what: what the target turned out to be ("Hugging Face folder, llama, 30 layers").
    """

    target: str
    what: str = ""
    layers: list[LayerFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [found for found in self.findings if found.severity == severity]

    def exit_status(self, fail_on: Literal["error", "warning"] = "error") -> int:
        """0 if nothing as bad as `fail_on` was found, else 1."""
        return int(bool(self.of("error") or (fail_on == "warning" and self.of("warning"))))

    @property
    def verdict(self) -> Verdict:
        """In a word or two; "clean" only if something was compared. Notes do not count."""
        if self.of("error"):
            return "errors"
        if self.of("warning"):
            return "warnings"
        return "clean" if self.compared else "nothing compared"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as schema.json has it. A number that JSON cannot say is None."""
        kinds = sorted({found.kind for found in self.findings})
        head = {
            "schema": SCHEMA,
            "whereness": __version__,
            "target": self.target,
            "what": self.what,
            "verdict": self.verdict,
            "counts": {
                **{severity: len(self.of(severity)) for severity in SEVERITIES},
                "compared": len(self.compared),
                "not_checked": len(self.not_checked),
            },
            "kinds": {kind: {"title": KINDS[kind], **TEACHING[kind]._asdict()} for kind in kinds},
        }
        return head | _sayable(asdict(self))


def _sayable(value: Any) -> Any:
    """The same with lists for tuples, and None for what is no finite number."""
    if isinstance(value, dict):
        return {key: _sayable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
