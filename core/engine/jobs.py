"""What each kind of job does; all of it runs in the job's own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import keras
import tensorflow as tf

from core import predictions, retention
from core.config import RunConfig, parse_config
from core.corpus import CLASSES, VOCABULARY
from core.engine import datasets, devices, layout, models
from core.engine.callbacks import Outbox, OutboxHandler
from core.engine.checkpoints import Checkpoints
from core.engine.evaluation import classify, predict
from core.engine.exports import export_event_files, export_model
from core.engine.fit import train
from core.engine.models import ReplicatedModel
from core.engine.one_step import take_apart
from core.engine.trained import trained
from core.errors import DiskFull, StoreError
from core.exports import exported, whole_epochs
from core.records import Job, Kind
from core.store import Store

_log = logging.getLogger("mirrorboard")
_Result = TypeVar("_Result")

_STORE_POLL_S = 0.2
_STORE_PATIENCE_S = 300.0
"""How long what must not be lost waits for a store that another program holds."""
_DISK_PATIENCE_S = 86_400.0
"""And for somebody to make room on a full disk."""


@dataclass(frozen=True)
class Task:
    """A job in the hands of an engine.

    Attributes:
        job: What to do.
        store: Where it is from.
        outbox: Takes what there is to say meanwhile.
        stop: Set when the job should end early.
        stderr: The file that native code writes to.
    """

    job: Job
    store: Store
    outbox: Outbox
    stop: threading.Event
    stderr: Path


def insist(write: Callable[[], _Result]) -> _Result:
    """Does what must not be lost, again and again while another program holds the store.

    Raises:
        StoreError: The store did not answer for minutes, or its disk stayed full for a day.
    """
    began = time.monotonic()
    while True:
        try:
            return write()
        except StoreError as error:
            patience_s = _DISK_PATIENCE_S if isinstance(error, DiskFull) else _STORE_PATIENCE_S
            if time.monotonic() - began > patience_s:
                raise
            time.sleep(_STORE_POLL_S)


def _inspect(task: Task) -> dict[str, Any]:
    tf.config.list_physical_devices()  # makes TensorFlow write why it finds none
    return devices.inspect(task.stderr.read_text("utf-8", "replace"))


def _prepare(task: Task) -> dict[str, Any]:
    def progress(phase: str, done: int, total: int) -> None:
        task.outbox.phase = phase
        task.outbox.progress = {"downloaded_bytes": done, "total_bytes": total}

    name = parse_config({"data": task.job.config}).data.dataset
    corpus = datasets.prepare(name, task.store.home, progress)
    return {
        "dataset": corpus.name,
        "title": corpus.title,
        "train": len(corpus.rows("train")),
        "test": len(corpus.rows("test")),
        "classes": len(corpus.class_names),
        "vocabulary": corpus.vocabulary,
    }


def _describe(task: Task) -> dict[str, Any]:
    config = parse_config(task.job.config)
    # Layer names count from the start again, and the last model's memory is free: without that an engine
    # grows by 2 MB with every answer.
    keras.backend.clear_session()
    if config.training.deterministic:
        keras.config.set_dtype_policy("float64")  # as in training; kept per thread
    model = models.build(config, vocabulary=VOCABULARY, classes=CLASSES)
    return models.describe(model, config.per_replica_batch_size)


def _check(task: Task) -> dict[str, Any]:
    task.outbox.phase = "trying the layout"
    said = Outbox()  # the job's own outbox is emptied into the store meanwhile
    handler = OutboxHandler(said)
    tf.get_logger().addHandler(handler)
    result = layout.check(parse_config({"layout": task.job.config}).layout)
    tf.get_logger().removeHandler(handler)
    return {**result, "log": [line.text for line in said.logs]}


def _export(task: Task) -> dict[str, Any]:
    asked, store = task.job.config, task.store
    run = store.run(asked["run_id"])
    target = exported(store.checkpoints(run.id), asked)
    target.parent.mkdir(parents=True, exist_ok=True)
    if asked["format"] == "tensorboard":
        whole_epochs(store, run)
        export_event_files(store.metrics(run, per="epoch"), target)
    else:
        values = Checkpoints(store.checkpoints(run.id)).model(asked["which"], asked["epoch"])
        export_model(parse_config(run.config), values, asked, target)
    return {"file": str(target)}


def _evaluate(task: Task) -> dict[str, Any]:
    asked, store = task.job.config, task.store
    config, model = _model(task)
    corpus = datasets.prepare(config.data.dataset, store.home, lambda *_: None)
    task.outbox.phase = "predicting"
    probabilities = predict(model, corpus.padded(predictions.SPLIT, config.data.max_len), task.outbox)
    target = predictions.predicted(store.checkpoints(asked["run_id"]), asked)
    predictions.write(predictions.Predictions(corpus.split_labels(predictions.SPLIT), probabilities), target)
    return {"rows": len(probabilities)}


def _classify(task: Task) -> dict[str, Any]:
    config, model = _model(task)
    return classify(model, task.job.config["ids"], config.data.max_len)


def _model(task: Task) -> tuple[RunConfig, ReplicatedModel]:
    """The run that a job asks about, and its model of the epoch that it names."""
    asked, store = task.job.config, task.store
    task.outbox.phase = "reading the checkpoint"
    run = store.run(asked["run_id"])
    values = Checkpoints(store.checkpoints(run.id)).model(asked["which"], asked["epoch"])
    config = parse_config(run.config)
    return config, trained(config, values)


def _step(task: Task) -> dict[str, Any]:
    config = parse_config(task.job.config["run"])
    return take_apart(config, task.job.config["batch"], task.store.home, task.outbox)


def _train(task: Task) -> dict[str, Any]:
    job, store = task.job, task.store
    config = parse_config(job.config)
    checkpoints = Checkpoints(store.checkpoints(job.id))
    has_bytes = retention.folder_bytes(store.checkpoints(job.id))
    retention.require_room(store.home, config, has_bytes=has_bytes)
    start = checkpoints.newest(job.checkpoint_epochs)
    if start is not None:
        _log.info("Going on from the checkpoint of epoch %d.", start.epochs)
        if start.damaged:
            insist(lambda: store.rewind(job, start.epochs))
        # The first step comes seconds later; the run is not at its beginning until then.
        known = job.result or {}
        task.outbox.progress = {
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
        store.home,
        task.outbox,
        task.stop,
        checkpoints=checkpoints,
        start=start,
        price_all_reduce=job.study is not None,
    )


DO: dict[Kind, Callable[[Task], dict[str, Any]]] = {
    Kind.INSPECT: _inspect,
    Kind.PREPARE: _prepare,
    Kind.DESCRIBE: _describe,
    Kind.CHECK: _check,
    Kind.EXPORT: _export,
    Kind.EVALUATE: _evaluate,
    Kind.CLASSIFY: _classify,
    Kind.STEP: _step,
    Kind.TRAIN: _train,
}
