"""Stores as runs leave them behind, without running any."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from core import corpus, predictions
from core.config import RunConfig
from core.corpus import Corpus
from core.errors import TrainingError
from core.exports import Which
from core.predictions import Predictions
from core.records import Engine, Job, Kind, LogLine, Metric, Status
from core.store import Store

REFERENCE = (
    # loss, accuracy, val_loss, val_accuracy of the chapter's own run, epochs 1 to 10
    (2.027, 0.4653, 1.7517, 0.5481),
    (1.5206, 0.6045, 1.5715, 0.5993),
    (1.2178, 0.6843, 1.5232, 0.6327),
    (0.9127, 0.7648, 1.6527, 0.6296),
    (0.6606, 0.8321, 1.8791, 0.6158),
    (0.4919, 0.8799, 2.1282, 0.6037),
    (0.3947, 0.9051, 2.3033, 0.6046),
    (0.3335, 0.9207, 2.4255, 0.5993),
    (0.2919, 0.9304, 2.5571, 0.6020),
    (0.2617, 0.9342, 2.6700, 0.6077),
)
STEPS = 281

_NAMES = ("loss", "sparse_categorical_accuracy")
LAYERS = [
    {
        "name": "embedding",
        "type": "Embedding",
        "output_shape": [None, 300, 7],
        "params": 216_874,
        "config": "",
    },
    {"name": "conv1d", "type": "Conv1D", "output_shape": [None, 296, 64], "params": 2_304, "config": ""},
    {"name": "dense", "type": "Dense", "output_shape": [None, 46], "params": 107_502, "config": "softmax"},
]
DESCRIPTION: dict[str, Any] = {
    "layers": LAYERS,
    "params": 332_856,
    "trainable": 332_856,
    "memory": {
        "weights_bytes": 1_331_424,
        "gradients_bytes": 1_331_424,
        "optimizer_bytes": 2_662_856,
        "activations_bytes": 2_500_000,
        "total_bytes": 7_825_704,
    },
    "optimizer": "Nadam",
    "loss": "SparseCategoricalCrossentropy",
    "metrics": ["sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"],
}
RESULT: dict[str, Any] = {
    **DESCRIPTION,
    "steps_per_epoch": STEPS,
    "validation_steps": 71,
    "train_examples": 8_982,
    "validation_examples": 2_246,
    "devices": ["/device:CPU:0", "/device:CPU:1"],
    "engine": {"steps_per_execution": 8, "intra_op_threads": 1, "inter_op_threads": 2},
    "dataset_title": "Reuters newswires",
}
MACHINE: dict[str, Any] = {
    "devices": [
        {"type": "CPU", "index": 0, "name": "Test CPU", "memory_bytes": 8 * 2**30, "compute_capability": None}
    ],
    "gpu_reason": "No NVIDIA driver was found.",
    "tpu_reason": "This machine has no TPU that TensorFlow could use.",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "python": "3.11.7",
    "platform": "Linux",
    "cpus": 2,
    "memory_bytes": 8 * 2**30,
}


def claim(store: Store, kinds: Sequence[Kind], engine_id: str) -> Job | None:
    """What an engine takes that is in the store, though no process belongs to it."""
    if engine_id not in {engine.id for engine in store.engines()}:
        store.add_engine(Engine(engine_id, "layout", 1, 0.0, 1, time.time(), None, None))
    return store.claim(kinds, engine_id)


def claimed(store: Store, kind: Kind, config: dict[str, Any]) -> Job:
    """A job in the hands of an engine that does not exist."""
    job_id = store.submit(kind, config)
    job = claim(store, [kind], f"engine-{job_id}")
    assert job is not None
    return job


def answered(store: Store, kind: Kind, config: dict[str, Any], result: dict[str, Any]) -> Job:
    """A job that has been done."""
    job = claimed(store, kind, config)
    store.finish(job.id, Status.COMPLETED, result=result)
    return store.job(job.id)


def finished_run(store: Store, *, epochs: int = 10, status: Status = Status.COMPLETED) -> Job:
    """A run with the reference's first epochs, with steps in between, and a checkpoint."""
    job = running_run(store, epochs=epochs)
    store.report(job, checkpoint={"epochs": epochs, "best_epoch": 3, "best_val_loss": 1.5232})
    if status is Status.PAUSED:
        store.request_pause(job.id)
        status = Status.STOPPED
    failed = status in (Status.FAILED, Status.LOST)
    error = TrainingError("Out of memory.", "Use a smaller batch.") if failed else None
    store.finish(job.id, status, error=error, details="Traceback of the engine" if failed else "")
    return store.job(job.id)


def running_run(store: Store, *, epochs: int) -> Job:
    """A run in the middle of the reference."""
    config = RunConfig.model_validate({"data": {"dataset": "synthetic"}})
    job = claimed(store, Kind.TRAIN, config.model_dump(mode="json"))
    now = time.time()
    rows = [row for epoch in range(epochs) for row in rows_of(epoch)]
    progress = {
        "epoch": epochs - 1,
        "epochs": 10,
        "step": STEPS,
        "steps": STEPS,
        "validation_step": None,
        "validation_steps": 71,
        "examples_per_s": 2_210.0,
        "step_ms": 14.2,
        "remaining_s": 21.0,
    }
    log = [LogLine(now, "info", "tensorflow", "Using MirroredStrategy with devices")]
    store.report(job, phase="training", progress=progress, result=RESULT, metrics=rows, logs=log)
    return store.job(job.id)


def rows_of(epoch: int) -> list[Metric]:
    """What one epoch of the reference records, counted from 0."""
    now, values, last = time.time(), REFERENCE[epoch], (epoch + 1) * STEPS - 1
    rows = [
        Metric("step", epoch * STEPS + step, epoch, "train", name, value, now)
        for name, value in zip(_NAMES, values[:2], strict=True)
        for step in range(STEPS)
    ]
    for i, value in enumerate(values):
        split = "train" if i < len(_NAMES) else "validation"
        rows.append(Metric("epoch", last, epoch, split, _NAMES[i % len(_NAMES)], value, now))
    return [*rows, Metric("epoch", last, epoch, "train", "duration_s", 4.0, now)]


def prepared(store: Store) -> Corpus:
    """A small corpus in the place of the synthetic one."""
    random = np.random.default_rng(1)
    lengths = random.integers(5, 500, 300)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = random.integers(3, 60, offsets[-1]).astype(np.int32)
    tokens[offsets[:-1]] = 1
    made = Corpus(
        name="synthetic",
        title="Synthetic newswires",
        tokens=tokens,
        offsets=offsets.astype(np.int64),
        labels=(np.arange(300) % 5).astype(np.int32),
        train_size=240,
        words=["<pad>", "<start>", "<unk>", *(f"word{i}" for i in range(57))],
        class_names=["earn", "acq", "crude", "grain", "trade"],
    )
    corpus.save(made, store.home)
    return made


def evaluated(store: Store, run: Job, data: Corpus, *, which: Which = "best", seed: int = 1) -> Predictions:
    """A run's model evaluated on a small corpus; it is right about twice in three."""
    random = np.random.default_rng(seed)
    labels = data.split_labels("test")
    logits = random.normal(size=(len(labels), len(data.class_names)))
    logits[np.arange(len(labels)), labels] += 1.5
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    made = Predictions(labels, probabilities.astype(np.float32))
    asked = predictions.order(run, which)
    predictions.write(made, predictions.predicted(store.checkpoints(run.id), asked))
    return made
