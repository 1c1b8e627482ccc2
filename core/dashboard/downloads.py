"""What can be taken away of a run: its history, its models, its event files for TensorBoard."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import streamlit as st

from core.access import Action
from core.config import RunConfig
from core.dashboard.access import why_not
from core.dashboard.messages import boundary, plain, problem
from core.dashboard.navigation import CODE, link
from core.dashboard.server import soon
from core.errors import EngineError, MirrorboardError, RunStateError
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

_log = logging.getLogger(__name__)
_PATIENCE_S = 60.0
_BEGINS_WITHIN_S = 10.0
_LOOK_S = 2.0
"""Between two looks whether a file is there. Streamlit deletes it after the second, fetched or not (1.67)."""
_TRIED = "download_tried"
"""In the session's state: the last click."""
_one_at_a_time = threading.Lock()
"""Two who ask for the same file would find that the other one has taken it away."""
_MODELS: dict[Format, str] = {"keras": "for Keras", "savedmodel": "for serving (SavedModel)"}
_HISTORIES: dict[HistoryFormat, str] = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}
_CODE: dict[CodeFormat, tuple[str, str]] = {
    "py": ("Python script", "text/x-python"),
    "ipynb": ("Notebook", "application/x-ipynb+json"),
}


@dataclass
class _Try:
    """A click on a button, which the page and the thread that makes the file both know.

    Streamlit makes the file outside of any page and tells the browser no more than that it failed (1.67).
    """

    run_id: str
    what: str
    clicked_at: float = 0.0
    """Of a monotonic clock, s."""
    has_begun: bool = False
    over_at: float | None = None
    """Of the same clock; None while it is being made."""
    error: tuple[str, str] | None = None
    """What went wrong, and what to do."""

    def make(self, content: Callable[[], bytes]) -> bytes:
        """Makes the file, and keeps what went wrong for the page."""
        self.has_begun = True
        try:
            return content()
        except MirrorboardError as error:
            self.error = (f"{self.what} could not be made. {error.message}", error.hint)
            raise
        except Exception as error:
            _log.exception("A file could not be made")
            self.error = (
                f"{self.what} could not be made ({type(error).__name__}).",
                "Try again. If it comes back, the dashboard's log on the terminal has the details.",
            )
            raise
        finally:
            self.over_at = time.monotonic()

    def click(self) -> None:
        """Lets the page tell of this click, and of none before."""
        self.clicked_at = time.monotonic()
        st.session_state[_TRIED] = self

    def look(self) -> None:
        """Notices a file that nobody makes."""
        if not self.has_begun and time.monotonic() > self.clicked_at + _BEGINS_WITHIN_S:
            self.error = (f"{self.what} was not asked for: the page was drawn anew.", "Choose it again.")
            self.over_at = time.monotonic()


def downloads(store: Store, job: Job) -> None:
    """Buttons that make a file when they are clicked; draw them for a run that has ended."""
    with st.expander("Take it away", icon=":material/download:"):
        st.fragment(_downloads)(store, job)


def _downloads(store: Store, job: Job) -> None:
    with boundary():
        with st.container(horizontal=True):
            for history, name in _HISTORIES.items():
                _button(
                    job,
                    f"History, {name}",
                    partial(_history, store, job, history),
                    f"{job.id}-history.{history}",
                    key=f"export_{history}",
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
        if job.kind is Kind.TRAIN:
            with st.container(horizontal=True, vertical_alignment="center"):
                code_buttons(configuration(job), job.id)
                link(CODE, "See the code")
        _tell(job)


def _tell(job: Job) -> None:
    """What has become of the last click."""
    tried: _Try | None = st.session_state.get(_TRIED)
    if tried is None or tried.run_id != job.id:
        return
    if tried.over_at is None:
        st.info(
            f"{plain(tried.what)} is being made. It is saved as soon as it is there.",
            icon=":material/hourglass_top:",
        )
        st.fragment(_wait, run_every=_LOOK_S)(tried)
    elif tried.error is not None:
        problem(*tried.error)


def _wait(tried: _Try) -> None:
    with boundary():
        tried.look()
        if tried.error is not None or (
            tried.over_at is not None and time.monotonic() > tried.over_at + _LOOK_S
        ):
            st.rerun()


def _button(
    job: Job, label: str, content: Callable[[], bytes], name: str, *, key: str, reason: str | None = None
) -> None:
    """A button for a file that may fail to be made, which `_tell` then says.

    Args:
        job: The run.
        label: What the file is.
        content: Makes it.
        name: Of the file.
        key: Of the button.
        reason: Why the viewer may not have it.
    """
    tried = _Try(job.id, label)
    st.download_button(
        label,
        partial(tried.make, content),
        name,
        key=key,
        on_click=tried.click,
        disabled=reason is not None,
        help=reason,
    )


def code_buttons(config: RunConfig, run_id: str) -> None:
    """Buttons for a run in plain Keras, as a script and as a notebook.

    Args:
        config: The run.
        run_id: Empty where it has not been started.
    """
    for kind, (label, mime) in _CODE.items():
        st.download_button(
            label,
            partial(code_file, config, kind, run_id),
            f"{run_id or 'mirrorboard'}.{kind}",
            mime,
            key=f"export_{kind}",
            icon=":material/download:",
            on_click="ignore",
        )


def _history(store: Store, job: Job, kind: HistoryFormat) -> bytes:
    # Looked up again: of a run that was deleted meanwhile nothing would be left but the columns' names.
    return history_file(store, store.job(job.id), kind)


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


def _ordered(store: Store, job: Job, kind: Format, which: Which, label: str) -> None:
    asked = order(job, kind, which)
    file = exported(store.checkpoints(job.id), asked)
    _button(
        job,
        label,
        partial(made, store, asked, file),
        file.name,
        key=f"export_{kind}_{which}",
        reason=why_not(Action.WORK),
    )
