"""The runs of a comparison in one SQLite file: what is to be done, who does it, what came out.

    about   name, value: what all runs share (JSON)
    runs    digest (the hash of a run's settings), place (order of doing), task, encoding, seed,
            settings (JSON), status, owner, result (JSON), weights (safetensors), started, finished
            (seconds since 1970)

    waiting --claim--> claimed --finish--> done, or diverged
       ^                  |--finish------> broken (its process ended, a file could not be read ...)
       |------------------+-------------------/
          its owner has ended, or the command is given again

The file is in write-ahead mode: it is whole after a kill at any moment. A claim is one transaction,
so several commands of one machine may share the work of one folder. Each holds a lock file as long
as it lives; the operating system opens the lock when it ends, however that happens, and what it had
claimed is free again. A diverged run would diverge again and is kept; a broken one is tried again,
from its checkpoint.
"""

import json
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from whereness.lab.files import REPORT, RUNS, SUMMARY, remove_parts
from whereness.lab.settings import Run, digest, plain

OWNERS = "commands"
OPENING = ".opening.lock"
CHECKPOINTS = "checkpoints"
OWNER = re.compile("[0-9a-f]{32}")
VERSION = 1

PATIENCE = 60.0
"""Seconds to wait for another command's transaction."""

TABLES = """
create table if not exists about (name text primary key, value text not null);
create table if not exists runs (
    digest text primary key,
    place integer not null,
    task text not null,
    encoding text not null,
    seed integer not null,
    settings text not null,
    status text not null
        check (status in ('waiting', 'claimed', 'done', 'diverged', 'broken')),
    owner text,
    result text,
    weights blob,
    started real,
    finished real
);
"""

Result = dict[str, Any]


