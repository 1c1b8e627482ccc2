"""Carries what happens inside ``fit`` out to the supervising thread, without waiting for anything."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from core.analysis.calibration import ERROR, bars, expected_calibration_error
from core.engine.metrics import CALIBRATION_SUMS, STEP_COLUMNS, STEP_SUMS
from core.engine.pipeline import Batches
from core.records import ConfidenceBin, LogLine, Metric


class Stopped(Exception):
    """Leaves ``fit`` at once. Keras's own ``stop_training`` would still run a whole validation pass."""


class Diverged(Exception):
    """Leaves ``fit`` because the loss is no finite number any more; its text says since when."""


@dataclass
class Outbox:
    """What the job's thread has to say; the supervising thread takes it to the store.

    Assignments and deque operations are atomic, so neither side ever waits for the other.
    """

    phase: str | None = None
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    stored_epochs: int = 0
    """Epochs of the newest checkpoint that the store knows of; set by the supervising thread."""
    is_saving: bool = False
    """Whether the checkpoint of a whole epoch is still to be written."""
    steps: deque[tuple[int, int, np.ndarray, float]] = field(default_factory=deque)
    """First global step, epoch, sums of shape (steps, columns), time."""
    metrics: deque[Metric] = field(default_factory=deque)
    bins: deque[ConfidenceBin] = field(default_factory=deque)
    logs: deque[LogLine] = field(default_factory=deque)

    def take_metrics(self) -> list[Metric]:
        """Empties the queues into rows for the store."""
        rows: list[Metric] = []
        while self.steps:
            first, epoch, sums, at = self.steps.popleft()
            means = sums[:, 1:] / sums[:, :1]
            for i, values in enumerate(means.tolist()):
                for name, value in zip(STEP_COLUMNS[1:], values, strict=True):
                    rows.append(Metric("step", first + i, epoch, "train", name, value, at))
        while self.metrics:
            rows.append(self.metrics.popleft())
        return rows

    def take_bins(self) -> list[ConfidenceBin]:
        """Empties the queue of confidence bins."""
        return [self.bins.popleft() for _ in range(len(self.bins))]

    def take_logs(self) -> list[LogLine]:
        """Empties the queue of log lines."""
        return [self.logs.popleft() for _ in range(len(self.logs))]


class OutboxHandler(logging.Handler):
    """Keeps log records as lines of the job's log."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.INFO)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one."""
        source = "mirrorboard" if record.name == "mirrorboard" else "tensorflow"
        line = LogLine(record.created, record.levelname.lower(), source, record.getMessage())
        self._outbox.logs.append(line)


class Reporter(keras.callbacks.Callback):
    """Puts every step, every epoch and the progress into an outbox, and ends the fit when asked to.

    Args:
        outbox: Where to.
        training: The training batches.
        validation: The validation batches.
        epochs: Epochs to train.
        stop: Set by the supervising thread.
        first_epoch: Zero-based epoch that the fit begins with.
    """

    def __init__(
        self,
        outbox: Outbox,
        training: Batches,
        validation: Batches,
        epochs: int,
        stop: threading.Event,
        *,
        first_epoch: int,
    ) -> None:
        super().__init__()
        self._outbox = outbox
        self._training = training
        self._validation = validation
        self._epochs = epochs
        self._stop = stop
        self._first_epoch = first_epoch
        self._epoch = first_epoch
        self._step = 0
        self._validation_step: int | None = None
        self._epoch_began = self._mark = time.perf_counter()
        self._step_s: float | None = None
        self._validation_s: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts from the beginning again."""
        self._epoch, self._step, self._validation_step = epoch, 0, None
        self._epoch_began = self._mark = time.perf_counter()
        first = epoch == self._first_epoch
        self._outbox.phase = "building the graph, the first epoch is slower" if first else "training"
        self._tell()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Hands over the sums of the steps since the last call."""
        sums = self.model.taken.numpy()[: self._training.steps - self._step]
        first = self._epoch * self._training.steps + self._step
        self._outbox.steps.append((first, self._epoch, sums, time.time()))
        if not math.isfinite(sums[:, 1].sum()):
            at = int(np.isfinite(sums[:, 1]).argmin())
            value = "not a number (NaN)" if np.isnan(sums[at, 1]) else "infinite"
            raise Diverged(
                f"The loss is {value} at step {self._step + at + 1:,} of epoch {self._epoch + 1:,}"
            )
        now = time.perf_counter()
        if self._step or self._epoch > self._first_epoch:
            step_s = (now - self._mark) / len(sums)
            self._step_s = step_s if self._step_s is None else 0.8 * self._step_s + 0.2 * step_s
        else:
            self._outbox.phase = "training"
        self._mark = now
        self._step += len(sums)
        self._tell()
        if self._stop.is_set():
            raise Stopped

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Validation begins."""
        self._validation_step = 0
        self._mark = time.perf_counter()
        self._outbox.phase = "validating"
        self._tell()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts validation steps, and leaves in the middle of them when asked to."""
        self._validation_step = min(batch + 1, self._validation.steps)
        self._tell()
        if self._stop.is_set():
            raise Stopped

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Remembers how long validation takes, for the time left."""
        self._validation_s = time.perf_counter() - self._mark

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Hands over the epoch's metrics."""
        assert logs is not None
        at = time.time()
        step = (epoch + 1) * self._training.steps - 1
        # The bins first: whoever sees the epoch's metrics in the store finds them there.
        sums = np.asarray(logs[f"val_{CALIBRATION_SUMS}"])
        self._outbox.bins += [
            ConfidenceBin(epoch, place, int(count), confidence, int(correct))
            for place, (count, confidence, correct) in enumerate(sums.tolist())
        ]
        error = expected_calibration_error(bars(sums))
        self._outbox.metrics.append(Metric("epoch", step, epoch, "validation", ERROR, error, at))
        for name, value in logs.items():
            if name.endswith((STEP_SUMS, CALIBRATION_SUMS)):
                continue
            split = "validation" if name.startswith("val_") else "train"
            row = Metric("epoch", step, epoch, split, name.removeprefix("val_"), float(value), at)
            self._outbox.metrics.append(row)
        duration_s = time.perf_counter() - self._epoch_began
        self._outbox.metrics.append(Metric("epoch", step, epoch, "train", "duration_s", duration_s, at))
        if not np.isfinite(logs["val_loss"]):
            # Before the epoch's checkpoint is written: the one before is worth more.
            raise Diverged(f"The validation loss is not a finite number after epoch {epoch + 1:,}")

    def _tell(self) -> None:
        steps, rows = self._training.steps, self._training.examples
        remaining_s = None
        if self._step_s is not None and self._validation_s is not None:
            ahead = (self._epochs - self._epoch - 1) * (steps * self._step_s + self._validation_s)
            left = self._validation.steps - (self._validation_step or 0)
            validation = self._validation_s * left / self._validation.steps
            remaining_s = ahead + (steps - self._step) * self._step_s + validation
        self._outbox.progress = {
            "epoch": self._epoch,
            "epochs": self._epochs,
            "step": self._step,
            "steps": steps,
            "validation_step": self._validation_step,
            "validation_steps": self._validation.steps,
            "step_ms": None if self._step_s is None else self._step_s * 1e3,
            "examples_per_s": None if self._step_s is None else rows / steps / self._step_s,
            "remaining_s": remaining_s,
        }
