"""What can be taken away of a run: its history, its models, its event files for TensorBoard."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any, get_args

import streamlit as st

from core.access import Action
from core.config import RunConfig
from core.dashboard.access import why_not
from core.dashboard.file_buttons import FileButtons, file_buttons
from core.dashboard.navigation import CODE, link
from core.dashboard.server import soon
from core.errors import EngineError, RunStateError
from core.exports import (
    CodeFormat,
    Format,
    HistoryFormat,
    Which,
    code_file,
    configuration,
    exported,
    history_file,
    order,
)
from core.records import Job, Kind, Status
from core.store import Store

_PATIENCE_S = 60.0
_one_at_a_time = threading.Lock()
"""Two who ask for the same file would find that the other one has taken it away."""
_MODELS: dict[Format, str] = {"keras": "for Keras", "savedmodel": "for serving (SavedModel)"}
_HISTORIES: dict[HistoryFormat, str] = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}
_CODE: dict[CodeFormat, tuple[str, str]] = {
    "py": ("Python script", "text/x-python"),
    "ipynb": ("Notebook", "application/x-ipynb+json"),
}


def downloads(store: Store, job: Job) -> None:
    """Buttons that make a file when they are clicked; draw them for a run that has ended."""
    with (
        st.expander("Take it away", icon=":material/download:"),
        file_buttons("downloads", job.id) as files,
    ):
        _files(files, store, job)
        if job.kind is Kind.TRAIN:
            with st.container(horizontal=True, vertical_alignment="center"):
                code_buttons(files, configuration(job), job.id)
                link(CODE, "See the code")


def _files(files: FileButtons, store: Store, job: Job) -> None:
    if store.epochs_done(job):
        with st.container(horizontal=True):
            for history, name in _HISTORIES.items():
                files.button(
                    f"History, {name}",
                    partial(_history, store, job, history),
                    f"{job.id}-history.{history}",
                    key=f"export_{history}",
                )
            if job.checkpoint_epochs:
                _ordered(files, store, job, "tensorboard", "last", label="History, TensorBoard event files")
    for which in get_args(Which):
        with st.container(horizontal=True):
            for model, use in _MODELS.items():
                try:
                    epoch = order(job, model, which)["epoch"]
                except RunStateError:
                    continue
                label = f"{which.capitalize()} model, epoch {epoch}, {use}"
                _ordered(files, store, job, model, which, label=label)


def code_buttons(files: FileButtons, config: RunConfig, run_id: str) -> None:
    """Buttons for a run in plain Keras, as a script and as a notebook.

    Args:
        files: Where they stand.
        config: The run.
        run_id: Empty where it has not been started.
    """
    for kind, (label, mime) in _CODE.items():
        files.button(
            label,
            partial(code_file, config, kind, run_id),
            f"{run_id or 'mirrorboard'}.{kind}",
            key=f"export_{kind}",
            mime=mime,
            icon=":material/download:",
        )


def _history(store: Store, job: Job, kind: HistoryFormat) -> bytes:
    # Looked up again: of a run that was deleted meanwhile nothing would be left but the columns' names.
    return history_file(store, store.run(job.id), kind)


def made(store: Store, asked: dict[str, Any], file: Path) -> bytes:
    """Has an engine make a file, and takes it away.

    Args:
        store: Where the run is.
        asked: What `core.exports.order` gave.
        file: Where the engine puts it.

    Raises:
        EngineError: It failed, or took too long.
    """
    with _one_at_a_time:
        done = soon(store, store.submit(Kind.EXPORT, asked), _PATIENCE_S)
        if done.status is not Status.COMPLETED:
            why = f"The job was {done.status}." if done.status.is_final else "It took too long."
            error = done.error or {"message": why, "hint": "Try again."}
            raise EngineError(error["message"], error["hint"])
        try:
            return file.read_bytes()
        finally:
            file.unlink(missing_ok=True)  # it is quickly made again, and would take room for ever


def _ordered(files: FileButtons, store: Store, job: Job, kind: Format, which: Which, *, label: str) -> None:
    asked = order(job, kind, which)
    file = exported(store.checkpoints(job.id), asked)
    files.button(
        label,
        partial(made, store, asked, file),
        file.name,
        key=f"export_{kind}_{which}",
        reason=why_not(Action.WORK),
    )
