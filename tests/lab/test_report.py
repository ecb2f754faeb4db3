"""The report as text: what it says, and that it is one safe file."""

import copy
import json
import os
import re
from itertools import pairwise

import pytest
import torch

import reports
import whereness as wn
from pages import Page, assert_fetches_nothing
from whereness.lab import report
from whereness.lab.report import judged, telling, view, writing
from whereness.registry import encodings

SECTIONS = (
    *("recommendation", "curves", "order", "cost", "properties", "encodings", "story"),
    "settings",
)
HOSTILE = "<script>alert(1)</script>.txt"


@pytest.fixture(scope="module")
def summary():
    return reports.summary()


@pytest.fixture(scope="module")
def source(summary):
    return writing.html(summary, reports.encodings())


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def changed(summary, change):
    """A copy of the summary after `change`."""
    own = copy.deepcopy(summary)
    change(own)
    return own


def test_every_section_is_there_in_order_and_listed(page):
    sections = [a.get("id") for tag, a in page.elements if tag == "section"]
    assert sections == list(SECTIONS)
    linked = [a["href"] for tag, a in page.elements if tag == "a"]
    assert [f"#{s}" for s in SECTIONS] == [x for x in linked if x[1:] in SECTIONS]


def test_elements_are_closed_and_ids_and_links_fit(page):
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        if tag == "a":
            assert attributes["href"].startswith("#")
            assert attributes["href"][1:] in page.ids
        for key in ("aria-labelledby", "aria-describedby"):
            if key in attributes:
                assert attributes[key] in page.ids


