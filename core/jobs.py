"""Reading the job table: single jobs, lists, the queue, and scaling studies."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from core.database import marks
from core.errors import RunNotFound, StoreError
from core.measurements import Measurements
from core.processes import Processes
from core.records import ACTIVE, RUNS, Job, Kind, Scaling, Status
from core.words import shown


class Jobs(Measurements, Processes):
    """What the job table holds."""

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

    def run(self, run_id: str) -> Job:
        """The run with this id.

        Raises:
            RunNotFound: There is none, or it is another job's.
        """
        job = self.job(run_id)
        if job.kind not in RUNS:
            raise RunNotFound(
                f"{shown(run_id)} is no run but a job of kind {job.kind}.",
                "List the runs with `python -m core runs`, or on the page Training.",
            )
        return job

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

    def data_version(self) -> int:
        """A number that changes when another connection has written; costs microseconds to ask."""
        with self.read() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return version


def _job(row: sqlite3.Row) -> Job:
    """Makes a record of a row.

    Raises:
        StoreError: The row holds what no Mirrorboard has written.
    """
    try:
        job = _read(row)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"The run store's row of job {shown(row['id'])} is damaged ({error}).",
            f"Delete it with `python -m core delete {row['id']}`, or restore a backup.",
        ) from None
    if not isinstance(job.config, dict) or not isinstance(job.progress, dict):
        raise StoreError(
            f"The run store's row of job {shown(row['id'])} is damaged (it has no settings).",
            f"Delete it with `python -m core delete {row['id']}`, or restore a backup.",
        )
    return job


def _read(row: sqlite3.Row) -> Job:
    values = dict(row)
    for column in ("config", "result", "error", "progress", "tags", "checkpoint"):
        values[column] = None if values[column] is None else json.loads(values[column])
    scaling = None if values["scaling"] is None else Scaling(values["scaling"])
    return Job(
        **{
            **values,
            "kind": Kind(values["kind"]),
            "status": Status(values["status"]),
            "scaling": scaling,
            "layout_changed": bool(values["layout_changed"]),
        }
    )
