import json
import os
import re
import signal
import subprocess
import sys

import pytest

from whereness.cli import main
from whereness.lab import engine
from whereness.lab.run import failed

TINY = [
    *("--train-length", "8", "--lengths", "8", "16", "--steps", "4", "--batch", "2"),
    *("--width", "8", "--heads", "2", "--jobs", "1"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_whole_way(text_file, capsys, tmp_path):
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "nope", "learned"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("compare-")
    assert f"Summary: runs/{folder.name}/summary.json" in shown
    assert shown.startswith("[1/2] nope, seed 0: loss ")
    found = json.loads((folder / "summary.json").read_text())
    assert found["text"]["bytes"] == text_file.stat().st_size
    assert list(found["encodings"]) == ["nope", "learned"]

    # The same again: the same folder and, but for times, the same numbers.
    assert main(command) == 0
    again = json.loads((folder / "summary.json").read_text())
    for entry in (*found["encodings"].values(), *again["encodings"].values()):
        del entry["cost"]["train_tokens_per_second"]
    assert again == found

    # Other settings there: refused, nothing is lost.
    before = (folder / "summary.json").read_bytes()
    capsys.readouterr()
    assert main([*command, "--seeds", "2", "--out", str(folder)]) == 2
    assert "other settings" in capsys.readouterr().err
    assert (folder / "summary.json").read_bytes() == before


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
    ],
)
def test_what_cannot_serve_is_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "single").write_bytes(b"x")
    (tmp_path / "short").write_bytes(b"x" * 329)
    before = sorted(tmp_path.iterdir())
    assert main(["compare", *TINY, *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("whereness: ")
    assert re.search(message, told.err), told.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("num_failed", "status"), [(1, 0), (2, 2)])
def test_failures_are_listed_and_count_if_all_fail(
    text_file, result_of, monkeypatch, capsys, num_failed, status
):
    def execute(runs, jobs, observer):
        done = [result_of(run.encoding) for run in runs[num_failed:]]
        return [failed(run, "the reason") for run in runs[:num_failed]] + done

    monkeypatch.setattr(engine, "execute", execute)
    command = ["compare", "--text", str(text_file), *TINY, "--encodings", "t5", "nope"]
    assert main(command) == status
    assert "failed: t5, seed 0: the reason\n" in capsys.readouterr().out


@pytest.mark.untyped
def test_a_reader_that_has_enough_ends_it(text_file):
    command = [sys.executable, "-m", "whereness", "compare", "--text", str(text_file), *TINY]
    with subprocess.Popen(
        [*command, "--encodings", "nope", "--seeds", "100000"],
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
    command += ["--encodings", "nope", "rope", "--seeds", "100000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == ""
