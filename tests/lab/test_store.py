import json
import multiprocessing
import shutil
import signal
import sqlite3

import pytest

from whereness.lab.files import RUNS
from whereness.lab.run import failed
from whereness.lab.settings import digest, plain
from whereness.lab.store import Store

ABOUT = {"steps": 6, "text": "ab", "lengths": [8, 16]}


def done(run, **more):
    return {"run": digest(run), "status": "done", "loss": run.seed, **more}


@pytest.fixture
def runs(make_run, make_order_run):
    return (make_run(), make_order_run(), make_run("rope"), make_run("rope", seed=1))


@pytest.fixture
def opened(tmp_path, runs):
    return lambda about=ABOUT, of=None: Store(tmp_path / "out", about, of or runs)


def row(store, run):
    with sqlite3.connect(store.path) as connection:
        connection.row_factory = sqlite3.Row
        query = "select * from runs where digest = ?"
        return dict(connection.execute(query, (digest(run),)).fetchone())


def test_a_run_is_a_row_keyed_by_the_hash_of_its_settings(opened, runs):
    with opened() as store:
        kept = row(store, runs[1])
        assert json.loads(kept["settings"]) == plain(runs[1])
        assert (kept["task"], kept["encoding"], kept["seed"]) == ("order_task", "nope", 0)
        assert (kept["status"], kept["result"], kept["owner"]) == ("waiting", None, None)
        with sqlite3.connect(store.path) as connection:
            assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
            assert connection.execute("select count(*) from runs").fetchone() == (4,)


def test_claims_go_in_order_and_each_run_once(opened, runs):
    with opened() as store:
        assert [store.claim() for _ in range(5)] == [*runs, None]
        assert store.unfinished() == 4
        store.finish(runs[2], done(runs[2]))
        assert store.unfinished() == 3
        assert store.claim() is None


def test_results_and_weights_are_kept_in_the_order_of_the_runs(opened, runs):
    with opened() as store:
        for _ in runs:
            store.claim()
        for run in reversed(runs):
            store.finish(run, done(run, weights=bytes([run.seed, 255])))
    with opened() as store:
        assert store.claim() is None
        assert store.unfinished() == 0
        assert store.results() == [done(run) for run in runs]
        assert store.weights(runs[3]) == b"\x01\xff"
        assert 0 < row(store, runs[0])["started"] <= row(store, runs[0])["finished"]


def test_what_diverged_is_kept_and_what_broke_is_tried_again(opened, runs):
    with opened() as store:
        store.claim()
        store.claim()
        store.finish(runs[0], {**failed(runs[0], "nan"), "diverged": True})
        store.finish(runs[1], failed(runs[1], "its process ended"))
        assert store.unfinished() == 2
        assert [r["reason"] for r in store.results()] == ["nan", "its process ended"]
        assert store.claim() == runs[2]
    with opened() as store:
        # Told until it is tried again: another command may be about to tell it.
        assert [r["reason"] for r in store.results()] == ["nan", "its process ended"]
        assert store.finished() == {digest(runs[0])}
        assert store.claim() == runs[1]
        assert [r["reason"] for r in store.results()] == ["nan"]


def test_a_store_that_is_closed_gives_its_claims_back_and_leaves_no_files(opened, runs):
    with opened() as store:
        assert store.claim() == runs[0]
        folder = store.folder
    assert {file.name for file in folder.iterdir()} == {RUNS, ".opening.lock"}
    with opened() as store:
        assert store.claim() == runs[0]


def test_two_commands_share_the_work(opened, runs):
    with opened() as one, opened() as two:
        assert [one.claim(), two.claim(), one.claim(), two.claim()] == list(runs)
        assert one.claim() is two.claim() is None
        one.finish(runs[0], done(runs[0]))
        assert two.results() == [done(runs[0])]
        # A live one keeps what it has claimed.
        with opened() as three:
            assert three.claim() is None


def hold(folder, about, runs, told):
    store = Store(folder, about, runs)
    told.send(digest(store.claim()))
    signal.pause()


def test_what_a_killed_command_had_claimed_is_free(opened, runs, tmp_path):
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=hold, args=(tmp_path / "out", ABOUT, runs, theirs))
    process.start()
    try:
        assert ours.recv() == digest(runs[0])
        with opened() as store:
            assert store.claim() == runs[1]
            process.kill()
            process.join()
            assert store.claim() == runs[0]
            (left,) = (store.folder / "commands").iterdir()
            assert left.stem == store.owner
    finally:
        process.kill()
        process.join()


def claim_all(folder, about, runs, told):
    claimed = []
    with Store(folder, about, runs) as store:
        while (run := store.claim()) is not None:
            claimed.append(digest(run))
            store.finish(run, done(run))
    told.send(claimed)


def test_no_run_is_claimed_twice_by_commands_that_race(make_run, tmp_path):
    runs = tuple(make_run(seed=seed) for seed in range(60))
    context = multiprocessing.get_context("fork")  # they begin at the same time
    pipes = [context.Pipe() for _ in range(4)]
    processes = [
        context.Process(target=claim_all, args=(tmp_path / "out", ABOUT, runs, theirs))
        for _, theirs in pipes
    ]
    for process in processes:
        process.start()
    claimed = [name for ours, _ in pipes for name in ours.recv()]
    for process in processes:
        process.join()
    assert sorted(claimed) == sorted(map(digest, runs))


def test_other_settings_are_refused_and_named(opened, runs):
    with opened() as store:
        store.claim()
        store.finish(runs[0], done(runs[0]))
    with pytest.raises(ValueError, match=r"other settings \(steps 6, not 7\): give another --out"):
        opened({**ABOUT, "steps": 7})
    with pytest.raises(ValueError, match=r"extra None, not 1"):
        opened({**ABOUT, "extra": 1})
    with opened() as store:
        assert store.results() == [done(runs[0])]


