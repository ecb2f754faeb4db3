"""The command line: statuses, errors of one line, and no torch before a command needs it."""

import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import whereness as wn
from processes import ROOT, clean_environment, python
from whereness import cli
from whereness.cli import compare, env, measure, story
from whereness.cli.errors import CommandError, one_line
from whereness.cli.usage import parse, reduce_box

pytestmark = pytest.mark.untyped

USAGE_ERRORS = [
    (["compar"], "unknown command compar; did you mean compare? See: whereness --help"),
    (["frobnicate"], "unknown command frobnicate. See: whereness --help"),
    (["--versoin"], "unknown option --versoin; did you mean --version? See: whereness --help"),
    (["env", "--jsno"], "unknown option --jsno; did you mean --json? See: whereness env --help"),
    (["env", "--jsno", "-"], "unknown option --jsno; did you mean --json?"),
    (["compare", "--zzz", "3"], "unknown option --zzz. See: whereness compare --help"),
    (["env", "here"], "unexpected here. See: whereness env --help"),
    (["compare", "--width", "x"], "--width must be a number. See: whereness compare --help"),
    (["compare", "--width"], "--width needs a number. See"),
    (["compare", "--lengths", "64", "far"], "--lengths must be numbers. See"),
    (["measure", "rope", "--dim", "8.5"], "--dim must be a number. See"),
    (["explain"], "whereness: missing CONFIG. See: whereness explain --help"),
    (["convert"], "whereness: missing SRC, DST, --to. See"),
    (["explain", "x", "--json"], "--json needs a path, or - for stdout. See"),
    (["explain", "x", "--layer", "five"], "--layer must be a number. See"),
    (["explain", "x", "--part"], "--part needs a value. See"),
    (["compare", "--" + "x" * 300], "x" * 300),
]


