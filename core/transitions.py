"""How a job moves from one status to another, each change in one transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from core.config import DeviceLayout, RunConfig, parse_config
from core.database import marks
from core.errors import ConfigError, MirrorboardError, RunStateError
from core.jobs import Jobs
from core.measurements import drop_after
from core.records import ACTIVE, Job, Kind, Status

_FROM: dict[Status, tuple[Status, ...]] = {
    Status.RUNNING: (Status.QUEUED,),
    Status.STOPPING: (Status.RUNNING, Status.PAUSING),
    Status.PAUSING: (Status.RUNNING,),
    Status.PAUSED: (Status.PAUSING,),
    Status.COMPLETED: ACTIVE,
    Status.STOPPED: (Status.QUEUED, *ACTIVE),
    Status.FAILED: (Status.QUEUED, *ACTIVE),
    Status.DIVERGED: ACTIVE,
    Status.LOST: ACTIVE,
    # A run that goes on; `Job.can_resume` and `Job.can_extend` say when.
    Status.QUEUED: (Status.PAUSED, Status.STOPPED, Status.FAILED, Status.LOST, Status.COMPLETED),
}


class Transitions(Jobs):
    """Changes jobs' statuses.

    Attributes:
        owner: Whose the jobs are that are queued through this instance.
        limit_s: How long each of them may take; None without a limit.
    """

    owner = ""
    limit_s: float | None = None

    def claim(self, kinds: Sequence[Kind], engine_id: str) -> Job | None:
        """Takes the oldest queued job of these kinds for an engine; of training runs only one at a time.

        Returns:
            The job, now running, or None when there is nothing to do or the engine was retired. Asked again
            because the store did not answer, it is the same job.
        """
        with self.write() as connection:
            engine = connection.execute(
                f"""
                SELECT jobs.id AS job FROM engines LEFT JOIN jobs
                ON jobs.id = engines.job AND jobs.engine_id = engines.id AND jobs.status IN ({marks(ACTIVE)})
                WHERE engines.id = ?
                """,
                (*ACTIVE, engine_id),
            ).fetchone()
            if engine is None:
                return None
            job_id = engine["job"] or self._take(connection, kinds, engine_id)
        return None if job_id is None else self.job(job_id)

    def _take(self, connection: sqlite3.Connection, kinds: Sequence[Kind], engine_id: str) -> str | None:
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
        job_id: str = row["id"]
        now = time.time()
        self._change(
            connection, job_id, Status.RUNNING, started_at=now, heartbeat_at=now, engine_id=engine_id
        )
        connection.execute("UPDATE engines SET job = ? WHERE id = ?", (job_id, engine_id))
        return job_id

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

        Raises:
            RunNotFound: There is no such job.
        """
        self.job(job_id)
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
        if self.job(job_id).kind is not Kind.TRAIN:
            raise RunStateError(f"{job_id} is no training, so it cannot be paused.", "Stop it instead.")
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
            config, changed = job.config, job.layout_changed
            if layout is not None:
                before = parse_config(config)
                config = before.on(layout).model_dump(mode="json")
                changed = changed or layout != before.layout
            self._requeue(connection, job, config, layout_changed=changed)
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
            config = parse_config(extended(job, epochs).model_dump(mode="json"))
            self._requeue(connection, job, config.model_dump(mode="json"))
        return job_id

    def _requeue(self, connection: sqlite3.Connection, job: Job, config: dict[str, Any], **also: Any) -> None:
        """Queues a run again in the caller's transaction; it keeps what its checkpoint has behind it."""
        result = {name: value for name, value in (job.result or {}).items() if name != "early_stop"}
        self._change(
            connection,
            job.id,
            Status.QUEUED,
            config=to_json(config),
            result=to_json(result) if result else None,
            queued_at=queue_time(connection),
            trained_s=job.duration_s or 0,
            limit_s=self.limit_s,
            phase="",
            progress="{}",
            **also,
            **dict.fromkeys(
                (
                    "started_at",
                    "finished_at",
                    "heartbeat_at",
                    "elapsed_s",
                    "engine_id",
                    "stop_requested_at",
                    "error",
                )
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
            status: A final status. A run that was asked to pause and is stopped without an error
                ends as paused.
            result: What came out, as plain JSON values; None keeps what is there.
            error: Why it failed.
            details: A traceback or the engine's last lines, for the log and for developers; the error's own
                where there is none.

        Returns:
            False when the job had ended already.
        """
        about = None
        if error is not None:
            about = to_json(
                {
                    "type": type(error).__name__,
                    "message": error.message,
                    "hint": error.hint,
                    "field": getattr(error, "field", ""),
                    "details": details or error.details,
                }
            )
        with self.write() as connection:
            paused = status is Status.STOPPED and error is None
            if paused and self._change(connection, job_id, Status.PAUSED, finished_at=time.time()):
                return True
            done = self._change(connection, job_id, status, finished_at=time.time(), error=about)
            if status is Status.LOST and done:
                # Nobody knows when it ended; the time until somebody noticed is not training.
                connection.execute(
                    "UPDATE jobs SET finished_at = coalesce(heartbeat_at, finished_at) WHERE id = ?",
                    (job_id,),
                )
            if done and result is not None:
                connection.execute("UPDATE jobs SET result = ? WHERE id = ?", (to_json(result), job_id))
        return done


def extended(run: Job, epochs: int) -> RunConfig:
    """The configuration of a run that trains so many epochs more than it has kept; they may be too many."""
    config = parse_config(run.config)
    training = config.training.model_copy(update={"epochs": run.checkpoint_epochs + epochs})
    return config.model_copy(update={"training": training})


def _refused(job: Job, what: str) -> RunStateError:
    if not job.status.is_final:
        return RunStateError(
            f"Run {job.id} is {job.status}: it cannot be {what} now.", "Wait for its end, or stop it."
        )
    if job.status is Status.DIVERGED:
        return RunStateError(
            f"Run {job.id} has diverged: it cannot be {what}, the same settings would lead there again.",
            "Start a new run with a lower learning rate.",
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


def queue_time(connection: sqlite3.Connection) -> float:
    """Now; when the clock was set back, just after the last of the queue, so that nobody overtakes."""
    (last,) = connection.execute("SELECT max(queued_at) FROM jobs WHERE status = 'queued'").fetchone()
    return max(time.time(), (last or 0.0) + 1e-6)


def to_json(value: dict[str, Any]) -> str:
    """A column's text; what JSON cannot hold is refused here and not by a reader."""
    return json.dumps(value, allow_nan=False)
