"""Trains one run: layout, data, model and fit, all in the calling thread.

TensorFlow keeps strategy scope, device and precision policy per thread, so nothing of this may be spread
over several.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from core import corpus as corpora
from core.config import RunConfig
from core.engine import all_reduce, datasets, layout, metrics, models
from core.engine.callbacks import Outbox, Reporter
from core.engine.checkpointer import Checkpointer, restore
from core.engine.checkpoints import Checkpoints, State
from core.engine.pipeline import Batches, batches
from core.errors import DatasetError

_log = logging.getLogger("mirrorboard")


def train(
    config: RunConfig,
    home: Path,
    outbox: Outbox,
    stop: threading.Event,
    *,
    checkpoints: Checkpoints,
    start: State | None,
    price_all_reduce: bool = False,
) -> dict[str, Any]:
    """Runs a training from devices to the last epoch.

    Args:
        config: The run.
        home: Folder of the store, where prepared datasets are.
        outbox: Takes metrics, progress and log lines while it runs.
        stop: Ends the fit after the present step.
        checkpoints: Where the run's state goes after every epoch.
        start: Where to go on from; None begins with the first epoch.
        price_all_reduce: Measure afterwards what the all-reduce costs, see `core.engine.all_reduce`.

    Returns:
        The run's result: model, steps, devices, engine settings.

    Raises:
        MirrorboardError: The layout, the data or the model cannot work.
        Stopped: `stop` was set.
    """
    outbox.phase = "setting up the devices"
    execution = layout.plan(config)
    if config.training.deterministic:
        # Shards add up in another order on every layout, and training amplifies the rounding: in single
        # precision two epochs end 4e-4 apart, in double precision not even 1e-6 (TensorFlow 2.21).
        tf.config.experimental.enable_op_determinism()
        keras.config.set_dtype_policy("float64")
    strategy = layout.apply(config.layout, execution)
    layout.check_shares(config, strategy)

    outbox.phase = "preparing the data"
    corpus = datasets.prepare(config.data.dataset, home, lambda *_: None)
    _check_labels(corpus)
    first_epoch = start.epochs if start else 0
    training = _batches(config, corpus, "train", strategy, first_epoch)
    validation = _batches(config, corpus, "test", strategy)
    if config.global_batch_size != config.training.batch_size:
        _log.info(
            "Global batch size changed from %d to %d, so that %d replicas share it evenly.",
            config.training.batch_size,
            config.global_batch_size,
            config.layout.replicas,
        )

    outbox.phase = "building the model"
    keras.utils.set_random_seed(config.training.seed)
    with strategy.scope():
        model = models.build(
            config,
            vocabulary=corpus.vocabulary,
            classes=len(corpus.class_names),
            steps_per_execution=execution.steps_per_execution,
            jit_compile=execution.jit_compile,
        )
        model.step_sums = metrics.StepSums(execution.steps_per_execution)
        model.calibration_sums = metrics.CalibrationSums()
        described = models.describe(model, config.per_replica_batch_size)
        if start is not None:
            restore(model, start)
    result: dict[str, Any] = {
        **described,
        "steps_per_epoch": training.steps,
        "validation_steps": validation.steps,
        "train_examples": training.examples,
        "validation_examples": validation.examples,
        "devices": layout.devices_of(strategy),
        "engine": execution.to_json(),
        "dataset_title": corpus.title,
        "resumed": start and {"epochs": start.epochs, "damaged": list(start.damaged)},
    }
    outbox.result = result

    model.steps = (training.steps, validation.steps)
    reporter = Reporter(outbox, training, validation, config.training.epochs, stop, first_epoch=first_epoch)
    early = _early_stopping(config)
    checkpointer = Checkpointer(checkpoints, outbox, early, start)
    if first_epoch >= config.training.epochs:
        _log.info("All %d epochs had been trained already.", config.training.epochs)
    try:
        model.fit(
            training.dataset,
            steps_per_epoch=training.steps,
            validation_data=validation.dataset,
            validation_steps=validation.steps,
            initial_epoch=first_epoch,
            epochs=config.training.epochs,
            shuffle=False,  # the pipeline does it
            verbose=0,
            callbacks=[callback for callback in (reporter, early, checkpointer) if callback is not None],
        )
    finally:
        checkpointer.close()
    if early is not None and early.stopped_epoch:
        result["early_stop"] = {
            "epoch": early.stopped_epoch + 1,
            "best_epoch": early.best_epoch + 1,
        }
    if price_all_reduce:
        outbox.phase = "measuring the all-reduce"
        result["all_reduce"] = all_reduce.measure(model, training, stop)
    return result


def _batches(
    config: RunConfig,
    corpus: corpora.Corpus,
    split: corpora.Split,
    strategy: tf.distribute.Strategy,
    first_epoch: int = 0,
) -> Batches:
    return batches(
        corpus.padded(split, config.data.max_len),
        corpus.split_labels(split),
        config.global_batch_size,
        strategy=strategy,
        shuffle_seed=config.training.seed if split == "train" else None,
        first_epoch=first_epoch,
    )


def _early_stopping(config: RunConfig) -> keras.callbacks.EarlyStopping | None:
    training = config.training
    if training.patience is None:
        return None
    return keras.callbacks.EarlyStopping(
        monitor=training.monitor,
        mode="min" if training.monitor == "val_loss" else "max",
        patience=training.patience,
        restore_best_weights=False,  # a run keeps the last weights, and those of its lowest validation loss
    )


def _check_labels(corpus: corpora.Corpus) -> None:
    """A label or word id out of range raises on a CPU but trains on garbage on a GPU (TensorFlow 2.21)."""
    classes, vocabulary = len(corpus.class_names), corpus.vocabulary
    for what, values, limit in (("class", corpus.labels, classes), ("word id", corpus.tokens, vocabulary)):
        if values.min() < 0 or values.max() >= limit:
            raise DatasetError(
                f"{corpus.title} has a {what} of {values.max()} (smallest {values.min()}), but only"
                f" 0 to {limit - 1} exist.",
                "Delete the prepared dataset; it is made anew when it is next needed.",
            )
