"""The rows of the run store: jobs, the engines that do them, and what they measure and say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
    STEP = "step"
    """Take one training step apart."""
    TRAIN = "train"
    IMPORT = "import"
    """A training from elsewhere, of which the log was read."""


RUNS = (Kind.TRAIN, Kind.IMPORT)
"""Jobs with curves to look at."""


class Status(StrEnum):
    """Where a job stands. See `core.store` for the changes that are possible."""

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
    tags: list[str]
    """Of a run: words to find it by, sorted."""
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
class ConfidenceBin:
    """Predictions of an epoch's validation whose confidence lies in one of the bins of equal width."""

    epoch: int
    place: int
    """Of the bin, from zero; all bins of an epoch are recorded, empty ones too."""
    count: int
    confidence_sum: float
    correct: int
    """How many of the predictions are."""


@dataclass(frozen=True)
class LogLine:
    """One line of a job's log. `source` is ``mirrorboard``, ``tensorflow`` or ``stderr``."""

    at: float
    level: str
    source: str
    text: str
    id: int = 0
