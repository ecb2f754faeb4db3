"""`whereness measure`: tables of 100 columns, JSON, and errors of one line."""

import json

import pytest
import torch

import whereness as wn
from whereness import cli

SMALL = ["--dim", "16", "--heads", "2", "--length", "16"]


@pytest.fixture(scope="module")
def everything():
    """JSON of all encodings, small."""
    return run_json([])


def run_json(arguments: list[str]) -> dict:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["measure", *arguments, *SMALL, "--json", "-"]) == 0
    return json.loads(out.getvalue())


def test_json_holds_every_encoding_and_how_it_was_measured(everything):
    assert tuple(everything["encodings"]) == wn.encodings()
    assert everything["whereness"] == wn.__version__
    assert everything["settings"] == {"dim": 16, "num_heads": 2, "length": 16}
    rope = everything["encodings"]["rope"]
    assert rope["encoding"] == "RoPE"
    assert rope["num_positions"] == 16
    assert rope["linear_relation"]["3"] < 1e-9
    assert set(rope["verdicts"]) >= set(everything["meaning_of_failure"])


def test_the_same_numbers_in_every_run(everything):
    again = run_json(["shaw", "learned"])
    for name in ("shaw", "learned"):
        # What was made before it differs, so only the shape of a random start is the same.
        assert again["encodings"][name].keys() == everything["encodings"][name].keys()
    torch.manual_seed(5)
    assert run_json(["shaw", "learned"]) == again


def test_the_numbers_are_those_of_the_library(everything):
    properties = wn.measure(wn.create("rope", dim=16, num_heads=2, length=16), num_positions=16)
    assert everything["encodings"]["rope"] == json.loads(json.dumps(properties.as_dict()))


def test_a_file_gets_the_same_and_the_table_is_shown(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert cli.main(["measure", "rope", "alibi", *SMALL, "--json", str(path)]) == 0
    assert list(json.loads(path.read_text(encoding="utf-8"))["encodings"]) == ["rope", "alibi"]
    assert "rope" in capsys.readouterr().out


@pytest.mark.untyped
def test_the_tables_fit_100_columns_and_are_not_cut(capsys):
    assert cli.main(["measure", "--length", "48"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    tables = lines[: lines.index(next(line for line in lines if line.startswith("What")))]
    for name in wn.encodings():
        assert sum(line.split()[:1] == [name] for line in tables) == 3
    assert not any("…" in line for line in lines)
    text = "\n".join(lines)
    assert "What ✗ means" in text
    assert "untrained" in text


def test_marks_agree_with_the_verdicts(capsys):
    assert cli.main(["measure", "rope", *SMALL]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.split()[:1] == ["rope"]]
    verdicts = run_json(["rope"])["encodings"]["rope"]["verdicts"]
    assert sum(row.count("✗") for row in rows) == list(verdicts.values()).count(False)


def test_names_are_measured_once_and_in_order():
    assert list(run_json(["rope", "alibi", "rope"])["encodings"]) == ["rope", "alibi"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rope", "alibbi"], "Unknown encoding 'alibbi': did you mean 'alibi'?"),
        (["rope", "--length", "3"], "--length must be at least 4, got 3."),
        (["rope", "--heads", "7"], "dim must be a multiple of num_heads, got 64 and 7."),
        (["rope", "--dim", "6", "--heads", "2"], "rotary_dim must be even"),
        (["rope", "--json", "/nowhere/out.json", *SMALL], "/nowhere/out.json: No such file"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert cli.main(["measure", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_the_process_is_left_as_it_was(capsys):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        assert cli.main(["measure", "learned", *SMALL]) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr().err == ""
