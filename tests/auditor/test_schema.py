"""Reports as data: they are what schema.json says, and it says all of them."""

import json
import math
from dataclasses import fields
from importlib.resources import files
from typing import get_args

import jsonschema
import pytest

import audits
from whereness.auditor.findings import (
    CHECKS,
    KINDS,
    SCHEMA,
    Class,
    Compared,
    Finding,
    LayerFacts,
    NotChecked,
    Report,
    Severity,
    Verdict,
)

CONTENT = json.loads(files("whereness.auditor").joinpath("schema.json").read_text("utf-8"))
OBJECTS = {"layer": LayerFacts, "finding": Finding, "compared": Compared, "not_checked": NotChecked}
REPORTS = ("faulty", "clean", "silent", "hostile")


@pytest.fixture(scope="module")
def schema():
    jsonschema.Draft202012Validator.check_schema(CONTENT)
    return jsonschema.Draft202012Validator(CONTENT)


def through_json(report):
    return json.loads(json.dumps(report.to_dict(), allow_nan=False))


@pytest.mark.parametrize("of", REPORTS)
def test_a_report_is_what_the_schema_says(schema, of):
    schema.validate(through_json(getattr(audits, of)()))


def test_the_schema_knows_every_key_and_every_word():
    assert CONTENT["properties"]["schema"]["const"] == SCHEMA
    assert set(CONTENT["properties"]) == set(Report(target="x").to_dict())
    assert set(CONTENT["required"]) == set(CONTENT["properties"])
    for name, kind in OBJECTS.items():
        described = CONTENT["$defs"][name]
        assert set(described["properties"]) == {field.name for field in fields(kind)}
        assert set(described["required"]) == set(described["properties"])
    layer, finding = (CONTENT["$defs"][name]["properties"] for name in ("layer", "finding"))
    assert tuple(layer["classified"]["enum"]) == get_args(Class)
    assert tuple(finding["severity"]["enum"]) == get_args(Severity)
    assert tuple(CONTENT["properties"]["verdict"]["enum"]) == get_args(Verdict)


def test_the_schema_describes_every_value():
    for name in OBJECTS:
        for key, value in CONTENT["$defs"][name]["properties"].items():
            assert "description" in value or "enum" in value, (name, key)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(schema=2),
        lambda data: data.update(verdict="fine"),
        lambda data: data["findings"][0].update(kind="K26"),
        lambda data: data["findings"][0].update(severity="fatal"),
        lambda data: data["findings"][0].pop("remedy"),
        lambda data: data["layers"][0].update(index=-1),
        lambda data: data["layers"][1].update(speeds=["fast"]),
        lambda data: data["counts"].pop("error"),
        lambda data: data.pop("not_checked"),
    ],
)
def test_the_schema_refuses_what_is_no_report(schema, change):
    data = through_json(audits.faulty())
    change(data)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(data)


def test_numbers_that_json_cannot_say_are_null(schema):
    layer = audits.rotary(0, speeds=(math.nan, math.inf, 1.0), bias_curves=((-math.inf, 0.0),))
    data = through_json(Report(target="x", layers=[layer]))
    schema.validate(data)
    assert data["layers"][0]["speeds"] == [None, None, 1.0]
    assert data["layers"][0]["bias_curves"] == [[None, 0.0]]


def test_what_is_said_comes_through():
    report = audits.faulty()
    data = through_json(report)
    assert data["counts"] == {
        "error": 28,
        "warning": 1,
        "note": 1,
        "compared": len(report.compared),
        "not_checked": len(report.not_checked),
    }
    assert (data["target"], data["verdict"]) == (report.target, "errors")
    for finding, told in zip(report.findings, data["findings"], strict=True):
        assert told == vars(finding)
    assert [layer["speeds"] for layer in data["layers"][1:]] == [
        list(facts.speeds) for facts in report.layers[1:]
    ]
    assert set(data["kinds"]) == {"K02", "K06", "K22"}
    assert data["kinds"]["K02"]["title"] == KINDS["K02"]


@pytest.mark.parametrize(
    ("of", "severities", "verdict", "status", "strict"),
    [
        ("faulty", ("error", "warning", "note"), "errors", 1, 1),
        ("faulty", ("warning", "note"), "warnings", 0, 1),
        ("faulty", ("note",), "clean", 0, 0),
        ("clean", (), "clean", 0, 0),
        ("silent", (), "nothing compared", 0, 0),
    ],
)
def test_the_verdict_and_the_exit_status_follow_the_worst_finding(
    of, severities, verdict, status, strict
):
    report = getattr(audits, of)()
    report.findings = [found for found in report.findings if found.severity in severities]
    assert report.verdict == verdict
    assert report.exit_status() == status
    assert report.exit_status("warning") == strict


def test_every_check_that_is_named_is_one_of_ours():
    report = audits.faulty()
    said = [*report.findings, *report.compared, *report.not_checked]
    assert {each.check for each in said} <= set(CHECKS)
