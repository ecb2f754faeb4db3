"""The checkout is whole; `make venv` works from nothing, and does nothing twice."""

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from processes import ROOT, checkout_files, copy_checkout, python, run

pytestmark = pytest.mark.untyped

WATCHED = ("pyproject.toml", "constraints.txt", "Makefile")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_checkout(tmp_path / "copy")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder that looks to make as if `make venv` had just run in it."""
    for name in WATCHED:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.stamp").write_text(f"{tmp_path}\n", encoding="utf-8")
    return tmp_path


def untracked() -> str:
    """A hint for the failure: what git would have to be told of."""
    if not shutil.which("git"):
        return "(unknown: no git here)"
    return run("git", "ls-files", "--others", "--exclude-standard").stdout


def test_the_checkout_imports_without_anything_untracked(copy):
    code = "import whereness; print(whereness.__file__); whereness.RoPE, whereness.Where"
    done = python("-c", code, cwd=copy)
    assert done.returncode == 0, f"{done.stderr}\nuntracked files:\n{untracked()}"
    assert Path(done.stdout.strip()) == copy / "src/whereness/__init__.py"


def test_the_checkout_tests_itself_without_anything_untracked(copy):
    pytest_ = ("-m", "pytest", "-p", "no:cacheprovider", "-q")
    some = ("tests/test_conftest.py", "tests/test_surface.py")
    done = python(*pytest_, *some, cwd=copy)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nuntracked files:\n{untracked()}"
    done = python(*pytest_, "--collect-only", "-m", "not more", cwd=copy)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nuntracked files:\n{untracked()}"
    assert "tests/test_project.py" in done.stdout


def test_a_checkout_without_git_is_listed_without_what_is_ignored(copy):
    for name in (".venv/bin/python", "src/whereness/__pycache__/a.pyc", "build/x", "kept.txt"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    code = "import sys; sys.path.insert(0, 'tests'); import processes; "
    listed = python("-c", code + "print(*processes.checkout_files())", cwd=copy)
    assert listed.returncode == 0, listed.stderr
    expected = {*map(str, checkout_files()), "kept.txt"}
    assert set(listed.stdout.split()) == expected


def test_make_venv_does_nothing_when_nothing_has_changed(built):
    assert run("make", "--question", "venv", cwd=built).returncode == 0


@pytest.mark.parametrize("name", WATCHED)
def test_make_venv_runs_again_when_its_inputs_change(built, name):
    os.utime(built / name)
    (built / ".venv/.stamp").touch()
    os.utime(built / ".venv/.stamp", (2, 2))
    assert run("make", "--question", "venv", cwd=built).returncode == 1


def test_make_venv_runs_again_in_a_checkout_that_has_moved(built, tmp_path_factory):
    moved = tmp_path_factory.mktemp("moved") / "checkout"
    shutil.copytree(built, moved)
    assert run("make", "--question", "venv", cwd=moved).returncode == 1


def test_make_venv_refuses_an_old_or_absent_python_in_one_line(built, tmp_path):
    shutil.rmtree(built / ".venv")
    old = tmp_path / "python3.10"
    pretend = "import sys; sys.version_info = (3, 10, 9); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n', encoding="utf-8")
    old.chmod(0o755)
    for interpreter in (old, tmp_path / "absent"):
        done = run("make", "--silent", "venv", f"PYTHON={interpreter}", cwd=built)
        assert done.returncode != 0
        lines = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
        assert len(lines) == 1, done.stderr
        assert "needs Python 3.11 or newer" in lines[0]
        assert str(interpreter) in lines[0]
        assert not (built / ".venv").exists()


def test_make_alone_lists_targets_that_exist(built):
    listed = run("make", cwd=built)
    assert listed.returncode == 0
    for line in listed.stdout.splitlines():
        target = line.split()[1]
        assert run("make", "--dry-run", target, cwd=built).returncode == 0, target


@pytest.mark.more
@pytest.mark.parametrize("peer", ["rotary_embedding_torch", "transformers", "x_transformers"])
def test_a_peer_imports_beside_this_torch(peer):
    import_module(peer)


@pytest.mark.more
@pytest.mark.timeout(900)
def test_make_venv_from_nothing(copy, tmp_path):
    # What pip needs to reach its index from this machine stays; caches and settings of a user go.
    kept = ("PIP_", "SSL_", "REQUESTS_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    more = {name: value for name, value in os.environ.items() if name.upper().startswith(kept)}
    more["HOME"] = str(tmp_path / "home")
    base = f"PYTHON={Path(sys.base_prefix) / 'bin/python3'}"
    made = run("make", "venv", base, cwd=copy, **more)
    assert made.returncode == 0, made.stdout + made.stderr
    code = "import whereness, torch; print(whereness.__file__, torch.__version__)"
    done = run(copy / ".venv/bin/python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path, version = done.stdout.split()
    assert Path(path) == copy / "src/whereness/__init__.py"
    pins = (copy / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"torch=={version.partition('+')[0]}" in pins
    frozen = run(copy / ".venv/bin/python", "-m", "pip", "freeze", "--all", "--exclude-editable")
    locked = [line.partition("+")[0] for line in frozen.stdout.splitlines()]
    unpinned = [line for line in locked if line not in pins]
    assert all(line.startswith(("nvidia-", "cuda-")) for line in unpinned), unpinned
    again = run("make", "venv", base, cwd=copy, **more)
    assert "Nothing to be done" in again.stdout, again.stdout
