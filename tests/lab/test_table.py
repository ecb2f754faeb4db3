import io

import pytest
from hypothesis import given
from rich.console import Console

from summaries import entry, failure, made_up, summary
from whereness.lab.table import notes, short, table

LENGTHS = (8, 16)
FAILED = {"failed": [failure(0), failure(1, "order_task", "it broke")]}
MADE = {
    "learned": entry(
        {8: 2.0, 16: 3.254}, speed=900.0, untrained_beyond=8, parameters=32768, accuracy=0.947
    ),
    "alibi": entry({8: 2.126, 16: 2.1}, speed=12345.6, extra=19_300_000),
    "t5": FAILED,
    "nope": {},
}
SUMMARY = summary(MADE, lengths=LENGTHS)


def right(row, cell):
    """The column in which a cell ends."""
    return row.index(cell) + len(cell)


def shown(made, width=100, **options):
    written = io.StringIO()
    Console(file=written, width=width, **options).print(table(made, width), crop=False)
    return written.getvalue().splitlines()


def test_what_each_column_shows():
    assert [row.split() for row in shown(SUMMARY)] == [
        ["encoding", "order", "8", "16", "tokens/s", "params", "memory"],
        ["learned", "0.95?", "2.00", "*", "3.25!+1.15", "900", "32.8k", "0"],
        ["alibi", "1.00", "2.13", "+0.13", "2.10", "*", "12.3k*", "0", "19.3M"],
        ["t5", "failed", "failed"],
        ["nope", "-", "-"],
    ]


def test_columns_line_up():
    header, *rows = shown(SUMMARY)[:3]
    assert rows[0].index("2.00") == rows[1].index("2.13")
    assert rows[0].index("3.25") == rows[1].index("2.10")
    assert rows[0].index("0.95") == rows[1].index("1.00")
    assert right(rows[0], "900") == right(rows[1], "12.3k") == right(header, "tokens/s") - 1


def test_a_task_may_fail_without_the_other():
    made = {"alibi": entry({8: 2.0, 16: 2.0}), "rope": entry({8: 2.0, 16: 2.0})}
    del made["alibi"]["order_task"], made["rope"]["language_model"], made["rope"]["cost"]
    made["alibi"]["failed"] = [failure(0, "order_task")]
    made["rope"]["failed"] = [failure(0)]
    rows = [row.split() for row in shown(summary(made, lengths=LENGTHS))]
    assert rows[1] == ["alibi", "failed", "2.00", "*", "2.00", "*", "1k*", "0", "0"]
    assert rows[2] == ["rope", "1.00", "failed"]


def test_the_difference_is_the_paired_one():
    made = summary(MADE, lengths=LENGTHS)
    made["encodings"]["alibi"]["language_model"]["above_best"]["8"]["mean"] = -0.5
    assert shown(made)[2].split()[3] == "-0.50"


def test_untrained_entries_are_marked_where_they_are_read():
    made = {"learned": entry({8: 2.0, 16: 2.0, 64: 2.0}, untrained_beyond=16)}
    row = shown(summary(made))[1]
    assert row.count("!") == 1
    assert row.split()[2:7] == ["2.00", "*", "2.00", "*", "2.00!"]


def test_a_table_of_failures_only():
    rows = shown(summary({"t5": FAILED}, lengths=LENGTHS))
    assert rows[1].split() == ["t5", "failed", "failed"]


LONG = {
    "relative_multiply": entry(
        {64: 1.871, 128: 1.88, 256: 1.93, 512: 2.002},
        untrained_beyond=64,
        parameters=123_456_789,
        extra=987_654_321,
        speed=987_654.0,
        accuracy=0.5,
    ),
    "alibi": entry({64: 11.863, 128: 1.855, 256: 1.854, 512: 1.852}),
}


def test_four_lengths_fit_a_hundred_columns():
    rows = shown(summary(LONG, lengths=(64, 128, 256, 512)))
    assert rows[0].split()[-3:] == ["tokens/s", "params", "memory"]
    assert rows[1].split()[-3:] == ["988k*", "123M", "988M"]
    assert max(map(len, rows)) <= 100
    assert len(rows) == 3
    assert not any("…" in row for row in rows)


@pytest.mark.parametrize(
    ("width", "dropped"),
    [
        (98, "memory"),
        (90, "memory and params"),
        (82, "memory, params and tokens/s"),
        (72, "memory, params, tokens/s and order"),
    ],
)
def test_columns_give_way_in_narrow_terminals_and_are_named(width, dropped):
    rows = shown(summary(LONG, lengths=(64, 128, 256, 512)), width)
    names = dropped.replace(" and ", ", ").split(", ")
    assert not set(names) & set(rows[0].split())
    assert len(rows[0].split()) == 9 - len(names)
    assert rows[-1].strip() == f"No room for {dropped}: see the summary."
    assert rows[1].split()[0] == "relative_multiply"
    assert max(map(len, rows)) <= width


