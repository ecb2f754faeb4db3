"""What is audited, as the checks see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whereness.auditor.findings import Compared, Finding, NotChecked, Report
from whereness.interop.config.files import Source
from whereness.interop.config.parts import Part, parts_of
from whereness.interop.config.reader import Layers, layers_of

if TYPE_CHECKING:
    from torch import nn

    from whereness.auditor.files.weights import Weights


@dataclass
class Subject:
    """A target: any of its config, its weights and the live model may be missing.

    inputs: keyword arguments of a forward pass, where the model's own cannot be guessed; or a
    callable that makes them, (batch, tokens) -> dict. layers: the only ones to look at.
    """

    name: str
    report: Report
    source: Source | None = None
    weights: "Weights | None" = None
    model: "nn.Module | None" = None
    inputs: "Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]] | None" = None
    text: bytes | None = None
    layers: frozenset[int] | None = None
    folder: Path | None = None
    """Where the config lies: a tokenizer's files may be beside it."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why there is no "config", "weights", "model" or "text", where more can be said than that."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What one check has made and others use: the driver, the capture."""

    @property
    def parts(self) -> dict[str, Part]:
        """Parts of the config by name; none where it cannot be read."""
        return self._read[0]

    @property
    def expected(self) -> dict[str, Layers]:
        """What the config gives the layers of each part that can be said; others are missing."""
        return self._read[1]

    @property
    def refusals(self) -> dict[str, ValueError | TypeError]:
        """Why a part is missing in `expected`; of "" also why there are no parts at all."""
        return self._read[2]

    @cached_property
    def _read(
        self,
    ) -> tuple[dict[str, Part], dict[str, Layers], dict[str, ValueError | TypeError]]:
        found: dict[str, Layers] = {}
        refused: dict[str, ValueError | TypeError] = {}
        try:
            parts = {} if self.source is None else parts_of(self.source)
        except (ValueError, TypeError) as error:
            return {}, {}, {"": error}
        for name, part in parts.items():
            try:
                found[name] = layers_of(part)
            except (ValueError, TypeError) as error:  # the config check tells it
                refused[name] = error
        return parts, found, refused

    def wants(self, layer: int | None) -> bool:
        """Whether this layer is to be looked at."""
        return self.layers is None or layer is None or layer in self.layers

    def found(self, finding: Finding) -> None:
        """Report a finding."""
        if self.wants(finding.layer):
            self.report.findings.append(finding)

    def compared(
        self, check: str, what: str, layer: int | None = None, where: str = "", part: str = ""
    ) -> None:
        """Say that something was measured against an expectation."""
        if self.wants(layer):
            said = Compared(check=check, what=what, layer=layer, where=where, part=part)
            self.report.compared.append(said)

    def not_checked(
        self, check: str, why: str, layer: int | None = None, where: str = "", part: str = ""
    ) -> None:
        """Say that something could not be measured, or had no expectation."""
        if self.wants(layer):
            said = NotChecked(check=check, why=why, layer=layer, where=where, part=part)
            self.report.not_checked.append(said)
