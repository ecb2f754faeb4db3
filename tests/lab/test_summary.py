import json
import math
from pathlib import Path

import pytest

from whereness.lab import summary
from whereness.lab.settings import Comparison, Recipe
from whereness.lab.text import Text

RECIPE = Recipe(train_length=8, lengths=(8, 16), steps=2)
TEXT = Text(paths=("mine.txt",), sha256="ab" * 32)
COMPARISON = Comparison(text=TEXT, recipe=RECIPE, encodings=("learned", "rope"), seeds=2)


def done(name, seed, losses, untrained=None):
    return {
        "run": "",
        "encoding": name,
        "seed": seed,
        "status": "done",
        "doors": [1] if name == "learned" else [3],
        "properties": {"relative": seed == 0},
        "parameters": 5,
        "tokens_per_second": 100.0 * (seed + 1),
        "untrained_beyond": untrained,
        "losses": {"8": losses, "16": losses[:2]},
        "last_quarter": {"8": [x + 1 for x in losses], "16": losses[1:3]},
    }


def failure(name, seed):
    reason = "the training loss became nan at step 3"
    return {"run": "", "encoding": name, "seed": seed, "status": "failed", "reason": reason}


RESULTS = [
    done("learned", 0, [1.0, 2.0, 3.0, 4.0], untrained=8),
    done("learned", 1, [3.0, 2.0, 1.0, 6.0], untrained=8),
    done("rope", 0, [1.0, 1.0, 1.0, 1.0]),
    failure("rope", 1),
]


@pytest.fixture
def found():
    return summary.summarise(COMPARISON, 1234, RESULTS)


def test_the_schema(found):
    assert list(found) == ["version", "text", "settings", "encodings"]
    assert found["version"] == 1
    assert found["text"] == {"source": "mine.txt", "bytes": 1234, "sha256": "ab" * 32}
    assert found["settings"] == {
        "encodings": ["learned", "rope"],
        "seeds": 2,
        "train_length": 8,
        "lengths": [8, 16],
        "steps": 2,
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
    # By window, the mean over seeds: 2, 2, 2, 5; mean 2.75, deviations .75, .75, .75, 2.25.
    error = math.sqrt((3 * 0.75**2 + 2.25**2) / 3) / 2
    assert found["encodings"]["learned"] == {
        "doors": [1],
        "properties": {"relative": True},
        "language_model": {
            "train_length": 8,
            "seeds": 2,
            "loss": {
                "8": {"mean": pytest.approx(2.75), "se": pytest.approx(error)},
                "16": {"mean": 2.0, "se": 0.0},
            },
            "loss_last_quarter": {
                "8": {"mean": pytest.approx(3.75), "se": pytest.approx(error)},
                "16": {"mean": 2.0, "se": 0.0},
            },
            "untrained_beyond": 8,
        },
        "cost": {"train_tokens_per_second": 150.0, "parameters": 5},
    }


def test_a_failed_seed_is_told_and_the_others_count(found):
    entry = found["encodings"]["rope"]
    assert entry["language_model"]["seeds"] == 1
    assert entry["language_model"]["loss"]["8"] == {"mean": 1.0, "se": 0.0}
    assert "untrained_beyond" not in entry["language_model"]
    assert entry["failed"] == [{"seed": 1, "reason": "the training loss became nan at step 3"}]


def test_an_encoding_that_failed_altogether_has_nothing_made_up():
    found = summary.summarise(COMPARISON, 1, [failure("rope", 0), *RESULTS[:2]])
    assert list(found["encodings"]["rope"]) == ["failed"]


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


def test_a_number_that_json_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        summary.write(tmp_path, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_same_settings_may_be_used_again(found, tmp_path):
    folder = tmp_path / "new" / "folder"
    summary.prepare(folder, COMPARISON, 1234)
    summary.write(folder, found)
    summary.prepare(folder, COMPARISON, 1234)
    moved = Text(paths=("elsewhere.txt",), sha256=TEXT.sha256)
    again = Comparison(text=moved, recipe=RECIPE, encodings=("learned", "rope"), seeds=2)
    summary.prepare(folder, again, 1234)


@pytest.mark.parametrize("change", ["seeds", "text", "json", "form"])
def test_a_folder_of_other_settings_is_refused(found, tmp_path, change):
    if change == "seeds":
        found["settings"]["seeds"] = 3
    elif change == "text":
        found["text"]["sha256"] = "cd" * 32
    elif change == "form":
        found = [1]
    text = "{" if change == "json" else json.dumps(found)
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ValueError, match="other settings: give another --out"):
        summary.prepare(tmp_path, COMPARISON, 1234)
    assert (tmp_path / "summary.json").read_text() == text


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OSError, match="out"):
        summary.prepare(tmp_path / "out", COMPARISON, 1234)
