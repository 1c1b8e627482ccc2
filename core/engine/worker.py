"""An engine process: imports TensorFlow, waits for a job, runs it in a thread and supervises that thread.

The main thread takes signals (Python delivers them nowhere else), beats the heart, watches for stop
requests and carries metrics and log lines to the store, so that no disk write stands in the training's
way.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import tensorflow as tf

from core import faults
from core.config import parse_config
from core.engine.callbacks import Diverged, Outbox, OutboxHandler, Stopped
from core.engine.jobs import DO, Task, insist
from core.engine.system import Sampler
from core.engine_logs import engine_log
from core.errors import ConfigError, LimitExceeded, MirrorboardError, StoreError
from core.launcher import ROLES
from core.processes import boot_id, is_alive
from core.records import ConfidenceBin, Job, Kind, LogLine, Metric, Sample, Status
from core.store import Store

_log = logging.getLogger("mirrorboard")

_IDLE_POLL_S = 0.02
_OWNER_POLL_S = 1.0
_REPORT_S = 0.2
_SAMPLE_S = 1.0
_STOP_GRACE_S = 1.5
"""How long a job may take to stop by itself before the process ends without it."""
_SAVE_GRACE_S = 60.0
"""The same, while the checkpoint of an epoch is written: a disk may be slow."""


class Worker:
    """One engine process.

    Args:
        store: Where jobs come from.
        role: Which kinds of job to take, see `core.launcher.ROLES`.
        engine_id: This engine's id in the store.
        owner: Pid and start time of the launcher's process; when it is gone, an idle engine ends.
    """

    def __init__(self, store: Store, role: str, engine_id: str, owner: tuple[int, float]) -> None:
        self._store = store
        self._role = role
        self._id = engine_id
        self._owner = owner
        self._stop = threading.Event()
        """Set by SIGTERM and SIGINT, by a stop request, and when a job has used up its time."""
        self._stderr = engine_log(store.home, engine_id)
        self._stderr_read = 0
        self._began = 0.0
        """When the job did, by the monotonic clock."""
        self._refused = ""
        """Why the store has not taken the last report."""
        self._metrics: list[Metric] = []
        self._logs: list[LogLine] = []
        self._samples: list[Sample] = []
        self._bins: list[ConfidenceBin] = []
        self._why: LimitExceeded | None = None
        """Why the job is stopped, where nobody asked for it."""

    def serve(self) -> None:
        """Runs jobs until there is no reason to go on: a layout engine runs one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        insist(lambda: self._store.engine_ready(self._id))
        while (job := self._next()) is not None:
            self._run(job)
            if self._role == "layout" or self._has_colleague():
                return
            insist(lambda: self._store.engine_idle(self._id))

    def _next(self) -> Job | None:
        """Waits for a job; None when the process should end."""
        seen, asked_owner = -1, 0.0
        while not self._stop.is_set():
            # A store that does not answer now may do so at the next look.
            with suppress(StoreError):
                version = self._store.data_version()
                if version != seen:
                    # Nobody would see how a job ends on an engine that its launcher has left.
                    if not self._has_owner():
                        return None
                    job = self._store.claim(ROLES[self._role], self._id)
                    if job is not None:
                        return job
                    seen = version
            if time.monotonic() - asked_owner > _OWNER_POLL_S:
                asked_owner = time.monotonic()
                if not self._has_owner():
                    return None
            self._stop.wait(_IDLE_POLL_S)
        return None

    def _has_owner(self) -> bool:
        return is_alive(*self._owner, boot_id())

    def _has_colleague(self) -> bool:
        return any(e.role == self._role and e.id != self._id for e in self._store.engines())

    def _run(self, job: Job) -> None:
        outbox = Outbox()
        outcome: list[Any] = []
        with _listening(outbox):
            sampler = _sampler(job)
            sampled_at = time.monotonic()
            task = Task(job, self._store, outbox, self._stop, self._stderr)
            self._began = time.monotonic()
            thread = threading.Thread(target=_guarded, args=(task, outcome), name="job", daemon=True)
            thread.start()
            stop_since = None
            while thread.is_alive():
                thread.join(_REPORT_S)
                if sampler is not None and time.monotonic() - sampled_at >= _SAMPLE_S:
                    sampled_at = time.monotonic()
                    self._take_samples(sampler, outbox)
                try:
                    if self._report(job, outbox):
                        self._stop.set()
                except StoreError as error:
                    self._tell_once(error)
                if self._time_is_up(job):
                    self._stop.set()
                if self._stop.is_set():
                    stop_since = stop_since or time.monotonic()
                    if time.monotonic() - stop_since > (_SAVE_GRACE_S if outbox.is_saving else _STOP_GRACE_S):
                        self._leave(job, outbox)
            insist(lambda: self._report(job, outbox))
        if outbox.logs:  # the store had taken nothing for a while, and takes it again
            insist(lambda: self._report(job, outbox))
        insist(lambda: self._finish(job, outcome[0]))

    def _time_is_up(self, job: Job) -> bool:
        """True when a job has gone on for as long as it may, in all."""
        took_s = job.trained_s + time.monotonic() - self._began
        if job.limit_s is None or took_s <= job.limit_s:
            return False
        self._why = LimitExceeded(
            f"Stopped after {job.limit_s / 60:,g} min, the longest that this server allows.",
            "What was recorded and its checkpoints are kept.",
        )
        return True

    def _take_samples(self, sampler: Sampler, outbox: Outbox) -> None:
        progress, now = outbox.progress or {}, time.time()
        step = progress.get("epoch", 0) * progress.get("steps", 0) + progress.get("step", 0)
        self._samples += [Sample(now, step, name, value) for name, value in sampler.sample().items()]

    def _report(self, job: Job, outbox: Outbox) -> bool:
        """Carries the outbox to the store.

        Returns:
            True when somebody has asked for the job to stop.

        Raises:
            StoreError: The store did not take it; it goes with the next report.
        """
        # Read first: whoever finds a checkpoint in the store finds its epoch's metrics there.
        checkpoint = outbox.checkpoint
        self._metrics += outbox.take_metrics()
        self._bins += outbox.take_bins()
        self._logs += [*outbox.take_logs(), *self._new_stderr()]
        phase, progress, result = outbox.phase, outbox.progress, outbox.result
        stop = self._store.report(
            job,
            phase=phase,
            progress=progress,
            result=result,
            metrics=self._metrics,
            logs=self._logs,
            samples=self._samples,
            bins=self._bins,
            checkpoint=checkpoint,
            elapsed_s=time.monotonic() - self._began,
        )
        self._metrics, self._logs, self._samples, self._bins = [], [], [], []
        if checkpoint is not None:
            outbox.stored_epochs = checkpoint["epochs"]
        if self._refused:
            self._refused = ""
            _log.info("The run store takes what is recorded again; what had waited is in it.")
        return stop

    def _tell_once(self, error: StoreError) -> None:
        """Logs why the store takes nothing, once for each reason: it is asked several times a second."""
        if str(error) != self._refused:
            self._refused = str(error)
            _log.warning("%s The job goes on, and what it records waits in memory.", error)

    def _new_stderr(self) -> list[LogLine]:
        """Whole lines that native code has written since the last look."""
        try:
            with self._stderr.open("rb") as file:
                file.seek(self._stderr_read)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._stderr_read += len(whole)
        now = time.time()
        return [
            LogLine(now, "info", "stderr", line) for line in whole.decode("utf-8", "replace").splitlines()
        ]

    def _finish(self, job: Job, outcome: Any) -> None:
        match outcome:
            case Stopped():
                self._store.finish(job.id, Status.STOPPED, error=self._why)
            case MirrorboardError():
                self._store.finish(job.id, Status.FAILED, error=outcome)
            case Diverged():
                job = self._store.job(job.id)  # with the checkpoints that it has got meanwhile
                self._store.finish(job.id, Status.DIVERGED, error=faults.diverged(job, str(outcome)))
            case BaseException():
                details = "".join(traceback.format_exception(outcome))
                error = faults.raised(self._store.job(job.id), outcome)
                self._store.finish(job.id, Status.FAILED, error=error, details=details)
            case _:
                # A run that was asked to stop in its last moment has still done all it had to.
                self._store.finish(job.id, Status.COMPLETED, result=outcome)

    def _leave(self, job: Job, outbox: Outbox) -> None:
        """Ends the process under a job that does not stop, say while TensorFlow builds its graph."""
        insist(lambda: self._report(job, outbox))
        insist(lambda: self._store.finish(job.id, Status.STOPPED, error=self._why))
        os._exit(0)


