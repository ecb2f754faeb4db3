"""Rules on a config that the reader can read, and that may be wrong all the same.

A rule looks at the layers of one part and tells what it finds; what no part alone can tell is in
`configs.limits`. Plain Python, so that a config alone is audited at once.

    sections_fit        pairs of the axes against the rotary width               K03, K15
    order_fits          the same against the order of the axes                   K03
    keys_are_known      keys on positions that nothing reads                      K22
    lists_fit           lists with more entries than layers; windows without width    K23
    scaling_fits        the scaling's lengths against the context length          K02
    amplitude_fits      an explicit amplitude against YaRN's own                  K04
    base_fits           the base against the context length: `configs.reach`      K02
    share_is_said       a rotary share that only code knows                       K03
    buckets_fit         T5's buckets                                              K18
    grid_fits           patches against the image                                 K15
"""

import math
from collections.abc import Callable, Iterator

from whereness.auditor.configs.reach import LOST, OFTEN, farthest, first_below, reached
from whereness.auditor.findings import Finding, Severity
from whereness.interop.config import rope_keys
from whereness.interop.config.keys import counted, shown
from whereness.interop.config.parts import DECIDED_BY_CODE
from whereness.interop.config.reader import REFUSED, Layers, spoken
from whereness.interop.config.sight import BOTH_WAYS
from whereness.interop.config.specs import Spec
from whereness.interop.config.spelling import known_keys
from whereness.rotary.sections import ORDERS

CHECK = "CHK11"
KEYS = "config keys"
SPEAKING = ("rope", "rotary", "mrope", "yarn", "alibi")
FAR_AMPLITUDE = 2.0
"""An amplitude twice the formula's makes logits four times as large: no released model has it."""


def fault(
    kind: str,
    severity: Severity,
    where: str,
    expected: str,
    measured: str,
    cause: str,
    remedy: str,
    part: str = "",
) -> Finding:
    """A finding of this check; cause and remedy as whole sentences."""
    return Finding(
        check=CHECK,
        kind=kind,
        severity=severity,
        where=where,
        expected=expected,
        measured=measured,
        cause=_sentence(cause),
        remedy=_sentence(remedy),
        part=part,
    )


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


def specs(layers: Layers) -> Iterator[tuple[Spec, list[int]]]:
    """Every encoding of a part, and the layers that have it."""
    for made, where in layers.groups().items():
        for spec in made:
            if spec.kind != REFUSED:
                yield spec, where


def pairs_of(spec: Spec) -> int:
    """Pairs of channels that a rotary encoding turns."""
    return int(spec.get("rotary_dim") or spec.get("head_dim")) // 2


# One part


def sections_fit(layers: Layers) -> Iterator[Finding]:
    """Sections that do not add up to the pairs that turn."""
    for spec, _ in specs(layers):
        sections = spec.get("sections")
        if spec.kind != "MultimodalRoPE" or sections is None:
            continue
        key = layers.part.family.sections[0]
        told = f"{layers.part.reading.name(key)} = {list(sections)}"
        pairs = pairs_of(spec)
        if sum(sections) != pairs:
            yield fault(
                "K03",
                "error",
                layers.part.reading.name(key),
                f"sections that add up to the {pairs} pairs that turn, half of the rotary width",
                f"{told} adds up to {sum(sections)}",
                "the sections are for another head width, or a partial width was left out",
                "correct the sections, head_dim or partial_rotary_factor",
            )
        elif len(sections) < 2 or min(sections) < 1:
            yield fault(
                "K15",
                "error",
                layers.part.reading.name(key),
                "at least two axes, each with a pair of its own",
                told,
                "an axis has no channel that could tell its positions",
                "give every axis at least one pair",
            )


def order_fits(layers: Layers) -> Iterator[Finding]:
    """Sections that add up, and that the order of the axes cannot give all the same."""
    for spec, _ in specs(layers):
        sections = spec.get("sections")
        if spec.kind != "MultimodalRoPE" or sections is None:
            continue
        if sum(sections) != pairs_of(spec) or len(sections) < 2 or min(sections) < 1:
            continue  # for `sections_fit`
        try:
            ORDERS[spec.get("order")](sections)
        except ValueError as error:
            name = layers.part.reading.name(layers.part.family.sections[0])
            yield fault(
                "K03",
                "error",
                name,
                f"sections that the order of the axes, {spec.get('order')}, can give",
                f"{name} = {list(sections)}: {error}",
                "sections and order are of different models; code that fills pairs by strided "
                "slices drops what does not fit and says nothing",
                "take sections and order from the model that the weights are of",
            )


