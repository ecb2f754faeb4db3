"""What an encoding does, in words and numbers: rows of a label and a text, and the bare numbers.

One function a class, found by the class's name, so that nothing is imported that is not there.
Units: wavelengths in tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor

from whereness.encoding import PositionalEncoding
from whereness.frequencies import geometric

SAME = 1e-6
"""Relative difference below which a frequency counts as unchanged."""


TIED = "\xa0"
"""A blank at which no line breaks."""


@dataclass
class Facts:
    """What is told of one encoding."""

    name: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    reach: int = 0
    """Tokens that a scaling stretches the model to, where it says so."""

    def say(self, label: str, text: str) -> None:
        """Add a row; an empty label goes on with the row above."""
        self.rows.append((label, text))


def facts(encoding: PositionalEncoding, length: int | None = None) -> Facts:
    """What `encoding` does in a model made for `length` tokens."""
    found = Facts(type(encoding).__name__, numbers={"encoding": type(encoding).__name__})
    if encoding.site is not None:
        sites = {"tokens": "the input, once", "every_layer": "every layer's input"}
        added = "joined to" if getattr(encoding, "join", "add") == "concat" else "added to"
        where = sites.get(encoding.site, "what queries and keys are made of")
        found.say("where", f"{added} {where}")
    for cls in type(encoding).__mro__:
        if cls.__name__ in TELLERS:
            TELLERS[cls.__name__](encoding, found, length)
            return found
    doors = ", ".join(map(str, encoding.doors)) or "none"
    found.say("doors", f"{doors} (1 tokens, 2 projections, 3 queries and keys, 4 scores, 5 values)")
    return found


# Rotary


def _rope(rope: Any, found: Facts, length: int | None) -> None:
    _width(rope, found)
    found.say("base", count(rope.base))
    found.numbers["base"] = rope.base
    trained = _original(rope.scaling) or length
    if type(rope.scaling).__name__ == "YaRN":
        found.reach = round(rope.scaling.factor * rope.scaling.original_length)
    if rope.scaling is not None:
        _scaling(rope, found)
    if rope.needs_lengths and trained is not None:
        _by_length(rope, found, trained, length)
        return
    reaches = [n for n in (trained, max(length or 0, found.reach)) if n]
    said = _spectrum(found.numbers, rope.frequencies, reaches)
    found.rows += said
    found.say("amplitude", _amplitude(rope, found.numbers, rope.amplitude))


def _by_length(rope: Any, found: Facts, trained: int, length: int | None) -> None:
    """The same for short and for long sequences, of a scaling that tells them apart."""
    far = length if length is not None and length > trained else 4 * trained
    # LongRoPE has two sets of divisors; the base of dynamic NTK grows with every token.
    beyond = "beyond" if type(rope.scaling).__name__ == "LongRoPE" else f"at {far:,}"
    plain = geometric(rope.base, rope.rotary_dim, rope.rotary_dim // 2)
    found.numbers["by_length"] = []
    for at, label in ((trained, f"up to {trained:,}"), (far, beyond)):
        numbers: dict[str, Any] = {"tokens": at}
        found.numbers["by_length"].append(numbers)
        frequencies = rope.frequencies_at(at)
        rows = dict(_spectrum(numbers, frequencies, [at]))
        divisors = [a / b for a, b in zip(plain, frequencies.tolist(), strict=True) if b]
        found.say(label, _divided(min(divisors), max(divisors)))
        found.say("", f"wavelengths {rows['wavelengths']}")
        if "no full turn" in rows:
            found.say("", f"no full turn: {rows['no full turn']}")
        found.say("", f"amplitude {_amplitude(rope, numbers, rope.amplitude_at(at))}")
    found.numbers |= {k: v for k, v in found.numbers["by_length"][0].items() if k != "tokens"}


def _divided(least: float, most: float) -> str:
    if max(most - 1, 1 - least) < SAME:
        return "frequencies as without scaling"
    by = count(most) if most / least - 1 < SAME else f"{count(least)} to {count(most)}"
    return f"frequencies divided by {by}"


def _learned_rope(rope: Any, found: Facts, length: int | None) -> None:
    _rope(rope, found, length)
    found.say("learned", "a factor on each frequency; these are the present ones")
    found.numbers["learned"] = True


def _xpos(rope: Any, found: Facts, length: int | None) -> None:
    _rope(rope, found, length)
    zeta = rope.zeta.tolist()
    least, most = count(min(zeta)), count(max(zeta))
    found.say(
        "decay",
        f"in {count(rope.scale_base)} tokens a pair's score falls to {least} (first pair) .. "
        f"{most} (last) of it; q and k keep their size at {count(rope.centre)}",
    )
    found.numbers |= {"scale_base": rope.scale_base, "gamma": rope.gamma, "centre": rope.centre}


def _fope(rope: Any, found: Facts, length: int | None) -> None:
    _width(rope, found)
    found.say("base", count(rope.base))
    found.numbers["base"] = rope.base
    found.rows += _spectrum(found.numbers, rope.frequencies, [length] if length else [])
    mixed = rope.num_frequencies
    found.say("mixture", f"cos and sin of the {mixed} that turn are mixed by learned weights")
    found.numbers |= {"num_frequencies": mixed, "num_kv_heads": rope.num_kv_heads, "learned": True}


def _mixed(rope: Any, found: Facts, _length: int | None) -> None:
    _width(rope, found)
    heads = rope.num_kv_heads
    found.say("axes", f"{rope.num_axes}; every pair of {heads} key heads has a learned direction")
    found.numbers |= {"axes": rope.num_axes, "num_kv_heads": heads, "learned": True}


def _width(rope: Any, found: Facts) -> None:
    turning, whole = rope.rotary_dim, rope.head_dim
    pairs = turning // 2
    if turning == whole:
        found.say("width", f"all {whole} channels of a head turn, in {pairs} pairs")
    else:
        which = "first" if rope.rotary_side == "leading" else "last"
        found.say(
            "width",
            f"the {which} {turning} of {whole} channels turn, in {pairs} pairs; "
            f"{whole - turning} have no position",
        )
    # A layout of blocks pairs within each; the number of the partner is then another one.
    partner = f"channel i with i + {pairs}" if not hasattr(rope, "layout") else "within its block"
    said = partner if rope.pairing == "half" else "channel 2i with 2i + 1"
    found.say("pairing", f"{rope.pairing}: {said}")
    found.numbers |= {
        "head_dim": whole,
        "rotary_dim": turning,
        "rotary_side": rope.rotary_side,
        "pairing": rope.pairing,
        "pairs": pairs,
    }


def _scaling(rope: Any, found: Facts) -> None:
    scaling = rope.scaling
    found.say("scaling", f"{type(scaling).__name__}: {_options(scaling)}")
    found.numbers["scaling"] = _plain(scaling)
    if rope.needs_lengths:
        return
    plain = geometric(rope.base, rope.rotary_dim, rope.rotary_dim // 2)
    text = slowing(plain, rope.frequencies.tolist())
    if text:
        found.say("", text)


def _original(scaling: Any) -> int | None:
    """The length of training that a scaling knows, be it that of the one within it."""
    known = 1 if scaling is None else scaling.reference_length
    return known if known > 1 else None


def _options(scaling: Any) -> str:
    """The options that are not the default. LongRoPE's lists are told by their effect."""
    names = [f.name for f in fields(scaling) if not _is_default(scaling, f.name)]
    names = [name for name in names if name not in ("short_factor", "long_factor")]
    return ", ".join(f"{name}{TIED}{_option(getattr(scaling, name))}" for name in names)


