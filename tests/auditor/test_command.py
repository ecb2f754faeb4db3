"""`whereness audit`: its options, files and statuses, and that nothing spoils its output."""

import io
import json
import sys
import threading
from pathlib import Path

import pytest

import audits
from processes import python
from whereness import cli
from whereness.auditor import assert_sound, run
from whereness.auditor.findings import Report
from whereness.cli import audit
from whereness.cli.errors import CommandError

pytestmark = pytest.mark.untyped

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
}
NOISY = """
import ctypes, os, subprocess
print("on import")
def make():
    from torch import nn
    print("by Python")
    os.write(1, b"by the descriptor\\n")
    subprocess.run(["echo", "by a child"])
    ctypes.CDLL(None).printf(b"by C\\n")
    return nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return path


@pytest.fixture
def answered(monkeypatch):
    """Let the audit give a report made by hand; what it was asked comes back."""

    def answer(report):
        asked = []

        def stand_in(target, **options):
            asked.append((target, options))
            print("from the target", file=sys.stderr)
            return report

        monkeypatch.setattr(run, "audit", stand_in)
        return asked

    return answer


@pytest.mark.parametrize(
    ("of", "fail_on", "status"),
    [
        ("faulty", "error", 1),
        ("clean", "error", 0),
        ("clean", "warning", 0),
        ("silent", "error", 0),
    ],
)
def test_the_status_says_whether_anything_was_found(answered, capsys, of, fail_on, status):
    answered(getattr(audits, of)())
    assert cli.main(["audit", "x", "--fail-on", fail_on]) == status
    assert getattr(audits, of)().target in capsys.readouterr().out


def test_warnings_count_if_they_are_asked_to(answered, capsys):
    report = audits.faulty()
    report.findings = report.of("warning")
    answered(report)
    assert cli.main(["audit", "x"]) == 0
    assert cli.main(["audit", "x", "--fail-on", "warning"]) == 1


def test_options_reach_the_audit(answered, capsys):
    asked = answered(audits.clean())
    options = ["--config", "c", "--text", "t", "--check", "cache", "CHK1", "--layers", "0,3-5"]
    assert cli.main(["audit", "some.module:make", *options]) == 0
    [(target, options)] = asked
    assert target == "some.module:make"
    assert options["progress"] is None
    del options["progress"]
    assert options == {
        "config": Path("c"),
        "text": Path("t"),
        "checks": ("cache", "CHK1"),
        "layers": {0, 3, 4, 5},
    }
    assert cli.main(["audit", "x"]) == 0
    assert set(asked[1][1].values()) == {None}


def test_results_go_where_they_are_asked_to(answered, tmp_path, capsys):
    report = audits.faulty()
    answered(report)
    page, data = tmp_path / "a.html", tmp_path / "a.json"
    assert cli.main(["audit", "x", "--json", str(data), "--html", str(page)]) == 1
    assert json.loads(data.read_text(encoding="utf-8")) == json.loads(json.dumps(report.to_dict()))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "Found 1 error" in capsys.readouterr().out


def test_json_on_stdout_stands_alone(answered, tmp_path, capsys):
    report = audits.hostile()
    answered(report)
    page = tmp_path / "a.html"
    assert cli.main(["audit", "x", "--json", "-", "--html", str(page)]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(json.dumps(report.to_dict()))
    assert said.err == "from the target\n"
    assert page.exists()


@pytest.mark.parametrize(
    ("ranges", "layers"),
    [("0", {0}), ("0,3-5", {0, 3, 4, 5}), (" 7 , 2-2", {7, 2}), ("1-3,2-4", {1, 2, 3, 4})],
)
def test_layers_are_numbers_and_ranges(ranges, layers):
    assert audit.numbers(ranges) == layers


@pytest.mark.parametrize("ranges", ["3-", "-1", "a", "5-3", "1,,2", "0-9999999", "1.5", "٣"])
def test_other_layers_are_refused(ranges):
    with pytest.raises(CommandError, match="--layers must be numbers and ranges as 0,3-5"):
        audit.numbers(ranges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "x"], "--layers must be numbers and ranges as 0,3-5, got 'x'."),
        (["--html", "no/such/a.html"], "no/such/a.html: there is no folder"),
        (["--json", "no/such/a.json"], "no/such/a.json: there is no folder"),
        (["--html", "."], ".: needed a file to write to, got a folder."),
        (["--fail-on", "note"], "--fail-on"),
    ],
)
def test_wrong_usage_is_told_before_the_audit_begins(answered, capsys, options, message):
    asked = answered(audits.clean())
    assert cli.main(["audit", "x", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
    assert asked == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing-here", "nothing-here: No such file or directory"),
        ("no.such.module:make", "no.such.module"),
        ("whereness:no_such_name", "no_such_name"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line_and_status_2(capsys, target, message):
    assert cli.main(["audit", target]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


def test_an_unknown_check_is_told_with_the_nearest_one(config, capsys):
    assert cli.main(["audit", str(config), "--check", "spectra"]) == 2
    assert "Did you mean 'spectrum'?" in capsys.readouterr().err


def test_a_config_is_audited_alone(config, capsys):
    assert cli.main(["audit", str(config)]) == 0
    said = capsys.readouterr().out
    assert "llama" in said
    assert "not checked" in said


def test_what_a_target_prints_goes_to_stderr(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    path = Path(__file__).parents[2] / "src"
    code = f"import sys; sys.path.insert(0, {str(path)!r}); from whereness.cli import main; main()"
    done = python("-c", code, "audit", "noisy:make", "--json", "-", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["target"] == "noisy:make"
    for said in ("on import", "by Python", "by the descriptor", "by a child", "by C"):
        assert said in done.stderr


def test_the_bar_is_drawn_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    before, threads = sys.stdout, threading.active_count()
    with audit.progress() as advanced:
        assert sys.stdout is before
        advanced(0, 3, "spectrum")
        assert threading.active_count() == threads  # a target may fork
    drawn = sys.stderr.getvalue()
    assert drawn.index("reading") < drawn.index("spectrum")
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with audit.progress() as advanced:
            assert advanced is None


# The helper for tests


def test_assert_sound_tells_everything_in_its_error(answered):
    report = audits.faulty()
    asked = answered(report)
    with pytest.raises(AssertionError) as caught:
        assert_sound("a model", checks=["spectrum"], inputs={"a": 1})
    said = " ".join(str(caught.value).split())
    assert asked == [("a model", {"checks": ["spectrum"], "inputs": {"a": 1}})]
    assert audits.wrong_base(2).remedy in said
    assert audits.warning().measured in said
    assert "not checked" in said
    assert all(unchecked.why in said for unchecked in audits.UNCHECKED)


def test_assert_sound_gives_the_report_of_a_sound_model(answered):
    report = audits.clean()
    answered(report)
    assert assert_sound("a model") is report


def test_assert_sound_counts_warnings_if_it_is_asked_to(answered):
    answered(Report(target="x", findings=[audits.warning()]))
    assert_sound("a model")
    with pytest.raises(AssertionError, match="Found 1 warning"):
        assert_sound("a model", fail_on="warning")
    with pytest.raises(ValueError, match='fail_on must be "error" or "warning"'):
        assert_sound("a model", fail_on="note")


def test_the_frames_of_assert_sound_are_hidden_in_pytest(answered):
    answered(audits.faulty())
    with pytest.raises(AssertionError) as caught:
        assert_sound("a model")
    assert caught.traceback[-1].frame.f_locals.get("__tracebackhide__") is True
