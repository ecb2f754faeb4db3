"""The readers on whatever bytes: Hypothesis from seeds, and atheris where it is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor import fuzz_readers
from processes import ROOT, run
from whereness.auditor.run import audit

pytestmark = pytest.mark.more
SECONDS = 30


@pytest.mark.parametrize("number", range(len(fuzz_readers.seeds())))
def test_the_seeds_are_read_to_their_end(tmp_path, number):
    data = fuzz_readers.seeds()[number]
    assert data[0] == number
    path = tmp_path / fuzz_readers.NAMES[number]
    path.write_bytes(data[1:])
    assert audit(path).what
    fuzz_readers.one(data)


@given(st.binary(max_size=300), st.integers(0, 3))
@settings(deadline=None)
def test_any_bytes(data, kind):
    fuzz_readers.one(bytes([kind]) + data)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_seeds_with_pieces_exchanged(data):
    seed = data.draw(st.sampled_from(fuzz_readers.seeds()))
    other = data.draw(st.sampled_from(fuzz_readers.seeds()))
    start, end = sorted(data.draw(st.integers(1, len(seed))) for _ in range(2))
    first, last = sorted(data.draw(st.integers(1, len(other))) for _ in range(2))
    fuzz_readers.one(seed[:start] + other[first:last] + seed[end:])


def test_a_crash_is_seen(monkeypatch):
    """The harness lets through what it must not: a fault of ours."""

    def broken(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr("whereness.auditor.run.audit", broken)
    with pytest.raises(KeyError):
        fuzz_readers.one(fuzz_readers.seeds()[0])


def test_under_atheris(tmp_path, record_property):
    if find_spec("atheris") is None:
        record_property("measured", "atheris is not installed: Hypothesis alone fuzzed the readers")
        return
    script = Path(fuzz_readers.__file__)
    limits = (f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/")
    done = run(sys.executable, script, *limits, PYTHONPATH=str(ROOT / "src"))
    record_property("measured", done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