def test_a_summary_without_its_runs_is_refused(opened, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds summary.json but no runs.sqlite"):
        opened()
    assert (tmp_path / "out" / "summary.json").read_text() == "{}"


@pytest.mark.parametrize("content", [b"hello " * 100, b"SQLite format 3\0" + b"\xff" * 200])
def test_a_file_of_another_kind_is_refused_and_left(opened, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RUNS).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=r"runs.sqlite"):
        opened()
    assert (tmp_path / "out" / RUNS).read_bytes() == content


def test_an_error_of_the_disk_loses_nothing(opened, runs):
    with opened() as store:
        store.claim()
        store.claim()
        store.finish(runs[0], done(runs[0]))
        store.connection.execute("pragma max_page_count = 1")  # as if the disk were full
        with pytest.raises(OSError, match="full"):
            store.finish(runs[1], done(runs[1], more="x" * 1_000_000))
        store.connection.execute("pragma max_page_count = 1000000")
    with opened() as store:
        assert store.results() == [done(runs[0])]
        assert store.claim() == runs[1]
        assert store.connection.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("broken", [False, True])
def test_a_checkpoint_goes_with_its_result_unless_the_run_broke(opened, runs, broken):
    with opened() as store:
        store.claim()
        path = store.checkpoint(runs[0])
        path.parent.mkdir()
        path.write_bytes(b"x")
        store.finish(runs[0], failed(runs[0], "killed") if broken else done(runs[0]))
        assert path.exists() == broken
    with opened():
        assert path.exists() == broken


def test_halves_of_files_go_with_the_next_command_that_is_alone(opened, tmp_path):
    with opened() as store:
        half = store.folder / f".summary.json.{'0' * 32}.part"
        half.write_bytes(b"x")
        with opened():
            assert half.exists()
    with opened():
        assert not half.exists()


def test_a_folder_without_permission_is_an_error(opened, as_nobody, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    with as_nobody(), pytest.raises(PermissionError):
        opened()


def test_what_killed_workers_left_goes_when_all_is_done(opened, runs):
    with opened() as store:
        while (run := store.claim()) is not None:
            store.finish(run, done(run))
        path = store.checkpoint(runs[0])
        path.parent.mkdir()
        path.with_name(f".{path.name}.{'0' * 32}.part").write_bytes(b"x")
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["summary.json", "report.html", "checkpoints"])
@pytest.mark.parametrize("empty", [True, False])
def test_what_somebody_else_has_there_is_refused_and_left(opened, tmp_path, name, empty):
    theirs = tmp_path / "out" / name
    theirs.mkdir(parents=True)
    (theirs / "model.pt").write_bytes(b"precious")
    if empty:
        (tmp_path / "out" / RUNS).write_bytes(b"")
    with pytest.raises(ValueError, match=f"holds {name} but no runs.sqlite: give another --out"):
        opened()
    assert (theirs / "model.pt").read_bytes() == b"precious"


def test_nothing_but_its_own_files_is_removed(opened, runs):
    with opened() as store:
        while (run := store.claim()) is not None:
            store.finish(run, done(run))
        others = [store.folder / name for name in (".movie.mkv.part", "checkpoints/model.pt")]
        for other in others:
            other.parent.mkdir(exist_ok=True)
            other.write_bytes(b"precious")
    with opened():
        pass
    assert all(other.exists() for other in others)


def test_a_broken_run_keeps_its_checkpoint_when_all_others_are_done(opened, runs):
    with opened() as store:
        while (run := store.claim()) is not None:
            path = store.checkpoint(run)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x")
            store.finish(run, failed(run, "killed") if run == runs[1] else done(run))
    (left,) = path.parent.iterdir()
    assert left.stem == digest(runs[1])


def test_the_database_of_another_program_is_refused_and_left(opened, tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / RUNS
    with sqlite3.connect(path) as connection:
        connection.execute("create table mine (x)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="of another program: give another --out"):
        opened()
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_folder_that_goes_away_is_told_at_the_next_result(opened, runs, tmp_path, how):
    with opened() as store:
        store.claim()
        if how == "deleted":
            shutil.rmtree(store.folder)
        else:
            store.folder.rename(tmp_path / "elsewhere")
        with pytest.raises(OSError, match=r"runs.sqlite was moved or deleted"):
            store.finish(runs[0], done(runs[0]))


def tampered(store, change, *values):
    with sqlite3.connect(store.path) as connection:
        connection.execute(change, values)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"run": "other", "status": "done"}', '"x"'])
def test_a_damaged_row_is_named(opened, runs, text):
    with opened() as store:
        store.claim()
        store.finish(runs[0], done(runs[0]))
    tampered(store, "update runs set result = ? where status = 'done'", text)
    message = rf"row of {runs[0].name} is damaged: delete the row {digest(runs[0])}, or give"
    with opened() as store, pytest.raises(ValueError, match=message):
        store.results()


def test_rows_without_result_or_owner_are_done_again_and_strange_ones_left_out(opened, runs):
    with opened() as store:
        store.claim()
        store.claim()
        store.claim()
        store.finish(runs[0], done(runs[0]))
        store.finish(runs[1], done(runs[1]))
        tampered(store, "update runs set result = null where digest = ?", digest(runs[0]))
        tampered(store, "update runs set owner = null where digest = ?", digest(runs[2]))
        tampered(store, "update runs set owner = '../../x' where digest = ?", digest(runs[3]))
        tampered(store, "update runs set status = 'claimed' where digest = ?", digest(runs[3]))
    with opened() as store:
        assert [store.claim() for _ in range(4)] == [runs[0], runs[2], runs[3], None]
        assert store.results() == [done(runs[1])]
