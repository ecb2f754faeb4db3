import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from summaries import made_up
from whereness.lab import summary
from whereness.lab.form import FORM, check
from whereness.lab.recommendation import recommend
from whereness.lab.settings import Comparison, OrderRecipe, Recipe
from whereness.lab.statistics import spread
from whereness.lab.text import Text

RECIPE = Recipe(train_length=8, lengths=(8, 16), steps=2)
ORDER = OrderRecipe(steps=3, pairs=7)
TEXT = Text(paths=("mine.txt",), sha256="ab" * 32)
COMPARISON = Comparison(
    text=TEXT, recipe=RECIPE, order=ORDER, encodings=("nope", "learned", "rope"), seeds=2
)
MADE_WITH = {
    "whereness": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "platform": "Linux",
    "processors": 2,
    "jobs": 1,
    "command": "whereness compare",
}


def about(task, name, seed):
    return {"run": "0123456789ab", "task": task, "encoding": name, "seed": seed}


def done(name, seed, losses, untrained=None):
    return {
        **about("language_model", name, seed),
        "status": "done",
        "doors": [1] if name == "learned" else [3],
        "properties": {"relative": seed == 0, "fused": True, "content_aware": False},
        "parameters": 5,
        "tokens_per_second": 100.0 * (seed + 1),
        "step_memory": 1200,
        "nope_step_memory": 1000,
        "untrained_beyond": untrained,
        "losses": {"8": losses, "16": losses[:2]},
        "last_quarter": {"8": [x + 1 for x in losses], "16": losses[1:3]},
    }


def ordered(name, seed, accuracy):
    return {
        **about("order_task", name, seed),
        "status": "done",
        "doors": [2],
        "parameters": 5,
        "accuracy": accuracy,
        "pairs": 7,
    }


def failed(name, seed, task="language_model"):
    reason = "the training loss became nan at step 3"
    return {**about(task, name, seed), "status": "failed", "reason": reason}


RESULTS = [
    done("learned", 1, [3.0, 2.0, 1.0, 6.0], untrained=16),
    done("learned", 0, [1.0, 2.0, 3.0, 4.0], untrained=8),
    ordered("learned", 1, 0.94),
    ordered("learned", 0, 1.0),
    done("rope", 0, [1.0, 1.5, 1.0, 1.0]),
    failed("rope", 1),
    ordered("rope", 0, 0.95),
    failed("rope", 1, "order_task"),
    done("nope", 0, [2.0, 3.0, 2.0, 2.0]),
    done("nope", 1, [2.0, 3.0, 2.0, 4.0]),
]


def summarised(results):
    return summary.summarise(COMPARISON, 1234, results, MADE_WITH, repeated=0.125)


@pytest.fixture
def found():
    return summarised(RESULTS)


def test_what_is_known_before_any_run(found):
    assert list(found) == [
        "version",
        "text",
        "settings",
        "made_with",
        "encodings",
        "recommendation",
    ]
    assert found["version"] == 1
    assert found["text"] == {
        "source": "mine.txt",
        "bytes": 1234,
        "sha256": "ab" * 32,
        "repeated": 0.125,
    }
    assert found["made_with"] == MADE_WITH
    training = {
        "batch": 16,
        "width": 64,
        "depth": 2,
        "heads": 4,
        "device": "cpu",
        "learning_rate": 3e-3,
        "warm_up": 0.05,
        "betas": [0.9, 0.98],
        "weight_decay": 0.01,
        "clip": 1.0,
    }
    assert found["settings"] == {
        "encodings": ["nope", "learned", "rope"],
        "seeds": 2,
        "train_length": 8,
        "lengths": [8, 16],
        "evaluated_bytes": 2**18,
        "steps": 2,
        **training,
        "order_task": {"steps": 3, "pairs": 7, **training, "batch": 32},
        "constructors": {
            "nope": "wn.NoPE()",
            "learned": (
                "wn.LearnedAbsolute(dim=64, num_positions=16, num_prefix=0, first_row=0, "
                "site='tokens', join='add')"
            ),
            "rope": ("wn.RoPE(head_dim=16, base=10000.0, pairing='half', rotary_side='leading')"),
        },
    }
    assert list(found["encodings"]) == ["nope", "learned", "rope"]


