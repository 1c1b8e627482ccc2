"""A run on the page: its progress, curves, diagnosis and log, while it goes on and afterwards."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial

import streamlit as st

from core import retention
from core.analysis.criteria import Thresholds, accuracy_name
from core.dashboard import charts, draft, forms, lifecycle, units
from core.dashboard.access import is_hosted
from core.dashboard.fragments import fragment
from core.dashboard.job_status import run_share
from core.dashboard.live import RunView, view
from core.dashboard.log import explained
from core.dashboard.messages import LOOKS, badge, boundary, plain, problem
from core.dashboard.reading import Versions
from core.dashboard.stopping import choose_lines, chosen_thresholds, lines, stopping
from core.records import Job, Kind, Status
from core.store import Store

_ACCURACIES = {
    "sparse_categorical_accuracy": "Accuracy",
    "sparse_top_k_categorical_accuracy": "Top-5 accuracy",
}
_AXES: dict[charts.Axis, str] = {"epoch": "Epochs", "step": "Steps"}


PANEL = "run_panel"
"""Key of the fragment that is all of a run."""
_PROGRESS = "progress"
_AFTER_STEP = (_PROGRESS, "batches", "machine")
_AFTER_EPOCH = ("figures", "strips", "saved")
_LOG = "log"
"""Keys of the fragments in it that are drawn anew after every step, every epoch, every line of the log."""
_QUIET_S = 10.0
"""Seconds of silence that are no chance any more: an engine reports five times a second."""


@dataclass
class Drawn:
    """What the page shows of a run."""

    versions: Versions | None = None
    silence: bool = False
    """Whether it warns that nothing comes from the engine."""


def news(shown: RunView, drawn: Drawn) -> list[str]:
    """Keys of the fragments to be drawn anew, none when nothing has changed since this was last asked."""
    before, now = drawn.versions, shown.versions
    if before is None or now.page != before.page:
        return [PANEL]
    if shown.job.status is Status.QUEUED:
        return [_PROGRESS]  # its place in the queue may have changed, and there is nothing else yet
    before_silent, drawn.silence = drawn.silence, shown.silent_s > _QUIET_S
    if drawn.silence or before_silent:
        return [_PROGRESS]  # how long it has been silent, or that it is not any more
    drawn.versions = now
    changed = list(_AFTER_STEP) if now.step != before.step else []
    changed += _AFTER_EPOCH if now.epoch != before.epoch else ()
    return [*changed, _LOG] if now.log != before.log else changed


def live_panel(store: Store, run_id: str, drawn: Drawn | None) -> None:
    """Everything of a run that changes while it goes on.

    Args:
        store: Where the run is.
        run_id: Which.
        drawn: What the page shows of a run that went on when the page was drawn; the page is drawn anew
            when it has ended, or goes on again. None for a run that was over.
    """
    with boundary():
        shown = view(store, run_id)
        job = shown.job
        if (drawn is None) != job.status.is_final:
            st.rerun()
        if drawn is not None:
            drawn.versions = shown.versions
        _head(store, job)
        # A container for each part, empty or not: the charts must keep their place on the page, or the
        # browser would make new ones and forget what was zoomed and hidden.
        with st.container(key="run_outcome"):
            _outcome(job)
        with st.container(key="run_progress"):
            if not job.status.is_final:
                fragment(_progress, key=_PROGRESS)(store, shown)
        with st.container(key="run_figures"):
            fragment(_figures, key="figures")(shown)
        with st.container(key="run_curves"):
            if job.status is not Status.QUEUED or shown.history:
                _curves(shown)
        with st.container(key="run_stopping"):
            stopping(shown)
        fragment(_log, key=_LOG)(shown)
        draft.keep_in_address("run")


def _head(store: Store, job: Job) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="run_head"):
        dataset = job.config.get("data", {}).get("dataset")
        synthetic = " :gray-badge[synthetic newswires]" if dataset == "synthetic" else ""
        st.markdown(f"**Run {plain(job.title)}** {badge(job.status)}{synthetic}")
        lifecycle.buttons(store, job)


def _queued(store: Store, job: Job) -> None:
    ahead = store.ahead_of(job)
    if ahead:
        st.info(
            f"Waiting behind run {ahead[0].id}, {units.ordinal(len(ahead))} in line. It starts by itself.",
            icon=":material/hourglass_top:",
        )
    else:
        st.info("Waiting for an engine process to start.", icon=":material/hourglass_top:")


def _outcome(job: Job) -> None:
    error = job.error
    if error is not None:
        problem(error["message"], error["hint"])
        if error.get("details") and not is_hosted():
            with st.expander("Details for developers", icon=":material/bug_report:"):
                st.code(error["details"], language=None, wrap_lines=True)
    lifecycle.story(job)


def _progress(store: Store, shown: RunView) -> None:
    with boundary():
        job = shown.job
        if job.status is Status.QUEUED:
            _queued(store, job)
        else:
            _bar(job)
            _silence(store, shown.silent_s)


def _silence(store: Store, silent_s: float) -> None:
    """Warns when nothing comes from the engine, and tells a full disk from other reasons."""
    if silent_s <= _QUIET_S:
        return
    free_bytes = shutil.disk_usage(store.home).free
    why = "The engine process may hang, or another program may hold the run store."
    if free_bytes < retention.LOW_BYTES:
        left = retention.size(free_bytes)
        why = f"The run store's disk has only {left} left: delete runs, or make room otherwise."
    st.warning(
        f"**Nothing has been recorded for {silent_s:,.0f} s.**  \n{plain(why)} A training goes on meanwhile;"
        " what it measures waits in memory until the store takes it.",
        icon=":material/hard_drive:",
    )


def _bar(job: Job) -> None:
    progress = job.progress
    ending = job.status in (Status.STOPPING, Status.PAUSING)
    phase = str(job.status) if ending else job.phase or "starting TensorFlow"
    st.progress(run_share(job), f"{LOOKS[job.status][0]} {plain(phase[:1].upper() + phase[1:])}")
    if not progress.get("steps"):
        return
    validating = progress.get("validation_step") is not None
    rate, step_ms = progress.get("examples_per_s"), progress.get("step_ms")
    epochs = progress["epochs"]
    epoch = min(progress["epoch"] + 1, epochs)  # a run may be resumed after its last one
    with st.container(horizontal=True, gap="medium"):
        st.metric(
            "Epoch",
            f"{epoch} of {epochs}",
            width="content",
        )
        st.metric(
            "Validation step" if validating else "Step",
            f"{progress['validation_step']:,} of {progress['validation_steps']:,}"
            if validating
            else f"{progress['step']:,} of {progress['steps']:,}",
            width="content",
        )
        st.metric(
            "Time left",
            units.duration(progress.get("remaining_s")),
            help="Known once a validation has been timed, after the first epoch.",
            width="content",
        )
        st.metric(
            "Throughput",
            "–" if rate is None else f"{rate:,.0f} newswires/s",
            help=None if step_ms is None else f"{step_ms:.1f} ms a step",
            width="content",
        )


def _figures(shown: RunView) -> None:
    with boundary():
        _outcome_so_far(shown)


def _outcome_so_far(shown: RunView) -> None:
    job, history, diagnosis = shown.job, shown.history, shown.diagnosis
    if job.status is Status.QUEUED and not history:
        return
    if history and job.status.is_final:
        best = next((row for row in history if row["epoch"] == diagnosis.best_epoch), None)
        accuracy = None if best is None else best.get(f"val_{accuracy_name(history)}")
        with st.container(horizontal=True, gap="medium"):
            for label, text in (
                ("Best epoch", "–" if best is None else f"{best['epoch']} of {history[-1]['epoch']}"),
                ("Validation loss there", "–" if best is None else units.number(best["val_loss"])),
                ("Validation accuracy there", units.percent(accuracy)),
                ("Took", units.duration(job.duration_s)),
            ):
                st.metric(label, text, width="content")
    sentence = diagnosis.sentence
    if not history:
        sentence = (
            "No epoch was finished." if job.status.is_final else "The diagnosis begins after the first epoch."
        )
    st.info(plain(sentence), icon=":material/insights:")


def _accuracies(shown: RunView) -> dict[str, str]:
    """The accuracies that the run records, and what each is called."""
    if shown.job.kind is Kind.TRAIN:
        return _ACCURACIES
    name = accuracy_name(shown.history)
    return {name: "Accuracy"} if name else {}


def _curves(shown: RunView) -> None:
    accuracies = _accuracies(shown)
    if accuracies and draft.value("accuracy") not in accuracies:
        st.session_state["accuracy"] = next(iter(accuracies))
    with st.container(horizontal=True, vertical_alignment="bottom", key="chart_controls"):
        if shown.steps_per_epoch:
            forms.view("axis", "Axis", _AXES)
        if len(accuracies) > 1:
            forms.view("accuracy", "Accuracy", accuracies)
        choose_lines()
    axis: charts.Axis = draft.value("axis") if shown.steps_per_epoch else "epoch"
    thresholds = chosen_thresholds()
    accuracy = draft.value("accuracy") if accuracies else None
    fragment(_batches, key="batches")(shown, axis, thresholds, accuracy)
    fragment(_strips, key="strips")(shown, axis, thresholds)
    with st.container(key="run_system"):
        fragment(_machine, key="machine")(shown, axis)


def _batches(shown: RunView, axis: charts.Axis, thresholds: Thresholds, accuracy: str | None) -> None:
    with boundary():
        stops = lines(shown.stops(thresholds))
        left, right = st.columns(2)
        with left:
            charts.show(partial(shown.loss, axis, stops), key="loss_chart")
        with right:
            if accuracy is not None:
                charts.show(partial(shown.accuracy, axis, stops, accuracy), key="accuracy_chart")


def _strips(shown: RunView, axis: charts.Axis, thresholds: Thresholds) -> None:
    """The charts of epochs."""
    stops = lines(shown.stops(thresholds))
    # In containers of their own: a row that comes later must not push another to a new place, or the page
    # would shrink for a moment and jump under the viewer's pointer.
    with boundary(), st.container(key="run_strips"):
        if shown.history:
            left, right = st.columns(2)
            with left:
                charts.show(
                    lambda part: shown.generalization_loss(axis, stops, thresholds, part), key="gl_chart"
                )
            with right:
                charts.show(lambda part: shown.gap(axis, stops, part), key="gap_chart")
    with boundary(), st.container(key="run_calibration"):
        reliability = shown.reliability()
        left, right = st.columns(2)
        with left:
            if shown.has_calibration:
                charts.show(partial(shown.calibration_error, axis, stops), key="calibration_error_chart")
        with right:
            if reliability is not None:
                charts.show(reliability, key="reliability_chart")


def _machine(shown: RunView, axis: charts.Axis) -> None:
    """How busy the machine was, beneath the curves and on their axis."""
    with boundary():
        sampled = shown.sampled
        if sampled:
            for column, quantity in zip(st.columns(len(sampled)), sampled, strict=True):
                with column:
                    charts.show(partial(shown.system, axis, quantity), key=f"system_{quantity}_chart")


def _log(shown: RunView) -> None:
    lines = shown.log
    with boundary(), st.expander(f"Log ({units.plural(len(lines), 'line')})", icon=":material/article:"):
        if not lines:
            st.caption("Nothing has been logged.")
            return
        with st.container(height=320, border=False):
            explained(lines)
