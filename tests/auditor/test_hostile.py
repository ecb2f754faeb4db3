"""Targets that mean no good: one line, or a finding; never a traceback, a hang or much memory."""

import json
import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditor.toys import code_file, config_file, gguf_file, kinds, outcome, weights_file
from interop.support import LLAMA, file_of, save_folder
from interop.test_gguf import text
from interop.toy import SMALL, config
from processes import ROOT
from processes import run as run_command
from whereness.auditor import run
from whereness.auditor.checks import Check
from whereness.auditor.findings import Report

Maker = Callable[[Path], object]
MUCH = 2**28
"""Bytes: what an audit of a hostile file may allocate. Files here have at most 2^24."""
HUGE = 2**62
SRC = str(ROOT / "src")


def header(fields: object, data: bytes = b"", length: int | None = None) -> Maker:
    """A safetensors file with this header."""

    def make(folder: Path) -> Path:
        path = folder / "model.safetensors"
        path.write_bytes(file_of(fields, data, length))
        return path

    return make


def entry(shape: Any, begin: int = 0, end: int = 4, dtype: str = "F32") -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


def gguf(data: bytes) -> Maker:
    """A file that begins as GGUF does."""

    def make(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(b"GGUF" + data)
        return path

    return make


def gguf_head(tensors: int, entries: int, version: int = 3) -> bytes:
    return struct.pack("<IQQ", version, tensors, entries)


def raw_config(data: bytes) -> Maker:
    return lambda folder: config_file(folder, data)


def cut(make: Maker, share: float) -> Maker:
    """The same file with its end cut off."""

    def shorter(folder: Path) -> Path:
        path = Path(str(make(folder)))
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        return path

    return shorter


def circle(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "config.json")
    return folder / "config.json"


def pipe_within(folder: Path) -> Path:
    os.mkfifo(folder / "config.json")
    return folder


def pipe_of_weights(folder: Path) -> Path:
    config_file(folder)
    os.mkfifo(folder / "model.safetensors")
    return folder


def index(where: object) -> Maker:
    def make(folder: Path) -> Path:
        weights_file(folder)
        config_file(folder, {"weight_map": where}, "model.safetensors.index.json")
        return folder

    return make


def unreadable(folder: Path) -> Path:
    (folder / "dir.safetensors").mkdir()
    return folder


UNUSABLE: dict[str, Maker] = {
    "no such path": lambda folder: folder / "none",
    "an empty path": lambda _: "",
    "a NUL in a path": lambda _: "a\0b",
    "a very long path": lambda _: "a" * 100_000,
    "an empty folder": lambda folder: folder,
    "links in a circle": circle,
    "a link to itself within": lambda folder: (folder / "x").symlink_to(folder) or folder,
    "a pipe": pipe,
    "a pipe for a config": pipe_within,
    "a pipe for weights": pipe_of_weights,
    "a device": lambda _: "/dev/zero",
    "a folder for weights": unreadable,
    "an empty config": raw_config(b""),
    "a config that is no JSON": raw_config(b"{'a': 1}"),
    "a config of bytes": raw_config(bytes(range(256))),
    "a config of a list": raw_config(b"[1]"),
    "a deep config": raw_config(b'{"a":' * 200_000),
    "a deep and closed config": raw_config(b'{"a":' * 2000 + b"1" + b"}" * 2000),
    "a config of lists": raw_config(b'{"a": [' + b"[]," * 2**22 + b"[]]}"),
    "a config of numbers": raw_config(b'{"a": [' + b"1," * 2**22 + b"1]}"),
    "a large config": raw_config(b'{"a": "' + b"a" * 2**24 + b'"}'),
    "a config with NaN": raw_config(b'{"rope_theta": NaN}'),
    "safetensors cut in the length": cut(weights_file, 0.0003),
    "safetensors cut in the header": cut(weights_file, 0.004),
    "safetensors cut in the data": cut(weights_file, 0.7),
    "safetensors with a huge header": header({}, length=HUGE),
    "safetensors of a list": header([1]),
    "safetensors of lies on shapes": header(entry([HUGE, HUGE]), b"1234"),
    "safetensors of lies on offsets": header(entry([1], HUGE, HUGE + 4), b"1234"),
    "safetensors of gaps": header(entry([1], 4, 8), b"12345678"),
    "safetensors of a negative shape": header(entry([-1]), b"1234"),
    "safetensors of an unknown type": header(entry([1], dtype="F7"), b"1234"),
    "safetensors of many brackets": header(b'{"a":[' + b"[]," * 2**21 + b"[]]}"),
    "safetensors that is deep": header(b'{"a":' * 100_000),
    "gguf that ends": gguf(b""),
    "gguf of another version": gguf(gguf_head(0, 0, version=9)),
    "gguf of many tensors": gguf(gguf_head(HUGE, 0)),
    "gguf of many entries": gguf(gguf_head(0, HUGE)),
    "gguf of a long string": gguf(gguf_head(0, 1) + struct.pack("<Q", HUGE)),
    "gguf of a long array": gguf(gguf_head(0, 1) + text("a") + struct.pack("<IIQ", 9, 4, HUGE)),
    "gguf of an unknown value": gguf(gguf_head(0, 1) + text("a") + struct.pack("<I", 77)),
    "gguf of many axes": gguf(gguf_head(1, 0) + text("a") + struct.pack("<I", 2**31)),
    "gguf beyond its end": gguf(
        gguf_head(1, 0) + text("a") + struct.pack("<IQQIQ", 2, HUGE, HUGE, 0, 0)
    ),
    "gguf that is cut": cut(gguf_file, 0.5),
    "an index of a shard elsewhere": index({"a": "../../etc/passwd"}),
    "an index of no shard": index({"a": "none.safetensors"}),
    "an index of numbers": index({"a": 3}),
    "an index of lies": index({"a": "model.safetensors"}),
    "an index of nothing": index({}),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_read_is_one_line(tmp_path, name):
    target = UNUSABLE[name](tmp_path)
    tracemalloc.start()
    said = outcome(target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(said, str), said
    assert "\n" not in said and len(said) < 1000
    assert peak < MUCH


def nested(depth: int) -> dict[str, Any]:
    """A config within a config within ..."""
    keys: dict[str, Any] = dict(SMALL)
    for _ in range(depth):
        keys = {"model_type": "llava", "text_config": keys}
    return keys


WRONG: dict[str, tuple[object, str]] = {
    "a key twice": (b'{"model_type": "llama", "model_type": "gptj"}', "K22"),
    "an endless base": (json.dumps(SMALL).replace("10000.0", "1e999").encode(), "K22"),
    "a base of many digits": (config(rope_theta=10**300 * 10**300), "K22"),
    "a text for a number": (config(rope_theta="10000"), "K22"),
    "a list for a scaling": (config(rope_scaling=[1]), "K22"),
    "a dict for a width": (config(hidden_size={}), "K22"),
    "a million layers": (config(num_hidden_layers=10**6), "K22"),
    "many types": (config(layer_types=["full_attention"] * 10**5), "K22"),
    "a wide head": (config(head_dim=2**40), "K22"),
    "no heads": (config(num_attention_heads=0), "K22"),
    "a width that is odd": (config(head_dim=15), "K03"),
    "a base of nothing": (config(rope_theta=0), "K22"),
    "a number for a type": (config(model_type=3), "K22"),
    "many keys": ({**SMALL, **{f"k{i}": 1 for i in range(3000)}}, "K22"),
    "a long key": ({**SMALL, "rope_scalin" + "g" * 10**6: 1, "rope_scalling": 2}, "K22"),
    "lines in a name": (config(rope_scaling={"rope_type": "a\nb\x1b[31m"}), "K22"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_read_and_wrong_is_a_finding(tmp_path, name):
    keys, kind = WRONG[name]
    report = outcome(config_file(tmp_path, keys))
    assert isinstance(report, Report), report
    assert kind in kinds(report, "error")
    assert report.exit_status() == 1
    for found in report.findings:
        assert found.measured.isprintable() and len(found.measured) < 2000


@pytest.mark.parametrize("depth", [10, 300, 490])
def test_a_composite_of_composites(tmp_path, depth):
    said = outcome(config_file(tmp_path, nested(depth)))
    assert isinstance(said, Report) or "nested too deep" in said


def test_nan_weights_are_read(tmp_path):
    """Numbers that are none are for the checks of weights to tell."""
    data = struct.pack("<4f", *[float("nan")] * 4)
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(entry([4], 0, 16), data))
    config_file(tmp_path, LLAMA)
    assert isinstance(outcome(tmp_path), Report)


# Whatever bytes


SEEDS: dict[str, Maker] = {
    "config.json": lambda folder: config_file(folder, config(rope_scaling={"rope_type": "yarn"})),
    "model.safetensors": weights_file,
    "model.gguf": gguf_file,
}


@pytest.mark.untyped  # the same calls, many times
@pytest.mark.parametrize("name", SEEDS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_bytes_are_changed(tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("changed")
    path = Path(str(SEEDS[name](folder)))
    changed = bytearray(path.read_bytes()[:4096])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    said = outcome(path)
    assert isinstance(said, Report) or ("\n" not in said and len(said) < 1000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = (
    *SMALL,
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "head_dim",
    "partial_rotary_factor",
    "sliding_window",
    "text_config",
    "no_rope_layers",
    "architectures",
)
TYPES = (
    "llama",
    "qwen2_vl",
    "gpt2",
    "t5",
    "bloom",
    "roberta",
    "gemma3",
    "modernbert",
    "vit",
    "phi3",
)


@given(
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), json_values, max_size=8),
    st.sampled_from(TYPES),
)
@settings(deadline=None)
@pytest.mark.untyped  # the same calls, many times
def test_whatever_keys_a_config_has(keys, model_type):
    report = outcome({**SMALL, "model_type": model_type, **keys})
    assert isinstance(report, Report), report
    for found in report.findings:
        assert found.kind and found.severity


# Code that misbehaves


def look(subject: Any) -> None:
    """A check that runs the model."""
    subject.model(subject.shared["driver"].sample(1, 3))
    subject.compared("CHK1", "spectrum")


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Names of misbehaving code, and one check that runs it."""
    monkeypatch.setattr(run, "TABLE", (Check("config", "CHK1", "model"),))
    monkeypatch.setattr("whereness.auditor.checks.config.run", look)
    monkeypatch.chdir(tmp_path)
    return code_file(tmp_path, f"hostile_{tmp_path.name.replace('-', '_')}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Raising",
            "No way to feed the model was found: RuntimeError: two lines",
        ),
        (
            "Leaving",
            "No way to feed the model was found: SystemExit: 3",
        ),
    ],
)
def test_a_module_that_raises_is_one_line(named, name, says):
    said = outcome(f"{named}:{name}")
    assert isinstance(said, str) and says in said
    assert "\n" not in said


def test_a_module_that_prints_does_not_print_here(named, capfd):
    assert isinstance(outcome(f"{named}:Printing"), Report)
    out, err = capfd.readouterr()
    assert "from Python" not in out and "from Python" in err


SCRIPT = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))  # seconds, of each process that is forked
from whereness.auditor import run
from whereness.auditor.checks import Check
import whereness.auditor.checks.config as check
def look(subject):
    driver = subject.shared["driver"]
    for _ in range(4):  # were those that are forked to go on here, they would be 2^4
        driver(driver.sample(1, 3))
    print(os.getpid())
    subject.compared("CHK1", "spectrum")
run.TABLE, check.run = (Check("config", "CHK1", "model"),), look
print("before")
report = run.audit(sys.argv[1])
print(json.dumps([each.what for each in report.compared]))
"""


STARTED = [
    *("Forking", "Sleeping"),
    *(pytest.param(n, marks=pytest.mark.more) for n in ("Printing", "plain", "Working", "forked")),
]


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.untyped  # the same calls as for a model that does nothing of the kind
@pytest.mark.timeout(50)
def test_stdout_has_the_report_once_and_nothing_else(named, tmp_path, name):
    done = run_command(
        sys.executable, "-c", SCRIPT, f"{named}:{name}", cwd=tmp_path, PYTHONPATH=SRC
    )
    assert done.stdout == 'before\n["spectrum"]\n'
    told = [line for line in done.stderr.splitlines() if line.isdecimal()]
    assert len(told) == 1  # one process came through the check


def test_a_folder_of_everything(tmp_path):
    """Links in a circle, pipes and pickles beside a model are left alone."""
    folder = save_folder(tmp_path / "model")
    circle(folder)
    os.mkfifo(folder / "pipe")
    (folder / "x.bin").write_bytes(b"\x80\x04")
    assert isinstance(outcome(folder), Report)
