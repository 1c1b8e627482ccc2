"""Makes of a run what other programs read: its model for Keras or serving, its curves for TensorBoard."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from core.config import RunConfig
from core.engine.checkpoints import Arrays
from core.engine.trained import trained
from core.records import Metric

ABOUT = "mirrorboard.json"
"""Name of the file inside an exported model that says which run and epoch it is from."""


def export_model(config: RunConfig, values: Arrays, about: dict[str, Any], target: Path) -> None:
    """Writes a model that needs none of our code to be loaded.

    Args:
        config: The run.
        values: The model's variables, from a checkpoint.
        about: Run, epoch and the like, put into the file as JSON.
        target: ``….keras`` for Keras's own format, ``….zip`` for a zipped SavedModel.
    """
    built = trained(config, values)
    # The same layers without our training step, which only concerns replicas.
    model = keras.Model(built.input, built.output, name=f"run_{about['run_id']}_epoch_{about['epoch']}")
    text = json.dumps(about, indent=2)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        aside = Path(folder, target.name)
        if target.suffix == ".keras":
            model.save(aside)
            with zipfile.ZipFile(aside, "a") as archive:
                archive.writestr(ABOUT, text)
        else:
            saved = Path(folder, "model")
            model.export(saved, verbose=False)
            (saved / ABOUT).write_text(text, "utf-8")
            shutil.make_archive(str(aside.with_suffix("")), "zip", saved)
        aside.replace(target)


def export_event_files(metrics: Sequence[Metric], target: Path) -> None:
    """Writes a run's epochs as ``keras.callbacks.TensorBoard`` does, zipped: one event file for each split.

    Args:
        metrics: Values of epochs.
        target: The zip file.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        logs = Path(folder, "logs")
        for split in ("train", "validation"):
            rows = [row for row in metrics if row.split == split and row.name != "duration_s"]
            if rows:
                (logs / split).mkdir(parents=True)
                _write_events(rows, logs / split / f"events.out.tfevents.{int(rows[0].at)}.mirrorboard.v2")
        aside = Path(folder, target.name)
        shutil.make_archive(str(aside.with_suffix("")), "zip", logs)
        aside.replace(target)


def _write_events(rows: Sequence[Metric], file: Path) -> None:
    event = tf.compat.v1.Event
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(event(wall_time=rows[0].at, file_version="brain.Event:2").SerializeToString())
        for row in rows:
            value = float("nan") if row.value is None else row.value
            summary = tf.compat.v1.Summary()
            summary.value.add(tag=f"epoch_{row.name}", simple_value=value)
            writer.write(event(wall_time=row.at, step=row.epoch, summary=summary).SerializeToString())
