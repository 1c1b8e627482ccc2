"""What can be taken away of a run: its history, its models, its event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import streamlit as st

from core.dashboard.server import soon
from core.errors import EngineError, RunStateError
from core.exports import Format, HistoryFormat, Which, exported, history_file, order
from core.records import Job, Kind, Status
from core.store import Store

_PATIENCE_S = 60.0
_MODELS: dict[Format, str] = {"keras": "for Keras", "savedmodel": "for serving (SavedModel)"}
_HISTORIES: dict[HistoryFormat, str] = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}


def downloads(store: Store, job: Job) -> None:
    """Buttons that make a file when they are clicked; draw them for a run that has ended."""
    with st.expander("Take it away", icon=":material/download:"):
        with st.container(horizontal=True):
            for history, name in _HISTORIES.items():
                st.download_button(
                    f"History, {name}",
                    _history(store, job, history),
                    f"{job.id}-history.{history}",
                    key=f"export_{history}",
                    on_click="ignore",
                )
            if job.checkpoint_epochs:
                _ordered(store, job, "tensorboard", "last", "History, TensorBoard event files")
        for which in get_args(Which):
            with st.container(horizontal=True):
                for model, use in _MODELS.items():
                    try:
                        epoch = order(job, model, which)["epoch"]
                    except RunStateError:
                        continue
                    _ordered(store, job, model, which, f"{which.capitalize()} model, epoch {epoch}, {use}")


def _history(store: Store, job: Job, kind: HistoryFormat) -> Callable[[], bytes]:
    return lambda: history_file(store, job, kind)


def _ordered(store: Store, job: Job, kind: Format, which: Which, label: str) -> None:
    asked = order(job, kind, which)
    file = exported(store.checkpoints(job.id), asked)

    def make() -> bytes:
        done = soon(store, store.submit(Kind.EXPORT, asked), _PATIENCE_S)
        if done.status is not Status.COMPLETED:
            error = done.error or {"message": "The export took too long.", "hint": "Try again."}
            raise EngineError(error["message"], error["hint"])
        return file.read_bytes()

    st.download_button(label, make, file.name, key=f"export_{kind}_{which}", on_click="ignore")
