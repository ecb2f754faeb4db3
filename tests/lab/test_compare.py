import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from whereness.cli import main
from whereness.lab import compare, engine, run
from whereness.lab.run import failed
from whereness.lab.training import DivergedError

TINY = [
    *("--train-length", "8", "--lengths", "8", "16", "--steps", "4", "--batch", "2"),
    *("--order-steps", "4", "--width", "8", "--heads", "2", "--jobs", "1", "--seeds", "1"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files(folder):
    """What a comparison leaves, without hidden files."""
    return sorted(f.name for f in folder.iterdir() if not f.name.startswith("."))


def test_the_whole_way(text_file, capsys, tmp_path):
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "nope", "learned"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("compare-")
    assert files(folder) == ["report.html", "runs.sqlite", "summary.json"]
    found = json.loads((folder / "summary.json").read_text())
    start, first, *_, last = shown.splitlines()
    assert start == f"4 runs of 2 encodings, 1 at a time, in runs/{folder.name}"
    assert re.match(r"\[1/4\] nope, (text|order), seed 0: ", first)
    assert re.search(r"\nTook 0 min \d+ s\.\n", shown)
    assert f"Summary: runs/{folder.name}/summary.json" in shown
    assert last == f"Report: runs/{folder.name}/report.html"
    advice = found["recommendation"]
    for name in ("because", "to_know", "would_change", "not_tested"):
        assert advice[name]
        for sentence in advice[name]:
            assert f"\n- {sentence}\n" in shown
    assert f"\n{advice['headline']}\n" in shown
    assert found["text"]["bytes"] == text_file.stat().st_size
    assert list(found["encodings"]) == ["nope", "learned"]
    assert all(e["order_task"]["seeds"] == 1 for e in found["encodings"].values())
    page = (folder / "report.html").read_text()
    assert advice["headline"] in page
    assert page.count("<svg") > 5

    # The same again: nothing is done anew, not even timed.
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[1] == "4 of 4 runs were done before."
    assert "seed 0:" not in shown
    assert json.loads((folder / "summary.json").read_text()) == found

    # In another folder: but for times, the same numbers.
    assert main([*command, "--out", "other"]) == 0
    again = json.loads((tmp_path / "other" / "summary.json").read_text())
    for summary in (found, again):
        del summary["recommendation"]  # its words tell of speed
        for entry in summary["encodings"].values():
            del entry["cost"]["train_tokens_per_second"]
            entry["cost"].pop("relative_speed", None)
    assert again == found

    # Other settings there: refused, nothing is lost.
    before = {f: (folder / f).read_bytes() for f in files(folder)}
    capsys.readouterr()
    assert main([*command, "--steps", "5", "--out", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"whereness: {folder} holds runs of other settings (steps 4, not 5): give another --out, "
        "or move it away.\n"
    )
    assert {f: (folder / f).read_bytes() for f in files(folder)} == before


def test_the_command_in_the_summary_repeats_it(text_file, monkeypatch, capsys, tmp_path):
    copy = tmp_path / "a 'text'.txt"
    copy.write_bytes(text_file.read_bytes())
    arguments = ["--text", str(copy), *TINY, "--encodings", "nope", "--steps", "3", "--out", "one"]
    assert main(["compare", *arguments]) == 0
    found = json.loads((tmp_path / "one" / "summary.json").read_text())
    told = shlex.split(found["made_with"]["command"])
    assert told[:2] == ["whereness", "compare"]
    assert not {"--out", "--jobs"} & set(told)
    assert main([*told[1:], "--out", "one"]) == 0  # the same settings: the folder is accepted
    assert "2 of 2 runs were done before." in capsys.readouterr().out


def test_the_report_is_opened_where_asked_for(text_file, monkeypatch, capsys, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda page: not opened.append(page))
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "nope", "--out", "a b"]
    assert main(command) == 0
    assert opened == []
    assert main([*command, "--open"]) == 0
    assert opened == [f"file://{tmp_path}/a%20b/report.html"]
    assert "No browser" not in capsys.readouterr().out
    monkeypatch.setattr("webbrowser.open", lambda page: False)
    assert main([*command, "--open"]) == 0
    assert "No browser was found" in capsys.readouterr().out


def test_one_encoding_that_fails_leaves_the_others(text_file, monkeypatch, capsys, tmp_path):
    # A rate that diverges for all, but NaN reaches only what is trained by it.
    real = run.language_model

    def broken(which, *rest):
        if which.encoding == "rope":
            raise DivergedError("the training loss became nan at step 3")
        return real(which, *rest)

    monkeypatch.setattr(run, "language_model", broken)
    monkeypatch.setattr(engine, "execute", here)
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "rope", "nope"]
    assert main([*command, "--out", "out"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "rope, text, seed 0: failed: the training loss became nan at step 3" in told.out
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["encodings"]["rope"]["failed"] == [
        {
            "task": "language_model",
            "seed": 0,
            "reason": "the training loss became nan at step 3",
        }
    ]
    assert found["recommendation"]["use"] == ["nope"]
    assert "became nan" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "rpoe"], "did you mean 'rope'"),
        (["--encodings"], "--encodings needs at least one value, got none"),
        (["--text"], "--text needs at least one value, got none"),
        (["--lengths"], "--lengths needs at least one value, got none"),
        (["--lengths", "4", "16"], "at least the training length, 8; got 4"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--order-steps", "0"], "--order-steps must be at least 1, got 0"),
        (["--heads", "3"], "--width must be a multiple of --heads"),
        (["--encodings", "axial_rope"], "axial_rope: it reads positions of 2 axes"),
        (["--width", "6", "--encodings", "nope", "rope"], "rope: rotary_dim must be even"),
        (["--device", "nonsense"], "--device nonsense cannot be used here"),
        (["--device", "meta"], "--device meta cannot be used here"),
        (["--text", "no-such-file"], "no-such-file: No such file or directory"),
        (["--text", "."], ".: Is a directory"),
        (["--text", "empty"], "too short.*got 0"),
        (["--text", "single"], "too short.*got 1"),
        (["--text", "short"], "needed 330 bytes.*got 329"),
        (["--out", "single"], "single: File exists"),
        (["--out", ""], "an option has an empty value"),
        (["--out="], "an option has an empty value"),
        (["--text", "single", "--text", "short"], "--text is given twice"),
        (["--seeds", str(10**30)], "--seeds must be at most 1,000, got a larger number"),
        (["--depth", "1001"], "--depth must be at most 1,000"),
        (["--batch", str(10**30)], "--batch must be at most 2,147,483,647"),
        (["--steps", str(10**400)], "--steps must be at most 2,147,483,647"),
        (["--lengths", "8", str(10**30)], "--lengths must be at most 2,147,483,647"),
    ],
)
def test_what_cannot_serve_is_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "single").write_bytes(b"x")
    (tmp_path / "short").write_bytes(b"x" * 329)
    before = sorted(tmp_path.iterdir())
    settings = TINY[:2] + TINY[5:] if arguments[0] == "--lengths" else TINY
    assert main(["compare", *settings, *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("whereness: ")
    assert re.search(message, told.err), told.err
    assert sorted(tmp_path.iterdir()) == before


def here(store, jobs, observer):
    """An engine without processes."""
    while (run_now := store.claim()) is not None:
        observer.started(run_now)
        result = run.run_one(run_now, lambda done, loss: None)
        store.finish(run_now, result)
        observer.finished(run_now, result)


@pytest.mark.parametrize(("broken", "status"), [(("t5",), 0), (("t5", "nope"), 2)])
@pytest.mark.parametrize("task", ["language_model", "any"])
def test_failures_are_listed_and_count_if_all_language_models_fail(
    text_file, monkeypatch, capsys, broken, status, task
):
    def execute(store, jobs, observer):
        while (claimed := store.claim()) is not None:
            if claimed.encoding in broken and task in ("any", claimed.task):
                store.finish(claimed, failed(claimed, "the reason"))
            else:
                store.finish(claimed, run.run_one(claimed, lambda done, loss: None))

    monkeypatch.setattr(engine, "execute", execute)
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "t5", "nope"]
    assert main(command) == status
    shown, told = capsys.readouterr()
    for name in broken:
        assert re.search(rf"failed: {name}, .*seed 0.*: the reason\n", shown)
    none = "whereness: No language model was completed: the reason\n"
    assert told == (none if status else "")


@pytest.mark.untyped
def test_letters_that_the_output_cannot_show_cost_nothing(text_file, tmp_path):
    copy = tmp_path / "é.txt"
    copy.write_bytes(text_file.read_bytes())
    command = [sys.executable, "-m", "whereness", "compare", *TINY, "--encodings", "nope"]
    ended = subprocess.run(
        [*command, "--text", str(copy), "--out", str(tmp_path / "ü")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\xe9.txt" in ended.stdout
    assert (tmp_path / "ü" / "report.html").exists()


@pytest.mark.untyped
def test_a_reader_that_has_enough_ends_it(text_file):
    command = [sys.executable, "-m", "whereness", "compare", "--text", str(text_file), *TINY]
    with subprocess.Popen(
        [*command, "--encodings", "nope", "--seeds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.untyped
def test_ctrl_c_ends_everything(text_file):
    command = [sys.executable, "-m", "whereness", "compare", "--text", str(text_file), *TINY]
    command += ["--encodings", "nope", "rope", "--seeds", "1000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(2):  # what there is to do, and the first run
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        shown, errors = process.communicate(timeout=30)
    assert re.search(r"Interrupted: \d+ of 4000 runs are done\. The same command goes on", shown)
    assert process.returncode == 130
    assert errors == ""


def test_sentences_are_broken_between_words_in_a_terminal_only():
    line = "- " + " ".join(["wording"] * 9)
    for terminal in (True, False):
        written = io.StringIO()
        console = Console(file=written, force_terminal=terminal, width=30, color_system=None)
        compare.tell(console, line, "")
        shown = written.getvalue()
        assert shown.split() == line.split()
        lines = shown.splitlines()
        assert max(map(len, lines)) <= 30 if terminal else lines == [line, ""]
        assert all(part.startswith("  ") for part in lines[1:-1])
