"""`Properties`: everything that `wn.measure` found about one encoding."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The measured properties of one encoding. None: does not apply to it, or is not defined.

    What each number means stands in the docstring of the function of the same name in
    `whereness.properties`. Of several heads, axes or offsets it is the worst. `verdicts()` says
    which properties hold; `as_dict()` is ready for JSON.
    """

    encoding: str
    """Class of the encoding."""
    num_positions: int
    """Positions on an axis that were measured: as many as were asked for, or as there are."""
    code_of: str | None
    """What codes stand for: "position" (doors 1 to 3), "offset" (door 4), None (there are none)."""
    content: str
    """Tokens of the score probe: "zero", "ones", or the mean over "gaussian" ones."""
    flat: bool
    """Scores of identical tokens are the same everywhere: nothing to be monotone or invariant."""
    untrained: bool
    """It does nothing yet, since its parameters are still the constant that they start at."""
    notes: tuple[str, ...]
    """What to know when reading the numbers."""

    # 1. A unique code for each position, independent of length, bounded
    uniqueness: float | None
    min_distance: float | None
    first_repeat: int | None
    lipschitz: float | None
    same_word: float | None
    length_dependence: float
    max_abs: float | None
    norm_growth: float | None
    content_ratio: float | None

    # 2. A linear relation between positions
    linear_relation: dict[int, float] | None
    rigid_shift: float | None

    # 3. Generalises to longer sequences
    defined_beyond: bool
    unseen_codes: float | None
    entropy_slope: float | None

    # 4. A deterministic process that can be learned
    learned: bool
    deterministic: bool
    free_parameters: int
    process_r2: float | None
    position_decoding: float | None

    # 5. Extends to several axes
    num_axes: int
    extends_to: dict[int, bool] | None
    grid: dict[str, float] | None

    # Scores of identical tokens
    translation_invariance: float
    relative: bool
    monotonicity: float | None
    first_increase: int | None
    distance_correlation: float | None
    symmetry: float | None
    decay: dict[str, float] | None

    # Door 3
    norm_preservation: float | None
    group_law: float | None
    exact_relativity: float | None
    unfinished_pairs: dict[str, int | None] | None
    context_bound: int | None
    """The measure `first_negative_offset`."""

    # In use
    fractional: bool | None
    precision: dict[str, dict[int, float | None]]
    padding: float
    packing: float
    decoding: float
    permutation_sensitivity: float
    unbounded: bool
    content_aware: bool
    cacheable: bool
    fused: bool
    parameters: int
    table_bytes: int
    table_growth: str

    def verdicts(self) -> tuple["Verdict", ...]:
        """Whether each property holds, and what it means for a user where it does not."""
        from whereness.properties.verdicts import judge

        return judge(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, ready for JSON; an infinite one is the string "inf"."""
        values = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        values["verdicts"] = {v.name: v.passed for v in self.verdicts()}
        return values

    def __str__(self) -> str:
        marks = {True: "yes", False: "NO", None: "-"}
        verdicts = self.verdicts()
        width = max(len(v.title) for v in verdicts)
        lines = [f"{self.encoding}, {self.num_positions} positions"]
        for v in verdicts:
            lines.append(f"  {v.title:{width}}  {marks[v.passed]:3}  {v.shown}")
            if v.passed is False:
                lines.append(f"  {'':{width}}       {v.meaning}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Verdict:
    """One property of one encoding: whether it holds."""

    name: str
    title: str
    passed: bool | None
    """None: does not apply, or is reported and not judged."""
    shown: str
    """The measured value in a few characters."""
    meaning: str
    """What it means for a user if the property does not hold."""


def shown(value: object) -> str:
    """A value in a few characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.2g}" if abs(value) >= 1e-9 else "0"
        return text if len(text) <= 7 else f"{value:.0e}"
    return str(value)


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