def _plain(scaling: Any) -> dict[str, Any]:
    options = {f.name: getattr(scaling, f.name) for f in fields(scaling)}
    within = {name: _plain(v) for name, v in options.items() if is_dataclass(v)}
    return {"name": type(scaling).__name__, **options, **within}


def _is_default(scaling: Any, name: str) -> bool:
    default = next(f.default for f in fields(scaling) if f.name == name)
    return bool(getattr(scaling, name) == default)


def _option(value: Any) -> str:
    if is_dataclass(value):
        return f"{type(value).__name__} ({_options(value)})"
    if isinstance(value, (tuple, list)) and len(value) > 4:
        return f"{count(min(value))} to {count(max(value))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return count(value)
    return str(value)


def slowing(plain: Sequence[float], scaled: Sequence[float]) -> str:
    """Which pairs a scaling keeps, slows and stops: "pairs 0-28 kept, 29-34 between, ..."."""
    slowed = [p / s if s else math.inf for p, s in zip(plain, scaled, strict=True)]
    finite = [r for r in slowed if r != math.inf]
    most = max(finite, default=1.0)
    if finite and abs(min(finite) - most) < SAME and len(finite) == len(slowed):
        return f"every pair slowed {count(most)} times" if abs(most - 1) > SAME else ""
    words = [_word(ratio, most) for ratio in slowed]
    runs: list[tuple[int, int, str]] = []
    for pair, word in enumerate(words):
        if runs and runs[-1][2] == word:
            runs[-1] = (runs[-1][0], pair, word)
        else:
            runs.append((pair, pair, word))
    if len(runs) > 6:
        return f"pairs slowed {count(min(finite))} to {count(most)} times, each another"
    return "pairs " + ", ".join(
        f"{a}-{b} {word}" if a < b else f"{a} {word}" for a, b, word in runs
    )


