"""Summaries made up for tests: losses are given, what follows from them is computed here."""

from copy import deepcopy
from statistics import fmean

from hypothesis import strategies as st


def entry(losses, *, half=0.01, **changes):
    """One encoding; `losses` by length: a number, or one for each seed."""
    by_length = {str(n): x if isinstance(x, list) else [x] for n, x in losses.items()}
    seeds = len(next(iter(by_length.values())))
    loss = {
        n: {
            "mean": fmean(x),
            "se": 0.01,
            "low": fmean(x) - 0.02,
            "high": fmean(x) + 0.02,
            "by_seed": {str(i): v for i, v in enumerate(x)},
        }
        for n, x in by_length.items()
    }
    model = {"train_length": 8, "seeds": seeds, "loss": loss, "loss_last_quarter": loss}
    model["above_best"] = half  # until the best is known
    order = changes.get("accuracy", 1.0)
    made = {
        "doors": [4],
        "properties": {
            "fused": changes.get("fused", True),
            "content_aware": changes.get("content_aware", False),
        },
        "order_task": {
            "accuracy": order,
            "by_seed": {str(i): order for i in range(seeds)},
            "seeds": seeds,
            "solved": order >= 0.95,
        },
        "language_model": model,
        "cost": {
            "train_tokens_per_second": changes.get("speed", 1000.0),
            "parameters": changes.get("parameters", 0),
            "step_memory_bytes": 10_000_000 + changes.get("extra", 0),
            "extra_memory_bytes": changes.get("extra", 0),
        },
    }
    if "untrained_beyond" in changes:
        model["untrained_beyond"] = changes["untrained_beyond"]
    if "failed" in changes:
        made["failed"] = changes["failed"]
    return made


def failure(seed=0, task="language_model", reason="the training loss became nan at step 3"):
    return {"task": task, "seed": seed, "reason": reason}


def summary(
    encodings, *, lengths=(8, 16, 64), seeds=1, num_bytes=100_000, repeated=0.0, **settings
):
    """All of a summary but its recommendation."""
    encodings = deepcopy(encodings)
    models = {n: e["language_model"] for n, e in encodings.items() if "language_model" in e}
    halves = {name: model["above_best"] for name, model in models.items()}
    for model in models.values():
        model["above_best"] = {}
    for n in map(str, lengths) if models else ():
        best = min(models, key=lambda name: models[name]["loss"][n]["mean"])
        low = models[best]["loss"][n]
        for name, model in models.items():
            own = model["loss"][n]
            mean, half = own["mean"] - low["mean"], 0 if name == best else halves[name]
            model["above_best"][n] = {
                "best": best,
                "mean": mean,
                "low": mean - half,
                "high": mean + half,
                "by_seed": {
                    s: own["by_seed"][s] - low["by_seed"][s]
                    for s in own["by_seed"]
                    if s in low["by_seed"]
                },
            }
    return {
        "version": 1,
        "text": {
            "source": "mine.txt",
            "bytes": num_bytes,
            "sha256": "ab" * 32,
            "repeated": repeated,
        },
        "settings": {
            "encodings": list(encodings),
            "seeds": seeds,
            "train_length": 8,
            "lengths": list(lengths),
            "evaluated_bytes": 2**18,
            "steps": 500,
            "batch": 16,
            "width": 64,
            "depth": 2,
            "heads": 4,
            "device": "cpu",
            "learning_rate": 3e-3,
            "order_task": {"pairs": 500},
            "constructors": {name: f"wn.Made({name!r})" for name in encodings},
        }
        | settings,
        "made_with": {
            "whereness": "0.1",
            "python": "3.11.7",
            "torch": "2.13.0",
            "platform": "Linux",
            "processors": 2,
            "jobs": 2,
            "command": "whereness compare",
        },
        "encodings": encodings,
    }


NAMES = ("nope", "shaw", "alibi", "rope", "t5", "learned", "binary")
LOSSES = st.one_of(st.floats(1, 3), st.sampled_from([1.5, 1.51, 1.6]))


@st.composite
def made_up(draw):
    """Any summary, but for its recommendation."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    lengths = draw(st.sampled_from([(8,), (8, 16), (8, 16, 64), (16, 64)]))
    seeds = draw(st.integers(1, 3))
    made = {}
    for name in names:
        if draw(st.integers(0, 5)) == 0:
            made[name] = {"failed": [failure()]} if draw(st.booleans()) else {}
            continue
        losses = {n: draw(st.lists(LOSSES, min_size=seeds, max_size=seeds)) for n in lengths}
        options = {
            "half": draw(st.sampled_from([0.001, 0.02, 0.5])),
            "accuracy": draw(st.sampled_from([0.5, 0.95, 1.0])),
            "fused": draw(st.booleans()),
            "content_aware": draw(st.booleans()),
            "speed": draw(st.sampled_from([500.0, 1000.0, 1300.0])),
            "parameters": draw(st.sampled_from([0, 64])),
            "extra": draw(st.sampled_from([0, 5_000_000])),
        }
        if draw(st.booleans()):
            options["untrained_beyond"] = 8
        made[name] = entry(losses, **options)
    return summary(
        made,
        lengths=lengths,
        seeds=seeds,
        repeated=draw(st.sampled_from([0.0, 0.25])),
        evaluated_bytes=draw(st.sampled_from([100, 2**18])),
    )