@contextmanager
def _listening(outbox: Outbox) -> Iterator[None]:
    """Keeps what TensorFlow, this project and Python's warnings log."""
    handler = OutboxHandler(outbox)
    loggers = [tf.get_logger(), _log, logging.getLogger("py.warnings")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _guarded(task: Task, outcome: list[Any]) -> None:
    """An exception in a thread goes unseen (``join`` returns normally); this one keeps it."""
    try:
        outcome.append(DO[task.job.kind](task))
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it goes into the run's record
        outcome.append(error)


def _sampler(job: Job) -> Sampler | None:
    """What samples the machine during a training; an invalid configuration fails where it is read."""
    try:
        return Sampler(parse_config(job.config).layout) if job.kind is Kind.TRAIN else None
    except ConfigError:
        return None


@click.command()
@click.option("--home", type=Path, required=True)
@click.option("--role", type=click.Choice(sorted(ROLES)), required=True)
@click.option("--id", "engine_id", required=True)
@click.option("--owner", type=int, required=True)
@click.option("--owner-started-at", type=float, required=True)
def main(home: Path, role: str, engine_id: str, owner: int, owner_started_at: float) -> None:
    """Started by `core.launcher`; not meant to be started by hand."""
    # TensorFlow's own lines about strategies come at INFO; its logger's default is WARNING.
    tf.get_logger().setLevel(logging.INFO)
    tf.get_logger().propagate = False
    _log.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    if role == "desk":
        # It builds models, and TensorFlow would take all memory of every GPU for them, beside the run that
        # needs it. The physical devices are listed all the same (TensorFlow 2.21, `tf.config`).
        tf.config.set_visible_devices([], "GPU")
    # What the imports made stays: every garbage collection would look through it in vain.
    gc.collect()
    gc.freeze()
    try:
        store = insist(lambda: Store(home))
        Worker(store, role, engine_id, (owner, owner_started_at)).serve()
    except StoreError as error:
        raise SystemExit(str(error)) from error
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow's threads sometimes crash while the interpreter is taken down; there is nothing left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
