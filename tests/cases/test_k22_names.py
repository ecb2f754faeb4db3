"""K22: names and sets of keys that changed from version to version."""

import json
from pathlib import Path

import pytest

import whereness as wn
from cases.support import case, equal
from interop.toy import LLAMA3, YARN, close, config, plain, quiet, scaled, yarn

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden.json").read_text(encoding="utf-8"))[
    "values"
]
NESTED = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {**YARN, "rope_theta": 500_000.0},
}
TYPES = ["sliding_attention", "full_attention"]


@case("P213")
def test_a_nested_dict_is_read_for_each_type_of_layer():
    keys = config(model_type="olmo3", rope_theta=None, layer_types=TYPES, rope_parameters=NESTED)
    close(quiet(keys, layer=0).frequencies, plain(10_000.0, 16))
    close(quiet(keys, layer=1).frequencies, yarn(500_000.0, 16, 4.0, 32))


@case("P213")
def test_yarn_without_its_original_length_takes_that_of_the_model_and_tells():
    rope = {key: v for key, v in YARN.items() if key != "original_max_position_embeddings"}
    says = "max_position_embeddings = 64 is taken for the length of pre-training"
    with pytest.warns(wn.ConfigWarning, match=says):
        found = wn.from_config(scaled(**rope))
    assert found.scaling.original_length == 64
    nested = {**NESTED, "full_attention": {**rope, "rope_theta": 500_000.0}}
    keys = config(model_type="olmo3", rope_theta=None, layer_types=TYPES, rope_parameters=nested)
    with pytest.warns(wn.ConfigWarning, match=says):
        assert wn.from_config(keys, layer=1).scaling.original_length == 64


LONG = {
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
}
SAME = [
    ({"type": "su", **LONG}, {"rope_type": "longrope", **LONG}),
    ({"type": "longrope", **LONG}, {"rope_type": "longrope", **LONG}),
    ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    ({**YARN, "type": "yarn"}, YARN),
    ({**YARN, "rope_type": None, "type": "deepseek_yarn"}, YARN),
    ({**LLAMA3, "type": "llama3"}, LLAMA3),
    ({**LLAMA3, "rope_type": None, "type": "llama3"}, LLAMA3),
    ({"type": "default"}, {"rope_type": "default"}),
    ({"type": "su", "rope_type": "longrope", **LONG}, {"rope_type": "longrope", **LONG}),
]


@case("P214")
@pytest.mark.parametrize(("old", "new"), SAME)
def test_older_names_mean_the_same(old, new):
    before, after = quiet(scaled(**old)), quiet(scaled(**new))
    for length in (32, 100):
        equal(before.frequencies_at(length), after.frequencies_at(length), 0.0)
    assert before.amplitude_at(100) == after.amplitude_at(100)


@case("P214")
def test_two_names_that_differ_are_refused():
    with pytest.raises(ValueError, match="rope_type 'linear' and type 'dynamic'"):
        wn.from_config(scaled(rope_type="linear", type="dynamic", factor=2.0))


@case("P214")
def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(ValueError) as caught:
        wn.from_config(scaled(rope_type="spiral", factor=2.0))
    for name in ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3"):
        assert name in str(caught.value)


def of_golden() -> list[dict]:
    found = [v for v in GOLDEN if v["encoding"] == "rope" and v["quantity"] == "frequencies"]
    return [v for v in found if as_config(v) is not None]


def as_config(value: dict) -> dict | None:
    """A golden value's encoding in Hugging Face's keys; None where it has none."""
    options = dict(value["options"])
    scaling = dict(options.pop("scaling", {"type": "default"}))
    names = {"Linear": "linear", "Llama3": "llama3", "YaRN": "yarn", "DynamicNTK": "dynamic"}
    kind = scaling.pop("type")
    if kind not in (*names, "default") or set(options) - {"head_dim", "base", "pairing"}:
        return None
    if options.get("pairing", "half") != "half" or isinstance(scaling.get("factor"), list):
        return None
    if {"ramp", "clamp", "school"} & set(scaling) or scaling.get("factor", 1) is None:
        return None
    length = scaling.pop("original_length", None)
    rope = {"rope_type": names.get(kind, "default"), **scaling}
    keys = config(head_dim=options["head_dim"], rope_theta=options["base"])
    if kind == "DynamicNTK":
        keys["max_position_embeddings"] = length
    elif length is not None:
        rope["original_max_position_embeddings"] = length
    return {**keys, "rope_parameters": rope}


@case("P217")
@pytest.mark.parametrize("value", of_golden(), ids=lambda value: value["id"])
def test_the_numbers_are_those_of_an_independent_formula(value):
    found = quiet(as_config(value))
    got = found.frequencies_at(value["input"].get("length", 1))
    picked = value["input"].get("pairs")
    got = got if picked is None else got[picked]
    close(got, value["expected"], value["tolerance"])


@case("P217")
def test_every_scaling_of_these_keys_has_such_numbers():
    kinds = {v["options"].get("scaling", {}).get("type") for v in of_golden()}
    assert {"Linear", "Llama3", "YaRN", "DynamicNTK", None} <= kinds
