"""What can be taken away of a run: its history, its models, its event files for TensorBoard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import streamlit as st

from core.access import Action
from core.config import RunConfig
from core.dashboard.access import why_not
from core.dashboard.file_button import file_button
from core.dashboard.messages import boundary, problem
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
_TRIES = "download_tries"
"""In the session's state: what became of clicks on the buttons."""
_one_at_a_time = threading.Lock()
"""Two who ask for the same file would find that the other one has taken it away."""
_MODELS: dict[Format, str] = {"keras": "for Keras", "savedmodel": "for serving (SavedModel)"}
_HISTORIES: dict[HistoryFormat, str] = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}
_CODE: dict[CodeFormat, tuple[str, str]] = {
    "py": ("Python script", "text/x-python"),
    "ipynb": ("Notebook", "application/x-ipynb+json"),
}

# Streamlit makes such a file outside of any page and tells the browser only that it failed (1.67). After a
# click this asks every second what came of it; the buttons must not be drawn anew meanwhile, because that
# takes the order back.
_ask = st.components.v2.component(
    "mirrorboard_downloads",
    js="""
export default function ({ data, parentElement: here, setTriggerValue }) {
  here.over = data;
  here.tell = setTriggerValue;  // that of an earlier drawing may go nowhere
  if (here.listens) return;
  here.listens = true;
  here.wanted = data;
  const ask = (left) => {
    if (!here.isConnected || here.over >= here.wanted) return;
    if (left === 0) return void (here.wanted = here.over);
    here.tell("asked", Date.now());
    setTimeout(ask, 1000, left - 1);
  };
  const clicked = (event) => {
    if (!here.isConnected) return document.removeEventListener("click", clicked, true);
    if (!event.target.closest(".st-key-downloads button:enabled")) return;
    here.wanted = Math.max(here.wanted, here.over) + 1;
    setTimeout(ask, 500, 90);
  };
  document.addEventListener("click", clicked, true);  // before the button turns itself off
}
""",
)


@dataclass
class _Tries:
    """What became of clicks: written where the files are made, read by the page.

    Attributes:
        over: How many have come to an end.
        run_id: Of the last one.
        error: What went wrong with it, and what to do.
    """

    over: int = 0
    run_id: str = ""
    error: tuple[str, str] | None = None

    def make(self, run_id: str, what: str, content: Callable[[], bytes]) -> bytes:
        """Makes a file, and keeps what went wrong."""
        self.run_id, self.error = run_id, None
        try:
            return content()
        except MirrorboardError as error:
            self.error = (f"{what} could not be made. {error.message}", error.hint)
            raise
        except Exception as error:
            _log.exception("A file could not be made")
            self.error = (
                f"{what} could not be made ({type(error).__name__}).",
                "Try again. If it comes back, the dashboard's log on the terminal has the details.",
            )
            raise
        finally:
            self.over += 1


def downloads(store: Store, job: Job) -> None:
    """Buttons that make a file when they are clicked; draw them for a run that has ended."""
    with st.expander("Take it away", icon=":material/download:"):
        with st.container(key="downloads"):
            _files(store, job)
        if job.kind is Kind.TRAIN:
            with st.container(horizontal=True, vertical_alignment="center"):
                code_buttons(configuration(job), job.id)
                link(CODE, "See the code")
        st.fragment(_tell)(job.id)


def _files(store: Store, job: Job) -> None:
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


def _tries() -> _Tries:
    tries: _Tries = st.session_state.setdefault(_TRIES, _Tries())
    return tries


def _tell(run_id: str) -> None:
    """What has become of the last click, until the next."""
    with boundary():
        tries = _tries()
        if tries.run_id == run_id and tries.error is not None:
            problem(*tries.error)
        _ask(key="download_news", data=tries.over, on_asked_change=lambda: None)


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
    file_button(label, partial(_tries().make, job.id, label, content), name, key=key, reason=reason)


def code_buttons(config: RunConfig, run_id: str) -> None:
    """Buttons for a run in plain Keras, as a script and as a notebook.

    Args:
        config: The run.
        run_id: Empty where it has not been started.
    """
    for kind, (label, mime) in _CODE.items():
        file_button(
            label,
            partial(code_file, config, kind, run_id),
            f"{run_id or 'mirrorboard'}.{kind}",
            key=f"export_{kind}",
            mime=mime,
            icon=":material/download:",
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