def _word(ratio: float, most: float) -> str:
    if ratio == math.inf:
        return "stopped"
    if abs(ratio - 1) < SAME:
        return "kept"
    if abs(ratio / most - 1) < SAME:
        return f"slowed {count(most)} times"
    return "between"


def _spectrum(
    numbers: dict[str, Any], frequencies: Tensor, reaches: list[int]
) -> list[tuple[str, str]]:
    """Rows on wavelengths, and on the pairs that complete no turn."""
    values = [float(f) for f in frequencies.abs().tolist()]
    turning = [f for f in values if f > 0]
    if not turning:
        return [("wavelengths", "no pair turns")]
    shortest, longest = 2 * math.pi / max(turning), 2 * math.pi / min(turning)
    still = len(values) - len(turning)
    stopped = f"; {still} of {len(values)} pairs never turn" if still else ""
    rows = [("wavelengths", f"{count(shortest)} to {count(longest)} tokens{stopped}")]
    told: list[str] = []
    for reach in dict.fromkeys(reaches):
        slow = sum(f * reach < 2 * math.pi for f in values)
        trained = " (training)" if len(set(reaches)) > 1 else ""
        first = f"{slow} of {len(values)} pairs within {reach:,} tokens{trained}"
        told.append(f"{slow} within {reach:,}" if told else first)
        numbers.setdefault("pairs_without_a_turn", {})[str(reach)] = slow
    if told:
        rows.append(("no full turn", ", ".join(told)))
    numbers["shortest_wavelength"] = shortest
    numbers["longest_wavelength"] = longest
    numbers["frequencies"] = values
    return rows


def _amplitude(rope: Any, numbers: dict[str, Any], amplitude: float) -> str:
    folded = rope.logit_scale(rope.head_dim)
    numbers |= {"amplitude": amplitude, "logit_scale": folded}
    said = []
    if amplitude != 1:
        what = "logits" if rope.rotary_dim == rope.head_dim else "what turns of the logits"
        said.append(f"{amplitude:.6g} on cos and sin: {what} times {amplitude**2:.6g}")
    if folded != 1:
        said.append(f"logits times {folded:.6g} in the softmax scale")
    return "; ".join(said) or "1"


def _axial(rope: Any, found: Facts, _length: int | None) -> None:
    _width(rope, found)
    found.say("axes", f"{rope.num_axes}, layout {rope.layout}")
    base = rope.base
    bases = base if isinstance(base, tuple) else (base,)
    found.say("base", ", ".join(map(count, bases)))
    each = list(rope.frequencies)
    for axis, frequencies in enumerate(each):
        if axis and all(f.equal(each[0]) for f in each if f.shape == each[0].shape):
            break
        which = f" (axis {axis}, {len(frequencies)} pairs)"
        waves = 2 * math.pi / frequencies
        found.say(
            "wavelengths", f"{count(float(waves.min()))} to {count(float(waves.max()))}{which}"
        )
    found.numbers |= {
        "axes": rope.num_axes,
        "layout": rope.layout,
        "base": base,
        "frequencies": [f.tolist() for f in each],
    }
    if len(each) > 1 and all(f.shape == each[0].shape and f.equal(each[0]) for f in each):
        found.rows[-1] = ("wavelengths", found.rows[-1][1].replace("axis 0", "every axis"))


def _multimodal(rope: Any, found: Facts, length: int | None) -> None:
    sections = ", ".join(map(str, rope.sections))
    found.say("axes", f"{rope.num_axes}, pairs {sections} in the order {rope.order!r}")
    found.numbers |= {"axes": rope.num_axes, "sections": list(rope.sections), "order": rope.order}
    _rope(rope, found, length)


