"""A recommendation in plain words, from a summary alone: what to use, why, and what is not known.

    use           one name; several if each is the best or tied with it at every length, or
                  one for each range of lengths
    headline      one sentence
    because       sentences: the numbers and the costs
    to_know       sentences: what explains the numbers of the others, and what the text repeats
    lengths       by length: best, ties
    not_tested    sentences: what the comparison says nothing about
    would_change  sentences: what could lead to another answer

`whereness.lab.decision` holds the rule, `reasons` and `caveats` the sentences. Every number in them
is one of the summary's or follows from its numbers.
"""

from typing import Any

from whereness.lab.caveats import not_tested, would_change
from whereness.lab.decision import Decision, Evidence, decide
from whereness.lab.reasons import because, to_know
from whereness.lab.words import listed, nats


def recommend(summary: dict[str, Any]) -> dict[str, Any]:
    """The `recommendation` of a summary, from its other parts."""
    evidence, text = Evidence(summary), summary["text"]
    decision = decide(evidence)
    lengths = {
        str(length): {"best": evidence.best(length), "ties": evidence.ties(length)}
        for length in (evidence.lengths if evidence.names else ())
    }
    return {
        "use": decision.use,
        "headline": headline(evidence, decision),
        "because": list(because(evidence, decision)),
        "to_know": list(to_know(evidence, decision, text)),
        "lengths": lengths,
        "not_tested": list(not_tested(evidence, text)),
        "would_change": list(would_change(evidence, decision, text)),
    }


def headline(e: Evidence, decision: Decision) -> str:
    """What to use, in one sentence."""
    use = decision.use
    if not use:
        return "No language model was completed, so nothing can be recommended."
    if len(e.names) == 1:
        return f"Only {use[0]} has results: there is nothing to choose between."
    if len(use) == 1 and decision.everywhere:
        return f"Use {use[0]}."
    if len(use) == 1:
        worst = nats(e.worst(use[0], e.lengths))
        return (
            f"Use {use[0]}: no encoding is best at every length, and it is at most {worst} above "
            "the best."
        )
    if decision.everywhere:
        return f"Use {listed(use, 'or')}: each is the best or tied with it at every length."
    return (
        f"Use {decision.near} for texts of up to {decision.until} bytes and {decision.far} for "
        "longer ones."
    )
