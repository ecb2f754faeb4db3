"""The report as text: what it says, how it is broken into lines, and that it steers nothing."""

import io
import unicodedata
from dataclasses import replace

import pytest
from rich.console import Console

import audits
from whereness.auditor.findings import CHECKS, KINDS, Compared, Finding, NotChecked, Report
from whereness.auditor.kinds import TEACHING
from whereness.auditor.telling import grouping, words
from whereness.auditor.telling.terminal import show, text

WIDTHS = (40, 60, 89, 90, 110, 200)


def flat(printed):
    return " ".join(printed.split())


def fault(layer=None, **changed):
    known = {
        "check": "CHK1",
        "kind": "K02",
        "severity": "error",
        "expected": "a",
        "measured": "b",
        "cause": "c",
        "remedy": "d",
        "layer": layer,
    }
    return Finding(**known | changed)


@pytest.mark.parametrize("columns", WIDTHS)
def test_everything_that_was_found_is_said_at_every_width(columns):
    said = flat(text(audits.faulty(), columns))
    for finding in (audits.wrong_base(2), audits.warning(), audits.note()):
        for part in ("severity", "kind", "expected", "measured", "cause", "remedy"):
            assert getattr(finding, part) in said
        assert CHECKS[finding.check] in said
        assert KINDS[finding.kind] in said
        explained = f"{finding.kind} {KINDS[finding.kind]}. {TEACHING[finding.kind].invariant}"
        assert explained in said
    assert "models/ported" in said
    assert "llama, 30 layers" in said
    assert "Found 1 error, 1 warning and 1 note." in said
    assert "32 comparisons made, 5 not checked." in said
    for unchecked in audits.UNCHECKED:
        assert unchecked.why in said


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("of", ["faulty", "clean", "silent"])
def test_no_line_is_wider_than_the_console_or_too_wide_to_read(of, columns):
    report = getattr(audits, of)()
    for facts in report.layers:
        facts.expected = "RoPE(head_dim=64, base=500000, pairing='half', scaling=scaling.YaRN(4))"
    widest = max(map(len, text(report, columns).splitlines()))
    assert widest <= min(columns, 110)


def test_a_wide_console_has_a_table_with_a_row_for_layers_that_are_alike():
    lines = text(audits.faulty(), 110).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("layers "))
    assert flat(lines[at]) == "layers class measured in the config pairing width speed verdict"
    rows = [flat(line) for line in lines[at + 1 : at + 4]]
    assert rows == [
        "0 none no position no position ok",
        "1 relative rotary RoPE, base 500,000 half 64 base 500,000 ok",
        "2-29 relative rotary RoPE, base 500,000 half 64 base 10,000 error",
    ]
    assert lines[at + 4] == ""


def test_a_narrow_console_has_lines_instead_of_the_table():
    lines = text(audits.faulty(), 60).splitlines()
    at = lines.index("layers 2-29: error")
    told = [line.split(maxsplit=1) for line in lines[at + 1 : at + 7] if "config" not in line]
    assert told == [
        ["class", "relative"],
        ["measured", "rotary"],
        ["pairing", "half"],
        ["width", "64"],
        ["speed", "base 10,000"],
    ]
    assert "layer 0: ok" in lines


def test_columns_that_say_nothing_are_left_out():
    line = next(x for x in text(audits.clean(), 110).splitlines() if x.startswith("layers "))
    assert line.split() == ["layers", "class", "measured", "in", "the", "config", "verdict"]


def test_a_finding_of_many_layers_is_told_once_with_some_of_its_values():
    said = flat(text(audits.faulty(), 110))
    assert said.count("likely") == 0
    assert said.count(audits.wrong_base(2).cause) == 1
    assert "error K02 Spectrum = config, layers 2-29" in said
    assert "model.layers.*.self_attn" in said
    for layer in (2, 3, 4):
        assert f"{audits.wrong_base(layer).measured} (layer {layer})" in said
    assert audits.wrong_base(5).measured not in said
    assert "and others like these (layers 5-29)" in said


def test_a_note_on_an_encoder_and_its_decoder_is_told_once():
    said = {"expected": "a", "measured": "b", "cause": "c", "remedy": "d"}
    note = Finding(check="CHK11", kind="K18", severity="note", part="encoder", **said)
    report = Report(target="x", findings=[note, replace(note, part="decoder")])
    assert text(report).count("Relative bias tables\n") == 1


def test_a_kind_is_explained_once_below_all_findings():
    report = Report(target="x", findings=[fault(where="a"), fault(where="b"), audits.warning()])
    said = flat(text(report, 110))
    assert said.count(TEACHING["K02"].shows) == 1
    places = [said.index(part) for part in ("where b", "warning K06", *TEACHING["K02"])]
    assert places == sorted(places)


def test_errors_come_before_warnings_and_notes():
    said = flat(text(audits.faulty(), 110))
    places = [said.index(word) for word in ("error K02", "warning K06", "note K22")]
    assert places == sorted(places)


def test_findings_end_with_the_verdict_which_may_be_out_of_sight_above():
    assert text(audits.faulty(), 110).endswith("\n\nFound 1 error, 1 warning and 1 note.")
    assert text(audits.clean(), 110).count("No fault found") == 1


