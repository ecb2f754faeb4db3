"""What an audit finds: the words of every report, without torch.

A check that could compare something says so (`Compared`), what it found wrong is a `Finding`, and
what has no probe or no expectation is `NotChecked`: never silence.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Class = Literal["relative", "absolute", "none", "content-aware", "unknown"]

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
    config key. expected, measured: in words and numbers.
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


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Something that a check measured against an expectation: `what` as "spectrum", "bias"."""

    check: str
    what: str
    layer: int | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class NotChecked:
    """What a check could not do, and why."""

    check: str
    why: str
    layer: int | None = None
    where: str = ""


@dataclass(kw_only=True)
class LayerFacts:
    """One attention layer, as measured and as its config has it; None where that is not known.

    speeds: radians a token of every pair, in the order of the channels of head 0. bias_heads:
    a few words on the bias ("ALiBi slopes 1/2 .. 1/256").
    """

    where: str
    index: int | None = None
    part: str = ""
    classified: Class = "unknown"
    expected: str | None = None
    pairing: str | None = None
    rotary_dim: int | None = None
    speeds: tuple[float, ...] | None = None
    expected_speeds: tuple[float, ...] | None = None
    amplitudes: tuple[float, ...] | None = None
    expected_amplitude: float | None = None
    bias: str | None = None


@dataclass(kw_only=True)
class Report:
    """All that an audit can say of a target."""

    target: str
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)
