"""The run store: one SQLite file that the dashboard, the command line and the engines share.

Work is a row in the table ``jobs``. Whoever wants something done inserts a row; an engine process claims
it in one transaction, runs it and writes the outcome. A run is a job of kind ``train``, or of kind
``import``: a training from elsewhere, over from the start. Nothing but this module, those its class is made
of, and `core.backup` speaks SQL.
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

from core.database import marks
from core.measurements import add_confidence_bins, add_logs, add_metrics, add_samples
from core.records import RUNS, ConfidenceBin, Job, Kind, LogLine, Metric, Sample, Scaling, Status
from core.transitions import Transitions, queue_time, to_json


def default_home() -> Path:
    """The folder of the store: ``$MIRRORBOARD_HOME``, or ``.mirrorboard`` beside the app."""
    return Path(os.environ.get("MIRRORBOARD_HOME") or Path(__file__).parent.parent / ".mirrorboard")


class Store(Transitions):
    """Reads and writes the run store. One instance may be used by any number of threads."""

    def submit(self, kind: Kind, config: dict[str, Any]) -> str:
        """Queues a job.

        Args:
            kind: What to do.
            config: What the job needs to know, as plain JSON values.

        Returns:
            The job's id.
        """
        with self.write() as connection:
            return _insert(connection, kind, config, **self._asked())

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
                _insert(connection, Kind.TRAIN, config, study=study, scaling=scaling, **self._asked())
        return study

    def _asked(self) -> dict[str, Any]:
        """What a new job keeps of who asked for it."""
        return {"owner": self.owner, "limit_s": self.limit_s}

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
                owner=self.owner,
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
        """Deletes runs with all that was measured, kept, exported and predicted; spares those that go on.

        Returns:
            The ids of those that were deleted.
        """
        busy = [status for status in Status if not status.is_final]
        job_ids = [job_id for job_id in job_ids if job_id.isascii()]
        with self.write() as connection:
            rows = connection.execute(
                f"DELETE FROM jobs WHERE id IN ({marks(job_ids)}) AND kind IN ({marks(RUNS)})"
                f" AND status NOT IN ({marks(busy)}) RETURNING id",
                (*job_ids, *RUNS, *busy),
            ).fetchall()
            gone = [row["id"] for row in rows]
            # What was asked about them: exports, evaluations.
            connection.execute(
                f"DELETE FROM jobs WHERE json_valid(config) AND status NOT IN ({marks(busy)})"
                f" AND json_extract(config, '$.run_id') IN ({marks(gone)})",
                (*busy, *gone),
            )
        for row in rows:
            shutil.rmtree(self.checkpoints(row["id"]), ignore_errors=True)
        return gone

    def checkpoints(self, job_id: str) -> Path:
        """The folder of a run's checkpoints."""
        return self.home / "checkpoints" / job_id

    def sweep_checkpoints(self) -> None:
        """Removes checkpoints of runs that are not in the store, such as when deleting was interrupted."""
        # The folders first: a run is in the store before it has one.
        folders = list((self.home / "checkpoints").glob("*"))
        known = {job.id for job in self.jobs(kinds=RUNS)}
        for folder in folders:
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

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
        elapsed_s: float | None = None,
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
            elapsed_s: What `Job.elapsed_s` is to be; None keeps the last.

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
                " checkpoint = coalesce(?, checkpoint), elapsed_s = coalesce(?, elapsed_s)"
                " WHERE id = ? RETURNING stop_requested_at",
                (
                    time.time(),
                    phase,
                    None if progress is None else to_json(progress),
                    None if result is None else to_json(result),
                    None if checkpoint is None else to_json(checkpoint),
                    elapsed_s,
                    job.id,
                ),
            ).fetchone()
        return row is not None and row["stop_requested_at"] is not None


def _insert(connection: sqlite3.Connection, kind: Kind, config: dict[str, Any], **also: Any) -> str:
    """Adds a job, queued unless `also` says otherwise; a run gets the next place among the runs."""
    now = time.time()
    values = {
        "id": secrets.token_hex(4),
        "kind": kind,
        "status": Status.QUEUED,
        "config": to_json(config),
        "created_at": now,
        "queued_at": queue_time(connection),
        **also,
    }
    connection.execute(
        f"INSERT INTO jobs ({', '.join(values)}, place) VALUES ({marks(list(values))},"
        " CASE WHEN ? THEN (SELECT coalesce(max(place), 0) + 1 FROM jobs) END)",
        (*values.values(), kind in RUNS),
    )
    return str(values["id"])