class Store:
    """The runs of one comparison in a folder, shared by all commands at work there.

    Args:
        about: what must be the same of everything in the folder, plain values by name.

    Raises:
        ValueError: the folder holds something else.
        OSError: it cannot be made, read or written.
    """

    def __init__(self, folder: Path, about: dict[str, Any], runs: tuple[Run, ...]) -> None:
        self.folder, self.path = folder, folder / RUNS
        self.runs = {digest(run): run for run in runs}
        self.owner = uuid.uuid4().hex
        self.file = (0, 0)
        folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or not self.path.stat().st_size:
            self._refuse_what_is_not_ours()
        # One at a time: no lock file is seen that its owner has not locked yet.
        self.opening = filelock.FileLock(folder / OPENING, timeout=PATIENCE)
        with self.opening:
            self.lock = self._lock_of(self.owner)
            self.lock.acquire(blocking=False)
            try:
                with self._told():
                    self._open(about)
            except BaseException:
                self.close()
                raise

    def claim(self) -> Run | None:
        """A run to do, now this command's; None if all are done or in other hands."""
        with self._transaction() as connection:
            self._free_the_ownerless()
            first = "select digest from runs where status = 'waiting' order by place limit 1"
            row = connection.execute(first).fetchone()
            if row is None:
                return None
            connection.execute(
                "update runs set status = 'claimed', owner = ?, started = ?, result = null "
                "where digest = ?",
                (self.owner, time.time(), row[0]),
            )
        return self.runs[row[0]]

    def finish(self, run: Run, result: Result) -> None:
        """Keep the result of a run that was claimed."""
        result = dict(result)
        weights = result.pop("weights", None)
        status = result["status"]
        if status == "failed":
            status = "diverged" if result.get("diverged") else "broken"
        with self._transaction() as connection:
            # Whoever finished it first has the same result.
            connection.execute(
                "update runs set status = ?, owner = null, result = ?, weights = ?, finished = ? "
                "where digest = ? and status = 'claimed'",
                (status, json.dumps(result), weights, time.time(), digest(run)),
            )
        if status != "broken":
            self.checkpoint(run).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise OSError if the file is no longer where it was: what is kept now would be lost."""
        with suppress(OSError):
            if self._identity() == self.file:
                return
        raise OSError(f"{self.path} was moved or deleted while it was in use.")

    def finished(self) -> set[str]:
        """The digests of runs that will not be done again."""
        query = "select digest from runs where status in ('done', 'diverged')"
        with self._told():
            return {row[0] for row in self.connection.execute(query)}

    def unfinished(self) -> int:
        """Runs that are waiting or claimed."""
        query = "select count(*) from runs where status in ('waiting', 'claimed')"
        with self._told():
            return self.connection.execute(query).fetchone()[0]

    def results(self) -> list[Result]:
        """What there is, in the order of the runs.

        Raises:
            ValueError: a row that no comparison has written.
        """
        query = "select digest, result from runs where result is not null order by place"
        with self._told():
            rows = self.connection.execute(query).fetchall()
        return [self._parsed(name, text) for name, text in rows if name in self.runs]

    def _parsed(self, name: str, text: str) -> Result:
        try:
            result = json.loads(text)
            if name == result["run"] and result["status"] in ("done", "failed"):
                return result
        except (ValueError, TypeError, KeyError):
            pass
        raise ValueError(
            f"{self.path}: the row of {self.runs[name].name} is damaged: delete the row {name}, or "
            "give another --out."
        )

    def weights(self, run: Run) -> bytes | None:
        """The weights that were kept of a run."""
        query = "select weights from runs where digest = ?"
        with self._told():
            return self.connection.execute(query, (digest(run),)).fetchone()[0]

    def checkpoint(self, run: Run) -> Path:
        """Where the checkpoint of a run lies while it is trained."""
        return self.folder / CHECKPOINTS / f"{digest(run)}.safetensors"

    def close(self) -> None:
        """Give back what is still claimed, and let go of the file."""
        with self.opening:
            if hasattr(self, "connection"):
                with suppress(OSError, ValueError), closing(self.connection):
                    self._let_go()
            self.lock.release()
            Path(self.lock.lock_file).unlink(missing_ok=True)
            with suppress(OSError):
                (self.folder / OWNERS).rmdir()  # if this was the last command

    def __enter__(self) -> "Store":  # noqa: PYI034 (types checked at run time know no Self here)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refuse_what_is_not_ours(self) -> None:
        """A folder without runs may hold nothing that a comparison would write or remove."""
        for name in (SUMMARY, REPORT, CHECKPOINTS):
            if os.path.lexists(self.folder / name):
                raise ValueError(
                    f"{self.folder} holds {name} but no {RUNS}: give another --out, or move it "
                    "away."
                )

    def _open(self, about: dict[str, Any]) -> None:
        self.connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        tables = {row[0] for row in self.connection.execute("select name from sqlite_master")}
        tables = {name for name in tables if not name.startswith("sqlite_")}
        if tables not in (set(), {"about", "runs"}):
            raise ValueError(
                f"{self.path} is of another program: give another --out, or move it away."
            )
        self.file = self._identity()
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute("pragma synchronous = full")
        with self._transaction():
            self._fill(about)
            for file in (self.folder / OWNERS).glob("*.lock"):
                self._free_if_ownerless(file.stem)
        if len(list((self.folder / OWNERS).iterdir())) == 1:
            for name in (SUMMARY, REPORT):
                remove_parts(self.folder / name)

    def _identity(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    def _fill(self, about: dict[str, Any]) -> None:
        """Make the tables and rows that are missing; see that the others are of these settings."""
        for statement in TABLES.split(";"):
            self.connection.execute(statement)
        kept = dict(self.connection.execute("select name, value from about"))
        wanted = {name: json.dumps(value, sort_keys=True) for name, value in about.items()}
        wanted["version"] = json.dumps(VERSION)
        if kept and kept != wanted:
            names = sorted(n for n in kept.keys() | wanted.keys() if kept.get(n) != wanted.get(n))
            told = ", ".join(f"{n} {kept.get(n)}, not {wanted.get(n)}" for n in names)
            raise ValueError(
                f"{self.folder} holds runs of other settings ({told}): give another --out, or move "
                "it away."
            )
        self.connection.executemany("insert or ignore into about values (?, ?)", wanted.items())
        self.connection.executemany(
            "insert or ignore into runs (digest, place, task, encoding, seed, settings, status) "
            "values (?, ?, ?, ?, ?, ?, 'waiting')",
            [
                (name, place, run.task, run.encoding, run.seed, json.dumps(plain(run)))
                for place, (name, run) in enumerate(self.runs.items())
            ],
        )
        self.connection.execute(
            "update runs set status = 'waiting' where result is null and status != 'claimed'"
        )
        # Their results stay until they are claimed: another command may be about to tell them.
        self.connection.execute("update runs set status = 'waiting' where status = 'broken'")

    def _let_go(self) -> None:
        with self._transaction() as connection:
            connection.execute(
                "update runs set status = 'waiting', owner = null "
                "where status = 'claimed' and owner = ?",
                (self.owner,),
            )
        if len(self.finished()) == len(self.runs):
            for run in self.runs.values():
                self.checkpoint(run).unlink(missing_ok=True)
                remove_parts(self.checkpoint(run))
            with suppress(OSError):
                (self.folder / CHECKPOINTS).rmdir()

    def _free_the_ownerless(self) -> None:
        """Let what ended commands had claimed wait again."""
        query = "select distinct owner from runs where status = 'claimed'"
        for (owner,) in self.connection.execute(query).fetchall():
            self._free_if_ownerless(owner)

    def _free_if_ownerless(self, owner: str | None) -> None:
        if owner == self.owner:
            return
        if owner is None or not OWNER.fullmatch(owner):
            free = "update runs set status = 'waiting' where status = 'claimed' and owner is ?"
            self.connection.execute(free, (owner,))
            return
        lock = self._lock_of(owner)
        with suppress(filelock.Timeout):
            lock.acquire(blocking=False)
            self.connection.execute(
                "update runs set status = 'waiting', owner = null "
                "where status = 'claimed' and owner is ?",
                (owner,),
            )
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def _lock_of(self, owner: str) -> filelock.BaseFileLock:
        return filelock.FileLock(self.folder / OWNERS / f"{owner}.lock")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """All or nothing; no other command writes meanwhile."""
        self.check()
        with self._told():
            self.connection.execute("begin immediate")
            try:
                yield self.connection
                self.connection.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self.connection.execute("rollback")
                raise

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Errors of SQLite as those that a user is told."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is not a file of runs: {error}.") from error
