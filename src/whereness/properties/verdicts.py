"""Which properties hold: one rule a property, and what it means for a user where it does not.

The rules are ours; so is every threshold. A rule gives None where the property does not apply, and
so does one that only reports.
"""

from collections.abc import Callable
from dataclasses import dataclass

from whereness.properties.result import Properties, Verdict, shown

GROUPS = {
    "story": "Codes: of positions (doors 1 to 3) or of offsets (door 4)",
    "scores": "Scores of identical tokens, and rotations",
    "use": "In use",
}

EXACT = 1e-6
"""Up to this a float64 measure counts as 0."""
KEPT = 1e-9
"""The same where two float64 passes are compared."""
SHARP = 2.0**-20
"""Logits: what float32 rounding may cost scores of unit size."""

Test = Callable[[Properties], bool | None]


@dataclass(frozen=True)
class Rule:
    """One property: its name, heading and group in tables, its value, and when it holds."""

    name: str
    heading: str
    """Of a column: lines that are broken as it says."""
    group: str
    value: Callable[[Properties], object]
    holds: Test | None
    """None: reported, not judged."""
    meaning: str = ""
    """What it means for a user if the property does not hold."""

    @property
    def title(self) -> str:
        """The heading on one line."""
        return self.heading.replace("-\n", "").replace("\n", " ")

    @property
    def judged(self) -> bool:
        """There is something to hold or not."""
        return self.holds is not None


def judge(p: Properties) -> tuple[Verdict, ...]:
    """A verdict for every rule."""
    return tuple(
        Verdict(r.name, r.title, r.holds(p) if r.holds else None, shown(r.value(p)), r.meaning)
        for r in RULES
    )


# Tests


def _below(value: float | None, limit: float) -> bool | None:
    return None if value is None else value <= limit


def _above(value: float | None, limit: float) -> bool | None:
    return None if value is None else value > limit


def _of_codes(test: Test) -> Test:
    """For encodings that give codes."""
    return lambda p: None if p.code_of is None else test(p)


def _of_scores(test: Test) -> Test:
    """For encodings that change scores of identical tokens."""
    return lambda p: None if p.flat else test(p)


def _unique(p: Properties) -> bool | None:
    if p.untrained:
        return None
    if p.code_of is None:  # no codes: whether two equal words are told apart
        return bool(_above(p.same_word, EXACT))
    return _above(p.uniqueness, EXACT)


def _within_bound(p: Properties) -> bool | None:
    if p.unfinished_pairs is None:
        return None
    return p.context_bound is None or p.context_bound >= p.num_positions


# Values that are made of several


def _linear(p: Properties) -> float | None:
    """The worst shift."""
    return max(p.linear_relation.values()) if p.linear_relation else None


def _lost(p: Properties) -> float | None:
    """Worst error far from position 0 over the error there, of all dtypes."""
    ratios = [
        error / max(near, SHARP)
        for errors in p.precision.values()
        if (near := errors[0]) is not None
        for error in errors.values()
        if error is not None
    ]
    return max(ratios, default=None)


def _axes(p: Properties) -> str | None:
    """The numbers of axes that the family can do."""
    if p.extends_to is None:
        return None
    return ",".join(str(n) for n, works in p.extends_to.items() if works)


def _unfinished(p: Properties) -> int | None:
    return None if p.unfinished_pairs is None else p.unfinished_pairs["count"]


def _size(number: int) -> str:
    """1234 -> 1.2k."""
    size = float(number)
    for unit in ("", "k", "M"):
        if size < 1000:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}G"