def test_an_encoding_has_what_its_runs_found(found):
    learned = found["encodings"]["learned"]
    # By window, the mean over seeds: 2, 2, 2, 5.
    windows, numbers = [2.0, 2.0, 2.0, 5.0], spread([2.0, 2.0, 2.0, 5.0], 2)  # as long as one of 16
    assert numbers["mean"] == pytest.approx(np.mean(windows))
    model = learned["language_model"]
    assert model["loss"] == {
        "8": {**numbers, "by_seed": {"0": 2.5, "1": 3.0}},
        "16": {**spread([2.0, 2.0], 1), "by_seed": {"0": 1.5, "1": 2.5}},
    }
    later = {key: pytest.approx(n + (key != "se")) for key, n in numbers.items()}
    assert model["loss_last_quarter"] == {
        "8": {**later, "by_seed": {"0": 3.5, "1": 4.0}},
        "16": {**spread([2.0, 2.0], 1), "by_seed": {"0": 2.5, "1": 1.5}},
    }
    assert (model["train_length"], model["seeds"], model["untrained_beyond"]) == (8, 2, 8)
    assert learned["doors"] == [1]
    assert learned["properties"] == {"relative": True, "fused": True, "content_aware": False}
    assert learned["order_task"] == {
        "accuracy": pytest.approx(0.97),
        "by_seed": {"0": 1.0, "1": 0.94},
        "seeds": 2,
        "solved": False,
    }
    assert list(learned["order_task"]["by_seed"]) == ["0", "1"]
    assert learned["cost"] == {
        "train_tokens_per_second": 150.0,
        "relative_speed": 1.0,
        "parameters": 5,
        "step_memory_bytes": 1200,
        "extra_memory_bytes": 200,
    }
    assert "failed" not in learned


def test_differences_are_to_the_best_over_common_seeds(found):
    """rope is the best and has seed 0 only; there learned is 0, 0.5, 2 and 3 above it."""
    model = found["encodings"]["learned"]["language_model"]
    expected = spread([0.0, 0.5, 2.0, 3.0], 2)
    assert model["above_best"]["8"] == {
        "best": "rope",
        "mean": pytest.approx(1.375),
        "low": expected["low"],
        "high": expected["high"],
        "by_seed": {"0": 1.375},
    }
    rope = found["encodings"]["rope"]["language_model"]["above_best"]["8"]
    assert rope == {"best": "rope", "mean": 0, "low": 0, "high": 0, "by_seed": {"0": 0}}


def test_blocks_are_of_as_many_bytes_at_every_length():
    """8 windows of 16 bytes make blocks of 2, or 32 bytes: 4 windows of 8."""
    long = [float(i * i % 7) for i in range(8)]
    short = [float(i * i % 11) for i in range(16)]
    results = [
        {**done(name, 0, []), "losses": losses, "last_quarter": losses}
        for name, losses in (
            ("rope", {"8": [0.0] * 16, "16": [0.0] * 8}),
            ("learned", {"8": short, "16": long}),
        )
    ]
    model = summarised(results)["encodings"]["learned"]["language_model"]
    for length, expected in (("8", spread(short, 4)), ("16", spread(long, 2))):
        expected["by_seed"] = {"0": expected["mean"]}
        assert model["loss"][length] == expected
        assert model["loss_last_quarter"][length] == expected
        del expected["se"]
        assert model["above_best"][length] == {"best": "rope", **expected}


def test_the_best_has_the_lowest_mean_at_its_length():
    results = [
        done("rope", 0, [1.0, 1.0, 9.0, 9.0]),
        done("learned", 0, [2.0, 2.0, 2.0, 2.0]),
    ]
    above = summarised(results)["encodings"]["rope"]["language_model"]["above_best"]
    assert (above["8"]["best"], above["16"]["best"]) == ("learned", "rope")
    assert above["8"]["mean"] == 3.0


def test_a_failed_seed_is_told_and_the_others_count(found):
    rope = found["encodings"]["rope"]
    assert rope["language_model"]["seeds"] == 1
    assert rope["language_model"]["loss"]["16"]["mean"] == 1.25
    assert rope["cost"]["relative_speed"] == pytest.approx(100 / 150)
    assert "untrained_beyond" not in rope["language_model"]
    assert rope["order_task"] == {
        "accuracy": 0.95,
        "by_seed": {"0": 0.95},
        "seeds": 1,
        "solved": True,
    }
    reason = "the training loss became nan at step 3"
    assert rope["failed"] == [
        {"task": "language_model", "seed": 1, "reason": reason},
        {"task": "order_task", "seed": 1, "reason": reason},
    ]


def test_what_was_not_completed_is_left_out():
    results = [failed("rope", 0), ordered("learned", 0, 1.0), done("nope", 0, [1.0, 2.0, 3.0])]
    entries = summarised(results)["encodings"]
    assert list(entries["rope"]) == ["failed"]
    assert list(entries["learned"]) == ["doors", "order_task"]
    assert entries["learned"]["doors"] == [2]
    assert list(entries["nope"]) == ["doors", "properties", "language_model", "cost"]