def lists_fit(layers: Layers) -> Iterator[Finding]:
    """Lists of more entries than layers, and windows without a width."""
    reading, known = layers.part.reading, layers.part.family
    count = len(layers.each)
    for key in ("layer_types", known.rope_flags, known.layer_bases):
        given = reading.given.get(key) if key else None
        if layers.counted and isinstance(given, (list, tuple)) and len(given) > count:
            yield fault(
                "K23",
                "warning",
                reading.name(key),
                f"an entry for each of the {count} layers",
                f"{reading.name(key)} has {len(given)} entries; the last {len(given) - count} are "
                "not read",
                "layers were taken out and the list was not shortened, maybe at the wrong end",
                "leave the entries of the layers that are there",
            )
    sliding = [i for i, each in enumerate(layers.types) if each == "sliding_attention"]
    own_key = layers.part.model_type in BOTH_WAYS  # their window has another name
    if sliding and not own_key and reading.get("sliding_window") is None:
        yield fault(
            "K23",
            "warning",
            reading.name("sliding_window"),
            f"a window for {spoken(sliding, count)}, of type sliding_attention",
            f"{reading.name('sliding_window')} is missing: these layers see everything",
            "the key was lost, or code has a default for it",
            "give the window that the weights were trained with",
        )


def scaling_fits(layers: Layers) -> Iterator[Finding]:
    """The length that a scaling starts from against the one that the model is for."""
    reading, length = layers.part.reading, layers.length
    for spec, _ in specs(layers):
        scaling = spec.get("scaling")
        original = None if scaling is None else scaling.get("original_length")
        if original is None or length is None:
            continue
        kind = scaling.kind.removeprefix("scaling.")
        # YaRN's files often keep the length of pre-training in both: the factor says the reach.
        beyond = original > length or (original == length and kind in ("Llama3", "LongRoPE"))
        said = _given_original(layers)
        if beyond and said is not None:
            yield fault(
                "K02",
                "warning",
                said,
                "a length of pre-training below the length that the scaling is to reach",
                f"{said} = {original:,} and the context length {length:,}: {kind} reaches no "
                "further than pre-training did",
                "the two lengths were exchanged, or one key was used for both",
                "give the length of pre-training, which does not change with the context",
            )
        if said is None and kind in ("YaRN", "Llama3"):
            yield fault(
                "K02",
                "warning",
                reading.name("original_max_position_embeddings"),
                "frequencies that do not change with the context length",
                f"the length of pre-training is missing: {kind}'s frequencies follow the context "
                f"length, {length:,}, and change with it",
                "one key has two meanings: rows of a table, and the length of pre-training",
                "give original_max_position_embeddings beside the factor",
            )


def _given_original(layers: Layers) -> str | None:
    """Name of the key that says the length of pre-training; None where it was derived."""
    reading, key = layers.part.reading, "original_max_position_embeddings"
    if reading.get(key) is not None:
        return reading.name(key)
    name, rope = rope_keys.rope_dict(reading)
    for inner in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if inner.get(key) is not None:
            return f"{reading.name(name)}.{key}"
    return None


def amplitude_fits(layers: Layers) -> Iterator[Finding]:
    """An explicit amplitude far from YaRN's own."""
    for spec, _ in specs(layers):
        scaling = spec.get("scaling")
        given = scaling.get("attention_factor") if scaling is not None else None
        if given is None or scaling.kind != "scaling.YaRN":
            continue
        own = 0.1 * math.log(scaling.get("factor")) + 1
        if max(given / own, own / given) > FAR_AMPLITUDE:
            yield fault(
                "K04",
                "warning",
                layers.part.reading.name("attention_factor"),
                f"an amplitude near YaRN's own, 0.1 ln {counted(scaling.get('factor'))} + 1 = "
                f"{own:.4f}",
                f"attention_factor = {given:g}: logits times {given**2:g}",
                "the factor of the scaling was written there, or a factor on logits",
                "leave attention_factor out, or give the one that the weights were trained with",
            )


