"""The command: its table, its files, its errors."""

import json

import pytest

from processes import python
from whereness import cli
from whereness.bench import command, table
from whereness.bench.contest import OURS, Bar, Contestant, Row, Verdict
from whereness.bench.runner import Reached, Result

pytestmark = pytest.mark.untyped


def a_row(name="a/b", passed=True, *bars):
    def make(_):
        both = (OURS, "them")
        return [Contestant(n, lambda: None, lambda: Verdict(passed), lambda: 2.0) for n in both]

    return Row(name, f"what {name}", bars or (Bar("ratio", 1.5, "them"),), make)


@pytest.fixture
def rows(monkeypatch):
    def use(*rows):
        monkeypatch.setattr(command, "chosen", lambda _: rows)

    return use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "--only must name rows or the first parts of them, got 'nothing'."),
        (["--only"], "--only needs a name."),
        (["--repeats", "0"], "--repeats must be at least 1, got 0."),
        (["--threads", "many"], "--threads must be a number. See"),
        (["--onyl", "x"], "unknown option --onyl; did you mean --only?"),
        (["--json"], "--json needs a path, or - for stdout."),
        (["--only", "tables", "--quick", "--json", "/no/such/folder/x"], "No such file"),
    ],
)
def test_an_error_is_one_line_and_status_2(arguments, message, capsys):
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("whereness: ") and captured.err.count("\n") == 1
    assert message in captured.err


def test_a_small_row_gives_lines_of_json(capsys):
    assert cli.main(["bench", "--only", "rotary/form/axial", "--quick", "--json", "-"]) == 0
    facts, row = map(json.loads, capsys.readouterr().out.splitlines())
    assert facts["kind"] == "machine" and facts["quick"] is True
    assert {"processor", "processors", "threads", "torch", "peers", "compiler"} <= set(facts)
    assert facts["rotary"] in ("native", "reference")
    assert (row["kind"], row["name"], row["status"]) == ("row", "rotary/form/axial", "done")
    assert row["gates"][OURS]["passed"] is True
    assert row["contestants"][OURS]["median"] > 0
    assert len(row["contestants"]["plain half"]["samples"]) == 3


def test_the_list_runs_nothing(capsys):
    assert cli.main(["bench", "--list", "--only", "startup", "tables"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][:1] == ["startup/import"]
    assert lines[-1].startswith("tables/numpy ")


def test_the_table_says_pass_or_falls_short(rows, tmp_path, capsys):
    rows(a_row(), a_row("c/d", True, Bar("ratio", 0.5, "them"), Bar("time")))
    kept, shown = tmp_path / "x.jsonl", tmp_path / "x.md"
    assert cli.main(["bench", "--json", str(kept), "--markdown", str(shown)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    first, second, third = (line for line in lines if line.startswith(("what a", "what c")))
    assert first.split()[-1] == "pass" and "≤ 1.5×" in first and "1×" in first
    assert second.endswith("FALLS SHORT")
    assert third.endswith("reported")
    assert out.endswith("1 of 2 bars reached, every gate green\n")
    assert [json.loads(x)["kind"] for x in kept.read_text(encoding="utf-8").splitlines()] == [
        *("machine", "row", "row")
    ]
    markdown = shown.read_text(encoding="utf-8").splitlines()
    assert markdown[2] == "| what a/b | them | ≤ 1.5× | 1× | 1 – 1 | pass |"
    assert markdown[3] == "| what c/d | them | ≤ 0.5× | 1× | 1 – 1 | FALLS SHORT |"
    assert len({line.count("|") for line in markdown[:5]}) == 1


def test_a_quick_run_judges_nothing(rows, capsys):
    rows(a_row())
    assert cli.main(["bench", "--quick"]) == 0
    assert " quick\n" in capsys.readouterr().out


def test_a_red_gate_is_told_without_a_number_and_is_status_1(rows, capsys):
    rows(a_row(passed=False))
    assert cli.main(["bench"]) == 1
    out = capsys.readouterr().out
    assert "RED GATE" in out and "1 red gates" in out and "pass" not in out


@pytest.mark.parametrize(
    ("bar", "value", "shown", "limit"),
    [
        (Bar("ratio", 1.25, "x"), 1.234, "1.23×", "≤ 1.25×"),
        (Bar("speedup", 12, "x"), 18.26, "18.3× faster", "≥ 12× faster"),
        (Bar("time", 30e-6), 15.04e-6, "15.0 µs", "≤ 30 µs"),
        (Bar("time", 0.5), 0.0123, "12.3 ms", "≤ 0.5 s"),
        (Bar("over", 0.3, "x"), 0.25, "0.250 s", "≤ 0.3 s"),
        (Bar("over", 0.3, "x"), -0.25, "-0.250 s", "≤ 0.3 s"),
        (Bar("memory", 24 * 2**20), 13.5 * 2**20, "13.5 MiB", "≤ 24 MiB"),
        (Bar("memory", 24 * 2**20), float("inf"), "no end", "≤ 24 MiB"),
        (Bar("time"), 2.0, "2.000 s", ""),
    ],
)
def test_numbers_have_units(bar, value, shown, limit):
    assert (table.amount(bar, value), table.limit(bar)) == (shown, limit)


def test_quartiles_share_the_unit_or_show_their_own():
    bar = Bar("time")
    assert table.spread(Reached(bar, 2e-5, (1e-5, 3e-5))) == "10.0 – 30.0"
    assert table.spread(Reached(bar, 0.05, (5e-4, 0.3))) == "500.0 µs – 0.300 s"


def test_what_was_not_run_has_a_line_and_a_reason():
    result = Result(a_row(), "not run", "timm is not installed")
    assert table.cells(result, False) == [("what a/b", "them", "≤ 1.5×", "", "", "not run")]
    assert table.remarks(result) == ["a/b: timm is not installed"]
    assert table.tally([result]).endswith("1 rows not run")


def test_no_peer_is_imported_before_its_row():
    code = (
        "import sys, whereness.bench.registry; "
        "print({'numpy', 'transformers', 'timm', 'torchtune', 'x_transformers', "
        "'rotary_embedding_torch'} & {n.partition('.')[0] for n in sys.modules})"
    )
    done = python("-c", code)
    assert set(eval(done.stdout)) <= {"numpy"}, done.stderr  # torch itself imports it