RULES = (
    Rule(
        "unique",
        "unique\ncode",
        "story",
        lambda p: p.same_word if p.code_of is None else p.uniqueness,
        _unique,
        "Two positions (or distances) share a code: the model cannot tell them apart.",
    ),
    Rule(
        "length_free",
        "any\nlength",
        "story",
        lambda p: p.length_dependence,
        _of_codes(lambda p: _below(p.length_dependence, EXACT)),
        "A position has another code in a text of another length: what was learned for one length "
        "is wrong for the next.",
    ),
    Rule(
        "bounded",
        "bounded",
        "story",
        lambda p: p.norm_growth,
        _of_codes(lambda p: _below(p.norm_growth, 0.5)),
        "Codes grow with position or distance until they drown content: they swamp the embedding "
        "of far tokens or, as a bias, cut off far keys.",
    ),
    Rule(
        "linear",
        "linear\nrelation",
        "story",
        _linear,
        _of_codes(lambda p: _below(_linear(p), EXACT)),
        'No one matrix moves a code by k positions: "k tokens back" has to be learned anew for '
        "each position.",
    ),
    Rule(
        "defined_beyond",
        "defined\nbeyond",
        "story",
        lambda p: p.defined_beyond,
        lambda p: p.defined_beyond,
        "A longer text than the table holds raises an error: the length is fixed when the model "
        "is built.",
    ),
    Rule(
        "familiar",
        "new\nbeyond",
        "story",
        lambda p: p.unseen_codes,
        _of_codes(lambda p: _below(p.unseen_codes, 0.01)),
        "Past the trained length codes take values that the model has never seen: expect worse "
        "answers there without fine-tuning or scaling.",
    ),
    Rule(
        "deterministic",
        "free\nnumbers",
        "story",
        lambda p: _size(p.free_parameters) if p.deterministic else "random",
        lambda p: p.deterministic and p.free_parameters == 0,
        "Parameters of far positions or distances that a text of half this length does not train; "
        "or codes that change from call to call.",
    ),
    Rule(
        "process",
        "goes\non",
        "story",
        lambda p: p.process_r2,
        _of_codes(lambda p: _above(p.process_r2, 0.99)),
        "Codes of far positions do not follow from those of near ones: a model cannot extrapolate "
        "them.",
    ),
    Rule(
        "axes",
        "axes",
        "story",
        _axes,
        lambda p: None if p.extends_to is None else p.extends_to[2],
        "No member of this family takes positions of two axes: images and video need another.",
    ),
    Rule(
        "offset_only",
        "not by\noffset",
        "scores",
        lambda p: p.translation_invariance,
        _of_scores(lambda p: _below(p.translation_invariance, KEPT)),
        "Identical tokens at the same offset score differently in different places.",
    ),
    Rule(
        "relative",
        "shift\nfree",
        "scores",
        lambda p: p.relative,
        lambda p: p.relative,
        "Moving a text changes answers: patterns are tied to absolute positions.",
    ),
    Rule(
        "monotone",
        "mono-\ntone",
        "scores",
        lambda p: p.monotonicity,
        _of_scores(lambda p: None if p.monotonicity is None else p.monotonicity == 1.0),
        "A farther key can score higher than a nearer one.",
    ),
    Rule("first_increase", "first\nrise", "scores", lambda p: p.first_increase, None),
    Rule(
        "decays",
        "near\nfirst",
        "scores",
        lambda p: p.distance_correlation,
        _of_scores(lambda p: _below(p.distance_correlation, -0.5)),
        "Scores of identical tokens do not fall with distance on the whole: near tokens are not "
        "preferred from the start.",
    ),
    Rule("symmetry", "asym-\nmetry", "scores", lambda p: p.symmetry, None),
    Rule(
        "norm",
        "norm\nchange",
        "scores",
        lambda p: p.norm_preservation,
        lambda p: _below(p.norm_preservation, EXACT),
        "Queries and keys get longer or shorter with position: attention gets sharper or flatter.",
    ),
    Rule(
        "exact",
        "offset\nerror",
        "scores",
        lambda p: p.exact_relativity,
        lambda p: _below(p.exact_relativity, EXACT),
        "Scores depend on more than the offset for some content: shifts and packing change them.",
    ),
    Rule(
        "bandwidth",
        "open\npairs",
        "scores",
        _unfinished,
        lambda p: None if p.unfinished_pairs is None else _unfinished(p) == 0,
        "Some pairs of channels never complete a turn in a text of this length: a longer one "
        "shows angles that training did not.",
    ),
    Rule(
        "context",
        "context\nbound",
        "scores",
        lambda p: p.context_bound,
        _within_bound,
        "Within this length an alike key can score below a random one: use another base.",
    ),
    Rule(
        "precision",
        "error\nfar out",
        "use",
        _lost,
        lambda p: _below(_lost(p), 8.0),
        "Times the error near position 0. Far out scores lose digits: long texts and long caches "
        "get noisy attention in float32 or half precision.",
    ),
    Rule(
        "padding",
        "padding",
        "use",
        lambda p: p.padding,
        lambda p: _below(p.padding, KEPT),
        "Pads change the answers of real tokens: a batch gives other results than its texts alone.",
    ),
    Rule(
        "packing",
        "packing",
        "use",
        lambda p: p.packing,
        lambda p: _below(p.packing, KEPT),
        "Texts packed in one row change one another.",
    ),
    Rule(
        "decoding",
        "decod-\ning",
        "use",
        lambda p: p.decoding,
        lambda p: _below(p.decoding, KEPT),
        "Generating token by token gives other results than one pass over the text.",
    ),
    Rule(
        "order",
        "sees\norder",
        "use",
        lambda p: p.permutation_sensitivity,
        lambda p: None if p.untrained else _above(p.permutation_sensitivity, KEPT),
        "Without a causal mask the model sees a set: it cannot tell two equal words apart.",
    ),
    Rule(
        "cacheable",
        "cache\nkeeps",
        "use",
        lambda p: p.cacheable,
        lambda p: p.cacheable,
        "Old keys change when a token comes: a cache keeps raw keys and redoes them each step.",
    ),
    Rule(
        "fused",
        "fused",
        "use",
        lambda p: p.fused,
        lambda p: p.fused,
        "Fused attention cannot serve it: all logits are kept in memory, and it is slower.",
    ),
    Rule("parameters", "para-\nmeters", "use", lambda p: _size(p.parameters), None),
    Rule("table_bytes", "table\nbytes", "use", lambda p: _size(p.table_bytes), None),
    Rule("table_growth", "grow\nwith", "use", lambda p: p.table_growth, None),
)