def _temperature(warm: Any, found: Facts, length: int | None) -> None:
    import torch

    places = [0, int(warm.floor), *([length - 1] if length and length > warm.floor + 1 else [])]
    factors = warm.factors(torch.tensor(places)).tolist()
    said = ", ".join(f"{f:.4g} at {p:,}" for p, f in zip(places, factors, strict=True))
    found.say("temperature", f"queries grow with their position ({warm.school}): {said}")
    found.numbers |= {"school": warm.school, "scale": warm.scale, "floor": warm.floor}


# Tables and biases


def _nope(_: Any, found: Facts, _length: int | None) -> None:
    found.say("position", "none: no encoding tells these layers the order")


def _drope(dropped: Any, found: Facts, length: int | None) -> None:
    _nope(dropped, found, length)
    scale = dropped.logit_scale(1)
    found.say("logits", f"times {count(scale)}")
    found.numbers |= {"factor": dropped.factor, "c": dropped.c, "logit_scale": scale}


def _learned(table: Any, found: Facts, _length: int | None) -> None:
    grid = " x ".join(f"{n:,}" for n in table.grid)
    found.say("table", f"{grid} positions, {table.dim:,} channels, learned; none beyond")
    if table.first_row:
        found.say("", f"position 0 is row {table.first_row}")
    if table.num_prefix:
        found.say("", f"{table.num_prefix} rows before the grid are for tokens without a place")
    names = ("dim", "grid", "first_row", "num_prefix")
    found.numbers |= {name: getattr(table, name) for name in names}


def _sinusoidal(waves: Any, found: Facts, length: int | None) -> None:
    found.say(
        "width", f"{waves.dim:,} channels, order {waves.order}, exponent over {waves.exponent}"
    )
    found.say("base", count(waves.base))
    found.rows += _spectrum(found.numbers, waves.frequencies, [length] if length else [])
    found.numbers |= {n: getattr(waves, n) for n in ("dim", "base", "order", "exponent")}


def _t5(bias: Any, found: Facts, _length: int | None) -> None:
    way = "half of them for keys ahead" if bias.bidirectional else "all for keys behind"
    found.say("buckets", f"{bias.num_buckets}, {way}; {bias.num_heads} heads, learned")
    found.say("", f"from {bias.max_distance:,} tokens on, all keys share the last")
    found.say("logits", "scaled by 1/sqrt(D)" if bias.scaled else "q.k is not divided by sqrt(D)")
    names = ("num_heads", "num_buckets", "max_distance", "bidirectional", "scaled")
    found.numbers |= {name: getattr(bias, name) for name in names}


def _alibi(bias: Any, found: Facts, _length: int | None) -> None:
    slopes = bias.slopes.tolist()
    steep, flat = max(slopes), min(slopes)
    found.say("slopes", f"{count(steep)} to {count(flat)} logits per token, {bias.num_heads} heads")
    found.say("", f"a key loses 1 logit in {count(1 / steep)} to {count(1 / flat)} tokens")
    found.numbers |= {"num_heads": bias.num_heads, "slopes": slopes}


def _shaw(shaw: Any, found: Facts, _length: int | None) -> None:
    values = "keys and values" if shaw.value_table is not None else "keys"
    found.say("offsets", f"a vector for each within {shaw.max_distance:,} tokens, for {values}")
    found.numbers |= {"head_dim": shaw.head_dim, "max_distance": shaw.max_distance}


TELLERS: dict[str, Callable[[Any, Facts, int | None], None]] = {
    "ALiBi": _alibi,
    "AxialRoPE": _axial,
    "DroPE": _drope,
    "FoPE": _fope,
    "LeRoPE": _learned_rope,
    "LearnedAbsolute": _learned,
    "MixedRoPE": _mixed,
    "MultimodalRoPE": _multimodal,
    "NoPE": _nope,
    "RoPE": _rope,
    "Shaw": _shaw,
    "Sinusoidal": _sinusoidal,
    "T5": _t5,
    "Temperature": _temperature,
    "XPos": _xpos,
}


def count(value: float) -> str:
    """A number for a reader: 131,072; 6.283; 0.0001; 2.5e+12."""
    if value and (abs(value) >= 1e12 or abs(value) < 1e-4):
        return f"{value:.4g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