def test_no_column_gives_way_without_need():
    rows = shown(summary(LONG, lengths=(64, 128, 256, 512)), 99)
    assert rows[0].split()[-1] == "memory" and len(rows) == 3
    rows = shown(summary(LONG, lengths=(64, 128, 256, 512)), 91)
    assert rows[0].split()[-1] == "params"


def many(encodings):
    """Ten lengths, and other losses at each; the best is the last encoding."""
    lengths = tuple(2**i for i in range(3, 13))
    made = {
        name: entry({n: 9.87 + i - j for i, n in enumerate(lengths)}, **changes)
        for j, (name, changes) in enumerate(encodings.items())
    }
    return summary(made, lengths=lengths)


MANY = many({"learned": {"untrained_beyond": 2048}, "relative_multiply": {}, "t5": {}})


def test_differences_give_way_after_columns():
    header, *rows = shown(MANY, 100)
    assert header.split() == ["encoding", *(str(2**i) for i in range(3, 13))]
    assert rows[0].split() == ["learned", *(f"{9.87 + i:.2f}" for i in range(9)), "18.87!"]
    assert rows[2].split() == ["t5", *(f"{7.87 + i:.2f}*" for i in range(10))]
    assert rows[0].index("9.87") == rows[2].index("7.87") == header.index("8") - 3
    assert right(rows[0], "16.87") == right(rows[1], "15.87") == right(header, "1024")
    assert max(map(len, (header, *rows))) <= 100
    assert " ".join(" ".join(rows[3:]).split()) == (
        "No room for memory, params, tokens/s, order and differences to the best: see the summary."
    )


def test_differences_stay_where_there_is_room():
    made = many({"learned": {}, "t5": {}})
    needed = max(map(len, shown(made, 140)))
    assert 121 < needed < 140
    assert shown(made, needed)[1].split()[:3] == ["learned", "9.87", "+1.00"]
    assert shown(made, needed - 1)[1].split()[:3] == ["learned", "9.87", "10.87"]


@pytest.mark.parametrize("width", [20, 40, 60])
def test_no_loss_is_ever_cut(width):
    """Lines are longer than the terminal instead."""
    rows = shown(MANY, width)
    for row, name, start in zip(rows[1:4], MANY["encodings"], (9.87, 8.87, 7.87), strict=True):
        losses = [f"{start + i:.2f}" for i in range(10)]
        assert [cell.rstrip("!*") for cell in row.split()] == [name, *losses]
    assert max(map(len, rows)) > width
    assert not any("…" in row for row in rows)


def test_what_failed_is_told_without_differences():
    made = many({"learned": {}, "t5": {}, "nope": {}, "rope": {}})
    made["encodings"]["nope"], made["encodings"]["rope"] = FAILED, {}
    rows = shown(made, 40)
    assert [row.split() for row in rows[3:5]] == [["nope", "failed"], ["rope", "-"]]


def test_plain_text_unless_in_a_terminal():
    assert "\x1b" not in "".join(shown(SUMMARY))
    coloured = shown(SUMMARY, force_terminal=True, color_system="standard")
    assert "\x1b[" in "".join(coloured)


@given(made_up())
def test_every_encoding_has_a_row(made):
    rows = shown(made)
    assert [row.split()[0] for row in rows[1:]] == list(made["encodings"])
    assert max(map(len, rows)) <= 100


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1k"),
        (1000, "1k"),
        (52_567.5, "52.6k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (-19_300_000, "-19.3M"),
        (5e9, "5G"),
    ],
)
def test_numbers_are_short(number, text):
    assert short(number) == text


def test_notes_tell_what_a_reader_must_know():
    assert notes(SUMMARY) == [
        "Trained at 8. Loss in nats a byte, at each length, and above the best (*).",
        (
            "tokens/s: bytes trained in a second of one processor, 2 runs side by side; a few "
            "percent are chance."
        ),
        (
            "params: of the encoding. memory: bytes that a training step keeps for its backward "
            "pass, above those without encoding."
        ),
        "order: accuracy in the order task, where only word order tells who acts.",
        "? below 0.95 in the order task, in some seed.",
        "! reads parameters that training at this length never reached.",
        "failed: t5, language model, seed 0: the training loss became nan at step 3",
        "failed: t5, order task, seed 1: it broke",
    ]
    alone = {**SUMMARY, "made_with": {**SUMMARY["made_with"], "jobs": 1}}
    assert "of one processor, one run at a time" in notes(alone)[1]


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_the_clock_is_told_where_it_matters(device):
    made = summary(MADE, lengths=LENGTHS, device=device)
    assert "processor" not in notes(made)[1]


def test_no_note_on_what_does_not_occur():
    made = {"alibi": entry({8: 2.0, 16: 2.0})}
    assert len(notes(summary(made, lengths=LENGTHS))) == 4
    del made["alibi"]["order_task"]
    assert len(notes(summary(made, lengths=LENGTHS))) == 3
