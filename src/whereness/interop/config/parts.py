"""The parts of a model: one, an encoder and a decoder, or a text, a vision and other towers.

A part is what has layers of its own. Each has a family, from its model_type, and its keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whereness.interop.config import dialects, remote, rope_keys
from whereness.interop.config.files import Source
from whereness.interop.config.keys import (
    MARK,
    ConfigError,
    Reading,
    nearest,
    short,
    shown,
    string,
)
from whereness.interop.config.rotary import complete
from whereness.interop.families import Family, families, family

TOWERS = ("audio", "image", "speech", "video", "vision", "visual", "vit", "vq")
"""How the parts begin that see or hear."""
DECIDED_BY_CODE = (
    "alibi",
    "attn_temperature_tuning",
    "dual_chunk_attention_config",
    "global_head_dim",
    "layer_rope_theta",
    "mrope_section",
    "no_rope_layer_interval",
    "no_rope_layers",
    "nope_layer_interval",
    "position_embedding_type",
    "qk_rope_head_dim",
    "relative_attention_num_buckets",
    "rope_interleave",
    "rope_interleaved",
    "rope_ratio",
    "rotary_dim",
    "rotary_emb_interleaved",
    "rotary_interleaved",
    "sliding_window_pattern",
    "use_dynamic_ntk",
    "use_fope",
    "use_logn_attn",
)
"""Keys that say nothing by themselves: a model that has one and is unknown is refused; a known
family that does not read one is told of it."""
DEAD = {
    "attn_temperature_tuning": "K04",
    "mrope_section": "K15",
    "no_rope_layer_interval": "K23",
    "no_rope_layers": "K23",
    "nope_layer_interval": "K23",
    "position_embedding_type": "K22",
    "qk_rope_head_dim": "K03",
    "relative_attention_num_buckets": "K18",
    "rope_interleave": "K01",
    "rope_interleaved": "K01",
    "rotary_dim": "K03",
    "rotary_emb_interleaved": "K01",
    "rotary_interleaved": "K01",
    "use_logn_attn": "K04",
}
"""What is lost with one that is not read, where it is not the spectrum."""
REPLACED = ("global_head_dim", "sliding_window_pattern")
"""Those that a list with an entry a layer replaces, so that nobody reads them beside it."""
SAYS_NOTHING = (None, False, [], {}, "absolute", "rope", "rope_gptj", "rotary")
"""Values of these keys that change nothing where nobody reads them."""


@dataclass(frozen=True)
class Part:
    """One part of a model: a part is what has layers of its own."""

    name: str
    """Key path in the config; "" where the model is one part."""
    model_type: str
    family: Family
    reading: Reading


def parts_of(source: Source) -> dict[str, Part]:
    """The parts of a model by name, the default one first."""
    try:
        return _parts(source)
    except RecursionError:
        raise ValueError("The config is nested too deeply to be one.") from None


def _parts(source: Source) -> dict[str, Part]:
    found: dict[str, Part] = {}
    other = dialects.translated(source)
    if other is None:
        _collect(source.keys, source.weak, "", "", found)
        marked = source.keys.get(MARK) is not None
        if marked and all(part.reading.prefix for part in found.values()):
            text = f"{MARK} stands beside the parts: put it into the one it is for."
            raise ConfigError(text, "K01")
    else:
        _add(other.keys, frozenset(), "", other.name, other.family, found)
        for part in found.values():
            part.reading.keep(other.notices)
    return found


def _collect(
    keys: Mapping[str, Any], weak: frozenset[str], path: str, told_type: str, found: dict[str, Part]
) -> None:
    """Add the part at `path`, or those that it is composed of."""
    model_type = keys.get("model_type")
    model_type = "" if model_type is None else string(_join(path, "model_type"), model_type)
    model_type = model_type or told_type
    known = family(model_type)
    inner = _inner(keys, model_type, known)
    for name, own, own_type in inner:
        _collect(own, frozenset(), _join(path, name), own_type, found)
    if known is not None and known.parts:
        its_text = known.text or known.parts.get("text_config", "")
        if its_text and "text_config" not in keys and _holds_text(keys):
            _add_first(keys, weak, path, its_text, found)
        return
    if known is None and inner:
        # Nobody needs to know a wrapper whose parts say everything. Older files have the text
        # beside its towers, in no part of its own.
        if _holds_text(keys) and all(name.startswith(TOWERS) for name, _, _ in inner):
            usual = f"{model_type}_text"
            _add_first(keys, weak, path, usual if usual in families() else model_type, found)
        return
    _add(keys, weak, path, model_type, known, found)


def _holds_text(keys: Mapping[str, Any]) -> bool:
    return any(keys.get(key) is not None for key in ("hidden_size", "num_hidden_layers"))


def _add_first(
    keys: Mapping[str, Any], weak: frozenset[str], path: str, text: str, found: dict[str, Part]
) -> None:
    """Add the text that stands at the top of a composite."""
    towers, known, part = dict(found), family(text), {}
    _add(keys, weak, path, text, known, part)
    found.clear()
    found.update({name or "text_config": own for name, own in part.items()} | towers)


def _inner(
    keys: Mapping[str, Any], model_type: str, known: Family | None
) -> list[tuple[str, Mapping[str, Any], str]]:
    """(name, keys, model_type) of the configs within a config."""
    inner = []
    listed = {} if known is None else known.parts
    for path, its_type in listed.items():
        found: Any = keys
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            same = found.get("model_type") in (None, model_type)
            inner.append((path, {**found, "model_type": None} if same else found, its_type))
    single = known is not None and not known.parts  # what is kept beside it must be known as well
    for name, value in keys.items():
        if not isinstance(name, str) or any(p.split(".")[0] == name for p in listed):
            continue
        composed = name.endswith("_config") or name in ("encoder", "decoder")
        if not composed or not isinstance(value, Mapping):
            continue
        if single and not _is_known(value):
            continue
        # Older files repeat the model's own type in a part, or leave it out.
        usual = f"{model_type}_{name.removesuffix('_config')}"
        if value.get("model_type") in (None, model_type) and usual in families():
            inner.append((name, {**value, "model_type": None}, usual))
        elif _is_model(value):
            inner.append((name, value, ""))
    return inner


def _is_known(keys: Mapping[str, Any]) -> bool:
    """A config of a known family, or one that holds such a config."""
    if family(str(keys.get("model_type"))) is not None:
        return True
    inner = (v for k, v in keys.items() if isinstance(k, str) and k.endswith("_config"))
    return any(_is_known(each) for each in inner if isinstance(each, Mapping))


def _is_model(keys: Mapping[str, Any]) -> bool:
    if isinstance(keys.get("model_type"), str):
        return True
    return any(
        k.endswith("_config") and isinstance(v, Mapping) and _is_model(v)
        for k, v in keys.items()
        if isinstance(k, str)
    )


def _add(
    keys: Mapping[str, Any],
    weak: frozenset[str],
    path: str,
    model_type: str,
    known: Family | None,
    found: dict[str, Part],
) -> None:
    if known is None:
        found[path] = _unknown(keys, weak, path, model_type)
        return
    keys, said = remote.rewritten(model_type, keys, known)
    reading = _reading(keys, weak, path, known)
    for key, value, other in known.when:
        if reading.get(key) == value:
            known = other
            reading = _reading(keys, weak, path, known)
            reading.asked.add(key)
            break
    reading.keep(said)
    if known.decoder is None:
        found[path] = Part(path, model_type, known, reading)
        return
    decoder = known.decoder
    for name, one in (("encoder", known), ("decoder", decoder)):
        own = _reading(keys, weak, path, one)
        found[_join(path, name)] = Part(_join(path, name), model_type, one, own)


def _reading(keys: Mapping[str, Any], weak: frozenset[str], path: str, known: Family) -> Reading:
    return Reading(keys, known.defaults, weak, f"{path}." if path else "")


def _unknown(keys: Mapping[str, Any], weak: frozenset[str], path: str, model_type: str) -> Part:
    """A part whose model_type nobody told us about: read as Llama if it leaves nothing open."""
    fractions = rope_keys.FRACTION_KEYS
    plain = Family(fraction=fractions)
    reading = _reading(keys, weak, path, plain)
    what = f"model_type {shown(model_type)}" if model_type else "the config"
    where = f"{short(path)}: " if path else ""
    near = nearest(model_type, families())
    opened = [key for key in DECIDED_BY_CODE if _says(reading, key)]
    known = "is not a known family" if model_type else "has no model_type"
    if opened:
        why = f"and its {opened[0]} means what its code makes of it."
        plain = Family(refused=f"{known},{near and ' ' + near.strip()} {why}")
    elif not _complete(reading):
        plain = Family(
            refused=f"{known}.{near} Its keys alone do not say its positions: that takes a base "
            "(rope_theta) and a width (head_dim, or hidden_size and num_attention_heads)."
        )
    else:
        text = f"{where}{what} {known}: read as Llama's, every layer rotary, half pairing."
        reading.notice(text, severity="note")
    return Part(path, model_type, plain, reading)


def tell_dead(reading: Reading) -> None:
    """Tell of keys that decide positions elsewhere, and that this family's code does not read."""
    for key in DECIDED_BY_CODE:
        value = reading.given.get(key)
        if key not in (*reading.asked, *REPLACED) and value not in SAYS_NOTHING:
            reading.notice(
                f"{reading.name(key)} = {shown(value)} is not read by the code of this family, and "
                "has no effect here; other code may read it.",
                DEAD.get(key, "K02"),
            )


