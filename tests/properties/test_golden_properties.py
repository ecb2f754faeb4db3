"""Every published or computed value of a property whose encoding exists.

The probes are those of `wn.measure`; a value that a public call gives in float32 is measured on
that as well, at its own tolerance.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import whereness as wn
from whereness.properties import codes, generalisation, rotations, scores
from whereness.properties.doors import exact_copy, sizes
from whereness.properties.lines import content_for, probe
from whereness.properties.probes import contents
from whereness.properties.traits import measured_traits

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden.json").read_text(encoding="utf-8"))
CLASSES = {
    "sinusoidal": wn.Sinusoidal,
    "binary": wn.Binary,
    "integer": wn.Integer,
    "alibi": wn.ALiBi,
    "rope": wn.RoPE,
}
FREQUENCIES = ("first_negative_offset", "unfinished_pairs", "decay_bound")
OF_CODES = {
    "min_distance": codes.min_distance,
    "uniqueness": codes.uniqueness,
    "lipschitz": codes.lipschitz,
    "max_abs": codes.max_abs,
    "norm_growth": codes.norm_growth,
}
OF_SCORES = {
    "translation_invariance": scores.translation_invariance,
    "monotonicity": scores.monotonicity,
    "symmetry": lambda s, _: scores.symmetry(s),
    "first_increase": lambda s, _: scores.first_increase(s),
}
OF_MATRICES = ("norm_preservation", "group_law", "exact_relativity")


def chosen(keep) -> list:
    values = [v for v in GOLDEN["values"] if v["encoding"] in CLASSES and keep(v)]
    return [pytest.param(v, id=v["id"]) for v in values]


def name_of(value: dict) -> str:
    return value["quantity"].removeprefix("property:")


def is_property(value: dict) -> bool:
    return value["quantity"].startswith("property:")


@cache
def made(encoding: str, options: str):
    return CLASSES[encoding](**json.loads(options))


def encoding_of(value: dict):
    """(the encoding, the head that the value is about)."""
    options = dict(value["options"])
    head = options.pop("head", 0)
    return made(value["encoding"], json.dumps(options)), head


@cache
def line_of(encoding, num_positions: int):
    exact = exact_copy(encoding)
    content = content_for(exact, num_positions, measured_traits(encoding))
    with torch.no_grad():
        return content, probe(exact, num_positions, 0, contents(content, sizes(exact).dim))


def check(got, value: dict, tolerance: str = "tolerance"):
    assert got is not None
    assert abs(got - value["expected"]) <= value[tolerance]


def test_every_property_of_the_file_is_tested_here():
    properties = [v for v in GOLDEN["values"] if is_property(v)]
    assert {v["encoding"] for v in properties} == set(CLASSES)
    known = {*OF_CODES, *OF_SCORES, *OF_MATRICES, "norm", "linear_relation", "length_dependence"}
    assert {name_of(v) for v in properties} == known
    assert len(properties) == 141


@pytest.mark.parametrize("value", chosen(lambda v: name_of(v) in (*OF_CODES, "norm")))
def test_codes(value):
    encoding, _ = encoding_of(value)
    rows = line_of(encoding, value["input"]["num_positions"])[1].codes
    if name_of(value) == "norm":
        for row in rows:
            check(float(row.norm()), value)
    else:
        check(OF_CODES[name_of(value)](rows), value)


@pytest.mark.parametrize(
    "value",
    chosen(lambda v: name_of(v) in (*OF_CODES, "norm") and v.get("tolerance_float32") is not None),
)
def test_codes_of_the_float32_call(value):
    encoding, _ = encoding_of(value)
    rows = encoding(torch.arange(value["input"]["num_positions"]))
    assert rows.dtype == torch.float32
    measure = OF_CODES.get(name_of(value), lambda p: float(p.norm(dim=-1).max()))
    check(measure(rows.double()), value, "tolerance_float32")


@pytest.mark.parametrize("value", chosen(lambda v: name_of(v) == "linear_relation"))
def test_linear_relation(value):
    encoding, _ = encoding_of(value)
    length, shift = value["input"]["num_positions"], value["input"]["shift"]
    check(codes.linear_relation(line_of(encoding, length)[1].codes, shift), value)
    rows = encoding(torch.arange(length)).double()
    check(codes.linear_relation(rows, shift), value, "tolerance_float32")


@pytest.mark.parametrize("value", chosen(lambda v: is_property(v) and name_of(v) in OF_SCORES))
def test_scores(value):
    encoding, head = encoding_of(value)
    content, line = line_of(encoding, value["input"].get("num_positions", 128))
    assert content == value["input"].get("content", "zero")
    check(OF_SCORES[name_of(value)](line.scores[head], line.seen), value)


@pytest.mark.parametrize("value", chosen(lambda v: name_of(v) == "length_dependence"))
def test_length_dependence(value):
    length = value["input"]["num_positions"]
    options = dict(value["options"])
    if value["id"].startswith("property-length-dependence-normalised"):
        options["length"] = length
    encoding = exact_copy(CLASSES[value["encoding"]](**options))
    check(generalisation.length_dependence(encoding, length), value)


@pytest.mark.parametrize("value", chosen(lambda v: name_of(v) in OF_MATRICES))
def test_matrices(value):
    encoding, _ = encoding_of(value)
    exact, positions = exact_copy(encoding), torch.tensor(value["input"]["positions"])
    if name_of(value) == "norm_preservation":
        for matrix in rotations.matrices(exact, positions):
            check(rotations.norm_preservation(matrix), value)
    else:
        check(getattr(rotations, name_of(value))(exact, positions), value)


@pytest.mark.parametrize("value", chosen(lambda v: v["quantity"] in FREQUENCIES))
def test_frequencies(value):
    encoding, _ = encoding_of(value)
    frequencies = encoding.frequencies
    if value["quantity"] == "decay_bound":
        got = rotations.decay_bound(frequencies, torch.tensor(value["input"]["offsets"]))
        expected = torch.tensor(value["expected"], dtype=torch.float64)
        assert float((got - expected).abs().max()) <= value["tolerance"]
    elif value["quantity"] == "unfinished_pairs":
        got = rotations.unfinished_pairs(frequencies, value["input"]["length"])
        assert got == value["expected"]
    else:
        assert rotations.first_negative_offset(frequencies) == value["expected"]


# What the file says of random rows, and the same numbers through the public function


RANDOM_ROWS = {
    # measure, positions: (mean, standard deviation, half of their last digits)
    ("uniqueness", 128): (0.684, 0.019, 5e-4),
    ("translation_invariance", 128): (0.660, 0.003, 5e-4),
    ("monotonicity", 128): (0.519, 0.003, 5e-4),
    ("lipschitz", 128): (13.94, 0.22, 5e-3),
    ("linear_relation", 128): (0.695, 0.005, 5e-4),
    ("linear_relation", 512): (0.935, 0.001, 5e-4),
}


@pytest.mark.parametrize(("name", "length"), RANDOM_ROWS)
def test_random_rows(name, length):
    """The file's draws are NumPy's default ones of seeds 0 .. 19, so its digits come out again."""
    found = []
    for seed in range(20):
        rows = np.random.default_rng(seed).standard_normal((length, 64))
        table = wn.LearnedAbsolute(64, length).double()
        table.table.data.copy_(torch.from_numpy(rows))
        line = probe(exact_copy(table), length, 0, contents("zero", 64))
        if name in OF_CODES:
            found.append(OF_CODES[name](line.codes))
        elif name == "linear_relation":
            found.append(codes.linear_relation(line.codes, 3))
        else:
            found.append(OF_SCORES[name](line.scores[0], line.seen))
    mean, deviation, digit = RANDOM_ROWS[name, length]
    assert abs(np.mean(found) - mean) <= digit
    assert abs(np.std(found) - deviation) <= digit


WHOLE = {
    "sinusoidal": {"dim": 64},
    "binary": {"dim": 64, "num_bits": 16},
    "integer": {"dim": 64},
    "alibi": {"num_heads": 8},
    "rope": {"head_dim": 64, "base": 10_000.0},
}


@pytest.mark.parametrize("name", WHOLE)
def test_measure_gives_the_same_numbers(name):
    found = wn.measure(CLASSES[name](**WHOLE[name]))
    compared = 0
    for value in GOLDEN["values"]:
        options = {k: v for k, v in value["options"].items() if k != "head"}
        if value["encoding"] != name or options != WHOLE[name] or not is_property(value):
            continue
        if value["input"].get("num_positions", 128) != 128 or name_of(value) == "norm":
            continue
        got = getattr(found, name_of(value))
        if name_of(value) == "linear_relation":
            got = got[value["input"]["shift"]]
        check(got, value)
        compared += 1
    assert compared >= 6
