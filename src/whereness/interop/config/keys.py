"""Keys of a config, read strictly: a value of another type, or a NaN, is told by the key's name.

Every error has the key's full name ("text_config.rope_parameters.factor"): TypeError for a value of
another type, ValueError for one that cannot be. What peers
read in different ways is collected as a notice instead.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from whereness.interop.families import Keys

LARGEST_WIDTH = 2**16
"""Channels of a head: the widest in released models is 2^9."""
LARGEST_LENGTH = 2**53
MOST_LAYERS = 2**12


USUAL_NAMES = {
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads",
    "decoder_num_attention_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "n_positions": "max_position_embeddings",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
}
"""Hugging Face's name of a size, where a family has another: its files may have either. BLOOM's own
say num_attention_heads, and its code n_head."""

MARK = "whereness_pairing"
"""Config key that says the pairing of converted weights, where the family has no key for it."""


class ConfigWarning(UserWarning):
    """A config says something that libraries read differently, or that had to be assumed."""


class ConfigError(ValueError):
    """A config that says something wrong.

    kind: which invariant it breaks, numbered as the auditor does; empty where nothing need be wrong
    with it, and nobody here knows how to read it. A ValueError or TypeError of the reader that is
    none of this class is about names, types and missing keys: K22.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Notice(str):
    """What is told of a config that can be read, and which invariant it is about."""

    __slots__ = ("kind", "severity")
    kind: str
    severity: Literal["warning", "note"]

    # Self as a return type is refused by the hook that checks types in tests.
    def __new__(  # noqa: PYI034
        cls, text: str, kind: str = "K22", severity: Literal["warning", "note"] = "warning"
    ) -> "Notice":
        made = super().__new__(cls, text)
        made.kind, made.severity = kind, severity
        return made


def number(name: str, value: object, above: float | None = None) -> float:
    """`value` as a finite float above `above`. Booleans and strings are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        quoted = isinstance(value, str) and re.fullmatch(r"-?\d[\d.eE+-]{,30}", value)
        what = f" Write {value} without quotes." if quoted else ""
        raise TypeError(f"{name} must be a number, got {shown(value)}.{what}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name} must be finite, got {shown(value)}.")
    if above is not None and not found > above:
        raise ValueError(f"{name} must be above {above:g}, got {shown(value)}.")
    return found


def integer(name: str, value: object, least: int = 1, most: int = LARGEST_LENGTH) -> int:
    """`value` as an int in [least, most]; JSON may have written it with a point (8192.0)."""
    found = number(name, value)
    if found != math.floor(found):
        raise ValueError(f"{name} must be a whole number, got {shown(value)}.")
    if not least <= found <= most:
        raise ValueError(f"{name} must be in {least} .. {most}, got {shown(value)}.")
    return int(found)


def boolean(name: str, value: object) -> bool:
    """`value` as a bool: 0 and 1 are numbers, "true" is a string."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {shown(value)}.")
    return value


def string(name: str, value: object) -> str:
    """`value` as a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {shown(value)}.")
    return value


def listed(name: str, value: object, most: int = MOST_LAYERS) -> list[Any]:
    """`value` as a list."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list, got {shown(value)}.")
    if len(value) > most:
        raise ValueError(f"{name} must have at most {most} entries, got {len(value)}.")
    return list(value)