def _says(reading: Reading, key: str) -> bool:
    """Whether a key has a value, at the top or in a rope dict."""
    dicts = (reading.given, *(reading.given.get(name) for name in rope_keys.NAMES))
    given = [each.get(key) for each in dicts if isinstance(each, Mapping)]
    return any(value not in (None, [], {}) for value in given)


def _complete(reading: Reading) -> bool:
    try:
        return complete(reading)
    except (TypeError, ValueError):  # a key that means something else in that model
        return False


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def chosen(parts: Mapping[str, Part], part: str | None) -> Part:
    """The part of this name, or the only one, or the encoder."""
    names = list(parts)
    if part is None:
        if len(parts) == 1:
            return parts[names[0]]
        if "" in parts:  # a model with parts beside it, as a codec
            return parts[""]
        if {"encoder", "decoder"} <= set(names):
            return parts["encoder"]
        raise ValueError(
            f"The model has {len(parts)} parts: choose one with part=. {_listed(parts)}"
        )
    if not isinstance(part, str):
        raise TypeError(f"part must be a string or None, got {shown(part)}.")
    if part in parts:
        return parts[part]
    if names == [""]:
        raise ValueError(f"The model has no parts: leave part out, got {shown(part)}.")
    raise ValueError(f"The model has no part {shown(part)}.{nearest(part, names)} {_listed(parts)}")


def _listed(parts: Mapping[str, Part]) -> str:
    told = [f"{shown(n)} ({short(p.model_type)})" for n, p in parts.items()]
    more = [f"and {len(told) - 20} more"] if len(told) > 20 else []
    return f"Parts: {', '.join([*told[:20], *more])}."
