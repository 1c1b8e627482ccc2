"""The run store: one SQLite file that the dashboard, the command line and the engines share.

Work is a row in the table ``jobs``. Whoever wants something done inserts a row; an engine process claims
it in one transaction, runs it and writes the outcome. A run is a job of kind ``train``, or of kind
``import``: a training from elsewhere, over from the start. Nothing outside this module speaks SQL.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from core.errors import MirrorboardError, RunNotFound, StoreError

_MIGRATIONS = [
    # Never edit one that has been released: append the next.
    """
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        config TEXT NOT NULL,
        result TEXT,
        error TEXT,
        phase TEXT NOT NULL DEFAULT '',
        progress TEXT NOT NULL DEFAULT '{}',
        created_at REAL NOT NULL,
        started_at REAL,
        finished_at REAL,
        heartbeat_at REAL,
        engine_id TEXT,
        stop_requested_at REAL
    );
    CREATE INDEX jobs_by_status ON jobs (status, kind, number);
    CREATE TABLE metrics (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        per TEXT NOT NULL CHECK (per IN ('step', 'epoch')),
        step INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        split TEXT NOT NULL CHECK (split IN ('train', 'validation')),
        name TEXT NOT NULL,
        value REAL CHECK (typeof(value) IN ('real', 'null')),
        at REAL NOT NULL
    );
    CREATE INDEX metrics_by_job ON metrics (job, per, id);
    CREATE TABLE logs (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        at REAL NOT NULL,
        level TEXT NOT NULL,
        source TEXT NOT NULL,
        text TEXT NOT NULL
    );
    CREATE INDEX logs_by_job ON logs (job, id);
    CREATE TABLE engines (
        id TEXT PRIMARY KEY,
        role TEXT NOT NULL,
        pid INTEGER NOT NULL,
        pid_started_at REAL NOT NULL,
        owner_pid INTEGER NOT NULL,
        started_at REAL NOT NULL,
        ready_at REAL,
        job TEXT
    );
    """,
    """
    ALTER TABLE jobs ADD COLUMN name TEXT NOT NULL DEFAULT '';
    ALTER TABLE jobs ADD COLUMN place INTEGER;
    UPDATE jobs SET place = (
        SELECT count(*) FROM jobs AS earlier WHERE earlier.kind = 'train' AND earlier.number <= jobs.number
    ) WHERE kind = 'train';
    """,
    """
    CREATE TABLE samples (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        at REAL NOT NULL,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL CHECK (typeof(value) IN ('real', 'null'))
    );
    CREATE INDEX samples_by_job ON samples (job, id)
    """,
]

_BUSY_TIMEOUT_S = 10.0


class Kind(StrEnum):
    """What a job does."""

    INSPECT = "inspect"
    """List the physical devices."""
    PREPARE = "prepare"
    """Bring a dataset into Parquet."""
    DESCRIBE = "describe"
    """Build a model and list its layers."""
    CHECK = "check"
    """Try a device layout."""
    TRAIN = "train"
    IMPORT = "import"
    """A training from elsewhere, of which the log was read."""


RUNS = (Kind.TRAIN, Kind.IMPORT)
"""Jobs with curves to look at."""


class Status(StrEnum):
    """Where a job stands. See `_FROM` for the changes that are possible."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """True when the job will not change any more."""
        return self not in (Status.QUEUED, Status.RUNNING, Status.STOPPING)


ACTIVE = (Status.RUNNING, Status.STOPPING)

_FROM: dict[Status, tuple[Status, ...]] = {
    Status.RUNNING: (Status.QUEUED,),
    Status.STOPPING: (Status.RUNNING,),
    Status.COMPLETED: ACTIVE,
    Status.STOPPED: (Status.QUEUED, *ACTIVE),
    Status.FAILED: (Status.QUEUED, *ACTIVE),
    Status.LOST: ACTIVE,
}


@dataclass(frozen=True)
class Job:
    """One row of the job table. Times are seconds since 1970-01-01 UTC."""

    number: int
    id: str
    kind: Kind
    status: Status
    config: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, str] | None
    phase: str
    progress: dict[str, Any]
    created_at: float
    started_at: float | None
    finished_at: float | None
    heartbeat_at: float | None
    engine_id: str | None
    stop_requested_at: float | None
    name: str
    """Of a run, when somebody has given it one."""
    place: int | None
    """Of a run among the runs in the order of their beginning, from 1; never changes while it exists."""
    pid: int | None
    """Of the engine process, while the job runs."""

    @property
    def title(self) -> str:
        """What people call the run: its name, else its id."""
        return self.name or self.id

    @property
    def duration_s(self) -> float | None:
        """Seconds from the claim to the end, or to now."""
        if self.started_at is None:
            return None
        return (self.finished_at or time.time()) - self.started_at


@dataclass(frozen=True)
class Engine:
    """An engine process. `role` says which kinds of job it takes."""

    id: str
    role: str
    pid: int
    pid_started_at: float
    owner_pid: int
    started_at: float
    ready_at: float | None
    job: str | None


@dataclass(frozen=True)
class Metric:
    """One measured value. Steps and epochs count from zero; `step` is global over epochs."""

    per: str
    """``step`` or ``epoch``: what the value sums up."""
    step: int
    epoch: int
    split: str
    """``train`` or ``validation``."""
    name: str
    value: float | None
    """None where the value was not finite."""
    at: float
    id: int = 0


@dataclass(frozen=True)
class Sample:
    """One value of the machine. `step` is how many steps had been trained, counted over epochs."""

    at: float
    step: int
    name: str
    value: float | None
    id: int = 0


@dataclass(frozen=True)
class LogLine:
    """One line of a job's log. `source` is ``mirrorboard``, ``tensorflow`` or ``stderr``."""

    at: float
    level: str
    source: str
    text: str
    id: int = 0


