"""The report as a page: what it says, its plots, and that it is one safe file."""

import math
import re
from itertools import pairwise

import pytest

import audits
from pages import Page, assert_fetches_nothing
from whereness.auditor.findings import KINDS, Report
from whereness.auditor.kinds import TEACHING
from whereness.auditor.telling import plots
from whereness.auditor.telling.page import html

REPORTS = ("faulty", "clean", "silent", "hostile")


@pytest.fixture(scope="module")
def pages():
    return {of: html(getattr(audits, of)()) for of in REPORTS}


@pytest.mark.parametrize("of", REPORTS)
def test_the_page_is_whole_and_fetches_nothing(pages, of):
    page = Page(pages[of])
    assert page.problems == []
    assert page.scripts == []
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        if tag == "a":
            assert attributes["href"][0] == "#" and attributes["href"][1:] in page.ids
    assert_fetches_nothing(pages[of])
    assert "script" not in {tag for tag, _ in page.elements}


@pytest.mark.parametrize("of", REPORTS)
def test_headings_step_down_one_at_a_time(pages, of):
    levels = [int(t[1]) for t, _ in Page(pages[of]).elements if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_everything_is_said(pages):
    said = Page(pages["faulty"]).text
    report = audits.faulty()
    for text in (report.target, report.what, "Found 1 error, 1 warning and 1 note."):
        assert text in said
    for finding in (audits.wrong_base(2), audits.warning(), audits.note()):
        for part in ("severity", "kind", "expected", "measured", "cause", "remedy"):
            assert getattr(finding, part) in said
        assert KINDS[finding.kind] in said
        assert " ".join(TEACHING[finding.kind]) in said
    for unchecked in audits.UNCHECKED:
        assert unchecked.why in said
    assert "cache parity" in said
    assert "rotary, base 10,000" in said


def test_layers_that_are_alike_are_one_row(pages):
    page = Page(pages["faulty"])
    rows = [a["data-name"] for tag, a in page.elements if tag == "td"]
    assert rows.count("verdict") == 3
    assert "2-29" in page.text


def test_what_a_target_says_is_never_markup(pages):
    page = Page(pages["hostile"])
    plain = "<script>alert(1)</script>\\x1b[31m\\u202eevil]]>"
    assert page.text.count(plain) > 10
    assert "\x1b" not in pages["hostile"]
    assert "\u202e" not in pages["hostile"]
    kept = {tag for tag, _ in page.elements} - {tag for tag, _ in Page(pages["faulty"]).elements}
    assert kept == set()
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
    labels = [a["aria-label"] for tag, a in page.elements if tag == "svg" and "aria-label" in a]
    assert all(plain in label for label in labels)


def test_a_quote_in_a_name_stays_in_its_attribute():
    name = '" onload="alert(1)'
    page = Page(html(Report(target=name, layers=[audits.rotary(0, part=name)])))
    assert not any("onload" in attributes for _, attributes in page.elements)


# Plots


def circles(svg, kind):
    found = [a for tag, a in Page(svg).elements if tag == "circle" and a["class"] == kind]
    return [(float(a["cx"]), float(a["cy"])) for a in found]


def test_speeds_stand_on_a_logarithmic_scale():
    svg = plots.speeds(audits.speeds(10_000.0), None, "t")
    steps = [b[1] - a[1] for a, b in pairwise(circles(svg, "measured"))]
    assert len(steps) == audits.PAIRS - 1
    assert min(steps) > 0
    assert max(steps) - min(steps) <= 0.21  # a geometric series is a line, to a tenth of a unit


def test_each_pair_is_drawn_beside_the_configs():
    measured, config = list(audits.speeds(10_000.0)), audits.speeds(10_000.0)
    measured[5] *= 1.001
    svg = plots.speeds(measured, config, "t")
    at_measured, at_config = circles(svg, "measured"), circles(svg, "config")
    [off] = circles(svg, "off")
    assert len(at_config) == audits.PAIRS
    assert off[0] == at_config[5][0]
    assert [p for i, p in enumerate(at_config) if i != 5] == at_measured
    said = " ".join(Page(svg).texts)
    assert f"pair 5: {measured[5]:.4g} measured, {config[5]:.4g} in the config" in said


def test_differences_are_shares_of_the_configs_speed():
    config = audits.speeds(10_000.0, 4)
    svg = plots.differences([config[0], config[1] * 1.01, config[2] * 2, 0.0], config, "t")
    said = Page(svg).texts
    assert "pair 0: differs by 0" in said
    assert "pair 1: differs by 0.01" in said
    assert "pair 2: differs by 1" in said
    assert "pair 3: differs by 1" in said
    heights = [y for _, y in circles(svg, "off")]
    assert heights[0] > heights[1] == heights[2]


def test_amplitudes_are_drawn_beside_the_configs():
    svg = plots.amplitudes([1.0, 1.13, 1.0], 1.0, "t")
    right, wrong = circles(svg, "measured"), circles(svg, "off")
    [(_, level)] = {(0, y) for _, y in right}
    assert wrong[0][1] < level
    [config] = [a for tag, a in Page(svg).elements if tag == "polyline" and a["class"] == "config"]
    assert {point.split(",")[1] for point in config["points"].split()} == {f"{level:.1f}"}


def test_every_head_has_a_curve():
    facts = audits.alibi(0)
    wrong = [list(curve) for curve in facts.bias_curves]
    wrong[2] = [-value for value in wrong[2]]
    svg = plots.biases(facts.bias_offsets, wrong, facts.bias_curves, "t")
    lines = [a["class"] for tag, a in Page(svg).elements if tag == "polyline"]
    assert lines.count("curve") == 3
    assert lines.count("curve off") == 1
    assert lines.count("config") == 4


ODD = [
    (0.0, 0.0),
    (-1.0, 1.0),
    (math.nan, 1.0),
    (math.inf, -math.inf),
    (1e308, 1e-320),
    (5e-324, 1.7e308),
    (-3.4e38, 0.0),
    (1.0,),
]


@pytest.mark.untyped  # the same calls, many times
@pytest.mark.parametrize("values", ODD, ids=str)
@pytest.mark.parametrize("other", ODD, ids=str)
def test_whatever_was_measured_can_be_drawn(values, other):
    facts = {"speeds": values, "expected_speeds": other, "amplitudes": values}
    layer = audits.rotary(
        0,
        **facts,
        expected_amplitude=other[0],
        bias_offsets=tuple(range(len(values))),
        bias_curves=(values,),
        expected_bias_curves=(other,),
    )
    source = html(Report(target="x", layers=[layer]))
    assert Page(source).problems == []
    numbers = re.findall(r'(?:cx|cy|points|y)="([^"]*)"', source)
    for number in " ".join(numbers).replace(",", " ").split():
        assert -1 <= float(number) <= 361


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000])
def test_any_number_of_pairs_fits_with_few_marks(count):
    svg = plots.speeds(audits.speeds(10_000.0, count), None, "t")
    assert all(plots.LEFT <= x <= plots.RIGHT for x, _ in circles(svg, "measured"))
    marks = [t for t in Page(svg).texts if t.isdigit()]
    assert 1 <= len(marks) <= 10
