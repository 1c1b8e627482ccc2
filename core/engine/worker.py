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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import keras
import tensorflow as tf

from core import predictions
from core.config import RunConfig, parse_config
from core.corpus import CLASSES, VOCABULARY
from core.engine import datasets, devices, layout, models
from core.engine.callbacks import Outbox, Stopped
from core.engine.checkpoints import Checkpoints
from core.engine.evaluation import classify, predict
from core.engine.exports import export_event_files, export_model
from core.engine.fit import train
from core.engine.models import ReplicatedModel
from core.engine.one_step import take_apart
from core.engine.system import Sampler
from core.engine.trained import trained
from core.errors import ConfigError, MirrorboardError, StoreError, TrainingError
from core.exports import exported
from core.launcher import ROLES, engine_log, is_alive
from core.records import ConfidenceBin, Job, Kind, LogLine, Metric, Sample, Status
from core.store import Store

_log = logging.getLogger("mirrorboard")
_Result = TypeVar("_Result")

_IDLE_POLL_S = 0.02
_OWNER_POLL_S = 1.0
_REPORT_S = 0.2
_SAMPLE_S = 1.0
_STORE_PATIENCE_S = 300.0
"""How long the end of a job waits for a store that another program holds."""
_STOP_GRACE_S = 1.5
"""How long a job may take to stop by itself before the process ends without it."""


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
        """Set by SIGTERM and SIGINT, and by a stop request."""
        self._stderr = engine_log(store.home, engine_id)
        self._stderr_read = 0
        self._metrics: list[Metric] = []
        self._logs: list[LogLine] = []
        self._samples: list[Sample] = []
        self._bins: list[ConfidenceBin] = []

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
                    job = self._store.claim(ROLES[self._role], self._id)
                    if job is not None:
                        return job
                    seen = version
            if time.monotonic() - asked_owner > _OWNER_POLL_S:
                asked_owner = time.monotonic()
                if not is_alive(*self._owner):
                    return None
            self._stop.wait(_IDLE_POLL_S)
        return None

    def _has_colleague(self) -> bool:
        return any(e.role == self._role and e.id != self._id for e in self._store.engines())

    def _run(self, job: Job) -> None:
        outbox = Outbox()
        outcome: list[Any] = []
        handler = _OutboxHandler(outbox)
        loggers = [tf.get_logger(), _log, logging.getLogger("py.warnings")]
        for logger in loggers:
            logger.addHandler(handler)
        sampler = _sampler(job)
        sampled_at = time.monotonic()
        thread = threading.Thread(target=self._guarded, args=(job, outbox, outcome), name="job", daemon=True)
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
                _log.warning("%s", error)
            if self._stop.is_set():
                stop_since = stop_since or time.monotonic()
                if time.monotonic() - stop_since > _STOP_GRACE_S:
                    self._leave(job, outbox)
        for logger in loggers:
            logger.removeHandler(handler)
        insist(lambda: self._report(job, outbox))
        insist(lambda: self._finish(job, outcome[0]))

    def _take_samples(self, sampler: Sampler, outbox: Outbox) -> None:
        progress, now = outbox.progress or {}, time.time()
        step = progress.get("epoch", 0) * progress.get("steps", 0) + progress.get("step", 0)
        self._samples += [Sample(now, step, name, value) for name, value in sampler.sample().items()]

    def _guarded(self, job: Job, outbox: Outbox, outcome: list[Any]) -> None:
        """An exception in a thread goes unseen (``join`` returns normally); this one keeps it."""
        try:
            outcome.append(_JOBS[job.kind](self, job, outbox))
        except BaseException as error:  # noqa: BLE001 - SystemExit too: it goes into the run's record
            outcome.append(error)

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
        )
        self._metrics, self._logs, self._samples, self._bins = [], [], [], []
        return stop

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
                self._store.finish(job.id, Status.STOPPED)
            case MirrorboardError():
                self._store.finish(job.id, Status.FAILED, error=outcome)
            case BaseException():
                details = "".join(traceback.format_exception(outcome))
                first = str(outcome).strip().splitlines() or [""]
                error = TrainingError(
                    f"{type(outcome).__name__}: {first[0][:300]}",
                    "The details hold TensorFlow's full message; a smaller batch or another layout may help.",
                )
                self._store.finish(job.id, Status.FAILED, error=error, details=details)
            case _:
                # A run that was asked to stop in its last moment has still done all it had to.
                self._store.finish(job.id, Status.COMPLETED, result=outcome)

    def _leave(self, job: Job, outbox: Outbox) -> None:
        """Ends the process under a job that does not stop, say while TensorFlow builds its graph."""
        insist(lambda: self._report(job, outbox))
        insist(lambda: self._store.finish(job.id, Status.STOPPED))
        os._exit(0)

    # What each kind of job does; runs in the job's thread.

    def _inspect(self, _: Job, __: Outbox) -> dict[str, Any]:
        tf.config.list_physical_devices()  # makes TensorFlow write why it finds none
        return devices.inspect(self._stderr.read_text("utf-8", "replace"))

    def _prepare(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        def progress(phase: str, done: int, total: int) -> None:
            outbox.phase = phase
            outbox.progress = {"downloaded_bytes": done, "total_bytes": total}

        name = parse_config({"data": job.config}).data.dataset
        corpus = datasets.prepare(name, self._store.home, progress)
        return {
            "dataset": corpus.name,
            "title": corpus.title,
            "train": len(corpus.rows("train")),
            "test": len(corpus.rows("test")),
            "classes": len(corpus.class_names),
            "vocabulary": corpus.vocabulary,
        }

    def _describe(self, job: Job, _: Outbox) -> dict[str, Any]:
        config = parse_config(job.config)
        # Layer names count from the start again, and the last model's memory is free: without that an engine
        # grows by 2 MB with every answer.
        keras.backend.clear_session()
        model = models.build(config, vocabulary=VOCABULARY, classes=CLASSES)
        return models.describe(model, config.per_replica_batch_size)

    def _check(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        outbox.phase = "trying the layout"
        said = Outbox()  # the job's own outbox is emptied into the store meanwhile
        handler = _OutboxHandler(said)
        tf.get_logger().addHandler(handler)
        result = layout.check(parse_config({"layout": job.config}).layout)
        tf.get_logger().removeHandler(handler)
        return {**result, "log": [line.text for line in said.logs]}

    def _export(self, job: Job, _: Outbox) -> dict[str, Any]:
        run = self._store.job(job.config["run_id"])
        target = exported(self._store.checkpoints(run.id), job.config)
        target.parent.mkdir(parents=True, exist_ok=True)
        if job.config["format"] == "tensorboard":
            export_event_files(self._store.metrics(run, per="epoch"), target)
        else:
            values = Checkpoints(self._store.checkpoints(run.id)).model(
                job.config["which"], job.config["epoch"]
            )
            export_model(parse_config(run.config), values, job.config, target)
        return {"file": str(target)}

    def _evaluate(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        config, model = self._model(job, outbox)
        corpus = datasets.prepare(config.data.dataset, self._store.home, lambda *_: None)
        outbox.phase = "predicting"
        probabilities = predict(model, corpus.padded(predictions.SPLIT, config.data.max_len), outbox)
        target = predictions.predicted(self._store.checkpoints(job.config["run_id"]), job.config)
        predictions.write(
            predictions.Predictions(corpus.split_labels(predictions.SPLIT), probabilities), target
        )
        return {"rows": len(probabilities)}

    def _classify(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        config, model = self._model(job, outbox)
        return classify(model, job.config["ids"], config.data.max_len)

    def _model(self, job: Job, outbox: Outbox) -> tuple[RunConfig, ReplicatedModel]:
        """The run that a job asks about, and its model of the epoch that it names."""
        outbox.phase = "reading the checkpoint"
        run = self._store.job(job.config["run_id"])
        values = Checkpoints(self._store.checkpoints(run.id)).model(job.config["which"], job.config["epoch"])
        config = parse_config(run.config)
        return config, trained(config, values)

    def _step(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        config = parse_config(job.config["run"])
        return take_apart(config, job.config["batch"], self._store.home, outbox)

    def _train(self, job: Job, outbox: Outbox) -> dict[str, Any]:
        config = parse_config(job.config)
        checkpoints = Checkpoints(self._store.checkpoints(job.id))
        start = checkpoints.newest(job.checkpoint_epochs)
        if start is not None:
            _log.info("Going on from the checkpoint of epoch %d.", start.epochs)
            if start.damaged:
                insist(lambda: self._store.rewind(job, start.epochs))
            # The first step comes seconds later; the run is not at its beginning until then.
            known = job.result or {}
            outbox.progress = {
                "epoch": start.epochs,
                "epochs": config.training.epochs,
                "step": 0,
                "steps": known["steps_per_epoch"],
                "validation_step": None,
                "validation_steps": known["validation_steps"],
                **dict.fromkeys(("step_ms", "examples_per_s", "remaining_s")),
            }
        return train(
            config,
            self._store.home,
            outbox,
            self._stop,
            checkpoints=checkpoints,
            start=start,
            price_all_reduce=job.study is not None,
        )


def insist(write: Callable[[], _Result]) -> _Result:
    """Does what must not be lost, again and again while another program holds the store.

    Raises:
        StoreError: The store did not answer for minutes.
    """
    deadline = time.monotonic() + _STORE_PATIENCE_S
    while True:
        try:
            return write()
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_REPORT_S)


def _sampler(job: Job) -> Sampler | None:
    """What samples the machine during a training; an invalid configuration fails where it is read."""
    try:
        return Sampler(parse_config(job.config).layout) if job.kind is Kind.TRAIN else None
    except ConfigError:
        return None


_JOBS: dict[Kind, Callable[[Worker, Job, Outbox], dict[str, Any]]] = {
    Kind.INSPECT: Worker._inspect,  # noqa: SLF001
    Kind.PREPARE: Worker._prepare,  # noqa: SLF001
    Kind.DESCRIBE: Worker._describe,  # noqa: SLF001
    Kind.CHECK: Worker._check,  # noqa: SLF001
    Kind.EXPORT: Worker._export,  # noqa: SLF001
    Kind.EVALUATE: Worker._evaluate,  # noqa: SLF001
    Kind.CLASSIFY: Worker._classify,  # noqa: SLF001
    Kind.STEP: Worker._step,  # noqa: SLF001
    Kind.TRAIN: Worker._train,  # noqa: SLF001
}


class _OutboxHandler(logging.Handler):
    """Keeps log records as lines of the job's log."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.INFO)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        source = "mirrorboard" if record.name == "mirrorboard" else "tensorflow"
        line = LogLine(record.created, record.levelname.lower(), source, record.getMessage())
        self._outbox.logs.append(line)


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
