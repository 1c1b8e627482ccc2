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
    EXPORT = "export"
    """Write a run's model or curves for other programs."""
    EVALUATE = "evaluate"
    """Predict the newswires that a run was validated on."""
    CLASSIFY = "classify"
    """Ask a run's model about one newswire."""
    IMPORT = "import"
    """A training from elsewhere, of which the log was read."""


RUNS = (Kind.TRAIN, Kind.IMPORT)
"""Jobs with curves to look at."""


class Status(StrEnum):
    """Where a job stands. See `core.transitions` for the changes that are possible."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    DIVERGED = "diverged"
    """The loss is no finite number any more."""
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """True when no engine has the job or will take it: it does not change by itself any more."""
        return self not in (Status.QUEUED, *ACTIVE)


ACTIVE = (Status.RUNNING, Status.STOPPING, Status.PAUSING)
"""An engine has the job."""


class Scaling(StrEnum):
    """What stays the same in a scaling study while replicas are added."""

    STRONG = "strong"
    """The global batch size."""
    WEAK = "weak"
    """The per-replica batch size."""


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
    checkpoint: dict[str, Any] | None
    """Of a run: ``epochs`` behind its newest checkpoint, ``best_epoch`` (one-based) and ``best_val_loss`` so
    far, and the ``problem`` where the last attempt to write one failed."""
    rewinds: int
    """How often rows of a run were taken back; who reads them by cursor then begins anew."""
    trained_s: float
    """Seconds that a run took before it was last queued again."""
    queued_at: float
    study: str | None
    """Id of the scaling study that a run belongs to; the same for all its runs."""
    scaling: Scaling | None
    """Kind of that study."""
    elapsed_s: float | None
    """Seconds since the job was claimed, by the engine's monotonic clock as of its last heartbeat."""
    owner: str
    """`core.access.Person.id` of who asked for it; empty on a laptop and on the command line."""
    limit_s: float | None
    """Seconds that it may take in all; None without a limit."""
    layout_changed: bool
    """Whether a run has gone on with another device layout than it began with."""
    pid: int | None
    """Of the engine process, while the job runs."""

    @property
    def title(self) -> str:
        """What people call the run: its name, else its id."""
        return self.name or self.id

    @property
    def duration_s(self) -> float | None:
        """Seconds from the claim to the end, or to now; of a resumed run without the time in between."""
        if self.elapsed_s is not None:
            return self.trained_s + self.elapsed_s
        if self.started_at is None:
            return self.trained_s or None
        # Of a run that came without: somebody may have set the clock meanwhile.
        return self.trained_s + max(0.0, (self.finished_at or time.time()) - self.started_at)

    @property
    def checkpoint_epochs(self) -> int:
        """Epochs behind the newest checkpoint; 0 without one."""
        return self.checkpoint["epochs"] if self.checkpoint else 0

    @property
    def can_resume(self) -> bool:
        """True for a run that ended before its last epoch and can go on. A paused one always can."""
        ended = self.status in (Status.STOPPED, Status.FAILED, Status.LOST)
        return self.status is Status.PAUSED or (ended and self.checkpoint_epochs > 0)

    @property
    def can_extend(self) -> bool:
        """True for a run that has ended as it should and can be given more epochs."""
        return self.status in (Status.COMPLETED, Status.STOPPED) and self.checkpoint_epochs > 0


@dataclass(frozen=True)
class Engine:
    """An engine process. `role` says which kinds of job it takes."""

    id: str
    role: str
    pid: int
    pid_started_at: float
    """As `core.processes.started_at` tells it."""
    owner_pid: int
    started_at: float
    ready_at: float | None
    job: str | None
    boot_id: str = ""
    """Of the machine's start that the process belongs to."""


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
