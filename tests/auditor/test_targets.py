"""What a target names, and that it is only read."""

import json
import os
import re

import pytest
import torch
from torch import nn

from auditor.toys import CODE, code_file, config_file, gguf_file, weights_file
from interop.support import save_folder
from interop.toy import SMALL, config
from processes import python
from whereness.auditor import targets
from whereness.auditor.targets import resolve
from whereness.interop.weights.source import PICKLED

# Files and folders


def test_a_folder_gives_its_config_and_its_weights(tmp_path):
    folder = save_folder(tmp_path / "model")
    found = resolve(folder)
    assert found.source is not None and found.weights is not None and found.model is None
    assert (found.weights.format, len(found.weights.tensors)) == ("safetensors", 13)
    assert (found.folder, found.missing) == (folder, {})
    assert found.report.target == str(folder)
    assert found.report.what == "safetensors weights, config of llama"


def test_shards_are_one_target(tmp_path):
    folder = save_folder(tmp_path / "model", shards=3)
    for target in (folder, folder / "model.safetensors.index.json"):
        found = resolve(target)
        assert found.weights is not None and len(found.weights.tensors) == 13
        assert list(found.parts) == [""]


@pytest.mark.parametrize("name", ["config.json", "params.json", "mine.json"])
def test_a_config_by_name(tmp_path, name):
    found = resolve(str(config_file(tmp_path, name=name)))
    assert list(found.expected) == [""] and found.weights is None
    assert found.missing["weights"] == f"{name} is a config; name its folder for the weights"


def test_metas_params_in_a_folder(tmp_path):
    config_file(tmp_path, {"dim": 64, "n_heads": 4, "n_layers": 2}, "params.json")
    (tmp_path / "consolidated.00.pth").write_bytes(b"PK\x03\x04")
    found = resolve(tmp_path)
    assert found.report.what == "config of Meta"
    assert "consolidated.00.pth" in found.missing["weights"]


def test_a_weights_file_has_the_config_beside_it(tmp_path):
    path = weights_file(tmp_path)
    assert resolve(path).missing["config"] == "there is no config.json beside the weights"
    config_file(tmp_path)
    found = resolve(path)
    assert found.expected[""].length == 64 and found.weights is not None


def test_a_gguf_file_has_its_config_within(tmp_path):
    found = resolve(gguf_file(tmp_path))
    assert found.weights is not None and found.weights.format == "gguf"
    assert list(found.expected) == [""]
    assert (
        resolve(tmp_path).report.what == found.report.what == "gguf weights, config of GGUF qwen2"
    )


def test_a_gguf_file_beside_a_config_is_a_target_of_its_own(tmp_path):
    gguf_file(tmp_path)
    config_file(tmp_path)
    found = resolve(tmp_path)
    assert found.weights is None and "name it" in found.missing["weights"]


def test_another_config_is_expected_instead(tmp_path):
    folder = save_folder(tmp_path / "model")
    found = resolve(folder, config=config(rope_theta=5.0))
    assert found.expected[""].each[0][0].get("base") == 5.0
    broken = config_file(tmp_path / "model", b"{")
    assert resolve(broken.parent, config=SMALL).expected[""].length == 64


class Trap:
    """Unpickled it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.dat"])
def test_pickles_are_refused_and_not_opened(tmp_path, name):
    sprung = tmp_path / "sprung"
    for zipped in (True, False):
        torch.save(Trap(str(sprung)), tmp_path / name, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match="pickled weights are refused") as caught:
            resolve(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not sprung.exists()


@pytest.mark.parametrize("ending", PICKLED)
def test_a_name_that_says_pickle_is_enough(tmp_path, ending):
    path = tmp_path / f"model{ending}"
    path.write_bytes(b"{}")
    with pytest.raises(ValueError, match="pickled weights are refused"):
        resolve(path)


def test_a_folder_of_pickles_has_a_config_all_the_same(tmp_path):
    sprung = tmp_path / "sprung"
    torch.save(Trap(str(sprung)), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickled weights \(pytorch_model.bin\) are refused"):
        resolve(tmp_path)
    config_file(tmp_path)
    found = resolve(tmp_path)
    assert list(found.expected) == [""]
    assert "pytorch_model.bin" in found.missing["weights"]
    assert not sprung.exists()


def test_a_target_is_only_read(tmp_path):
    folder = save_folder(tmp_path / "model")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    for each in (folder, *folder.glob("*.safetensors")):
        resolve(each)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def test_a_config_needs_no_torch(tmp_path):
    path = config_file(tmp_path)
    code = (
        "import sys; from whereness.auditor.run import audit; audit(sys.argv[1]); "
        "print('torch' in sys.modules)"
    )
    assert python("-c", code, path).stdout == "False\n"


# Code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a module to be named, of a name that no other test imports."""
    monkeypatch.chdir(tmp_path)
    return code_file(tmp_path, f"named_{tmp_path.name.replace('-', '_')}")


def test_named_code_is_called(here, capsys):
    found = resolve(f"{here}:plain")
    assert type(found.model).__name__ == "Named" and found.inputs is None
    assert found.report.what == "live Named"
    assert capsys.readouterr().out == ""
    assert resolve(f"{here}:pair").inputs == {"attention_mask": None}
    assert resolve(f"{here}:Named").model is not None


