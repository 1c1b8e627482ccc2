"""A scaling study on the page: its verdict, charts and table, while its runs go on and afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from core import report
from core.access import Action
from core.analysis.criteria import epoch_numbers, series
from core.analysis.scaling import Analysis, Timed, analyse, verdict
from core.config import OPTIMIZER_NAMES, RunConfig, parse_config
from core.dashboard import charts, draft, units
from core.dashboard.about import summary
from core.dashboard.access import why_not
from core.dashboard.file_buttons import file_buttons
from core.dashboard.job_status import run_share
from core.dashboard.messages import badge, boundary, plain, problem, told
from core.dashboard.navigation import RUNS
from core.records import ACTIVE, Job, Scaling, Status
from core.store import Store
from core.study import comparable, shares_devices, stop, timed
from core.study import report as study_report

_KINDS = {Scaling.STRONG: "Strong scaling", Scaling.WEAK: "Weak scaling"}
_LAWS = {
    Scaling.STRONG: "Amdahl's law: speed-up = 1 / (s + (1 − s) / n), with the serial fraction s fitted.",
    Scaling.WEAK: "Gustafson's law: speed-up = s + (1 − s) n, with the serial fraction s fitted.",
}
_FASTER = 1.05
"""Speed-up that is more than noise."""


@dataclass(frozen=True)
class _Run:
    job: Job
    config: RunConfig
    timed: Timed | None
    history: list[dict[str, Any]]

    @property
    def replicas(self) -> int:
        return self.config.layout.replicas


def study_panel(store: Store, study: str, *, live: bool) -> None:
    """Everything of a study that changes while its runs go on.

    Args:
        store: Where they are.
        study: The study's id.
        live: Whether the page was drawn while a run was to come; it is drawn anew when all have ended.
    """
    with boundary():
        jobs = store.study(study)
        if not jobs:
            problem(f"There is no study {study!r}.", "Choose one of the studies above, or start a new one.")
            return
        if live and all(job.status.is_final for job in jobs):
            st.rerun()
        compared = comparable(jobs)
        runs = sorted((_run(store, job) for job in compared), key=lambda run: run.replicas)
        scaling = jobs[0].scaling
        assert scaling is not None
        analysis = analyse(scaling, {run.replicas: run.timed for run in runs})
        _head(store, study, scaling, jobs)
        # Containers with fixed keys, empty or not, keep the charts in their place on the page.
        with st.container(key="study_progress"):
            _progress(jobs)
        with st.container(key="study_verdict"):
            _verdict(analysis, compared)
            _left_out(jobs)
        with st.container(key="study_charts"):
            _charts(analysis, study, runs)
        with st.container(key="study_table"):
            _table(analysis, runs)
            with file_buttons("study_files", study) as files:
                files.button(
                    "Study as JSON",
                    lambda: json.dumps(study_report(store, study), allow_nan=False, indent=2).encode(),
                    f"study-{study}.json",
                    key="save_study",
                    mime="application/json",
                    icon=":material/download:",
                )
        config = parse_config(jobs[0].config)
        st.caption(
            f"The same in all: {plain(summary(config).split(';')[0])};"
            f" {OPTIMIZER_NAMES[config.model.optimizer]},"
            f" {units.plural(config.training.epochs, 'epoch')}, seed {config.training.seed}."
            f" {_LAWS[scaling]} Medians leave out the first epoch, which"
            " holds TensorFlow's tracing. One replica trains without a strategy."
        )


def _run(store: Store, job: Job) -> _Run:
    measured, history = _measured(
        store.home, job.id, store.epochs_done(job), job.status, job.rewinds, _store=store, _job=job
    )
    return _Run(job, parse_config(job.config), measured, history)


@st.cache_data(show_spinner=False, max_entries=256)
def _measured(
    home: Path,  # noqa: ARG001 - part of the key, as the next four
    run_id: str,  # noqa: ARG001
    epochs: int,  # noqa: ARG001
    status: Status,  # noqa: ARG001
    rewinds: int,  # noqa: ARG001
    *,
    _store: Store,
    _job: Job,
) -> tuple[Timed | None, list[dict[str, Any]]]:
    """Read once for everybody, and again when an epoch or the run has ended."""
    return timed(_store, _job), report.history(_store, _job)


def _head(store: Store, study: str, scaling: Scaling, jobs: Sequence[Job]) -> None:
    done = sum(job.status.is_final for job in jobs)
    with st.container(horizontal=True, vertical_alignment="center", key="study_head"):
        st.markdown(
            f"**{_KINDS[scaling]}, study {plain(study)}**: {done} of {units.plural(len(jobs), 'run')} ended"
        )
        if done < len(jobs):
            stopping = not any(job.status in (Status.QUEUED, Status.RUNNING) for job in jobs)
            reason = why_not(Action.STOP, *jobs)
            st.button(
                "Stopping…" if stopping else "Stop all",
                key="stop_study",
                icon=":material/stop:",
                disabled=stopping or reason is not None,
                help=reason,
                on_click=told(stop),
                args=(store, study),
            )
        if st.button("Compare on the page Runs", key="compare_study", icon=RUNS.icon, type="tertiary"):
            st.session_state["runs"] = [job.id for job in jobs]
            st.switch_page(RUNS.script, query_params=draft.address())


def _progress(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.status in ACTIVE:
            replicas = units.plural(parse_config(job.config).layout.replicas, "replica")
            st.progress(run_share(job), f"{replicas}: {plain(job.phase or 'starting TensorFlow')}")
        elif job.error is not None:
            replicas = units.plural(parse_config(job.config).layout.replicas, "replica")
            problem(f"{replicas}: {job.error['message']}", job.error["hint"])


def _verdict(analysis: Analysis, jobs: Sequence[Job]) -> None:
    st.info(plain(verdict(analysis)), icon=":material/insights:")
    if shares_devices(jobs):
        caveat = (
            "The replicas are logical devices of one physical device: no speed-up is expected; what you see"
            " is the cost of synchronising."
        )
        if any(scaled.speed_up > _FASTER for scaled in analysis.scaled.values()):
            caveat += " Here they run faster all the same: one replica alone leaves part of the device idle."
        st.warning(caveat, icon=":material/call_split:")


def _left_out(jobs: Sequence[Job]) -> None:
    names = ", ".join(plain(job.title) for job in jobs if job.layout_changed)
    if names:
        st.caption(f"Runs that were resumed on another device layout are left out: {names}.")


def _charts(analysis: Analysis, study: str, runs: Sequence[_Run]) -> None:
    left, right = st.columns(2)
    with left:
        charts.show(charts.speed_up_curve(analysis, study), key="speed_up_chart")
    with right:
        charts.show(charts.efficiency_curve(analysis, study), key="efficiency_chart")
    left, right = st.columns(2)
    with left:
        charts.show(charts.step_bars(analysis, study), key="step_chart")
    title = "Validation loss on each number of replicas"
    curves = [_curve(place, run) for place, run in enumerate(runs, start=1)]
    with right:
        charts.show(
            lambda part: charts.overlaid_losses(curves, "epoch", part, title), key="study_losses_chart"
        )


def _curve(place: int, run: _Run) -> charts.Overlaid:
    epochs = np.array(epoch_numbers(run.history), np.int32)
    losses = np.array(
        [np.nan if loss is None else loss for loss in series(run.history, "val_loss")], np.float64
    )
    return charts.Overlaid(
        units.plural(run.replicas, "replica"), place, epochs.astype(np.float64), losses, epochs
    )


def _table(analysis: Analysis, runs: Sequence[_Run]) -> None:
    st.table([_row(analysis, run) for run in runs], hide_index=True, border="horizontal")


def _row(analysis: Analysis, run: _Run) -> dict[str, str]:
    measured, scaled = analysis.timed.get(run.replicas), analysis.scaled.get(run.replicas)
    losses = [loss for loss in series(run.history, "val_loss") if loss is not None]
    return {
        "Replicas": f"{run.replicas}",
        "Run": f"{plain(run.job.title)} {badge(run.job.status)}",
        "Global batch": f"{run.config.global_batch_size:,} = {run.replicas} ×"
        f" {run.config.per_replica_batch_size:,}",
        "Median step": "–" if measured is None else f"{measured.step_s * 1e3:,.1f}\N{NO-BREAK SPACE}ms",
        "Examples/s": "–" if measured is None else f"{measured.examples_per_s:,.0f}",
        "Speed-up": "–" if scaled is None else f"{scaled.speed_up:.2f} of {scaled.ideal:g}",
        "Efficiency": units.percent(None if scaled is None else scaled.efficiency, 0),
        "All-reduce": units.percent(None if measured is None else measured.price),
        "Best validation loss": units.number(min(losses, default=None)),
    }
