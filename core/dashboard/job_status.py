"""Jobs that go on: the sidebar's lines about them, and pages that wait for one."""

from __future__ import annotations

import shutil

import streamlit as st

from core import retention
from core.config import DATASET_NAMES, parse_config
from core.dashboard import draft, units
from core.dashboard.fragments import fragment
from core.dashboard.messages import LOOKS, boundary, plain
from core.dashboard.navigation import STEPS
from core.records import ACTIVE, Job, Kind, Status
from core.store import Store

JOB_STATUS = "job_status"
"""Key of the fragment in the sidebar."""
FOLLOWED = "followed"
"""In the session's state: whether a part of the page looks for news by itself, see `core.dashboard.pulse`."""
_ACTIVE_S = 1.0
_IDLE_S = 20.0
"""Seconds between two looks at the job status, with and without a job."""


def rerun_when_done(store: Store, job: Job, every_s: float = 0.2) -> None:
    """Runs the page again as soon as a job has ended."""
    if not job.status.is_final:
        fragment(_wait, run_every=every_s)(store, job.id)


def _wait(store: Store, job_id: str) -> None:
    with boundary():
        if store.job(job_id).status.is_final:
            st.rerun()


def job_status(store: Store, title: str) -> None:
    """What goes on, in the sidebar of the page with this title."""
    active = _active(store)
    # A live page has a pulse of its own, which draws this along with the rest.
    every_s = _ACTIVE_S if active and not st.session_state[FOLLOWED] else _IDLE_S
    status = fragment(_status, run_every=every_s, key=JOB_STATUS)
    status(store, _signature(active), title)


def unfinished_run(store: Store) -> Job | None:
    """The run that an engine has, else the next in line; it need not be the newest, for runs are resumed."""
    return next((job for job in _active(store) if job.kind is Kind.TRAIN), None)


def _active(store: Store) -> list[Job]:
    """Jobs worth telling about: trainings and preparations, the running ones first."""
    jobs = store.jobs(kinds=[Kind.TRAIN, Kind.PREPARE], statuses=[*ACTIVE, Status.QUEUED])
    return sorted(
        jobs,
        key=lambda job: (job.status is Status.QUEUED, job.kind is Kind.PREPARE, job.queued_at, job.number),
    )


def _signature(jobs: list[Job]) -> tuple[tuple[str, Status], ...]:
    # Whoever waits for newswires to be prepared looks for that himself: `rerun_when_done`.
    return tuple((job.id, job.status) for job in jobs if job.kind is Kind.TRAIN)


def _status(store: Store, seen: tuple[tuple[str, Status], ...], title: str) -> None:
    with boundary():
        jobs = _active(store)
        if _signature(jobs) != seen:
            st.rerun()  # the page itself shows what has begun or ended, too
        for job in jobs[:2]:
            _job_line(job)
        first = next((job for job in jobs if job.kind is Kind.TRAIN), None)
        if first is not None and (title, draft.chosen_run()) != (STEPS[-1].name, first.id):
            _watch(first, title)
        waiting = len(jobs) - 2
        if waiting > 0:
            st.caption(f"{units.plural(waiting, 'more job')} waiting")
        free_bytes = shutil.disk_usage(store.home).free
        if free_bytes < retention.LOW_BYTES:
            left = plain(retention.size(free_bytes))
            st.warning(
                f"The disk of the run store is nearly full: {left} are left.", icon=":material/hard_drive:"
            )
        if not jobs:
            st.caption(f":material/radio_button_unchecked: Nothing is running. {_engine(store)}")


def _watch(job: Job, title: str) -> None:
    icon = ":material/visibility:"
    if title != STEPS[-1].name:
        query = {**draft.address(), "run": job.id}
        st.page_link(STEPS[-1].script, label="Watch", icon=icon, query_params=query)
    elif st.button("Watch", key=f"watch_{job.id}", icon=icon, type="tertiary"):
        draft.choose_run(job.id)
        st.rerun()


def _job_line(job: Job) -> None:
    progress = job.progress
    if job.kind is Kind.PREPARE:
        total = progress.get("total_bytes") or 0
        done = progress.get("downloaded_bytes") or 0
        st.progress(
            min(done / total, 1.0) if total else 0.0,
            f"Preparing {DATASET_NAMES[job.config['dataset']]} newswires",
        )
        return
    if job.status is Status.QUEUED:
        st.caption(f"{LOOKS[job.status][0]} Run {job.id} is queued")
    else:
        epochs = _epochs(job)
        epoch = min(progress.get("epoch", job.checkpoint_epochs) + 1, epochs)
        ending = job.status in (Status.STOPPING, Status.PAUSING)
        text = str(job.status) if ending else plain(job.phase or "starting")
        st.progress(run_share(job), f"**Run {job.id}**, epoch {epoch} of {epochs}: {text}")


def run_share(job: Job) -> float:
    """How much of a run is done, from 0 to 1."""
    progress, steps = job.progress, job.progress.get("steps")
    # Until the engine reports, a run that was resumed stands where its checkpoint is.
    done = progress["epoch"] + progress["step"] / steps if steps else job.checkpoint_epochs
    return float(min(done / _epochs(job), 1.0))


def _epochs(job: Job) -> int:
    return int(job.progress.get("epochs") or parse_config(job.config).training.epochs)


def _engine(store: Store) -> str:
    engines = store.engines()
    if any(engine.ready_at is not None for engine in engines):
        return "TensorFlow is ready."
    return "TensorFlow is starting." if engines else ""