def test_a_named_module_is_taken_as_it_is(here):
    first, second = (resolve(f"{here}:instance").model for _ in range(2))
    assert first is second


CODE_REFUSED = {
    "nothing": "needed an nn.Module, got a NoneType",
    "three": "needed an nn.Module, or (module, inputs), got 3 things",
    "raising": "raised KeyError: 'lost\\nkey'",
    "leaving": "raised SystemExit: 4",
    "number": "number is a int, not a callable",
    "missing": "has no missing",
    "Named.missing": "has no Named.missing",
}


@pytest.mark.parametrize("name", CODE_REFUSED)
def test_code_that_gives_no_module(here, name):
    with pytest.raises((ValueError, TypeError)) as caught:
        resolve(f"{here}:{name}")
    assert CODE_REFUSED[name] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_that_cannot_be_imported(here, tmp_path):
    with pytest.raises(ValueError, match="no_such_package cannot be imported: ModuleNotFoundError"):
        resolve("no_such_package:plain")
    (tmp_path / f"{here}_broken.py").write_text("1 +", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be imported: SyntaxError"):
        resolve(f"{here}_broken:plain")


def test_a_file_of_that_name_is_a_file(here, tmp_path):
    config_file(tmp_path, name=f"{here}:plain")
    found = resolve(f"{here}:plain")
    assert found.model is None and list(found.expected) == [""]


def test_nothing_of_a_folder_is_run(tmp_path, monkeypatch):
    """A folder may hold code, as remote code does: it stays unread."""
    config_file(tmp_path, config(auto_map={"AutoModel": "modeling.Model"}))
    (tmp_path / "modeling.py").write_text(f"{CODE}\nopen('ran', 'w').close()", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    resolve(tmp_path)
    assert not (tmp_path / "ran").exists()


# Modules and configs


class Configured(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.own = own

    @property
    def config(self):
        if isinstance(self.own, Exception):
            raise self.own
        return self.own


def test_a_modules_own_config_is_the_expectation():
    found = resolve(Configured(SMALL))
    assert found.expected[""].length == 64 and found.model is not None
    assert found.report.what == "live Configured, config of llama"
    assert found.report.target == "a Configured"
    assert (
        resolve(Configured(SMALL), config=config(rope_theta=5.0))
        .expected[""]
        .each[0][0]
        .get("base")
        == 5.0
    )


class Broken:
    def to_dict(self):
        raise RuntimeError("two\nlines")


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (None, "the module has no config; give one as config="),
        (RuntimeError("no"), "the module's config raises RuntimeError"),
        (3, "the module's config cannot be read: from_config needs a dict"),
        (Broken(), "the module's config cannot be read: two lines"),
    ],
    ids=["none", "raises", "number", "broken"],
)
def test_a_module_without_a_config_that_can_be_read(own, why):
    found = resolve(Configured(own))
    assert found.source is None
    assert found.missing["config"].startswith(why)


def test_inputs_come_with_the_module_or_by_name():
    model, own = Configured(None), {"a": 1}
    assert resolve((model, own)).inputs is own
    assert resolve((model, own), inputs={"b": 2}).inputs == {"b": 2}


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("target", "says"),
    [
        (3, "got int"),
        (None, "got NoneType"),
        ((), "got 0 things"),
        ((nn.Linear(1, 1), 3), "inputs must be a dict"),
        ((3, {}), "got a int"),
        (nn.Linear, "got type"),
    ],
    ids=["int", "None", "empty", "inputs", "no module", "class"],
)
def test_what_is_no_target(target, says):
    with pytest.raises(TypeError, match=re.escape(says)):
        resolve(target)


def test_config_objects():
    class Config:
        def to_dict(self):
            return dict(SMALL)

    assert list(resolve(Config()).expected) == [""]
    assert list(resolve(SMALL).expected) == [""]


# Options


@pytest.mark.untyped
def test_layers_are_numbers():
    assert resolve(SMALL, layers=[0, 3, 3]).layers == {0, 3}
    assert resolve(SMALL, layers=range(2)).layers == {0, 1}
    for wrong in ([True], ["0"], [1.0]):
        with pytest.raises(TypeError, match="layer must be an int"):
            resolve(SMALL, layers=wrong)


def test_text_is_bytes_or_a_file(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_bytes(b"some words")
    assert resolve(SMALL, text=path).text == resolve(SMALL, text=b"some words").text
    monkeypatch.setattr(targets, "LARGEST_TEXT", 9)
    with pytest.raises(ValueError, match="must have at most"):
        resolve(SMALL, text=path)
    with pytest.raises(ValueError, match="must be a file"):
        resolve(SMALL, text=tmp_path)
    with pytest.raises(FileNotFoundError):
        resolve(SMALL, text=tmp_path / "none")


def test_a_key_twice_is_a_finding(tmp_path):
    found = resolve(
        config_file(tmp_path, json.dumps(SMALL).replace("{", '{"rope_theta": 5.0,').encode())
    )
    assert [(f.kind, f.severity) for f in found.report.findings] == [("K22", "error")]
    assert "'rope_theta' stands there twice" in found.report.findings[0].measured
    assert found.source is None and "config" in found.missing
