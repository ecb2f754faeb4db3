"""The form of `summary.json`, whose meaning is told in `whereness.lab.summary`.

A form is a type, or several; `object`: whatever JSON has. [form]: a list of such. A dict: its keys,
`?` after one that may be missing, and "*" for any other. Nothing else may be there.
"""

import math
from collections.abc import Iterator
from typing import Any

NUMBER = (int, float)
DIFFERENCE = {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "by_seed": {"*": NUMBER}}
LOSS = {**DIFFERENCE, "se": NUMBER}
FORM: dict[str, Any] = {
    "version": int,
    "text": {"source": str, "bytes": int, "sha256": str, "repeated": NUMBER},
    "settings": {
        "encodings": [str],
        "seeds": int,
        "train_length": int,
        "lengths": [int],
        "evaluated_bytes": int,
        "order_task": {"pairs": int, "*": object},
        "constructors": {"*": str},
        "*": object,
    },
    "made_with": {
        "whereness": str,
        "python": str,
        "torch": str,
        "platform": str,
        "processors": int,
        "jobs": int,
        "command": str,
    },
    "encodings": {
        "*": {
            "doors?": [int],
            "properties?": {"*": object},
            "order_task?": {
                "accuracy": NUMBER,
                "by_seed": {"*": NUMBER},
                "seeds": int,
                "solved": bool,
            },
            "language_model?": {
                "train_length": int,
                "seeds": int,
                "loss": {"*": LOSS},
                "loss_last_quarter": {"*": LOSS},
                "above_best": {"*": {"best": str, **DIFFERENCE}},
                "untrained_beyond?": int,
            },
            "cost?": {
                "train_tokens_per_second": NUMBER,
                "relative_speed?": NUMBER,
                "parameters": int,
                "step_memory_bytes": int,
                "extra_memory_bytes": int,
            },
            "failed?": [{"task": str, "seed": int, "reason": str}],
        }
    },
    "recommendation": {
        "use": [str],
        "headline": str,
        "because": [str],
        "to_know": [str],
        "lengths": {"*": {"best": str, "ties": [str]}},
        "not_tested": [str],
        "would_change": [str],
    },
}


def check(summary: Any) -> None:
    """See that a summary has its form, and that its parts agree.

    Raises:
        ValueError: with the place and what is wrong there.
    """
    for find in (lambda s: misfits(s, FORM, "summary"), disagreements):
        for problem in find(summary):
            raise ValueError(problem)


def misfits(value: Any, form: Any, place: str) -> Iterator[str]:
    """What of `value` is not of its form."""
    if isinstance(form, dict):
        yield from dict_misfits(value, form, place)
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{place}: needed a list, got {value!r}."
            return
        for index, item in enumerate(value):
            yield from misfits(item, form[0], f"{place}[{index}]")
    elif form is not object and (
        not isinstance(value, form) or (isinstance(value, bool) and form is not bool)
    ):
        yield f"{place}: needed {form}, got {value!r}."
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place}: needed a finite number, got {value!r}."


def dict_misfits(value: Any, form: dict[str, Any], place: str) -> Iterator[str]:
    """The same for a dict."""
    if not isinstance(value, dict):
        yield f"{place}: needed a dict, got {value!r}."
        return
    known = {key.removesuffix("?"): inner for key, inner in form.items() if key != "*"}
    for key in form:
        if key != "*" and not key.endswith("?") and key not in value:
            yield f"{place}: {key} is missing."
    for key, item in value.items():
        if key in known or "*" in form:
            yield from misfits(item, known.get(key, form.get("*")), f"{place}.{key}")
        else:
            yield f"{place}: {key} is unknown."


def disagreements(summary: dict[str, Any]) -> Iterator[str]:
    """Parts of a well-formed summary that contradict one another."""
    settings, encodings = summary["settings"], summary["encodings"]
    if settings["encodings"] != list(encodings):
        yield f"settings.encodings: needed {list(encodings)}, got {settings['encodings']}."
    lengths = [str(length) for length in settings["lengths"]]
    completed = [name for name, entry in encodings.items() if "language_model" in entry]
    for name in completed:
        entry = encodings[name]
        model = entry["language_model"]
        for key in ("loss", "loss_last_quarter", "above_best"):
            if list(model[key]) != lengths:
                yield f"{name}, {key}: needed lengths {lengths}, got {list(model[key])}."
        named = {above["best"] for above in model["above_best"].values()}
        if not named <= set(completed):
            yield f"{name}, above_best: needed best of {completed}, got {sorted(named)}."
        for key in ("doors", "properties", "cost"):
            if key not in entry:
                yield f"{name}: {key} is missing beside language_model."
    advice = summary["recommendation"]
    tied = [name for n in advice["lengths"].values() for name in (n["best"], *n["ties"])]
    if not {*advice["use"], *tied} <= set(completed):
        yield f"recommendation: needed names of {completed}, got {sorted({*advice['use'], *tied})}."
    if list(advice["lengths"]) != (lengths if completed else []):
        yield f"recommendation: needed lengths {lengths}, got {list(advice['lengths'])}."