def keys_are_known(layers: Layers) -> Iterator[Finding]:
    """Keys at the top that speak of positions, and that no family reads."""
    reading = layers.part.reading
    for key, value in reading.given.items():
        if not key.lower().startswith(SPEAKING) or value in (None, False) or key in known_keys():
            continue
        if key in (*layers.part.family.defaults, *DECIDED_BY_CODE):
            continue
        yield fault(
            "K22",
            "warning",
            reading.name(key),
            "keys that some code reads",
            f"{reading.name(key)} = {shown(value)} is read by no family that is known here",
            "a slip, or a key of another library, which has no effect",
            "correct the key, or remove it",
        )


def base_fits(layers: Layers) -> Iterator[Finding]:
    """A base that is small for the context length, by the bound of `configs.reach`."""
    for spec, where in specs(layers):
        length = reached(layers, spec, where)
        base = spec.get("base")
        if length is None or base is None:
            continue
        first = first_below(spec, length)
        if first is None:
            continue
        lost = length > LOST * first
        yield fault(
            "K02",
            "warning" if lost else "note",
            layers.part.reading.name("rope_theta"),
            f"a base for which keys like the query score above average at every offset within "
            f"{length:,} tokens",
            f"with the base {counted(base)} that ends at offset {first:,}",
            "the base was lost, and a default stands in its place"
            if lost
            else "the base was chosen for shorter texts, or for wider heads",
            "compare the base with the one that the weights were trained with"
            if lost
            else "try retrieval over the whole length before relying on it",
        )


def unreached(layers: Layers) -> str:
    """Why a base was not held against the whole context length; empty if it was."""
    rotary = [(spec, where) for spec, where in specs(layers) if spec.kind == "RoPE"]
    for spec, where in rotary:
        length = reached(layers, spec, where)
        if length is None:
            return "a base was not held against a context length, which is not known"
        last = farthest(spec, length)
        if last < length // OFTEN and first_below(spec, length) is None:
            return f"the base was held against {last:,} tokens, not the {length:,} of the context"
    return ""


def share_is_said(layers: Layers) -> Iterator[Finding]:
    """A part of the channels turns because code says so, and the config does not."""
    reading, known = layers.part.reading, layers.part.family
    usual = next((known.defaults[k] for k in known.fraction if k in known.defaults), None)
    said = any(reading.given.get(key) is not None for key in known.fraction)
    if usual in (None, 1, 1.0) or said:
        return
    if "partial_rotary_factor" in str(rope_keys.rope_dict(reading)[1]):
        return
    yield fault(
        "K03",
        "warning",
        reading.name(known.fraction[0]),
        "the share of the channels that turns, in the config",
        f"{reading.name(known.fraction[0])} is missing; this family's own code has {usual:g}",
        "older files leave out what is a default of their code; other code turns every channel",
        f'write "{known.fraction[0]}": {usual:g} into the config',
    )


def buckets_fit(layers: Layers) -> Iterator[Finding]:
    """Buckets that no bidirectional T5 bias can have, or no room for the far ones."""
    for spec, _ in specs(layers):
        if spec.kind != "T5":
            continue
        buckets, farthest = spec.get("num_buckets"), spec.get("max_distance")
        sides = 2 if spec.get("bidirectional") else 1
        exact = buckets // sides // 2
        if buckets % sides or exact < 1 or farthest <= exact:
            name = layers.part.reading.name("relative_attention_num_buckets")
            yield fault(
                "K18",
                "error",
                name,
                f"buckets for {'both sides' if sides == 2 else 'the past'}, and a farthest "
                "distance beyond those of one token each",
                f"{buckets} buckets and a farthest distance of {farthest}",
                "one of the two was changed alone",
                "give both as the weights were trained with",
            )


def grid_fits(layers: Layers) -> Iterator[Finding]:
    """An image that patches do not fill: the rest of it is never seen."""
    reading = layers.part.reading
    for quotient in layers.part.family.grid:
        whole, _, patch = quotient.partition("//")
        a, b = reading.get(whole), reading.get(patch)
        if isinstance(a, int) and isinstance(b, int) and b > 0 and a % b:
            yield fault(
                "K15",
                "note",  # as released models have it
                reading.name(whole),
                f"a multiple of {reading.name(patch)} = {b}",
                f"{reading.name(whole)} = {a}: {a % b} pixels at the border are in no patch",
                "the size of images was changed without that of patches",
                "choose an image size that patches fill",
            )


RULES: tuple[Callable[[Layers], Iterator[Finding]], ...] = (
    sections_fit,
    order_fits,
    keys_are_known,
    lists_fit,
    scaling_fits,
    amplitude_fits,
    base_fits,
    share_is_said,
    buckets_fit,
    grid_fits,
)
