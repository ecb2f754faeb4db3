"""The public names: which there are, that each loads, and that nothing loads before it is used."""

import ast
import pkgutil
import sys
from pathlib import Path

import pytest

import whereness as wn
from processes import ROOT, python
from whereness.cli.errors import EXTRAS

SNAPSHOT = Path(__file__).parent / "data" / "public_surface.txt"
LAZY = sorted({*wn._MODULES, *wn._HOMES})
OUTER = ("__main__", "cli", "lab", "auditor", "interop", "explorer", "pictures")
"""What may use the packages of an extra; all else is the core."""
LATE = ("whereness.kernels.triton_turn", "whereness.story.printing")
"""Modules of the core that need more than torch, imported when used: Triton, rich."""


def test_the_public_names_are_those_of_the_snapshot():
    names = SNAPSHOT.read_text(encoding="utf-8").split()
    assert sorted(wn.__all__) == names, (
        f"The public surface has changed. If that is meant, update {SNAPSHOT.name} (one name a "
        "line, sorted) and add a line to CHANGELOG.md."
    )


@pytest.mark.parametrize("name", LAZY)
def test_every_public_name_loads(name):
    value = getattr(wn, name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse((ROOT / "src/whereness/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == {**wn._MODULES, **wn._HOMES}


def test_dir_lists_every_public_name():
    assert set(wn.__all__) <= set(dir(wn))
    assert dir(wn) == sorted(dir(wn))


def test_a_name_that_does_not_exist_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'whereness' has no attribute 'Rope'"):
        wn.Rope  # pyrefly: ignore [missing-attribute]
    with pytest.raises(ImportError, match="cannot import name 'Rope' from 'whereness'"):
        from whereness import Rope  # noqa: F401 # pyrefly: ignore
    assert not hasattr(wn, "Rope")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("import sys; sys.gone", r"whereness\.broken cannot be imported: .*'gone'"),
    ],
)
def test_a_broken_submodule_shows_its_own_error(monkeypatch, tmp_path, source, message):
    (tmp_path / "broken.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(wn, "__path__", [*wn.__path__, str(tmp_path)])
    monkeypatch.setitem(wn._HOMES, "Broken", "broken")
    with pytest.raises(ImportError, match=message):
        wn.Broken  # pyrefly: ignore [missing-attribute]
    with pytest.raises(ImportError, match=message):
        from whereness import Broken  # noqa: F401 # pyrefly: ignore


@pytest.mark.untyped
def test_importing_the_package_imports_nothing_outside_python():
    code = (
        "import sys; before = set(sys.modules); import whereness; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    outside = set(done.stdout.split()) - sys.stdlib_module_names
    assert outside == {"whereness"}


@pytest.mark.untyped
def test_the_core_imports_without_the_packages_of_the_extras():
    names = [
        module.name
        for module in pkgutil.walk_packages(wn.__path__, "whereness.")
        if module.name.split(".")[1] not in OUTER and module.name not in LATE
    ]
    assert "whereness.where" in names
    code = (
        f"import sys, importlib; sys.modules.update(dict.fromkeys({[*EXTRAS, 'numpy']}))\n"
        f"for name in {names}: importlib.import_module(name)"
    )
    done = python("-W", "ignore", "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        (lambda: wn.RoPE(64), "RoPE(head_dim=64)"),
        (
            lambda: wn.RoPE(64, 5e5, scaling=wn.scaling.YaRN(4.0, 32_768, truncate=False)),
            (
                "RoPE(head_dim=64, base=500000.0, "
                "scaling=YaRN(factor=4.0, original_length=32768, truncate=False))"
            ),
        ),
        (
            lambda: wn.XPos(8, rotary_dim=4, rotary_side="trailing"),
            "XPos(head_dim=8, rotary_dim=4, rotary_side='trailing')",
        ),
        (
            lambda: wn.AxialRoPE(8, scale=(1.0, 2.0)),
            "AxialRoPE(head_dim=8, axis_dims=(4, 4), axis_order=(0, 1), scale=(1.0, 2.0))",
        ),
        (
            lambda: wn.T5(8, 16, bidirectional=True),
            "T5(num_heads=8, num_buckets=16, bidirectional=True)",
        ),
        (wn.NoPE, "NoPE()"),
    ],
)
def test_an_encoding_tells_what_it_was_made_with(encoding, text):
    assert repr(encoding()) == text


@pytest.mark.untyped
def test_no_public_name_brings_torchs_compiler():
    """It takes longer to import than torch itself."""
    code = (
        "import sys, whereness as wn; names = [getattr(wn, n) for n in wn.__all__]; "
        "wn.RoPE(8); print(len(names) > 30, 'torch._dynamo' in sys.modules)"
    )
    done = python("-c", code)
    assert done.stdout.split() == ["True", "False"], done.stderr
