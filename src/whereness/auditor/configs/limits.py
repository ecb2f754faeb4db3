"""What no part of a config alone can tell: settings beside the parts, and limits in other files.

beside_parts    positional keys at the top of a composite, where no part reads them   K02
lengths_fit     lengths that a tokenizer and generation admit, against the positions  K12, K14
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whereness.auditor.configs.lint import CHECK, fault, specs
from whereness.auditor.findings import Finding, Severity
from whereness.auditor.subject import Subject
from whereness.interop.config import rope_keys
from whereness.interop.config.files import LARGEST_JSON
from whereness.interop.config.keys import shown
from whereness.interop.config.reader import Layers
from whereness.interop.families import family
from whereness.interop.strict_json import read_object

UNLIMITED = 10**9
"""Tokens: what tokenizers without a limit write is above (int(1e30))."""
POSITIONAL = (*rope_keys.NAMES, *rope_keys.BASE_KEYS, *rope_keys.FRACTION_KEYS)
LIMITS = (
    ("tokenizer_config.json", "model_max_length", "texts of that length reach the model"),
    ("generation_config.json", "max_length", "generation goes on to that length"),
    ("generation_config.json", "max_new_tokens", "generation alone fills more than that"),
)
"""(file, key, what it means)"""


def beside_parts(subject: Subject) -> Iterator[Finding]:
    """Positional keys at the top of a composite, where nothing reads them."""
    if subject.source is None or not subject.parts:
        return
    if not all(part.reading.prefix for part in subject.parts.values()):
        return
    texts = [part for part in subject.parts.values() if part.name.startswith("text")]
    for key in POSITIONAL:
        value = subject.source.keys.get(key)
        if value in (None, {}) or any(part.reading.given.get(key) == value for part in texts):
            continue
        yield fault(
            "K02",
            # The code of a wrapper that nobody here knows may read it.
            "warning" if family(str(subject.source.keys.get("model_type"))) else "note",
            key,
            "positional keys within the part that they are for",
            f"{key} = {shown(value)} stands beside the parts "
            f"({', '.join(list(subject.parts)[:4])}), where no part reads it",
            "the setting was added to the wrong level of a composite config",
            f"move {key} into the part that it is for, or remove it",
        )


def lengths_fit(subject: Subject) -> Iterator[Finding]:
    """Lengths that files beside the config admit against those that positions have."""
    usable = _usable(subject)
    if subject.folder is None or usable is None:
        return
    rows, kind, severity, what = usable
    for file, key, means in LIMITS:
        limit = _limit(subject, subject.folder / file, key)
        if limit is None or limit <= rows:
            continue
        yield fault(
            kind,
            severity,
            f"{file}: {key}",
            f"at most {rows:,} tokens, {what}",
            f"{key} = {limit:,}: {means}",
            "the limit counts rows of the table that are no positions"
            if kind == "K14"
            else "the two files were changed apart",
            f"set {key} to {rows} or less",
        )


def _usable(subject: Subject) -> tuple[int, str, Severity, str] | None:
    """How many positions there are, what a longer text breaks, how badly, and why."""
    for layers in subject.expected.values():
        for spec, _ in specs(layers):
            rows = spec.get("num_positions")
            if spec.kind != "LearnedAbsolute" or not isinstance(rows, int):
                continue
            first = spec.get("first_row") or 0
            if layers.part.family.first_row_after:
                return rows, "K14", "warning", f"{rows + first} rows less {first} before position 0"
            return rows, "K12", "warning", "the rows of its learned table"
    lengths = [each.length for each in subject.expected.values() if each.length is not None]
    if not lengths:
        return None
    reach = max(round(_stretched(each)) for each in subject.expected.values() if each.length)
    return reach, "K12", "note", "the context length of the config"


def _stretched(layers: Layers) -> float:
    """The context length, or what a scaling makes of the length of pre-training."""
    reaches = [float(layers.length or 0)]
    for spec, _ in specs(layers):
        scaling = spec.get("scaling")
        if scaling is None or scaling.get("factor") is None:
            continue
        original = scaling.get("original_length") or layers.length or 0
        reaches.append(scaling.get("factor") * original)
    return max(reaches)


def _limit(subject: Subject, path: Path, key: str) -> int | None:
    """A number in a file beside the config; a file that cannot be read is told of."""
    if not path.is_file():
        return None
    try:
        value: Any = read_object(path, LARGEST_JSON).get(key)
    except (ValueError, OSError) as error:
        subject.not_checked(CHECK, f"{path.name} cannot be read: {error}", where=path.name)
        return None
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if plain and 0 < value < UNLIMITED else None
