"""A comparison that is killed, and the same command again."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETTINGS = [
    *("--train-length", "16", "--lengths", "16", "32", "--steps", "200", "--batch", "2"),
    *("--order-steps", "60", "--width", "16", "--heads", "2", "--jobs", "2"),
    *("--encodings", "learned", "shaw", "--seeds", "2"),
]
KILLS = 5
"""Of each comparison; there are four."""

WORKER_DEATH = 2.0
"""Seconds after which the workers of a killed command have noticed."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = ["door ", "key ", "query ", "value ", "\n"]
    path.write_text("".join(random.Random(0).choices(words, k=400)))
    return path


def command(text, out, *before):
    start = before or ("-m", "whereness")
    return [sys.executable, *start, "compare", "--text", str(text), *SETTINGS, "--out", str(out)]


def without_times(found):
    for entry in found["encodings"].values():
        for name in ("train_tokens_per_second", "relative_speed"):
            entry["cost"].pop(name, None)
    del found["recommendation"]  # its words may tell of speed
    return found


def finished(out):
    """(digest, time of its end) of the runs that are done."""
    if not (out / "runs.sqlite").exists():
        return set()
    with sqlite3.connect(out / "runs.sqlite", timeout=30) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        tables = "select count(*) from sqlite_master where name = 'runs'"
        if connection.execute(tables).fetchone() == (0,):
            return set()  # killed before there was one
        query = "select digest, finished from runs where status = 'done'"
        return set(connection.execute(query).fetchall())


def summary(out):
    return without_times(json.loads((out / "summary.json").read_text()))


def end(text, out):
    """The same command, to its end; the seconds it took."""
    begin = time.monotonic()
    ended = subprocess.run(
        command(text, out), check=False, capture_output=True, text=True, timeout=100
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """(summary of a comparison that nothing disturbed, seconds it took)."""
    out = tmp_path_factory.mktemp("whole")
    seconds = end(text, out)
    return summary(out), seconds


@pytest.mark.more
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_it_ends_with_the_same_numbers(text, whole, tmp_path, seed):
    wanted, seconds = whole
    chance = random.Random(seed)
    seen, kept = [], set()
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(text, tmp_path), stdout=subprocess.DEVNULL, start_new_session=True
        )
        moment = chance.uniform(0.0, seconds * 0.6)
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            if chance.random() < 0.5:  # the command alone, or its workers as well
                os.kill(process.pid, signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seen.append(process.returncode)
        now = finished(tmp_path)
        assert kept <= now  # none is lost, none is done again
        kept = now
    assert seen.count(-signal.SIGKILL) >= 3  # most hit before the end
    end(text, tmp_path)
    assert kept <= finished(tmp_path)
    assert len(finished(tmp_path)) == 8
    assert summary(tmp_path) == wanted
    time.sleep(WORKER_DEATH)
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


POINTS = [
    *("half_a_checkpoint", "before_a_checkpoint_is_moved", "in_a_transaction"),
    *("after_a_transaction", "before_a_claim_is_kept", "before_the_summary_is_moved"),
]


@pytest.mark.more
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_midst_of_a_write_nothing_is_lost(text, whole, tmp_path, point):
    script = Path(__file__).with_name("killing.py")
    killed = subprocess.run(
        command(text, tmp_path, str(script)),
        check=False,
        env={**os.environ, "POINT": point},
        stdout=subprocess.DEVNULL,
        timeout=100,
    )
    assert killed.returncode == -signal.SIGKILL
    kept = finished(tmp_path)
    expected = {"after_a_transaction": 1, "before_the_summary_is_moved": 8}
    assert len(kept) == expected.get(point, 0)
    end(text, tmp_path)
    assert kept <= finished(tmp_path)
    assert summary(tmp_path) == whole[0]
