"""The run store: one SQLite file that the dashboard, the command line and the engines share.

Work is a row in the table ``jobs``. Whoever wants something done inserts a row; an engine process claims
it in one transaction, runs it and writes the outcome. A run is a job of kind ``train``, or of kind
``import``: a training from elsewhere, over from the start. Nothing but this module,
`core.measurements`, `core.database` and `core.backup` speaks SQL.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from core.config import DeviceLayout, parse_config
from core.database import marks
from core.errors import ConfigError, MirrorboardError, RunNotFound, RunStateError
from core.measurements import (
    Measurements,
    add_confidence_bins,
    add_logs,
    add_metrics,
    add_samples,
    drop_after,
)
from core.records import (
    ACTIVE,
    RUNS,
    ConfidenceBin,
    Engine,
    Job,
    Kind,
    LogLine,
    Metric,
    Sample,
    Scaling,
    Status,
)
from core.words import shown

_FROM: dict[Status, tuple[Status, ...]] = {
    Status.RUNNING: (Status.QUEUED,),
    Status.STOPPING: (Status.RUNNING, Status.PAUSING),
    Status.PAUSING: (Status.RUNNING,),
    Status.PAUSED: (Status.PAUSING,),
    Status.COMPLETED: ACTIVE,
    Status.STOPPED: (Status.QUEUED, *ACTIVE),
    Status.FAILED: (Status.QUEUED, *ACTIVE),
    Status.LOST: ACTIVE,
    # A run that goes on; `Job.can_resume` and `Job.can_extend` say when.
    Status.QUEUED: (Status.PAUSED, Status.STOPPED, Status.FAILED, Status.LOST, Status.COMPLETED),
}


def default_home() -> Path:
    """The folder of the store: ``$MIRRORBOARD_HOME``, or ``.mirrorboard`` beside the app."""
    return Path(os.environ.get("MIRRORBOARD_HOME") or Path(__file__).parent.parent / ".mirrorboard")


class Store(Measurements):
    """Reads and writes the run store. One instance may be used by any number of threads."""

    # Jobs

    def submit(self, kind: Kind, config: dict[str, Any]) -> str:
        """Queues a job.

        Args:
            kind: What to do.
            config: What the job needs to know, as plain JSON values.

        Returns:
            The job's id.
        """
        with self.write() as connection:
            return _insert(connection, kind, config)

    def submit_study(self, scaling: Scaling, configs: Iterable[dict[str, Any]]) -> str:
        """Queues the runs of a scaling study, one after another.

        Args:
            scaling: Its kind.
            configs: Of each run, as plain JSON values.

        Returns:
            The study's id, by which `study` finds its runs again.
        """
        study = secrets.token_hex(4)
        with self.write() as connection:
            for config in configs:
                _insert(connection, Kind.TRAIN, config, study=study, scaling=scaling)
        return study

    def study(self, study_id: str) -> list[Job]:
        """The runs of a scaling study that have not been deleted, in the order of their submission."""
        return self._jobs("WHERE study = ? ORDER BY number", (study_id,))

    def studies(self, *, limit: int) -> list[list[Job]]:
        """The runs of each scaling study, the newest study first."""
        jobs = self._jobs(
            "WHERE study IN (SELECT study FROM jobs WHERE study IS NOT NULL GROUP BY study"
            " ORDER BY max(number) DESC LIMIT ?) ORDER BY number DESC",
            (limit,),
        )
        found: dict[str, list[Job]] = {}
        for job in jobs:
            assert job.study is not None
            found.setdefault(job.study, []).insert(0, job)
        return list(found.values())

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
        now = time.time()
        started_at = None if duration_s is None else now - duration_s
        with self.write() as connection:
            job_id = _insert(
                connection,
                Kind.IMPORT,
                config,
                status=Status.COMPLETED,
                started_at=started_at,
                finished_at=now,
                name=name,
            )
            (number,) = connection.execute("SELECT number FROM jobs WHERE id = ?", (job_id,)).fetchone()
            add_metrics(connection, number, metrics)
        return job_id

    def rename(self, job_id: str, name: str) -> None:
        """Gives a run a name; an empty one takes it away."""
        with self.write() as connection:
            connection.execute(
                f"UPDATE jobs SET name = ? WHERE id = ? AND kind IN ({marks(RUNS)})", (name, job_id, *RUNS)
            )

    def tag(self, job_ids: Sequence[str], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Gives runs tags, and takes others away from them."""
        add, remove = set(add), set(remove)
        with self.write() as connection:
            rows = connection.execute(
                f"SELECT id, tags FROM jobs WHERE id IN ({marks(job_ids)}) AND kind IN ({marks(RUNS)})",
                (*job_ids, *RUNS),
            ).fetchall()
            for row in rows:
                tags = sorted((set(json.loads(row["tags"])) | add) - remove, key=str.casefold)
                connection.execute(
                    "UPDATE jobs SET tags = ? WHERE id = ?",
                    (json.dumps(tags, ensure_ascii=False), row["id"]),
                )

    def delete(self, job_ids: Sequence[str]) -> list[str]:
        """Deletes runs with their metrics, logs and checkpoints; those that have not ended are left alone.

        Returns:
            The ids of those that were deleted.
        """
        final = [status for status in Status if status.is_final]
        with self.write() as connection:
            rows = connection.execute(
                f"DELETE FROM jobs WHERE id IN ({marks(job_ids)}) AND kind IN ({marks(RUNS)})"
                f" AND status IN ({marks(final)}) RETURNING id",
                (*job_ids, *RUNS, *final),
            ).fetchall()
        for row in rows:
            shutil.rmtree(self.checkpoints(row["id"]), ignore_errors=True)
        return [row["id"] for row in rows]

    def checkpoints(self, job_id: str) -> Path:
        """The folder of a run's checkpoints."""
        return self.home / "checkpoints" / job_id

    def sweep_checkpoints(self) -> None:
        """Removes checkpoints of runs that are not in the store, such as when deleting was interrupted."""
        # The folders first: a run is in the store before it has one.
        folders = list((self.home / "checkpoints").glob("*"))
        known = {job.id for job in self.jobs(kinds=[Kind.TRAIN])}
        for folder in folders:
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def job(self, job_id: str) -> Job:
        """The job with this id.

        Raises:
            RunNotFound: There is none.
        """
        # SQLite takes no lone surrogates, as a shell may pass them.
        jobs = self._jobs("WHERE jobs.id = ?", (job_id,)) if job_id.isascii() else []
        if not jobs:
            raise RunNotFound(
                f"There is no run {shown(job_id)} in {self.path}.",
                "List the runs with `python -m core runs`, or on the page Training.",
            )
        return jobs[0]

    def jobs(
        self, *, kinds: Sequence[Kind] = (), statuses: Sequence[Status] = (), limit: int = -1
    ) -> list[Job]:
        """Jobs of these kinds in these states (all where none are named), newest first."""
        where = ["1"]
        if kinds:
            where.append(f"kind IN ({marks(kinds)})")
        if statuses:
            where.append(f"status IN ({marks(statuses)})")
        return self._jobs(
            f"WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?", (*kinds, *statuses, limit)
        )

    def _jobs(self, tail: str, values: Sequence[Any]) -> list[Job]:
        with self.read() as connection:
            rows = connection.execute(
                f"SELECT jobs.*, CASE WHEN jobs.status IN ({marks(ACTIVE)}) THEN engines.pid END AS pid"
                f" FROM jobs LEFT JOIN engines ON engines.id = jobs.engine_id {tail}",
                (*ACTIVE, *values),
            ).fetchall()
        return [_job(row) for row in rows]

    def ahead_of(self, job: Job) -> list[Job]:
        """The runs that a queued run waits for, the running one first."""
        return self._jobs(
            f"WHERE kind = ? AND jobs.id != ? AND (status IN ({marks(ACTIVE)})"
            " OR (status = 'queued' AND (queued_at, number) < (?, ?)))"
            " ORDER BY status = 'queued', queued_at, number",
            (job.kind, job.id, *ACTIVE, job.queued_at, job.number),
        )

    def claim(self, kinds: Sequence[Kind], engine_id: str) -> Job | None:
        """Takes the oldest queued job of these kinds for an engine; of training runs only one at a time.

        Returns:
            The job, now running, or None when there is nothing to do.
        """
        with self.write() as connection:
            row = connection.execute(
                f"""
                SELECT id FROM jobs
                WHERE status = 'queued' AND kind IN ({marks(kinds)}) AND NOT (
                    kind = 'train' AND EXISTS (
                        SELECT 1 FROM jobs AS other
                        WHERE other.kind = 'train' AND other.status IN ({marks(ACTIVE)})))
                ORDER BY queued_at, number LIMIT 1
                """,
                (*kinds, *ACTIVE),
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
            f"UPDATE jobs SET {', '.join(sets)} WHERE id = ? AND status IN ({marks(_FROM[to])})",
            (to, *also.values(), job_id, *_FROM[to]),
        )
        return cursor.rowcount == 1

    def request_stop(self, job_id: str) -> Status:
        """Asks for a job to stop: a queued one is stopped at once, a running one by its engine.

        Returns:
            The job's status after the request.
        """
        with self.write() as connection:
            now = time.time()
            queued = connection.execute(
                "SELECT 1 FROM jobs WHERE id = ? AND status = 'queued'", (job_id,)
            ).fetchone()
            if queued:
                self._change(connection, job_id, Status.STOPPED, stop_requested_at=now, finished_at=now)
            else:
                self._change(connection, job_id, Status.STOPPING, stop_requested_at=now)
        return self.job(job_id).status

    def request_pause(self, job_id: str) -> Status:
        """Asks for a running run to pause: it ends as a stopped one does, to be resumed later.

        Returns:
            The run's status after the request; `Status.PAUSED` where it was already.

        Raises:
            RunNotFound: There is no such run.
            RunStateError: It does not run.
        """
        with self.write() as connection:
            asked = self._change(connection, job_id, Status.PAUSING, stop_requested_at=time.time())
        job = self.job(job_id)
        if not asked and job.status not in (Status.PAUSING, Status.PAUSED):
            raise RunStateError(
                f"Run {job_id} is {job.status}; only a running one can be paused.",
                "A queued run can be stopped instead." if job.status is Status.QUEUED else "",
            )
        return job.status

    def resume(self, job_id: str, layout: DeviceLayout | None = None) -> str:
        """Queues a run again that ended early, to go on after the last epoch of its newest checkpoint.

        Args:
            job_id: Which.
            layout: Other devices to go on with; learning rate and global batch stay.

        Returns:
            The run's id.

        Raises:
            RunNotFound: There is no such run.
            RunStateError: It goes on already, was completed, or has no checkpoint.
            ConfigError: The layout's replicas cannot share the global batch.
        """
        with self.write() as connection:
            job = self.job(job_id)
            if not job.can_resume:
                raise _refused(job, "resumed")
            config = job.config
            if layout is not None:
                config = parse_config(config).on(layout).model_dump(mode="json")
            self._requeue(connection, job, config)
        return job_id

    def extend(self, job_id: str, epochs: int) -> str:
        """Queues a run again that has ended, to train so many epochs more.

        Returns:
            The run's id.

        Raises:
            RunNotFound: There is no such run.
            RunStateError: It has not ended as it should, or has no checkpoint.
            ConfigError: That is no number of epochs, or there would be too many.
        """
        with self.write() as connection:
            job = self.job(job_id)
            if not job.can_extend:
                raise _refused(job, "extended")
            if epochs < 1:
                raise ConfigError(
                    f"A run cannot be extended by {epochs:,} epochs.", "Add one or more.", "training.epochs"
                )
            config = parse_config(job.config).model_dump(mode="json")
            config["training"]["epochs"] = job.checkpoint_epochs + epochs
            self._requeue(connection, job, parse_config(config).model_dump(mode="json"))
        return job_id

    def _requeue(self, connection: sqlite3.Connection, job: Job, config: dict[str, Any]) -> None:
        """Queues a run again in the caller's transaction; it keeps what its checkpoint has behind it."""
        result = {name: value for name, value in (job.result or {}).items() if name != "early_stop"}
        self._change(
            connection,
            job.id,
            Status.QUEUED,
            config=_to_json(config),
            result=_to_json(result) if result else None,
            queued_at=time.time(),
            trained_s=job.duration_s or 0,
            phase="",
            progress="{}",
            **dict.fromkeys(
                ("started_at", "finished_at", "heartbeat_at", "engine_id", "stop_requested_at", "error")
            ),
        )
        drop_after(connection, job, job.checkpoint_epochs)

    def rewind(self, job: Job, epochs: int) -> None:
        """Forgets what a run recorded after its first `epochs` epochs."""
        with self.write() as connection:
            drop_after(connection, job, epochs)

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
            status: A final status. A run that was asked to pause and is stopped ends as paused.
            result: What came out, as plain JSON values; None keeps what is there.
            error: Why it failed.
            details: A traceback or the engine's last lines, for the log and for developers; the error's own
                where there is none.

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
                    "details": details or error.details,
                }
            )
        with self.write() as connection:
            if status is Status.STOPPED and self._change(
                connection, job_id, Status.PAUSED, finished_at=time.time()
            ):
                return True
            done = self._change(connection, job_id, status, finished_at=time.time(), error=about)
            if status is Status.LOST and done:
                # Nobody knows when it ended; the time until somebody noticed is not training.
                connection.execute(
                    "UPDATE jobs SET finished_at = coalesce(heartbeat_at, finished_at) WHERE id = ?",
                    (job_id,),
                )
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
        bins: Iterable[ConfidenceBin] = (),
        checkpoint: dict[str, Any] | None = None,
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
            bins: Calibration of the epochs that have ended.
            checkpoint: What `Job.checkpoint` is to be; None keeps the last.

        Returns:
            True when somebody has asked for the job to stop.
        """
        with self.write() as connection:
            add_metrics(connection, job.number, metrics)
            add_logs(connection, job.number, logs)
            add_samples(connection, job.number, samples)
            add_confidence_bins(connection, job.number, bins)
            row = connection.execute(
                "UPDATE jobs SET heartbeat_at = ?, phase = coalesce(?, phase),"
                " progress = coalesce(?, progress), result = coalesce(?, result),"
                " checkpoint = coalesce(?, checkpoint) WHERE id = ? RETURNING stop_requested_at",
                (
                    time.time(),
                    phase,
                    None if progress is None else _to_json(progress),
                    None if result is None else _to_json(result),
                    None if checkpoint is None else _to_json(checkpoint),
                    job.id,
                ),
            ).fetchone()
        return row is not None and row["stop_requested_at"] is not None

    def data_version(self) -> int:
        """A number that changes when another connection has written; costs microseconds to ask."""
        with self.read() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    # Engines

    def add_engine(self, engine: Engine) -> None:
        """Records an engine process that has just been started."""
        with self.write() as connection:
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
        with self.write() as connection:
            connection.execute("UPDATE engines SET ready_at = ? WHERE id = ?", (time.time(), engine_id))

    def engine_idle(self, engine_id: str) -> None:
        """Records that an engine has finished its job and takes another."""
        with self.write() as connection:
            connection.execute("UPDATE engines SET job = NULL WHERE id = ?", (engine_id,))

    def remove_engine(self, engine_id: str) -> None:
        """Forgets an engine process that has ended."""
        with self.write() as connection:
            connection.execute("DELETE FROM engines WHERE id = ?", (engine_id,))

    def engines(self) -> list[Engine]:
        """The engine processes that were started and not yet found ended."""
        with self.read() as connection:
            rows = connection.execute("SELECT * FROM engines ORDER BY started_at").fetchall()
        return [Engine(**row) for row in rows]


def _insert(connection: sqlite3.Connection, kind: Kind, config: dict[str, Any], **also: Any) -> str:
    """Adds a job, queued unless `also` says otherwise; a run gets the next place among the runs."""
    now = time.time()
    values = {
        "id": secrets.token_hex(4),
        "kind": kind,
        "status": Status.QUEUED,
        "config": _to_json(config),
        "created_at": now,
        "queued_at": now,
        **also,
    }
    connection.execute(
        f"INSERT INTO jobs ({', '.join(values)}, place) VALUES ({marks(list(values))},"
        " CASE WHEN ? THEN (SELECT coalesce(max(place), 0) + 1 FROM jobs) END)",
        (*values.values(), kind in RUNS),
    )
    return str(values["id"])


def _refused(job: Job, what: str) -> RunStateError:
    if not job.status.is_final:
        return RunStateError(
            f"Run {job.id} is {job.status}: it cannot be {what} now.", "Wait for its end, or stop it."
        )
    if job.kind is Kind.TRAIN and not job.checkpoint_epochs:
        return RunStateError(
            f"Run {job.id} has no checkpoint, so it cannot be {what}: one is written after each epoch.",
            "Start a new run with the same settings.",
        )
    other = "Extend it by some epochs." if job.status is Status.COMPLETED else "Resume it."
    return RunStateError(
        f"Run {job.id} is {job.status}: it cannot be {what}.", other if job.kind is Kind.TRAIN else ""
    )


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    for column in ("config", "result", "error", "progress", "tags", "checkpoint"):
        values[column] = None if values[column] is None else json.loads(values[column])
    scaling = None if values["scaling"] is None else Scaling(values["scaling"])
    return Job(
        **{**values, "kind": Kind(values["kind"]), "status": Status(values["status"]), "scaling": scaling}
    )


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False)
