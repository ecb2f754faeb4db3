"""The registry holds every bar that the project sets itself."""

import pytest

from whereness.bench.registry import ROWS, chosen

MIB = 2**20

# row, measure, limit: the bars as they were set, written down a second time
BARS = [
    ("rotary/in-place/float32", "ratio", 1.25),
    ("rotary/in-place/bfloat16", "ratio", 1.15),
    ("rotary/in-place/float16", "ratio", 1.35),
    ("rotary/form/interleaved", "ratio", 1.3),
    ("rotary/form/partial", "ratio", 1.3),
    ("rotary/form/ids", "ratio", 1.3),
    ("rotary/form/bshd", "ratio", 1.3),
    ("rotary/form/axial", "ratio", 1.3),
    ("rotary/form/fused", "ratio", 1.45),
    ("rotary/new/float32", "ratio", 1.15),
    ("rotary/new/bfloat16", "ratio", 1.45),
    ("rotary/new/float16", "ratio", 1.6),
    ("rotary/transformers/float32-in-place", "speedup", 12),
    ("rotary/transformers/float32-new", "speedup", 5),
    ("rotary/transformers/bfloat16-in-place", "speedup", 7),
    ("rotary/transformers/bfloat16-new", "speedup", 4),
    ("rotary/compiled/float32-in-place", "speedup", 2),
    ("rotary/compiled/float32-new", "speedup", 2),
    ("rotary/compiled/bfloat16-in-place", "speedup", 2),
    ("rotary/compiled/bfloat16-new", "speedup", 2),
    ("rotary/training/float32", "speedup", 5),
    ("rotary/training/bfloat16", "speedup", 4.5),
    ("rotary/training/float16", "speedup", 4.5),
    ("rotary/decode/plain", "time", 30e-6),
    ("rotary/decode/plain", "ratio", 0.35),
    ("rotary/decode/gradients", "ratio", 0.6),
    ("tables/numpy", "ratio", 0.5),
    ("attention/forward/alibi", "ratio", 1.3),
    ("attention/forward/t5", "ratio", 1.3),
    ("attention/forward/learned_relative", "ratio", 1.3),
    ("attention/training/alibi", "ratio", 1.35),
    ("attention/training/t5", "ratio", 1.7),
    ("attention/training/learned_relative", "ratio", 1.7),
    ("attention/memory/alibi-4096", "memory", 24 * MIB),
    ("attention/memory/alibi-32768", "memory", 64 * MIB),
    ("attention/memory/t5-32768", "memory", 64 * MIB),
    ("lab/rope", "speedup", 0.85),
    ("lab/alibi", "speedup", 0.85),
    ("lab/sinusoidal", "speedup", 0.85),
    ("lab/learned", "speedup", 0.85),
    ("startup/import", "over", 0.3),
    ("startup/help", "time", 0.5),
    ("startup/env", "time", 0.5),
    ("startup/compare-help", "time", 0.5),
    ("startup/usage-error", "time", 0.5),
    ("startup/make", "time", 3.0),
]

PEERS = ("rotary-embedding-torch", "x-transformers", "torchtune", "timm")


def test_every_bar_has_its_row_and_no_row_another_bar():
    found = {
        (row.name, bar.measure, bar.limit)
        for row in ROWS
        for bar in row.bars
        if bar.limit is not None
    }
    assert found == set(BARS)


@pytest.mark.parametrize("peer", PEERS)
def test_every_other_library_is_told_of(peer):
    rows = [row for row in ROWS if peer in {bar.against for bar in row.bars}]
    assert {row.name for row in rows} == {f"rotary/{peer}/float32", f"rotary/{peer}/bfloat16"}


def test_no_name_is_refused():
    with pytest.raises(ValueError, match="--only needs a name"):
        chosen(())


def test_names_are_unique_and_rows_have_bars():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(row.bars for row in ROWS)


def test_rows_are_chosen_whole_or_by_their_first_parts():
    assert chosen(None) == ROWS
    assert [row.name for row in chosen(("tables/numpy",))] == ["tables/numpy"]
    assert {row.name for row in chosen(("rotary/decode", "tables/"))} == {
        "rotary/decode/plain",
        "rotary/decode/gradients",
        "rotary/decode/backward",
        "tables/numpy",
    }


@pytest.mark.parametrize("name", ["rotary/in", "nothing", "", "/"])
def test_a_name_that_begins_no_row_is_refused(name):
    with pytest.raises(ValueError, match="There are attention/forward, "):
        chosen((name,))
