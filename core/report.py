"""What a run came to, as one JSON object: for the command line, exports and the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.analysis.calibration import Bin, bars
from core.analysis.criteria import History, duration_after
from core.analysis.overfitting import Diagnosis, diagnose
from core.corpus import CLASSES
from core.errors import ConfigError
from core.records import Job, Kind, Metric, Status
from core.retention import require_room_for_import
from core.store import Store

MAX_VALUES = 100_000
"""Of an imported run: as many as are written and drawn in a second or two."""
_LAST_EPOCH = 1_000_000_000


def history(store: Store, job: Job) -> list[dict[str, Any]]:
    """A run's epochs.

    Returns:
        One object an epoch: ``epoch`` (one-based), ``duration_s``, and Keras's metric names, those of
        validation with the prefix ``val_``. A value that was not finite is None.
    """
    epochs: dict[int, dict[str, Any]] = {}
    for row in store.metrics(job, per="epoch"):
        name = f"val_{row.name}" if row.split == "validation" else row.name
        epochs.setdefault(row.epoch, {"epoch": row.epoch + 1})[name] = row.value
    return list(epochs.values())


def reliability(store: Store, job: Job, epoch: int) -> list[Bin]:
    """The reliability diagram of a one-based epoch's validation; empty where it was not recorded."""
    rows = store.confidence_bins(job, epoch - 1)
    return bars([(row.count, row.confidence_sum, row.correct) for row in rows]) if rows else []


def classes(job: Job) -> int | None:
    """Classes that the run's model tells apart; None where that is not known."""
    return CLASSES if job.kind is Kind.TRAIN else job.config.get("classes")


def add_import(
    store: Store,
    epochs: Sequence[Mapping[str, float | int | None]],
    *,
    file: str,
    name: str = "",
    num_classes: int | None = None,
) -> str:
    """Records the log of a training from elsewhere as a run.

    Args:
        store: Where to.
        epochs: What `core.analysis.imported.read_history` has read.
        file: What the log is called.
        name: Of the run; the file's where it is empty.
        num_classes: Classes of the model, where they are known.

    Returns:
        The run's id.

    Raises:
        ConfigError: There are too many values, or an epoch's number is beyond all reason.
        NoRoom: The disk or the quota cannot hold them.
    """
    values = sum(len(row) for row in epochs)
    if values > MAX_VALUES:
        raise ConfigError(
            f"{file} holds {values:,} values; a run may have {MAX_VALUES:,}.",
            "Leave out metrics, or log by epoch instead of by batch.",
        )
    last = max(int(row["epoch"] or 0) for row in epochs)
    if last > _LAST_EPOCH:
        raise ConfigError(
            f"{file} has an epoch {last:.3g}; at most {_LAST_EPOCH:,} are counted.",
            "Correct the column epoch, or remove it: the rows are then numbered in order.",
        )
    metrics = [
        Metric(
            per="epoch",
            step=int(row["epoch"] or 0) - 1,
            epoch=int(row["epoch"] or 0) - 1,
            split="validation" if metric.startswith("val_") else "train",
            name=metric.removeprefix("val_"),
            value=value,
            at=0.0,
        )
        for row in epochs
        for metric, value in row.items()
        if metric != "epoch"
    ]
    require_room_for_import(store.home, metrics)
    return store.add_import(
        name or file, {"file": file, "classes": num_classes}, metrics, duration_after(epochs, -1) or None
    )


def diagnosis(job: Job, epochs: History) -> Diagnosis:
    """What a run's history shows."""
    return diagnose(epochs, num_classes=classes(job), has_diverged=job.status is Status.DIVERGED)


def report(store: Store, run_id: str) -> dict[str, Any]:
    """A run with its configuration, model, history and diagnosis.

    Raises:
        RunNotFound: There is no such run.
    """
    job = store.run(run_id)
    epochs = history(store, job)
    result = job.result or {}
    return {
        "run_id": job.id,
        "name": job.name,
        "status": str(job.status),
        "config": job.config,
        "model": {key: result.get(key) for key in ("params", "layers")},
        **{key: result.get(key) for key in ("steps_per_epoch", "validation_steps", "devices", "engine")},
        "early_stop": result.get("early_stop"),
        "history": epochs,
        "diagnosis": diagnosis(job, epochs).to_json(),
        "error": job.error,
        "duration_s": job.duration_s,
    }


def overview(store: Store) -> list[dict[str, Any]]:
    """All runs in short, newest first."""
    return [
        {
            "run_id": job.id,
            "status": str(job.status),
            "epochs_done": store.epochs_done(job),
            "epochs": job.config.get("training", {}).get("epochs"),
            "pid": job.pid,
            "created_at": job.created_at,
            "duration_s": job.duration_s,
        }
        for job in store.jobs(kinds=[Kind.TRAIN])
    ]