def test_headings_step_down_one_at_a_time(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_nothing_is_fetched(source):
    assert_fetches_nothing(source)


def test_the_recommendation_comes_first_in_full(page, summary):
    found = summary["recommendation"]
    parts = ("because", "to_know", "would_change", "not_tested")
    sentences = [found["headline"], *(line for part in parts for line in found[part])]
    places = [page.text.index(sentence) for sentence in sentences]
    assert places == sorted(places)
    assert places[-1] < page.text.index("How well a model")


def test_losses_have_intervals_and_differences(page):
    assert "alibi 1.86 1.82 to 1.90 +0.150 0.120 to 0.180" in page.text
    assert "1.84 1.80 to 1.88 best" in page.text
    assert "learned 2.14 2.10 to 2.18 +0.430 0.400 to 0.460 2.18 !" in page.text


def test_a_tie_is_marked(summary):
    def touch(s):
        above = s["encodings"]["nope"]["language_model"]["above_best"]["64"]
        above.update(mean=0.01, low=0.004, high=0.024, by_seed={"0": 0.03, "1": -0.01})
        s["recommendation"]["lengths"]["64"]["ties"] = ["nope"]  # the seeds disagree

    own = changed(summary, touch)
    lengths = own["recommendation"]["lengths"]
    rows = {r.name: r.cells for r in view.losses(["nope", "alibi"], own["encodings"], lengths)}
    assert [cell.tie for cell in rows["nope"]] == [False, False, True]
    assert rows["nope"][-1].above_interval == "0.004 to 0.024"
    assert not any(cell.tie for cell in rows["alibi"])
    text = Page(writing.html(own, {})).text
    assert "≈ +0.010" in text
    assert (
        "≈ not told apart from the best: the interval reaches down to 0, or in some seed it is "
        "not above the best."
    ) in text


def test_what_is_no_tie_is_not_marked(summary):
    def touch(s):
        above = s["encodings"]["nope"]["language_model"]["above_best"]["64"]
        above.update(mean=0.01, low=-0.004, high=0.024)

    own = changed(summary, touch)
    rows = view.losses(["nope"], own["encodings"], own["recommendation"]["lengths"])
    assert not rows[0].cells[-1].tie


def test_order_and_cost_are_told(page):
    assert "nope 0.500 0.500, 0.500 ✗ no" in page.text
    assert "rope 1.000 1.000, 1.000 yes" in page.text
    assert "Below 0.95 in any seed" in page.text
    assert "rope 0.50 4,938 0 3 MiB" in page.text
    assert "nope 1.00 9,876 0 0 B" in page.text


def test_properties_are_those_that_measure_gives(summary):
    made = {name: wn.create(name, dim=16, num_heads=2, length=64) for name in encodings()}
    with torch.no_grad():
        made["t5"].table.normal_() if hasattr(made["t5"], "table") else None
    for encoding in made.values():
        found = wn.measure(encoding, num_positions=16)
        plain = json.loads(json.dumps(found.as_dict()))
        back = judged.restored(plain)
        assert back.verdicts() == found.verdicts()
        assert back.as_dict() == found.as_dict()


def test_failures_are_marked_and_explained(page, summary):
    [group] = [
        g
        for g in judged.groups(
            {"nope": judged.restored(summary["encodings"]["nope"]["properties"])}
        )
        if any(r.name == "order" for r in g.rules)
    ]
    [cell] = [c for r, c in zip(group.rules, group.rows["nope"], strict=True) if r.name == "order"]
    assert cell.passed is False
    assert ("a", {"class": "fails", "href": "#means-order"}) in page.elements
    meaning = "Without a causal mask the model sees a set: it cannot tell two equal words apart."
    assert f"sees order {meaning} nope" in page.text


def test_every_encoding_has_its_section_and_pictures(page, source):
    labels = [a["aria-label"] for tag, a in page.elements if tag == "svg" and "aria-label" in a]
    assert "Turning of the pairs of RoPE by offset" in labels
    assert "Codes of LearnedAbsolute by position and channel" in labels
    assert "Scores of ALiBi by query and key" in labels
    assert "door 3 (queries and keys) loss at 16 1.71 loss at 64 2.26" in page.text
    assert "Note: learned: measured with" in page.text


def test_the_story_has_the_numbers_of_the_story(page):
    from whereness import story

    scale = story.integer_codes().ratio[-1].item()
    assert f"the number is {scale:,.0f} times as long as the word" in page.text
    assert f"changes by up to {story.moved_fragment().changes['Sinusoidal']:.3g};" in page.text
    assert all(" ".join(c.text.split()) in page.text for c in telling.chapters())


def test_settings_tell_everything_and_how_to_repeat(page, summary):
    text = summary["text"]
    for value in (text["source"], text["sha256"], "12,345", *summary["made_with"].values()):
        assert str(value) in page.text
    assert "repeated 8.8 % of the held-out windows of 16 bytes stand in the training part" in (
        page.text
    )
    assert "evaluated bytes 262144 –" in page.text
    assert "learning rate 0.003 0.003" in page.text
    assert "steps 5 7" in page.text
    for called in summary["settings"]["constructors"].values():
        assert f"As tested: {called}" in page.text
    assert "pairs – 11" in page.text
    assert "lengths 16 32 64 –" in page.text


def test_text_of_the_summary_stays_text(summary):
    def turn_hostile(s):
        s["text"]["source"] = s["made_with"]["command"] = s["made_with"]["platform"] = HOSTILE
        s["recommendation"]["because"] = s["recommendation"]["not_tested"] = [HOSTILE]
        s["recommendation"]["headline"] = HOSTILE
        s["encodings"]["nope"]["failed"] = [
            {"task": "order_task", "seed": 1, "reason": "</style><img src=x onerror=alert(1)>"}
        ]
        entry = s["encodings"].pop("rope")
        s["encodings"]["</script><b>" + HOSTILE] = entry
        s["settings"]["constructors"]["</script><b>" + HOSTILE] = HOSTILE
        s["settings"]["device"] = HOSTILE

    found = Page(writing.html(changed(summary, turn_hostile), {}))
    assert found.problems == []
    assert found.text.count(HOSTILE) > 6
    assert not [tag for tag, _ in found.elements if tag in ("img", "b") and tag == "img"]
    data, script = found.scripts
    assert json.loads(data)["series"][-1]["name"] == "</script><b>" + HOSTILE
    assert "alert" not in script


def test_the_data_of_the_chart_are_those_of_the_summary(page, summary):
    data = json.loads(page.scripts[0])
    assert data["lengths"] == [16, 32, 64]
    assert [s["name"] for s in data["series"]] == ["alibi", "learned", "nope", "rope"]
    for series in data["series"]:
        model = summary["encodings"][series["name"]]["language_model"]
        for key, own in (
            ("whole", "loss"),
            ("quarter", "loss_last_quarter"),
            ("above", "above_best"),
        ):
            expected = [
                [model[own][n][part] for part in ("mean", "low", "high")] for n in model[own]
            ]
            assert series[key] == expected
        assert series["untrained"] == (16 if series["name"] == "learned" else None)


def test_without_a_script_there_is_a_picture_of_the_curves(source):
    [still] = re.findall(r"<noscript>(.*?)</noscript>", source, re.DOTALL)
    assert "Loss against length" in still
    assert "relative" not in still
    assert all(f">{name}</text>" in still for name in reports.LOSSES)


def _no_language_model(s):
    for name in ("rope", "nope"):
        del s["encodings"][name]["language_model"], s["encodings"][name]["cost"]


def _nothing_done(s):
    reason = {"task": "language_model", "seed": 0, "reason": "loss is not finite"}
    s["encodings"] = {name: {"failed": [reason]} for name in s["encodings"]}
    s["recommendation"].update(
        use=[], because=[], to_know=[], lengths={}, would_change=[], not_tested=[]
    )


def _no_order_task(s):
    for entry in s["encodings"].values():
        del entry["order_task"]


def _no_nope(s):
    del s["encodings"]["nope"]
    for entry in s["encodings"].values():
        entry["cost"].pop("relative_speed")
        entry["cost"].pop("extra_memory_bytes")


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (_no_language_model, set()),
        (_nothing_done, {"curves", "order", "cost", "properties"}),
        (_no_order_task, {"order"}),
        (_no_nope, set()),
    ],
)
def test_what_is_missing_is_left_out(summary, change, gone):
    found = Page(writing.html(changed(summary, change), {}))
    assert found.problems == []
    sections = {a.get("id") for tag, a in found.elements if tag == "section"}
    assert sections - {"failed"} == set(SECTIONS) - gone
    assert ("failed" in sections) == (change is _nothing_done)
    assert ("loss is not finite" in found.text) == (change is _nothing_done)


def test_one_length_and_one_encoding_are_enough():
    found = Page(writing.html(reports.summary(("rope",), (16,)), reports.encodings(("rope",))))
    assert found.problems == []
    assert "1 encoding, 2 seeds each, trained at 16 bytes." in found.text


def test_the_file_is_written_whole_or_not_at_all(tmp_path, summary, monkeypatch):
    folder = tmp_path / "new" / "folder"
    path = report.write(folder, summary, {})
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8").endswith("</html>")
    before = path.read_bytes()

    def fail(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write(folder, changed(summary, _no_order_task), {})
    assert [p.name for p in folder.iterdir()] == ["report.html"]
    assert path.read_bytes() == before


def test_the_same_summary_gives_the_same_file(summary, source):
    assert writing.html(summary, reports.encodings()) == source


def test_numbers_are_short_and_have_wide_signs():
    assert [view.signed(v) for v in (0.123, -0.123, -0.0001, 0.0)] == [
        "+0.123",
        "−0.123",
        "0.000",
        "0.000",
    ]
    assert [view.memory(v) for v in (0, 2048, -3 * 2**20)] == ["0 B", "2 KiB", "−3 MiB"]
