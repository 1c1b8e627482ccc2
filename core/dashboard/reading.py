"""What was recorded of a run, read once for everybody who looks at it, and only what is new."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from core import report
from core.analysis.calibration import ERROR
from core.analysis.overfitting import Diagnosis, diagnose
from core.dashboard.charts import Series
from core.records import ACTIVE, Job, Kind, LogLine, Status
from core.store import Store

_FRESH_S = 0.5
"""Within this time a second viewer gets what the first one's refresh has read."""
_STARTING_S = 30.0
"""Without a sign of an engine for so long, a start is not expected at any moment any more."""
_MOST_LINES = 200
"""Lines of the log that are shown."""


class Versions(NamedTuple):
    """What is shown of a run; each is another number when it has changed.

    Attributes:
        step: Progress, and what was measured.
        epoch: What is known of whole epochs.
        log: Its lines.
        page: The status, or which parts the page has.
    """

    step: int = 0
    epoch: int = 0
    log: int = 0
    page: int = 0


class Reading:
    """A run's rows so far, and its diagnosis. Any number of threads may use one instance.

    Args:
        store: Where the run is.
        run_id: Which.

    Raises:
        RunNotFound: There is no such run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._read_at = 0.0
        self._heard_at = time.monotonic()
        self.job: Job = store.run(run_id)
        self._is_next = False
        self.versions = Versions()
        self._forget()

    def _forget(self) -> None:
        self._last_id = {"step": 0, "epoch": 0, "sample": 0, "log": 0}
        self._steps: dict[str, Series] = {}
        self._samples: dict[str, Series] = {}
        self.history: list[dict[str, Any]] = []
        self.diagnosis: Diagnosis = diagnose([])
        self.log: tuple[LogLine, ...] = ()

    def refresh(self) -> None:
        """Reads what was written since the last look, unless somebody has just done so."""
        if time.monotonic() - self._read_at < _FRESH_S and not self._has_just_changed():
            return
        with self._reading:
            if time.monotonic() - self._read_at < _FRESH_S and not self._has_just_changed():
                return  # somebody has read while this one waited
            before, self.job = self.job, self._store.job(self.job.id)
            if self.job.rewinds != before.rewinds:
                self._forget()
            self._is_next = self.job.status is Status.QUEUED and not self._store.ahead_of(self.job)
            seen, shape = dict(self._last_id), self._shape
            self._read_steps()
            self._read_epochs()
            self._read_samples()
            self._read_log()
            # A heartbeat alone is nothing to look at.
            same = replace(before, heartbeat_at=self.job.heartbeat_at, elapsed_s=self.job.elapsed_s)
            if self.job.heartbeat_at != before.heartbeat_at:
                self._heard_at = time.monotonic()
            moved = self.job != same
            same = replace(
                same, progress=self.job.progress, phase=self.job.phase, checkpoint=self.job.checkpoint
            )
            self.versions = Versions(
                step=self.versions.step + (moved or {**self._last_id, "log": 0} != {**seen, "log": 0}),
                epoch=self.versions.epoch + (self._last_id["epoch"] != seen["epoch"]),
                log=self.versions.log + (self._last_id["log"] != seen["log"]),
                page=self.versions.page + (self.job != same or self._shape != shape),
            )
            self._read_at = time.monotonic()

    @property
    def _shape(self) -> tuple[Any, ...]:
        """Tells which parts of the page there are."""
        problem = (self.job.checkpoint or {}).get("problem")
        return bool(self.history), self.diagnosis.best_epoch is not None, self.has_calibration, problem

    def _has_just_changed(self) -> bool:
        """A stop request must be seen at once by the one who made it."""
        return self._store.job(self.job.id).status is not self.job.status

    def _read_steps(self) -> None:
        while rows := self._store.step_values(self.job, after=self._last_id["step"]):
            ids, steps, names, values = zip(*rows, strict=True)
            _extend(self._steps, steps, names, values)
            self._last_id["step"] = ids[-1]

    def _read_epochs(self) -> None:
        epochs = self._store.metrics(self.job, per="epoch", after=self._last_id["epoch"])
        if epochs:
            self.history = report.history(self._store, self.job)
            self._last_id["epoch"] = epochs[-1].id
        if epochs or self.job.status is Status.DIVERGED:  # which comes between two epochs
            self.diagnosis = report.diagnosis(self.job, self.history)

    def _read_samples(self) -> None:
        samples = self._store.samples(self.job, after=self._last_id["sample"])
        if samples:
            columns = zip(*((sample.step, sample.name, sample.value) for sample in samples), strict=True)
            _extend(self._samples, *columns)
            self._last_id["sample"] = samples[-1].id

    def _read_log(self) -> None:
        lines = self._store.logs(self.job, after=self._last_id["log"], limit=_MOST_LINES)
        if lines:
            # A new one: others may be going through the one before.
            self.log = (*self.log, *lines)[-_MOST_LINES:]
            self._last_id["log"] = lines[-1].id

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last heartbeat, as this process has seen it; 0 without an engine.

        The times in the store would say otherwise whenever somebody sets the clock.
        """
        return time.monotonic() - self._heard_at if self.job.status in ACTIVE else 0.0

    @property
    def is_starting(self) -> bool:
        """Whether the first step is about to come: nothing is before the run, and there is life in it."""
        if self._steps or time.monotonic() - self._heard_at > _STARTING_S:
            return False
        return self._is_next or self.job.status is Status.RUNNING

    @property
    def steps_per_epoch(self) -> int:
        """Training steps in an epoch; 1 until the engine says it, 0 where a log from elsewhere does not."""
        return 0 if self.job.kind is Kind.IMPORT else int((self.job.result or {}).get("steps_per_epoch") or 1)

    @property
    def has_calibration(self) -> bool:
        """Whether the expected calibration error was recorded."""
        return any(f"val_{ERROR}" in row for row in self.history)


def _extend(
    series: dict[str, Series], steps: Sequence[int], names: Sequence[str], values: Sequence[float | None]
) -> None:
    all_steps, all_names = np.array(steps, np.int64), np.array(names)
    all_values = np.array(values, np.float64)  # None becomes NaN
    for name in dict.fromkeys(names):
        its = all_names == name
        series.setdefault(name, Series()).extend(all_steps[its], all_values[its])