def test_speed_is_relative_only_to_what_was_run():
    entries = summarised([done("rope", 0, [1.0, 2.0, 3.0])])["encodings"]
    assert "relative_speed" not in entries["rope"]["cost"]
    assert entries["nope"] == {}


def test_the_recommendation_follows_from_the_rest(found):
    rest = {key: value for key, value in found.items() if key != "recommendation"}
    assert found["recommendation"] == recommend(rest)
    assert found["recommendation"]["lengths"]["8"]["best"] == "rope"


def test_the_order_of_results_does_not_matter(found):
    again = summarised(list(reversed(RESULTS)))
    assert json.dumps(again) == json.dumps(found)


def test_no_result_at_all():
    found = summarised([])
    check(found)
    assert found["recommendation"]["use"] == []


def test_a_summary_has_its_form(found):
    check(found)
    check(json.loads(json.dumps(found, allow_nan=False)))


@given(made_up())
def test_made_up_summaries_have_the_form_and_keep_it_with_their_recommendation(made):
    check({**made, "recommendation": recommend(made)})


CHANGES = {
    "text: repeated is missing": lambda s: s["text"].pop("repeated"),
    "text: bytes is missing": lambda s: s["text"].pop("bytes"),
    "summary: more is unknown": lambda s: s.update(more=1),
    "version: needed .*int.*, got '1'": lambda s: s.update(version="1"),
    "made_with.command: needed .*str.*, got": lambda s: s["made_with"].update(command=["a", "b"]),
    "version: needed .*int.*, got True": lambda s: s.update(version=True),
    "settings.lengths: needed a list, got 8": lambda s: s["settings"].update(lengths=8),
    r"settings.lengths\[1\]: needed": lambda s: s["settings"]["lengths"].insert(1, "x"),
    "encodings: needed a dict, got 3": lambda s: s.update(encodings=3),
    "loss.8.se: needed a finite number, got nan": lambda s: model(s)["loss"]["8"].update(
        se=float("nan")
    ),
    "loss.8.by_seed.0: needed a finite number": lambda s: model(s)["loss"]["8"]["by_seed"].update(
        {"0": float("inf")}
    ),
    "solved: needed .*bool.*, got 1": lambda s: s["encodings"]["learned"]["order_task"].update(
        solved=1
    ),
    "settings.encodings: needed": lambda s: s["settings"]["encodings"].reverse(),
    "learned, loss: needed lengths": lambda s: model(s)["loss"].pop("8"),
    "learned, loss_last_quarter: needed lengths": lambda s: model(s)["loss_last_quarter"].pop("8"),
    "learned, above_best: needed lengths": lambda s: model(s)["above_best"].pop("8"),
    "learned, above_best: needed best of": lambda s: model(s)["above_best"]["8"].update(best="t5"),
    "learned: cost is missing": lambda s: s["encodings"]["learned"].pop("cost"),
    "learned: doors is missing": lambda s: s["encodings"]["learned"].pop("doors"),
    "recommendation: needed names": lambda s: s["recommendation"]["use"].append("t5"),
    "recommendation: needed names of": lambda s: s["recommendation"]["lengths"]["8"].update(
        best="t5"
    ),
    "recommendation: needed lengths": lambda s: s["recommendation"]["lengths"].pop("8"),
}


def model(found):
    return found["encodings"]["learned"]["language_model"]


@pytest.mark.parametrize("message", CHANGES)
def test_what_is_not_of_the_form_is_told(found, message):
    changed = copy.deepcopy(found)
    CHANGES[message](changed)
    with pytest.raises(ValueError, match=message):
        check(changed)


@pytest.mark.parametrize("other", [None, [], "x"])
def test_anything_else_is_no_summary(other):
    with pytest.raises(ValueError, match="summary: needed a dict"):
        check(other)


def test_writing_is_whole_or_not_at_all(found, tmp_path, monkeypatch):
    path = summary.write(tmp_path, found)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == found

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        summary.write(tmp_path, {"other": 1})
    assert json.loads(path.read_text()) == found
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_folder_that_was_cleared_is_made_again(found, tmp_path):
    assert json.loads(summary.write(tmp_path / "new" / "folder", found).read_text()) == found


def test_a_number_that_json_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        summary.write(tmp_path, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_the_docstring_names_every_part():
    """The form is documented where users look for it."""
    told = summary.__doc__

    def named(form):
        if isinstance(form, list):
            named(form[0])
        if isinstance(form, dict):
            for key, inner in form.items():
                assert key == "*" or key.removesuffix("?") in told, key
                named(inner)

    named({k: v for k, v in FORM.items() if k != "settings"})
