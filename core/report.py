"""What a run came to, as one JSON object: for the command line, exports and the pages."""

from __future__ import annotations

from typing import Any

from core.analysis.overfitting import diagnose
from core.corpus import CLASSES
from core.store import Job, Kind, Store


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


def report(store: Store, run_id: str) -> dict[str, Any]:
    """A run with its configuration, model, history and diagnosis.

    Raises:
        RunNotFound: There is no such run.
    """
    job = store.job(run_id)
    epochs = history(store, job)
    result = job.result or {}
    return {
        "run_id": job.id,
        "status": str(job.status),
        "config": job.config,
        "model": {key: result.get(key) for key in ("params", "layers")},
        **{key: result.get(key) for key in ("steps_per_epoch", "validation_steps", "devices", "engine")},
        "early_stop": result.get("early_stop"),
        "history": epochs,
        "diagnosis": diagnose(epochs, num_classes=CLASSES).to_json(),
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
