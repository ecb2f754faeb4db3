"""What the template shows: plain values and strings, made from a summary.

Nothing here is markup but the pictures, which are our own SVG.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from whereness.encoding import PositionalEncoding
from whereness.lab.report import chart, judged
from whereness.lab.report.telling import chapters
from whereness.lab.settings import BASELINE, SOLVED
from whereness.lab.words import percent
from whereness.pictures import Picture, pictures

DOORS = {1: "tokens", 2: "projections", 3: "queries and keys", 4: "scores", 5: "values"}
MOST_POSITIONS = 64
"""Of a picture: more would be finer than a page shows."""
LOSS, DIFFERENCE = 2, 3
"""Digits after the point: differences are known better than losses."""

Entries = Mapping[str, Mapping[str, Any]]


class Loss(NamedTuple):
    """One cell of the table of losses."""

    mean: str
    interval: str
    above: str
    above_interval: str
    best: bool
    tie: bool
    untrained: bool


class LossRow(NamedTuple):
    """An encoding at all lengths; None where it has no loss."""

    name: str
    cells: list[Loss | None]


class Order(NamedTuple):
    """An encoding in the order task."""

    name: str
    accuracy: float
    shown: str
    by_seed: str
    solved: bool


class Cost(NamedTuple):
    """What training with an encoding costs."""

    name: str
    speed: str
    relative: str
    share: float | None
    parameters: str
    memory: str


class Subject(NamedTuple):
    """The section of one encoding."""

    name: str
    doors: str
    constructor: str
    facts: list[tuple[str, str]]
    broken: list[str]
    notes: Sequence[str]
    pictures: list[tuple[Picture, Markup]]


def view(summary: Mapping[str, Any], encodings: Mapping[str, PositionalEncoding]) -> dict[str, Any]:
    """Everything that the template names."""
    entries, settings = summary["encodings"], summary["settings"]
    ranked = ranking(entries, settings["lengths"])
    names = [*ranked, *(name for name in entries if name not in ranked)]
    found = {
        name: judged.restored(entries[name]["properties"])
        for name in names
        if "properties" in entries[name]
    }
    failures = judged.failures(found)
    curves = chart.data(ranked, entries, settings) if ranked else None
    return {
        "ids": {name: f"encoding-{i}" for i, name in enumerate(names)},
        "names": names,
        "recommendation": summary["recommendation"],
        "verdict_rows": verdict_rows(summary["recommendation"]),
        "text": summary["text"],
        "repeated": percent(summary["text"]["repeated"]),
        "settings": settings,
        "made_with": summary["made_with"],
        "curves": curves,
        "still": Markup(chart.still(curves)) if curves else "",  # noqa: S704 (our own SVG)
        "losses": losses(ranked, entries, summary["recommendation"]["lengths"]),
        "any_untrained": any("untrained_beyond" in _model(entries[n]) for n in ranked),
        "order": order(names, entries),
        "solved_at": f"{SOLVED:g}",
        "costs": costs(names, entries),
        "baseline": BASELINE,
        "groups": judged.groups(found),
        "failures": failures,
        "titles": {failure.rule.name: failure.rule.title for failure in failures},
        "subjects": subjects(names, summary, encodings, failures),
        "chapters": chapters(),
        "failed": failed(names, entries),
        "recipe": recipe(settings),
        "door_names": DOORS,
    }


def _model(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return entry.get("language_model", {})


def ranking(entries: Entries, lengths: Sequence[int]) -> list[str]:
    """Those that have a loss, the best at the longest length first."""

    def key(name: str) -> tuple[float, ...]:
        loss = entries[name]["language_model"]["loss"]
        return tuple(loss[str(n)]["mean"] for n in reversed(lengths) if str(n) in loss)

    return sorted((name for name in entries if _model(entries[name])), key=key)


def verdict_rows(recommendation: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """By length: the best, and what cannot be told apart from it."""
    return [
        (length, at["best"], [tie for tie in at["ties"] if tie != at["best"]])
        for length, at in recommendation["lengths"].items()
    ]


def losses(
    ranked: Sequence[str], entries: Entries, lengths: Mapping[str, Mapping[str, Any]]
) -> list[LossRow]:
    """The table of losses; `lengths` are those of the recommendation, which tells the ties."""
    rows = []
    for name in ranked:
        model = _model(entries[name])
        cells = [_loss(name, model, n, name in at["ties"]) for n, at in lengths.items()]
        rows.append(LossRow(name, cells))
    return rows


def _loss(name: str, model: Mapping[str, Any], length: str, tie: bool) -> Loss | None:
    loss, above = model["loss"].get(length), model["above_best"].get(length)
    if loss is None or above is None:
        return None
    best, limit = above["best"] == name, model.get("untrained_beyond")
    return Loss(
        mean=number(loss["mean"]),
        interval=span(loss),
        above=signed(above["mean"]),
        above_interval="" if best else span(above, DIFFERENCE),
        best=best,
        tie=tie,
        untrained=limit is not None and int(length) > limit,
    )


def order(names: Sequence[str], entries: Entries) -> list[Order]:
    """The order task, in the order of the other tables."""
    rows = []
    for name in names:
        if (task := entries[name].get("order_task")) is not None:
            seeds = [f"{value:.3f}" for value in task["by_seed"].values()]
            accuracy = task["accuracy"]
            rows.append(
                Order(name, accuracy, f"{accuracy:.3f}", ", ".join(seeds), bool(task["solved"]))
            )
    return rows


def costs(names: Sequence[str], entries: Entries) -> list[Cost]:
    """What training costs."""
    rows = []
    for name in names:
        if (cost := entries[name].get("cost")) is not None:
            share, extra = cost.get("relative_speed"), cost.get("extra_memory_bytes")
            rows.append(
                Cost(
                    name=name,
                    speed=f"{cost['train_tokens_per_second']:,.0f}",
                    relative="" if share is None else f"{share:.2f}",
                    share=share,
                    parameters=f"{cost['parameters']:,}",
                    memory="" if extra is None else memory(extra),
                )
            )
    return rows


def subjects(
    names: Sequence[str],
    summary: Mapping[str, Any],
    encodings: Mapping[str, PositionalEncoding],
    failures: Sequence[judged.Failure],
) -> list[Subject]:
    """The sections of the encodings, with pictures of those that are at hand."""
    entries, length = summary["encodings"], summary["settings"]["train_length"]
    sections = []
    for i, name in enumerate(names):
        entry = entries[name]
        drawn: list[tuple[Picture, Markup]] = []
        if name in encodings:
            positions = min(length, MOST_POSITIONS)
            made = pictures(encodings[name], positions, name=f"picture-{i}")
            drawn = [(p, Markup(p.svg)) for p in made]  # noqa: S704 (our own SVG)
        sections.append(
            Subject(
                name=name,
                doors=opened(entry.get("doors", ())) if "doors" in entry else "",
                constructor=summary["settings"]["constructors"][name],
                facts=facts(entry, summary["settings"]["lengths"]),
                broken=[f.rule.name for f in failures if name in f.names],
                notes=entry.get("properties", {}).get("notes", ()),
                pictures=drawn,
            )
        )
    return sections


def opened(doors: Sequence[int]) -> str:
    """The doors by number and name."""
    if not doors:
        return "no door"
    return ", ".join(f"door {door} ({DOORS[door]})" for door in doors)


def facts(entry: Mapping[str, Any], lengths: Sequence[int]) -> list[tuple[str, str]]:
    """The results of one encoding in a line: names and values."""
    loss = _model(entry).get("loss", {})
    ends = dict.fromkeys(map(str, (lengths[0], lengths[-1])))
    listed = [(f"loss at {n}", number(loss[n]["mean"])) for n in ends if n in loss]
    if "order_task" in entry:
        listed.append(("order task", f"{entry['order_task']['accuracy']:.3f}"))
    if "cost" in entry:
        listed.append(("parameters", f"{entry['cost']['parameters']:,}"))
        if entry["cost"].get("relative_speed") is not None:
            listed.append(("speed", f"{entry['cost']['relative_speed']:.2f} of {BASELINE}"))
    return listed


def failed(names: Sequence[str], entries: Entries) -> list[tuple[str, str, int, str]]:
    """Runs that failed: encoding, task, seed, reason."""
    return [
        (name, failure["task"].replace("_", " "), failure["seed"], failure["reason"])
        for name in names
        for failure in entries[name].get("failed", ())
    ]


OWN_PLACE = ("encodings", "seeds", "order_task", "constructors")
"""Settings that the report shows elsewhere."""


def recipe(settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every setting: its name, its value for the language model, and for the order task."""
    task = settings.get("order_task", {})
    own = {k: v for k, v in settings.items() if k not in OWN_PLACE}
    return [
        (key.replace("_", " "), plain(own.get(key)), plain(task.get(key)))
        for key in dict.fromkeys((*own, *task))
    ]


# Values as text


def plain(value: Any) -> str:
    """A setting as it would be typed."""
    if value is None:
        return "–"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def signed(value: float) -> str:
    """A difference: with its sign, unless it is 0 when rounded."""
    text = number(value, DIFFERENCE)
    return f"+{text}" if value > 0 and float(text) > 0 else text


def number(value: float, digits: int = LOSS) -> str:
    """A minus that is as wide as a plus, and none before 0."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def span(found: Mapping[str, Any], digits: int = LOSS) -> str:
    """An interval."""
    return f"{number(found['low'], digits)} to {number(found['high'], digits)}"


def memory(size: float) -> str:
    """Bytes in a unit that leaves few digits."""
    amount = abs(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.3g} {unit}" if size >= 0 else f"\N{MINUS SIGN}{amount:.3g} {unit}"