def default_home() -> Path:
    """The folder of the store: ``$MIRRORBOARD_HOME``, or ``.mirrorboard`` beside the app."""
    return Path(os.environ.get("MIRRORBOARD_HOME") or Path(__file__).parent.parent / ".mirrorboard")


class Store:
    """Reads and writes the run store. One instance may be used by any number of threads.

    Args:
        home: Folder of the store; made when it does not exist.

    Raises:
        StoreError: The folder cannot be written, or the database is damaged or newer than this code.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.expanduser().absolute()
        self.path = self.home / "mirrorboard.sqlite3"
        self._idle: list[sqlite3.Connection] = []
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            # A database on a read-only folder opens and even reads; only writing tells.
            probe = self.home / f".probe-{secrets.token_hex(4)}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise StoreError(
                f"The run store's folder {self.home} cannot be written: {error.strerror}.",
                "Make it writable, or set MIRRORBOARD_HOME (or --home) to a folder that is.",
            ) from None
        self._migrate()

    def close(self) -> None:
        """Closes the connections. Using the store again opens new ones."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            yield connection
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        finally:
            if connection is not None:
                self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that takes the write lock at once.

        A deferred transaction that reads first fails with "database is locked" without waiting when
        another writer came between (SQLite, "isolation in WAL mode"); BEGIN IMMEDIATE waits.
        """
        with self._read() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _explained(self, error: sqlite3.DatabaseError) -> StoreError:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            return StoreError(
                f"The run store {self.path} is damaged ({text}).",
                "Move the file away to begin a new store, or put a backup in its place.",
            )
        if "readonly" in text or "unable to open" in text:
            return StoreError(
                f"The run store {self.path} cannot be written ({text}).",
                "Make the folder writable, or set MIRRORBOARD_HOME (or --home) to one that is.",
            )
        if "full" in text:
            return StoreError(f"The disk of the run store {self.path} is full.", "Free some space.")
        return StoreError(
            f"The run store {self.path} did not answer ({text}).",
            "Another program may hold it; try again in a moment.",
        )

    def _migrate(self) -> None:
        with self._write() as connection:
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > len(_MIGRATIONS):
                raise StoreError(
                    f"The run store {self.path} has schema {version}; this Mirrorboard knows"
                    f" {len(_MIGRATIONS)} and older.",
                    "Update Mirrorboard, or choose another folder with MIRRORBOARD_HOME (or --home).",
                )
            for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
                # Not executescript: it would commit the transaction first.
                for statement in script.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")

    # Jobs

    def submit(self, kind: Kind, config: dict[str, Any]) -> str:
        """Queues a job.

        Args:
            kind: What to do.
            config: What the job needs to know, as plain JSON values.

        Returns:
            The job's id.
        """
        job_id = secrets.token_hex(4)
        with self._write() as connection:
            connection.execute(
                f"INSERT INTO jobs (id, kind, status, config, created_at, place)"
                f" VALUES (?, ?, ?, ?, ?, {_PLACE})",
                (job_id, kind, Status.QUEUED, _to_json(config), time.time(), kind in RUNS),
            )
        return job_id

    def add_import(
        self, name: str, config: dict[str, Any], metrics: Iterable[Metric], duration_s: float | None
    ) -> str:
        """Records a training from elsewhere as a completed run.

        Args:
            name: What it is called.
            config: Where it comes from, as plain JSON values.
            metrics: Its values.
            duration_s: How long it took, where that is known.

        Returns:
            The run's id.
        """
        job_id, now = secrets.token_hex(4), time.time()
        started_at = None if duration_s is None else now - duration_s
        with self._write() as connection:
            cursor = connection.execute(
                "INSERT INTO jobs"
                " (id, kind, status, config, created_at, started_at, finished_at, name, place)"
                f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, {_PLACE})",
                (
                    job_id,
                    Kind.IMPORT,
                    Status.COMPLETED,
                    _to_json(config),
                    now,
                    started_at,
                    now,
                    name,
                    True,
                ),
            )
            assert cursor.lastrowid is not None
            _add_metrics(connection, cursor.lastrowid, metrics)
        return job_id

    def rename(self, job_id: str, name: str) -> None:
        """Gives a run a name; an empty one takes it away."""
        with self._write() as connection:
            connection.execute(
                f"UPDATE jobs SET name = ? WHERE id = ? AND kind IN ({_marks(RUNS)})", (name, job_id, *RUNS)
            )

    def delete(self, job_ids: Sequence[str]) -> list[str]:
        """Deletes runs with their metrics and logs; those that have not ended are left alone.

        Returns:
            The ids of those that were deleted.
        """
        final = [status for status in Status if status.is_final]
        with self._write() as connection:
            rows = connection.execute(
                f"DELETE FROM jobs WHERE id IN ({_marks(job_ids)}) AND kind IN ({_marks(RUNS)})"
                f" AND status IN ({_marks(final)}) RETURNING id",
                (*job_ids, *RUNS, *final),
            ).fetchall()
        return [row["id"] for row in rows]

    def job(self, job_id: str) -> Job:
        """The job with this id.

        Raises:
            RunNotFound: There is none.
        """
        jobs = self._jobs("WHERE jobs.id = ?", (job_id,))
        if not jobs:
            raise RunNotFound(
                f"There is no run {job_id!r} in {self.path}.",
                "List the runs with `python -m core runs`, or on the page Training.",
            )
        return jobs[0]

    def jobs(
        self, *, kinds: Sequence[Kind] = (), statuses: Sequence[Status] = (), limit: int = -1
    ) -> list[Job]:
        """Jobs of these kinds in these states (all where none are named), newest first."""
        where = ["1"]
        if kinds:
            where.append(f"kind IN ({_marks(kinds)})")
        if statuses:
            where.append(f"status IN ({_marks(statuses)})")
        return self._jobs(
            f"WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?", (*kinds, *statuses, limit)
        )

    def _jobs(self, tail: str, values: Sequence[Any]) -> list[Job]:
        with self._read() as connection:
            rows = connection.execute(
                "SELECT jobs.*, CASE WHEN jobs.status IN ('running', 'stopping') THEN engines.pid END AS pid"
                f" FROM jobs LEFT JOIN engines ON engines.id = jobs.engine_id {tail}",
                values,
            ).fetchall()
        return [_job(row) for row in rows]

    def ahead_of(self, job: Job) -> list[Job]:
        """The runs that a queued run waits for, the running one first."""
        return self._jobs(
            "WHERE kind = ? AND status IN ('queued', 'running', 'stopping') AND number < ?"
            " ORDER BY status = 'queued', number",
            (job.kind, job.number),
        )

    def claim(self, kinds: Sequence[Kind], engine_id: str) -> Job | None:
        """Takes the oldest queued job of these kinds for an engine; of training runs only one at a time.

        Returns:
            The job, now running, or None when there is nothing to do.
        """
        with self._write() as connection:
            row = connection.execute(
                f"""
                SELECT id FROM jobs
                WHERE status = 'queued' AND kind IN ({_marks(kinds)}) AND NOT (
                    kind = 'train' AND EXISTS (
                        SELECT 1 FROM jobs AS other
                        WHERE other.kind = 'train' AND other.status IN ('running', 'stopping')))
                ORDER BY number LIMIT 1
                """,
                kinds,
            ).fetchone()
            if row is None:
                return None
            now = time.time()
            self._change(
                connection,
                row["id"],
                Status.RUNNING,
                started_at=now,
                heartbeat_at=now,
                engine_id=engine_id,
            )
            connection.execute("UPDATE engines SET job = ? WHERE id = ?", (row["id"], engine_id))
        return self.job(row["id"])

    def _change(self, connection: sqlite3.Connection, job_id: str, to: Status, **also: Any) -> bool:
        """Moves a job to another state; False when it is not in one that leads there."""
        sets = ["status = ?", *(f"{column} = ?" for column in also)]
        cursor = connection.execute(
            f"UPDATE jobs SET {', '.join(sets)} WHERE id = ? AND status IN ({_marks(_FROM[to])})",
            (to, *also.values(), job_id, *_FROM[to]),
        )
        return cursor.rowcount == 1

    def request_stop(self, job_id: str) -> Status:
        """Asks for a job to stop: a queued one is stopped at once, a running one by its engine.

        Returns:
            The job's status after the request.
        """
        with self._write() as connection:
            now = time.time()
            queued = connection.execute(
                "SELECT 1 FROM jobs WHERE id = ? AND status = 'queued'", (job_id,)
            ).fetchone()
            if queued:
                self._change(connection, job_id, Status.STOPPED, stop_requested_at=now, finished_at=now)
            else:
                self._change(connection, job_id, Status.STOPPING, stop_requested_at=now)
        return self.job(job_id).status

    def finish(
        self,
        job_id: str,
        status: Status,
        *,
        result: dict[str, Any] | None = None,
        error: MirrorboardError | None = None,
        details: str = "",
    ) -> bool:
        """Ends a job.

        Args:
            job_id: Which.
            status: A final status.
            result: What came out, as plain JSON values; None keeps what is there.
            error: Why it failed.
            details: A traceback or the engine's last lines, for the log and for developers.

        Returns:
            False when the job had ended already.
        """
        about = None
        if error is not None:
            about = _to_json(
                {
                    "type": type(error).__name__,
                    "message": error.message,
                    "hint": error.hint,
                    "field": getattr(error, "field", ""),
                    "details": details,
                }
            )
        with self._write() as connection:
            done = self._change(connection, job_id, status, finished_at=time.time(), error=about)
            if done and result is not None:
                connection.execute("UPDATE jobs SET result = ? WHERE id = ?", (_to_json(result), job_id))
        return done

    def report(
        self,
        job: Job,
        *,
        phase: str | None = None,
        progress: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        metrics: Iterable[Metric] = (),
        logs: Iterable[LogLine] = (),
        samples: Iterable[Sample] = (),
    ) -> bool:
        """Writes what an engine has to say about its job, and its heartbeat, in one transaction.

        Args:
            job: The engine's job.
            phase: What it is doing, in words; None keeps the last.
            progress: Numbers a page shows while it runs; None keeps the last.
            result: Results that are known before the end; None keeps the last.
            metrics: Newly measured values.
            logs: New lines.
            samples: New values of the machine.

        Returns:
            True when somebody has asked for the job to stop.
        """
        with self._write() as connection:
            _add_metrics(connection, job.number, metrics)
            connection.executemany(
                "INSERT INTO logs (job, at, level, source, text) VALUES (?, ?, ?, ?, ?)",
                [(job.number, line.at, line.level, line.source, line.text) for line in logs],
            )
            connection.executemany(
                "INSERT INTO samples (job, at, step, name, value) VALUES (?, ?, ?, ?, ?)",
                [(job.number, s.at, s.step, s.name, _finite(s.value)) for s in samples],
            )
            row = connection.execute(
                "UPDATE jobs SET heartbeat_at = ?, phase = coalesce(?, phase),"
                " progress = coalesce(?, progress), result = coalesce(?, result)"
                " WHERE id = ? RETURNING stop_requested_at",
                (
                    time.time(),
                    phase,
                    None if progress is None else _to_json(progress),
                    None if result is None else _to_json(result),
                    job.id,
                ),
            ).fetchone()
        return row is not None and row["stop_requested_at"] is not None

    def data_version(self) -> int:
        """A number that changes when another connection has written; costs microseconds to ask."""
        with self._read() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    # Metrics and logs

    def metrics(self, job: Job, *, per: str, after: int = 0) -> list[Metric]:
        """A job's values in the order they were written.

        Args:
            job: Whose.
            per: ``step`` or ``epoch``.
            after: Only rows with a greater id: pass the last one seen.
        """
        with self._read() as connection:
            rows = connection.execute(
                "SELECT id, per, step, epoch, split, name, value, at FROM metrics"
                " WHERE job = ? AND per = ? AND id > ? ORDER BY id",
                (job.number, per, after),
            ).fetchall()
        return [Metric(**row) for row in rows]

    def samples(self, job: Job, *, after: int = 0) -> list[Sample]:
        """Values of the machine while a job ran, those with a greater id than `after`."""
        with self._read() as connection:
            rows = connection.execute(
                "SELECT id, at, step, name, value FROM samples WHERE job = ? AND id > ? ORDER BY id",
                (job.number, after),
            ).fetchall()
        return [Sample(**row) for row in rows]

    def last_metric_id(self, job: Job) -> int:
        """Id of the newest value of a job, 0 when it has none."""
        with self._read() as connection:
            row = connection.execute("SELECT max(id) FROM metrics WHERE job = ?", (job.number,)).fetchone()
        return row[0] or 0

    def epochs_done(self, job: Job) -> int:
        """How many epochs have been recorded whole."""
        with self._read() as connection:
            row = connection.execute(
                "SELECT count(DISTINCT epoch) FROM metrics WHERE job = ? AND per = 'epoch'", (job.number,)
            ).fetchone()
        return int(row[0])

    def best_epochs(self) -> dict[int, tuple[int, float]]:
        """Zero-based epoch and value of the lowest validation loss of every run, by the job's number."""
        with self._read() as connection:
            # CROSS JOIN keeps SQLite from scanning the metrics of every step.
            rows = connection.execute(
                f"""
                SELECT number, epoch, value FROM (
                    SELECT jobs.number, metrics.epoch, metrics.value,
                        row_number() OVER (PARTITION BY jobs.number ORDER BY value, epoch) AS rank
                    FROM jobs CROSS JOIN metrics ON metrics.job = jobs.number AND metrics.per = 'epoch'
                    WHERE jobs.kind IN ({_marks(RUNS)}) AND metrics.split = 'validation'
                        AND metrics.name = 'loss' AND metrics.value IS NOT NULL
                ) WHERE rank = 1
                """,
                RUNS,
            ).fetchall()
        return {row["number"]: (row["epoch"], row["value"]) for row in rows}

    def logs(self, job: Job, *, after: int = 0, limit: int = 2_000) -> list[LogLine]:
        """The newest lines of a job's log after the line with id `after`, oldest first."""
        with self._read() as connection:
            rows = connection.execute(
                "SELECT id, at, level, source, text FROM logs WHERE job = ? AND id > ?"
                " ORDER BY id DESC LIMIT ?",
                (job.number, after, limit),
            ).fetchall()
        return [LogLine(**row) for row in reversed(rows)]

    # Engines

    def add_engine(self, engine: Engine) -> None:
        """Records an engine process that has just been started."""
        with self._write() as connection:
            connection.execute(
                "INSERT INTO engines (id, role, pid, pid_started_at, owner_pid, started_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    engine.id,
                    engine.role,
                    engine.pid,
                    engine.pid_started_at,
                    engine.owner_pid,
                    engine.started_at,
                ),
            )

    def engine_ready(self, engine_id: str) -> None:
        """Records that an engine has TensorFlow imported and waits for work."""
        with self._write() as connection:
            connection.execute("UPDATE engines SET ready_at = ? WHERE id = ?", (time.time(), engine_id))

    def engine_idle(self, engine_id: str) -> None:
        """Records that an engine has finished its job and takes another."""
        with self._write() as connection:
            connection.execute("UPDATE engines SET job = NULL WHERE id = ?", (engine_id,))

    def remove_engine(self, engine_id: str) -> None:
        """Forgets an engine process that has ended."""
        with self._write() as connection:
            connection.execute("DELETE FROM engines WHERE id = ?", (engine_id,))

    def engines(self) -> list[Engine]:
        """The engine processes that were started and not yet found ended."""
        with self._read() as connection:
            rows = connection.execute("SELECT * FROM engines ORDER BY started_at").fetchall()
        return [Engine(**row) for row in rows]


_PLACE = "CASE WHEN ? THEN (SELECT coalesce(max(place), 0) + 1 FROM jobs) END"
"""The next place among the runs, for a job that is one."""


def _add_metrics(connection: sqlite3.Connection, job: int, metrics: Iterable[Metric]) -> None:
    connection.executemany(
        "INSERT INTO metrics (job, per, step, epoch, split, name, value, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(job, m.per, m.step, m.epoch, m.split, m.name, _finite(m.value), m.at) for m in metrics],
    )


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    for column in ("config", "result", "error", "progress"):
        values[column] = None if values[column] is None else json.loads(values[column])
    return Job(**{**values, "kind": Kind(values["kind"]), "status": Status(values["status"])})


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False)


def _finite(value: float | None) -> float | None:
    # float() because sqlite3 would store a numpy number as bytes.
    return float(value) if value is not None and math.isfinite(value) else None