def whereness(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process; the last line of stderr tells if torch was imported."""
    code = (
        "import sys; from whereness.cli import main; status = main(); "
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(status)"
    )
    return python("-c", code, *arguments)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments, capsys):
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"  {name} " in out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"whereness {wn.__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help(name, capsys):
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: whereness {name}")
    assert "(default: )" not in out
    assert "None" not in out


def test_help_is_as_wide_as_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    assert cli.main(["compare", "--help"]) == 0
    rules = [line for line in capsys.readouterr().out.splitlines() if "-----" in line]
    assert rules
    assert {len(line) for line in rules} == {70}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["env"],
        ["env", "--json", "-"],
        *([name, "--help"] for name in cli.COMMANDS),
        *(arguments for arguments, _ in USAGE_ERRORS[:8]),
    ],
    ids=" ".join,
)
def test_torch_is_not_imported(arguments):
    done = whereness(*arguments)
    assert done.stderr.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize(("arguments", "message"), USAGE_ERRORS)
def test_a_usage_error_is_one_line_and_status_2(arguments, message, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("whereness: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_usage_error_leaves_the_environment_alone(monkeypatch):
    for columns in ("77", None):
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        else:
            monkeypatch.delenv("COLUMNS")
        assert cli.main(["env", "--jsno"]) == 2
        assert os.environ.get("COLUMNS") == columns


@pytest.mark.parametrize(
    "box",
    [
        " Title \n --- \n  Unrecognized options: --a, 1  \n  ---\n  For full help  \n  \n",
        "╭─ Title ─╮\n│ Unrecognized options: --a, 1 │\n│ ─── │\n│ For full help │\n╰─────────╯\n",
    ],
)
def test_an_error_box_is_reduced_in_either_form(box):
    assert reduce_box(box) == "unknown option --a."


def test_an_error_of_an_unknown_form_is_kept_whole():
    assert reduce_box("something\n  else\n") == "something else"
    assert reduce_box("") == ""


def test_what_tyro_prints_without_error_is_shown(capsys):
    assert cli.main(["env", "--tyro-print-completion", "bash"]) == 0
    assert "complet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CommandError("no encoding\nnamed x"), "no encoding named x"),
        (ValueError("dim must be even"), "dim must be even"),
        (TypeError("dim must be an int"), "dim must be an int"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file"),
        (OSError("disk"), "disk"),
        (ValueError(), "ValueError"),
        (ModuleNotFoundError("No module", name="matplotlib.pyplot"), "whereness[lab]"),
    ],
)
def test_an_error_of_the_user_is_one_line_and_status_2(monkeypatch, capsys, error, message):
    monkeypatch.setattr(env, "run", raising(error))
    assert cli.main(["env"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("whereness: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_an_error_steers_no_terminal():
    assert one_line("red \x1b[31m\n\ttitle \x07 \u202e ü") == r"red \x1b[31m title \x07 \u202e ü"


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("x"), ModuleNotFoundError("x", name="whereness.gone")]
)
def test_a_fault_of_the_program_is_not_hidden(monkeypatch, error):
    monkeypatch.setattr(env, "run", raising(error))
    with pytest.raises(type(error)):
        cli.main(["env"])


def test_a_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setattr(env, "run", raising(ValueError("x")))
    monkeypatch.setenv("WHERENESS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="x"):
        cli.main(["env"])


def test_an_interrupt_is_quiet_and_status_130(monkeypatch, capsys):
    monkeypatch.setattr(env, "run", raising(KeyboardInterrupt()))
    assert cli.main(["env"]) == 130
    assert capsys.readouterr().err == ""


def test_the_status_is_that_of_the_command(monkeypatch):
    monkeypatch.setattr(env, "run", lambda _: 1)
    assert cli.main(["env"]) == 1


def test_a_reader_that_stops_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "whereness", "env"],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["env"], ["compare"], ["measure", "--help"]])
def test_a_missing_extra_is_named_in_one_line(arguments):
    code = (
        "import sys; sys.modules['tyro'] = None; from whereness.cli import main; sys.exit(main())"
    )
    done = python("-c", code, *arguments)
    assert done.returncode == 2
    assert done.stderr == (
        'whereness: this needs tyro, which is not installed. pip install "whereness[lab]"\n'
    )


def test_help_and_version_need_no_extra():
    code = (
        "import sys; sys.modules['tyro'] = None; from whereness.cli import main; sys.exit(main())"
    )
    for arguments in (["--help"], ["--version"], []):
        assert python("-c", code, *arguments).returncode == 0


def test_env_prints_the_versions(capsys):
    assert cli.main(["env"]) == 0
    rows = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if " " in line
    )
    assert rows["whereness"] == wn.__version__
    assert rows["torch"] == version("torch")
    assert rows["tyro"] == version("tyro")


def test_env_says_what_is_not_installed(monkeypatch, capsys):
    monkeypatch.setitem(env.EXTRAS, "no-such-package", "lab")
    assert cli.main(["env"]) == 0
    assert "  no-such-package not installed\n" in capsys.readouterr().out
    assert env.environment()["optional"]["no-such-package"] is None


def test_env_writes_json_to_stdout_or_to_a_file(tmp_path, capsys):
    assert cli.main(["env", "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == env.environment()
    assert facts["processors"] >= 1
    assert cli.main(["env", "--json", str(tmp_path / "env.json")]) == 0
    assert json.loads((tmp_path / "env.json").read_text(encoding="utf-8")) == facts
    assert f"torch         {facts['torch']}\n" in capsys.readouterr().out


def test_env_cannot_write_where_no_folder_is(tmp_path, capsys):
    assert cli.main(["env", "--json", str(tmp_path / "no" / "env.json")]) == 2
    assert capsys.readouterr().err.endswith("env.json: No such file or directory\n")


def test_compare_reads_every_option():
    assert parse(compare.Options, "x", []) == compare.Options()
    line = (
        "--text a.txt b.txt --encodings rope t5 --train-length 32 --lengths 32 64 --steps 7 "
        "--batch 3 --seeds 2 --width 16 --depth 1 --heads 2 --jobs 5 --device cuda:1 --out here"
    )
    assert parse(compare.Options, "x", line.split()) == compare.Options(
        text=(Path("a.txt"), Path("b.txt")),
        encodings=("rope", "t5"),
        train_length=32,
        lengths=(32, 64),
        steps=7,
        batch=3,
        seeds=2,
        width=16,
        depth=1,
        heads=2,
        jobs=5,
        device="cuda:1",
        out=Path("here"),
    )


def test_measure_reads_every_option():
    line = "rope alibi --json out.json --dim 8 --heads 2 --length 16"
    assert parse(measure.Options, "x", line.split()) == measure.Options(
        names=("rope", "alibi"), json="out.json", dim=8, heads=2, length=16
    )


@pytest.mark.parametrize("module", [compare, env, measure, story])
def test_options_are_frozen_and_by_keyword(module):
    parameters = module.Options.__dataclass_params__
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(module.Options))


def test_commands_hand_their_options_to_the_library(monkeypatch):
    from whereness import story as told
    from whereness.lab import compare as lab
    from whereness.properties import report

    shown = []
    monkeypatch.setattr(report, "run", lambda options: options.dim)
    monkeypatch.setattr(lab, "run", lambda options: options.width)
    monkeypatch.setattr(told, "show", lambda: shown.append("story"))
    assert cli.main(["measure", "--dim", "11"]) == 11
    assert cli.main(["compare", "--width", "12"]) == 12
    assert cli.main(["story"]) == 0
    assert shown == ["story"]


def raising(error: BaseException):
    """A `run` that raises `error`."""

    def run(_):
        raise error

    return run
