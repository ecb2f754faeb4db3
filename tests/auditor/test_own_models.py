"""Models of this library under its own auditor: told for what they are, and without fault."""

import json
from importlib.resources import files

import jsonschema
import pytest

import whereness as wn
from pages import Page, assert_fetches_nothing
from whereness.auditor import assert_sound
from whereness.auditor.telling.page import html

pytestmark = pytest.mark.untyped  # the auditor's parts are typed in their own tests

CLASSES = {
    "nope": "none",
    "binary": "absolute",
    "sinusoidal": "absolute",
    "learned": "absolute",
    "rope": "relative",
    "alibi": "relative",
    "t5": "relative",
    "relative_add": "relative",
    "shaw": "content-aware",
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_theta": 500_000.0,
}


def model(encoding):
    return wn.Transformer(100, 64, 2, 4, encoding)


@pytest.mark.parametrize("name", CLASSES)
def test_every_encoding_is_told_by_what_it_does(name):
    encoding = wn.create(name, dim=64, num_heads=4, length=64)
    report = assert_sound(model(encoding), checks=["layers", "spectrum", "bias", "shards"])
    assert [facts.classified for facts in report.layers] == [CLASSES[name]] * 2


@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_the_base_is_read_off_whatever_turns_the_pairs(implementation):
    rope = wn.RoPE(16, base=500_000.0)
    sound = wn.Transformer(100, 64, 2, 4, rope, implementation=implementation)
    report = assert_sound(sound, config=CONFIG, checks=["spectrum"])
    assert {said.layer for said in report.compared} == {0, 1}
    for facts in report.layers:
        assert facts.speeds == pytest.approx(rope.frequencies.tolist(), rel=3e-6)


@pytest.mark.more
def test_a_model_of_this_library_passes_all_checks():
    report = assert_sound(model(wn.RoPE(16, base=500_000.0)), config=CONFIG)
    ran = {said.check for said in report.compared}
    assert {"CHK1", "CHK2", "CHK3", "CHK4", "CHK5", "CHK6", "CHK12", "CHK20"} <= ran


@pytest.mark.more
def test_another_base_and_another_pairing_are_named():
    wrong = wn.audit(model(wn.RoPE(16)), config=CONFIG, checks=["spectrum"])
    assert {(f.kind, f.layer, f.cause) for f in wrong.of("error")} == {
        ("K02", 0, "the base is 10000"),
        ("K02", 1, "the base is 10000"),
    }
    other = model(wn.RoPE(16, base=500_000.0, pairing="interleaved"))
    report = wn.audit(other, config=CONFIG, checks=["channels"])
    assert {(f.kind, f.layer) for f in report.of("error")} == {("K01", 0), ("K01", 1)}


@pytest.mark.parametrize(
    ("encoding", "plots"),
    [(wn.RoPE(16, base=1000.0), 3), (wn.ALiBi(4), 2), (wn.LearnedAbsolute(64, 64), 1)],
    ids=["rope", "alibi", "learned"],
)
def test_what_is_measured_reaches_the_data_and_the_page(encoding, plots):
    checks = ["layers", "spectrum", "bias", "casts"]
    report = wn.audit(model(encoding), config=CONFIG, checks=checks)
    schema = json.loads(files("whereness.auditor").joinpath("schema.json").read_text("utf-8"))
    jsonschema.validate(json.loads(json.dumps(report.to_dict(), allow_nan=False)), schema)
    source = html(report)
    assert_fetches_nothing(source)
    drawn = [a for tag, a in Page(source).elements if tag == "svg" and a.get("class") == "plot"]
    assert len(drawn) == plots
