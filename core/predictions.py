"""What a run's model says about the newswires it was validated on: what to ask for, and the file it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from core.corpus import Corpus, Split
from core.errors import DatasetError, RunStateError, StoreError
from core.exports import Which
from core.records import Job, Kind
from core.whole_files import replacing

SPLIT: Split = "test"
"""What runs are validated on."""


@dataclass(frozen=True)
class Predictions:
    """A model's answers.

    Attributes:
        labels: Right class of each newswire of the split, int32, shape (n,).
        probabilities: What the model puts out, float32, shape (n, classes).
    """

    labels: NDArray[np.int32]
    probabilities: NDArray[np.float32]


def order(run: Job, which: Which) -> dict[str, Any]:
    """The configuration of the job that evaluates a run.

    Args:
        run: The run.
        which: Of its models.

    Raises:
        RunStateError: It goes on, or has no model.
    """
    if run.kind is not Kind.TRAIN:
        raise RunStateError(
            f"Run {run.title} was imported: its log is known, but not its model.",
            "Choose a run that was trained here.",
        )
    if not run.status.is_final:
        raise RunStateError(
            f"Run {run.title} is {run.status}; its model can be evaluated once it has ended.",
            "Wait for its end, stop it, or choose another.",
        )
    epoch = (run.checkpoint or {}).get("best_epoch") if which == "best" else run.checkpoint_epochs
    if not epoch and run.checkpoint_epochs:
        raise RunStateError(
            f"Run {run.title} has no best model: its validation loss never was a finite number.",
            "Choose its last epoch, or another run.",
        )
    if not epoch:
        raise RunStateError(
            f"Run {run.title} has no model to evaluate: one is kept after each epoch.",
            "Resume the run, or choose another." if run.can_resume else "Choose another run.",
        )
    return {"run_id": run.id, "which": which, "epoch": epoch, "rewinds": run.rewinds}


def question(asked: dict[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """The configuration of the job that asks a model about one newswire.

    Args:
        asked: What `order` gave.
        ids: Word ids of the newswire, at most as many as the model takes.
    """
    return {**asked, "ids": list(ids)}


def predicted(folder: Path, asked: dict[str, Any]) -> Path:
    """Where an engine puts a run's predictions.

    Args:
        folder: Of the run's checkpoints, with which it is deleted.
        asked: What `order` gave. A run that went on has another file, even for an epoch of the same number.
    """
    return folder / "predictions" / "{which}-epoch-{epoch}-{rewinds}.parquet".format(**asked)


def write(predictions: Predictions, target: Path) -> None:
    """Writes predictions so that readers see all of them or none.

    Raises:
        OSError: The disk does not take them.
    """
    classes = predictions.probabilities.shape[1]
    table = pa.table(
        {
            "label": pa.array(predictions.labels, pa.int32()),
            "probabilities": pa.FixedSizeListArray.from_arrays(
                pa.array(predictions.probabilities.ravel(), pa.float32()), classes
            ),
        }
    )
    with replacing(target) as aside:
        pq.write_table(table, aside, compression="zstd")


def read(source: Path, corpus: Corpus) -> Predictions:
    """Reads predictions.

    Args:
        source: Their file.
        corpus: The dataset they are about.

    Raises:
        StoreError: The file cannot be read.
        DatasetError: It is about another dataset than this.
    """
    try:
        with pq.ParquetFile(source) as file:
            table = file.read()
        values = table["probabilities"].combine_chunks()
        found = Predictions(
            table["label"].to_numpy(), values.values.to_numpy().reshape(-1, values.type.list_size)
        )
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise StoreError(
            f"The predictions in {source} cannot be read ({error}).",
            "Delete the file; they are made again when they are next needed.",
        ) from error
    if not np.array_equal(found.labels, corpus.split_labels(SPLIT)):
        raise DatasetError(
            f"{corpus.title} have changed since the model was evaluated.",
            f"Delete {source}; the predictions are made again when they are next needed.",
        )
    return found
