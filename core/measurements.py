"""What jobs measure and say: their metrics, logs and samples, and the calibration of their epochs."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable

from core.database import Database, marks
from core.records import RUNS, ConfidenceBin, Job, LogLine, Metric, Sample


class Measurements(Database):
    """Reads what was measured. `core.store` writes it, together with the state of the job."""

    def metrics(self, job: Job, *, per: str, after: int = 0) -> list[Metric]:
        """A job's values in the order they were written.

        Args:
            job: Whose.
            per: ``step`` or ``epoch``.
            after: Only rows with a greater id: pass the last one seen.
        """
        with self.read() as connection:
            rows = connection.execute(
                "SELECT id, per, step, epoch, split, name, value, at FROM metrics"
                " WHERE job = ? AND per = ? AND id > ? ORDER BY id",
                (job.number, per, after),
            ).fetchall()
        return [Metric(**row) for row in rows]

    def step_values(
        self, job: Job, *, after: int = 0, limit: int = 100_000
    ) -> list[tuple[int, int, str, float | None]]:
        """Id, step, name and value of what was measured at each step, in the order it was written.

        A run may have millions: ask for them in portions, each time after the last id seen.
        """
        with self.read() as connection:
            cursor = connection.cursor()
            cursor.row_factory = None
            rows: list[tuple[int, int, str, float | None]] = cursor.execute(
                "SELECT id, step, name, value FROM metrics"
                " WHERE job = ? AND per = 'step' AND id > ? ORDER BY id LIMIT ?",
                (job.number, after, limit),
            ).fetchall()
        return rows

    def executions(self, job: Job) -> list[tuple[int, int, float]]:
        """The executions of a run's compiled training step, in order.

        Returns:
            Zero-based epoch, steps in the execution, and when it had ended. The steps of one execution are
            recorded together, so they share their time.
        """
        with self.read() as connection:
            rows = connection.execute(
                "SELECT epoch, count(*), at FROM metrics WHERE job = ? AND per = 'step' AND name = 'loss'"
                " GROUP BY epoch, at ORDER BY min(id)",
                (job.number,),
            ).fetchall()
        return [tuple(row) for row in rows]

    def samples(self, job: Job, *, after: int = 0) -> list[Sample]:
        """Values of the machine while a job ran, those with a greater id than `after`."""
        with self.read() as connection:
            rows = connection.execute(
                "SELECT id, at, step, name, value FROM samples WHERE job = ? AND id > ? ORDER BY id",
                (job.number, after),
            ).fetchall()
        return [Sample(**row) for row in rows]

    def confidence_bins(self, job: Job, epoch: int) -> list[ConfidenceBin]:
        """The bins of one zero-based epoch in rising order; none where calibration was not recorded."""
        with self.read() as connection:
            rows = connection.execute(
                "SELECT epoch, place, count, confidence_sum, correct FROM confidence_bins"
                " WHERE job = ? AND epoch = ? ORDER BY place",
                (job.number, epoch),
            ).fetchall()
        return [ConfidenceBin(**row) for row in rows]

    def last_metric_id(self, job: Job) -> int:
        """Id of the newest value of a job, 0 when it has none."""
        with self.read() as connection:
            row = connection.execute("SELECT max(id) FROM metrics WHERE job = ?", (job.number,)).fetchone()
        return row[0] or 0

    def epochs_done(self, job: Job) -> int:
        """How many epochs have been recorded whole."""
        with self.read() as connection:
            row = connection.execute(
                "SELECT count(DISTINCT epoch) FROM metrics WHERE job = ? AND per = 'epoch'", (job.number,)
            ).fetchone()
        return int(row[0])

    def best_epochs(self) -> dict[int, tuple[int, float]]:
        """Zero-based epoch and value of the lowest validation loss of every run, by the job's number."""
        with self.read() as connection:
            # CROSS JOIN keeps SQLite from scanning the metrics of every step.
            rows = connection.execute(
                f"""
                SELECT number, epoch, value FROM (
                    SELECT jobs.number, metrics.epoch, metrics.value,
                        row_number() OVER (PARTITION BY jobs.number ORDER BY value, epoch) AS rank
                    FROM jobs CROSS JOIN metrics ON metrics.job = jobs.number AND metrics.per = 'epoch'
                    WHERE jobs.kind IN ({marks(RUNS)}) AND metrics.split = 'validation'
                        AND metrics.name = 'loss' AND metrics.value IS NOT NULL
                ) WHERE rank = 1
                """,
                RUNS,
            ).fetchall()
        return {row["number"]: (row["epoch"], row["value"]) for row in rows}

    def logs(self, job: Job, *, after: int = 0, limit: int = 2_000) -> list[LogLine]:
        """The newest lines of a job's log after the line with id `after`, oldest first."""
        with self.read() as connection:
            rows = connection.execute(
                "SELECT id, at, level, source, text FROM logs WHERE job = ? AND id > ?"
                " ORDER BY id DESC LIMIT ?",
                (job.number, after, limit),
            ).fetchall()
        return [LogLine(**row) for row in reversed(rows)]


def add_metrics(connection: sqlite3.Connection, job: int, metrics: Iterable[Metric]) -> None:
    """Adds values to the job with this number."""
    connection.executemany(
        "INSERT INTO metrics (job, per, step, epoch, split, name, value, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(job, m.per, m.step, m.epoch, m.split, m.name, _finite(m.value), m.at) for m in metrics],
    )


def add_logs(connection: sqlite3.Connection, job: int, lines: Iterable[LogLine]) -> None:
    """Adds lines to the log of the job with this number."""
    connection.executemany(
        "INSERT INTO logs (job, at, level, source, text) VALUES (?, ?, ?, ?, ?)",
        [(job, line.at, line.level, line.source, line.text) for line in lines],
    )


def add_samples(connection: sqlite3.Connection, job: int, samples: Iterable[Sample]) -> None:
    """Adds values of the machine to the job with this number."""
    connection.executemany(
        "INSERT INTO samples (job, at, step, name, value) VALUES (?, ?, ?, ?, ?)",
        [(job, s.at, s.step, s.name, _finite(s.value)) for s in samples],
    )


def add_confidence_bins(connection: sqlite3.Connection, job: int, bins: Iterable[ConfidenceBin]) -> None:
    """Adds the calibration of epochs; an epoch that an engine repeats keeps its later values."""
    connection.executemany(
        "INSERT OR REPLACE INTO confidence_bins VALUES (?, ?, ?, ?, ?, ?)",
        [(job, b.epoch, b.place, b.count, b.confidence_sum, b.correct) for b in bins],
    )


def drop_after(connection: sqlite3.Connection, job: Job, epochs: int) -> None:
    """Deletes what a run measured after so many epochs, because it will measure that again."""
    for table in ("metrics", "confidence_bins"):
        connection.execute(f"DELETE FROM {table} WHERE job = ? AND epoch >= ?", (job.number, epochs))
    steps = epochs * int((job.result or {}).get("steps_per_epoch", 0))
    connection.execute("DELETE FROM samples WHERE job = ? AND step > ?", (job.number, steps or -1))
    connection.execute("UPDATE jobs SET rewinds = rewinds + 1 WHERE number = ?", (job.number,))


def _finite(value: float | None) -> float | None:
    # float() because sqlite3 would store a numpy number as bytes.
    return float(value) if value is not None and math.isfinite(value) else None
