"""What can be taken away of a run: which formats, what the file is called, and what an engine must make."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from core.config import RunConfig, parse_config
from core.errors import RunStateError
from core.records import Job, Kind
from core.report import history
from core.store import Store
from core.take_home import script

Which = Literal["best", "last"]
HistoryFormat = Literal["csv", "json", "parquet"]
CodeFormat = Literal["py", "ipynb"]
Format = Literal["keras", "savedmodel", "csv", "json", "parquet", "tensorboard", "py", "ipynb"]


def whole_epochs(store: Store, run: Job) -> int:
    """How many epochs of a run's history there are to export.

    Raises:
        RunStateError: There is none.
    """
    epochs = store.epochs_done(run)
    if not epochs:
        raise RunStateError(
            f"Run {run.id} has no whole epoch to export.",
            "Resume the run, or choose another."
            if run.can_resume
            else "Choose another run."
            if run.status.is_final
            else "Wait for the end of its first epoch.",
        )
    return epochs


def order(run: Job, kind: Format, which: Which) -> dict[str, Any]:
    """The configuration of the job that exports a run's model or event files.

    Args:
        run: The run.
        kind: ``keras``, ``savedmodel`` or ``tensorboard``.
        which: Of its models.

    Raises:
        RunStateError: There is nothing to export.
    """
    if kind == "tensorboard":
        return {"run_id": run.id, "format": kind, "epoch": run.checkpoint_epochs}
    epoch = (run.checkpoint or {}).get("best_epoch") if which == "best" else run.checkpoint_epochs
    if run.kind is not Kind.TRAIN or not epoch:
        raise RunStateError(
            f"Run {run.id} has no model to export: one is kept after each epoch.",
            "Resume the run." if run.can_resume else "",
        )
    return {"run_id": run.id, "format": kind, "which": which, "epoch": epoch}


def exported(folder: Path, asked: dict[str, Any]) -> Path:
    """Where an engine puts what was ordered.

    Args:
        folder: Of the run's checkpoints, with which it is deleted.
        asked: What `order` gave.
    """
    name = {
        "keras": "{run_id}-{which}-epoch-{epoch}.keras",
        "savedmodel": "{run_id}-{which}-epoch-{epoch}-savedmodel.zip",
        "tensorboard": "{run_id}-tensorboard.zip",
    }[asked["format"]]
    return folder / "exports" / name.format(**asked)


def history_file(store: Store, run: Job, kind: HistoryFormat) -> bytes:
    """A run's epochs as a file; `core.analysis.imported.read_history` reads the first two back.

    Raises:
        RunStateError: There is none yet.
    """
    whole_epochs(store, run)
    rows = history(store, run)
    names = list(dict.fromkeys(name for row in rows for name in row))
    match kind:
        case "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return text.getvalue().encode()
        case "json":
            return json.dumps(rows, indent=2, allow_nan=False).encode()
        case "parquet":
            types = [(name, pa.int64() if name == "epoch" else pa.float64()) for name in names]
            about = {"run_id": run.id, "status": str(run.status)}
            table = pa.Table.from_pylist(rows, pa.schema(types, metadata=about))
            sink = io.BytesIO()
            pq.write_table(table, sink)
            return sink.getvalue()


def code_file(config: RunConfig, kind: CodeFormat, run_id: str = "") -> bytes:
    """A run in plain Keras, as a script or as a notebook.

    Args:
        config: The run.
        kind: Which of the two.
        run_id: Of a run that is there.
    """
    text = script(config, run_id)
    if kind == "ipynb":
        # nbformat takes as long to import as the smaller half of the dashboard, and few take a notebook away.
        from core.notebook import notebook  # noqa: PLC0415

        kind_of_device = "TPU" if config.layout.strategy == "tpu" else config.layout.device_type
        text = notebook(text, None if kind_of_device == "CPU" else kind_of_device)
    return text.encode()


def configuration(run: Job) -> RunConfig:
    """The configuration of a run whose code is asked for.

    Raises:
        RunStateError: It was trained elsewhere, so nobody knows its code.
    """
    if run.kind is not Kind.TRAIN:
        raise RunStateError(
            f"Run {run.id} was imported, so its code is not known.", "Choose a run that was trained here."
        )
    return parse_config(run.config)
