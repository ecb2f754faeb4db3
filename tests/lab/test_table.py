import io

import pytest
from rich.console import Console

from whereness.lab.table import notes, table


def entry(losses, speed, **more):
    loss = {s: {"mean": mean, "se": 0.01} for s, mean in losses.items()}
    return {
        "doors": [],
        "language_model": {"train_length": 8, "seeds": 1, "loss": loss, **more},
        "cost": {"train_tokens_per_second": speed, "parameters": 0},
    }


FAILED = {"failed": [{"seed": 0, "reason": "the training loss became nan at step 3"}]}
SUMMARY = {
    "settings": {"train_length": 8, "lengths": [8, 16], "device": "cpu"},
    "encodings": {
        "learned": entry({"8": 2.0, "16": 3.254}, 900.0, untrained_beyond=8),
        "alibi": entry({"8": 2.126, "16": 2.1}, 12345.6),
        "t5": FAILED,
    },
}


def shown(summary):
    written = io.StringIO()
    Console(file=written, width=100).print(table(summary))
    return written.getvalue().splitlines()


def test_each_column_marks_its_best_and_shows_the_distance_of_others():
    assert [row.split() for row in shown(SUMMARY)] == [
        ["encoding", "8", "16", "tokens/s"],
        ["learned", "2.00", "*", "3.25!+1.15", "900"],
        ["alibi", "2.13", "+0.13", "2.10", "*", "12,346*"],
        ["t5", "failed"],
    ]


def test_columns_line_up():
    rows = shown(SUMMARY)[1:3]
    assert rows[0].index("2.00") == rows[1].index("2.13")
    assert rows[0].index("3.25") == rows[1].index("2.10")


def test_a_table_of_failures_only():
    rows = shown({**SUMMARY, "encodings": {"t5": FAILED}})
    assert rows[1].split() == ["t5", "failed"]


def test_notes_tell_what_a_reader_must_know():
    lines = notes(SUMMARY, 2)
    assert lines[0].startswith("Trained at 8. ")
    assert "2 runs side by side; a second of one processor." in lines[1]
    assert lines[2].startswith("! ")
    assert lines[3] == "failed: t5, seed 0: the training loss became nan at step 3"
    assert len(lines) == 4
    assert "one run at a time; a second" in notes(SUMMARY, 1)[1]


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_the_clock_is_told_where_it_matters(device):
    settings = {**SUMMARY["settings"], "device": device}
    assert "processor" not in notes({**SUMMARY, "settings": settings}, 2)[1]


def test_no_note_on_what_does_not_occur():
    assert len(notes({**SUMMARY, "encodings": {"alibi": SUMMARY["encodings"]["alibi"]}}, 1)) == 2
