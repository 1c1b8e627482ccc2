"""Ending a run and going on with it: the buttons Pause, Stop, Resume and Extend, and what came of them."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from core.access import Action
from core.config import RunConfig, parse_config
from core.dashboard import draft, units
from core.dashboard.access import limits, over_limits, why_not
from core.dashboard.messages import plain, problem, told
from core.dashboard.server import machine, missing_device
from core.errors import ConfigError, MirrorboardError, RunStateError
from core.records import Job, Kind, Status
from core.store import Store
from core.transitions import extended

MONITORS = {"val_loss": "Validation loss", "val_sparse_categorical_accuracy": "Validation accuracy"}
"""What early stopping may look at."""
_MOST_EPOCHS = 10_000
"""Of a run in all."""
_USUAL_EPOCHS = 5
"""To add."""


def buttons(store: Store, job: Job) -> None:
    """What can be done with a run as it stands; draw it in a horizontal container."""
    if not job.status.is_final:
        _end(store, job)
        return
    if job.can_resume:
        _resume(store, job)
    if job.can_extend:
        reason = why_not(Action.EXTEND, job) or _too_much(extended(job, 1), job)
        with st.popover(
            "Extend", key="extend", icon=":material/add:", disabled=reason is not None, help=reason
        ):
            allowed = limits()
            most = max((_MOST_EPOCHS if allowed is None else allowed.epochs) - job.checkpoint_epochs, 1)
            # What was entered for another run may be more than this one has left.
            st.session_state["extend_epochs"] = min(
                st.session_state.get("extend_epochs", _USUAL_EPOCHS), most
            )
            epochs = st.number_input("Epochs to add", 1, most, key="extend_epochs")
            if st.button("Train on", key="extend_now", icon=":material/play_arrow:", type="primary"):
                _queue(lambda: store.extend(job.id, epochs))


def _too_much(config: RunConfig, job: Job) -> str | None:
    """Why the server does not let the run go on like this, for a tooltip."""
    exceeded = over_limits(config, run=job)
    return None if exceeded is None else plain(str(exceeded))


def _end(store: Store, job: Job) -> None:
    ending = job.status in (Status.STOPPING, Status.PAUSING)
    if job.kind is Kind.TRAIN and job.status is not Status.QUEUED:
        pausing = job.status is Status.PAUSING
        reason = why_not(Action.PAUSE, job)
        st.button(
            "Pausing…" if pausing else "Pause",
            key="pause",
            icon=":material/pause:",
            disabled=ending or reason is not None,
            help=reason or "Frees the devices. The run can go on later, after its last whole epoch.",
            on_click=_pause,
            args=(store, job.id),
        )
    stopping = job.status is Status.STOPPING
    reason = why_not(Action.STOP, job)
    st.button(
        "Stopping…" if stopping else "Leave the queue" if job.status is Status.QUEUED else "Stop",
        key="stop",
        icon=":material/stop:",
        disabled=stopping or reason is not None,
        help=reason,
        on_click=_stop,
        args=(store, job.id),
    )


@told
def _stop(store: Store, run_id: str) -> None:
    store.request_stop(run_id)


@told
def _pause(store: Store, run_id: str) -> None:
    try:
        store.request_pause(run_id)
    except RunStateError as error:  # it has ended meanwhile
        st.toast(plain(str(error)), icon=":material/info:")


def _resume(store: Store, job: Job) -> None:
    config = parse_config(job.config)
    reason = why_not(Action.RESUME, job) or _too_much(config, job)
    if st.button(
        "Resume",
        key="resume",
        icon=":material/play_arrow:",
        disabled=reason is not None,
        help=reason
        or f"Goes on after epoch {job.checkpoint_epochs} on {plain(units.layout(config.layout))}.",
    ):
        _queue(lambda: store.resume(job.id))
    try:
        other = draft.layout()
        wrong: ConfigError | None = missing_device(machine(store), other)
    except ConfigError:
        return
    if other == config.layout:
        return
    try:
        config.on(other)
    except ConfigError as error:
        wrong = error
    if st.button(
        f"Resume on {plain(units.layout(other))}",
        key="resume_elsewhere",
        icon=":material/move_down:",
        disabled=reason is not None or wrong is not None,
        help=reason
        or (plain(str(wrong)) if wrong else "The layout of the page Devices; batch and learning rate stay."),
    ):
        _queue(lambda: store.resume(job.id, other))


def _queue(change: Callable[[], str]) -> None:
    try:
        change()
    except MirrorboardError as error:  # somebody else was faster
        problem(error.message, error.hint)
    else:
        st.rerun()


def story(job: Job) -> None:
    """Where a run went on after an interruption, why it stopped early, what is wrong with its checkpoints."""
    resumed = (job.result or {}).get("resumed")
    checkpoint = job.checkpoint or {}
    if resumed:
        st.caption(f":material/history: Went on from the checkpoint of epoch {resumed['epochs']:,}.")
        for epoch in resumed["damaged"]:
            st.warning(
                f"The checkpoint of epoch {epoch:,} was damaged, so the run went back to the one before.",
                icon=":material/healing:",
            )
    if job.status is Status.PAUSED:
        done = job.checkpoint_epochs
        where = f"after epoch {done:,}" if done else "before its first epoch was whole; it begins anew"
        st.info(f"Paused {where}. It holds no device.", icon=":material/pause_circle:")
    if checkpoint.get("problem"):
        kept = f"The newest one is of epoch {job.checkpoint_epochs:,}." if job.checkpoint_epochs else ""
        st.warning(f"{plain(checkpoint['problem'])} {kept}", icon=":material/save:")
    early = (job.result or {}).get("early_stop")
    if early:
        monitored = MONITORS[parse_config(job.config).training.monitor]
        st.info(
            f"Stopped early after epoch {early['epoch']}: {monitored.lower()} had not improved since epoch"
            f" {early['best_epoch']}.",
            icon=":material/flag:",
        )