def mapping(name: str, value: object) -> dict[str, Any]:
    """`value` as a dict with string keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be an object with named entries, got {shown(value)}.")
    return dict(value)


def shown(value: object) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(value, (dict, list, tuple)):
        return f"a {'dict' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def counted(value: float) -> str:
    """A number for a message: 1,000,000 and not 1e+06."""
    return f"{value:,.0f}" if value == math.floor(value) and abs(value) < 1e15 else f"{value:g}"


def short(name: str) -> str:
    """A key for a message, as it is if it is a sane one."""
    plain = name if name.isprintable() else repr(name)[1:-1]
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def nearest(word: str, known: Collection[str]) -> str:
    """' Did you mean X?' when something known is close; else nothing."""
    near = difflib.get_close_matches(word[:60], sorted(known), n=1, cutoff=0.7)
    return f" Did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True)
class Reading:
    """The keys of one part of a config, the class defaults behind them, and what was noticed."""

    given: Mapping[str, Any]
    defaults: Mapping[str, Any]
    weak: frozenset[str] = frozenset()
    """Given keys that only repeat a default of the config's class."""
    prefix: str = ""
    """"text_config." within a composite."""
    notices: list[Notice] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    """Top-level keys that somebody wanted to know: a positional key that is not here is dead."""

    def name(self, key: str) -> str:
        """The key as the user knows it."""
        return short(self.prefix + key)

    def get(self, key: str) -> Any:
        """The value given, or the class default; None where there is none. "a.b" is b within a."""
        *outer, last = self._path(key)
        found = self._within(outer)
        usual = USUAL_NAMES.get(key)
        if usual in found and usual not in self.weak and key in self.defaults:
            return self._one_of(key, usual)
        return found[last] if last in found else self.defaults.get(key)

    def _one_of(self, key: str, usual: str) -> Any:
        """The value of a key that has two names; both may be there if they agree."""
        value, other = self.given.get(key), self.given[usual]
        if value is not None and other is not None and value != other and key not in self.weak:
            raise ValueError(
                f"{self.name(key)} = {shown(value)} and {self.name(usual)} = {shown(other)} are "
                "two names for the same thing and differ. Keep one of them."
            )
        return value if other is None else other

    def explicit(self, key: str) -> Any:
        """The value given by the user; None where it is missing or only a default."""
        *outer, last = self._path(key)
        return None if key in self.weak else self._within(outer).get(last)

    def _path(self, key: str) -> list[str]:
        path = key.split(".")
        self.asked.add(path[0])
        return path

    def _within(self, path: list[str]) -> Mapping[str, Any]:
        found: Any = self.given
        for word in path:
            found = found.get(word)
            if found is None:
                return {}
            if not isinstance(found, Mapping):
                raise TypeError(f"{self.name(word)} must be an object, got {shown(found)}.")
        return found

    def notice(
        self, text: str, kind: str = "K22", severity: Literal["warning", "note"] = "warning"
    ) -> None:
        """Keep a notice, once."""
        if text not in self.notices:
            self.notices.append(text if isinstance(text, Notice) else Notice(text, kind, severity))

    def keep(self, notices: Iterable[str]) -> None:
        """Keep what a translation has told."""
        for text in notices:
            self.notice(text)

    def whole(self, keys: Keys, most: int = LARGEST_LENGTH, least: int = 1) -> int | None:
        """The first alternative of `keys` whose values are all there; None where none is."""
        for alternative in keys:
            found = self._sum(alternative, most, least)
            if found is not None:
                return found
        return None

    def needed(self, what: str, keys: Keys, most: int = LARGEST_LENGTH, least: int = 1) -> int:
        """The same, required: ValueError names the keys."""
        found = self.whole(keys, most, least)
        if found is None:
            wanted = " or ".join(self.name(key) for key in keys)
            raise ValueError(f"The config must give {what}: {wanted}, got neither.")
        return found

    def _sum(self, alternative: str, most: int, least: int) -> int | None:
        terms = [self._quotient(term) for term in alternative.split("+")]
        if any(term is None for term in terms):
            return None
        return integer(self.name(alternative), sum(t for t in terms if t is not None), least, most)

    def _quotient(self, term: str) -> int | None:
        words = term.split("//")
        values = [int(word) if word.isdigit() else self.get(word) for word in words]
        if any(value is None for value in values):
            return None
        whole = integer(self.name(words[0]), values[0], 0)
        for word, value in zip(words[1:], values[1:], strict=True):
            whole //= integer(self.name(word), value)
        return whole
