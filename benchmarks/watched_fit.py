"""One fit of the chapter's network with one callback, and the time that it spends in Keras's callbacks.

Usage: ``python -m benchmarks.watched_fit CALLBACK HOME DATASET EPOCHS BATCH_SIZE``; prints one JSON line. All
callbacks log every batch and get the same model, data, batches and thread pools on a single device.
`benchmarks.logging` starts one process for each.
"""

from __future__ import annotations

import importlib
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import keras
import psutil

from core.config import RunConfig
from core.engine import datasets, layout, models
from core.engine.pipeline import batches
from core.engine.worker import Worker
from core.processes import started_at
from core.records import Engine, Kind, Status
from core.store import Store

_STEP_HOOKS = ("on_train_batch_begin", "on_train_batch_end")
_HOOKS = (
    "on_epoch_begin",
    *_STEP_HOOKS,
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
)


@dataclass
class Epoch:
    """Seconds of one epoch, validation included.

    Attributes:
        epoch_s: From its beginning to its end.
        steps_s: In the callbacks' hooks around its training steps.
        hooks_s: In all of the callbacks' hooks.
        hooks_cpu_s: Processor time of that.
        main_cpu_s: Processor time of the main thread, which supervises when another one fits.
    """

    epoch_s: float = 0.0
    steps_s: float = 0.0
    hooks_s: float = 0.0
    hooks_cpu_s: float = 0.0
    main_cpu_s: float = 0.0


def watch() -> list[Epoch]:
    """Times what Keras calls for its callbacks, whoever makes the list of them.

    Returns:
        The epochs; each is added when it begins.
    """
    epochs: list[Epoch] = []
    ident = threading.main_thread().ident
    assert ident is not None
    main_thread = time.pthread_getcpuclockid(ident)

    def timed(name: str) -> Callable[..., None]:
        hook: Callable[..., None] = getattr(keras.callbacks.CallbackList, name)

        @wraps(hook)
        def call(*args: Any, **kwargs: Any) -> None:
            began, began_cpu = time.perf_counter(), time.thread_time()
            if name == "on_epoch_begin":
                epochs.append(Epoch(-began, main_cpu_s=-time.clock_gettime(main_thread)))
            hook(*args, **kwargs)
            if not epochs:
                return  # evaluated before the first epoch
            epoch, ended = epochs[-1], time.perf_counter()
            epoch.hooks_s += ended - began
            epoch.hooks_cpu_s += time.thread_time() - began_cpu
            if name in _STEP_HOOKS:
                epoch.steps_s += ended - began
            elif name == "on_epoch_end":
                epoch.epoch_s += ended
                epoch.main_cpu_s += time.clock_gettime(main_thread)

        return call

    for name in _HOOKS:
        setattr(keras.callbacks.CallbackList, name, timed(name))
    return epochs


class Reading(keras.callbacks.Callback):
    """Looks at the logs and does nothing with them."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Reads each value."""
        assert logs is not None
        for value in logs.values():
            float(value)


class Trackio(keras.callbacks.Callback):
    """What Trackio's users write: it has no Keras callback of its own (0.43)."""

    def __init__(self, trackio: Any) -> None:
        super().__init__()
        self._trackio = trackio

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs a step."""
        self._trackio.log(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs an epoch."""
        self._trackio.log(logs)


Made = tuple[list[keras.callbacks.Callback], Callable[[], object]]
"""Callbacks, and what ends their run."""


def _none(_: Path) -> Made:
    return [], lambda: None


def _reading(_: Path) -> Made:
    return [Reading()], lambda: None


def _tensorboard(folder: Path) -> Made:
    return [keras.callbacks.TensorBoard(folder, update_freq="batch")], lambda: None


def _wandb(folder: Path) -> Made:
    wandb = importlib.import_module("wandb")
    wandb.init(project="benchmark", mode="offline", dir=folder)
    callback = importlib.import_module("wandb.integration.keras").WandbMetricsLogger(log_freq="batch")
    return [callback], wandb.finish


def _mlflow(folder: Path) -> Made:
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")  # its default, in another folder
    mlflow.start_run()
    callback = importlib.import_module("mlflow.keras").MlflowCallback(
        log_every_epoch=False, log_every_n_steps=1
    )
    return [callback], mlflow.end_run


def _trackio(_: Path) -> Made:
    trackio = importlib.import_module("trackio")
    trackio.init(project="benchmark", embed=False)
    return [Trackio(trackio)], trackio.finish


OTHERS: dict[str, Callable[[Path], Made]] = {
    "none": _none,
    "reading": _reading,
    "trackio": _trackio,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
}


def fit(name: str, home: Path, config: RunConfig) -> dict[str, Any]:
    """A fit with another callback."""
    # An execution of several steps would hide all but the last from these callbacks.
    execution = replace(layout.plan(config), steps_per_execution=1)
    strategy = layout.apply(config.layout, execution)
    corpus = datasets.prepare(config.data.dataset, home, lambda *_: None)
    keras.utils.set_random_seed(config.training.seed)
    training, validation = (
        batches(
            corpus.padded(split, config.data.max_len),
            corpus.split_labels(split),
            config.global_batch_size,
            strategy=strategy,
            shuffle_seed=config.training.seed,
        )
        for split in ("train", "test")
    )
    model = models.build(config, vocabulary=corpus.vocabulary, classes=len(corpus.class_names))
    folder = home / "peers" / f"{name}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    callbacks, close = OTHERS[name](folder)
    epochs = watch()
    model.fit(
        training.dataset,
        steps_per_epoch=training.steps,
        validation_data=validation.dataset,
        validation_steps=validation.steps,
        epochs=config.training.epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    close()
    return {"epochs": [asdict(epoch) for epoch in epochs], "steps": training.steps}


def engine(name: str, home: Path, config: RunConfig) -> dict[str, Any]:
    """A run of the engine itself, which fits in a thread and supervises in this one.

    ``mirrorboard`` is run as the engine plans it, ``mirrorboard_step`` with one step per execution like the
    others. All that it should have recorded must be in the store.
    """
    if name == "mirrorboard_step":
        plan = layout.plan
        layout.plan = lambda config, **machine: replace(plan(config, **machine), steps_per_execution=1)
    store = Store(home)
    job_id, engine_id = store.submit(Kind.TRAIN, config.model_dump(mode="json")), secrets.token_hex(4)
    me, now = psutil.Process(), time.time()
    owner = (me.pid, started_at(me.pid))
    store.add_engine(Engine(engine_id, "layout", *owner, me.pid, now, None, None))
    epochs = watch()
    Worker(store, "layout", engine_id, owner).serve()
    job = store.job(job_id)
    assert job.status is Status.COMPLETED, job.error
    assert job.result is not None
    steps = job.result["steps_per_epoch"]
    recorded = {metric.step for metric in store.metrics(job, per="step")}
    assert recorded == set(range(steps * config.training.epochs)), f"{len(recorded)} steps were recorded"
    return {"epochs": [asdict(epoch) for epoch in epochs], "steps": steps}


def main(name: str, home: str, dataset: str, epochs: str, batch_size: str) -> None:
    """Fits once."""
    config = RunConfig.model_validate(
        {
            "layout": {"strategy": "single", "logical_devices": 1},
            "data": {"dataset": dataset},
            "training": {"epochs": int(epochs), "batch_size": int(batch_size)},
        }
    )
    run = fit if name in OTHERS else engine
    print(json.dumps(run(name, Path(home), config)))


if __name__ == "__main__":
    main(*sys.argv[1:])
