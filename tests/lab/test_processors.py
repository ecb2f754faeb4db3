import os

import pytest

from whereness.lab import processors


@pytest.mark.parametrize(
    ("content", "wanted"),
    [("200000 100000\n", 2), ("50000 100000\n", 1), ("250000 100000\n", 2), ("max 100000\n", None)],
)
def test_the_quota_of_a_container(tmp_path, monkeypatch, content, wanted):
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(processors, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda which: set(range(7)), raising=False)
    assert processors.quota() == wanted
    assert processors.usable_processors() == (wanted or 7)


def test_without_a_quota_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(processors, "QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda which: {3, 4, 5}, raising=False)
    assert processors.usable_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors.usable_processors() == 1