def test_nothing_compared_is_not_called_clean():
    said = text(audits.silent(), 110)
    assert "Nothing could be compared" in said
    assert "No fault found" not in said
    assert "not checked" in next(x for x in said.splitlines() if x.startswith("encoder.attn"))


def test_a_clean_report_says_what_it_rests_on_and_what_it_does_not():
    said = text(audits.clean(), 110)
    assert "No fault found in what could be compared." in said
    assert "bias (CHK15): slopes (layers 0-1)" in said
    assert "cache: there is no live model" in said


def test_checks_with_one_reason_are_listed_together():
    said = text(audits.faulty(), 110)
    assert "grids, masks: the model has no grid" in said
    assert "bias, layers 0-1: the layer has no bias" in said


@pytest.mark.parametrize("columns", [60, 110])
def test_text_of_a_target_steers_nothing(columns):
    written = io.StringIO()
    console = Console(file=written, width=columns, force_terminal=True, color_system="truecolor")
    show(audits.hostile(), console)
    printed = written.getvalue()
    assert "\x1b[31m\u202e" not in printed
    assert "\u202e" not in printed
    assert "\\x1b[31m\\u202eevil" in printed.replace("\n", "")


def test_text_of_a_target_is_no_markup():
    report = Report(target="[bold]x[/bold] [/red]", not_checked=[NotChecked(check="a", why="[b]")])
    said = text(report, 110)
    assert "[bold]x[/bold] [/red]" in said
    assert "a: [b]" in said


def test_no_control_character_is_ever_printed():
    every = "".join(map(chr, range(0x250))) + "\u2028\u200b\ud800\U000e0041"
    report = Report(target=every, findings=[fault(where=every, cause=every)])
    said = text(report, 110)
    bad = [c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert set(bad) <= {"\n"}


def test_a_text_without_end_is_cut():
    said = words.plain("x" * 10_000_000)
    assert len(said) < 3000
    assert said.endswith("x...")
    assert words.plain("x" * words.LONGEST) == "x" * words.LONGEST


# How layers and findings are drawn together


def test_layers_are_told_apart_by_numbers_and_by_findings():
    layers = [audits.rotary(i) for i in range(5)]
    layers[3] = audits.rotary(3, speeds=audits.speeds(500_000.1 * 1.001))
    report = Report(target="x", layers=layers, findings=[fault(1)])
    groups = grouping.layer_groups(report)
    told = [(group.label, group.state) for group in groups]
    assert told == [("0, 2, 4", "not checked"), ("1", "error"), ("3", "not checked")]


def test_layers_that_differ_by_rounding_are_one_group():
    layers = [audits.rotary(i) for i in range(3)]
    layers[1].speeds = tuple(speed * (1 + 1e-7) for speed in layers[1].speeds)
    assert len(grouping.layer_groups(Report(target="x", layers=layers))) == 1


def test_a_finding_is_of_the_layer_whose_module_it_names():
    text_layer, vision = audits.rotary(0), audits.rotary(0, where="vision.blocks.0.attn")
    report = Report(
        target="x",
        layers=[text_layer, vision],
        findings=[fault(0, where="vision.blocks.0.attn.q_proj")],
        compared=[Compared(check="CHK1", what="spectrum", layer=0, where=text_layer.where)],
    )
    assert [group.state for group in grouping.layer_groups(report)] == ["ok", "error"]


def test_a_finding_without_a_module_is_of_the_layer_with_its_number_and_part():
    layers = [audits.rotary(0, part="text"), audits.rotary(0, part="vision", where="v")]
    report = Report(target="x", layers=layers, findings=[fault(0, part="vision")])
    told = [(group.label, group.state) for group in grouping.layer_groups(report)]
    assert told == [("text 0", "not checked"), ("vision 0", "error")]


def test_findings_of_other_causes_or_places_stay_apart():
    same = [fault(0, where="l.0.a"), fault(1, where="l.1.a", measured="other")]
    other = [fault(2, where="l.2.b"), fault(3, where="l.3.a", cause="another")]
    groups = grouping.finding_groups(Report(target="x", findings=[*same, *other]))
    assert [len(group.findings) for group in groups] == [2, 1, 1]
    assert groups[0].where == "l.*.a"


# Numbers


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        (audits.speeds(10_000.0), "base 10,000"),
        (audits.speeds(500_000.0, 64), "base 500,000"),
        (audits.speeds(10_000.0, factor=8.0), "base 10,000, slowed 8 times"),
        (audits.speeds(10_000.0, factor=0.5), "base 10,000, 2 times as fast"),
        ((1.0, 0.5, 0.4), "0.4 to 1 rad/token"),
        ((1.0, 0.5, 0.0), "0.5 to 1 rad/token, 1 still"),
        ((0.0, 0.0), "0 rad/token"),
        ((0.25,), "0.25 rad/token"),
        ((float("nan"), 1.0), "1 rad/token, 1 unreadable"),
        ((), ""),
        (None, ""),
    ],
)
def test_speeds_are_told_as_a_base_where_they_have_one(speeds, said):
    assert words.speeds_said(speeds) == said


def test_every_kind_is_explained_in_sentences():
    assert list(TEACHING) == list(KINDS)
    for teaching in TEACHING.values():
        assert all(part[0].isupper() and part.endswith(".") for part in teaching)
