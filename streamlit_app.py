"""The start page: the lesson's steps, this machine, the running job and recent runs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from core.access import Action
from core.config import DATASET_NAMES, OPTIMIZER_NAMES, RunConfig, parse_config
from core.dashboard import draft, units
from core.dashboard.access import limits, why_not
from core.dashboard.fragments import fragment
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done, unfinished_run
from core.dashboard.messages import LOOKS, boundary, plain, problem, reuters_missing
from core.dashboard.navigation import STEPS, link
from core.dashboard.pulse import follow
from core.dashboard.server import Readiness, machine, readiness
from core.records import Job, Kind
from core.store import Store

_RECENT = 8
_RUNS = "recent_runs"
"""Key of the fragment that shows the last runs."""
_TEACHES = {
    "Devices": "A physical device can be split into logical ones; a strategy puts a replica on each.",
    "Data": "Words become ids, ids become batches, and each batch is cut into shards.",
    "Model": "An embedding, two convolutions and a softmax, counted as Keras counts them.",
    "Training": "Two curves show where learning ends and memorising begins.",
}


def _machine_line(found: Job | None) -> str:
    if found is None or not found.status.is_final:
        return "TensorFlow is looking at this machine."
    if found.result is None:
        return "The devices of this machine could not be listed."
    result = found.result
    gpus = [device["name"] for device in result["devices"] if device["type"] == "GPU"]
    graphics = f"GPUs: {', '.join(gpus)}" if gpus else "no GPU"
    name = next(device["name"] for device in result["devices"] if device["type"] == "CPU")
    return (
        f"{name}, {units.plural(result['cpus'], 'processor')}, {units.memory(result['memory_bytes'])} of"
        f" memory, {graphics}; TensorFlow {result['tensorflow']}"
    )


def _states(store: Store, found: Job | None, data: Readiness) -> dict[str, str]:
    """What each step has come to, in a few words with an icon."""
    done, pending = ":green[:material/check_circle:]", ":material/hourglass_empty:"
    name = data.use(draft.value("data.dataset"))
    ready = f"{DATASET_NAMES[name].capitalize()} newswires are ready"
    chosen = units.plural(draft.value("layout.logical_devices"), "logical device")
    filters = f"{draft.value('model.filters.0')} and {draft.value('model.filters.1')}"
    run = unfinished_run(store) or next(iter(store.jobs(kinds=[Kind.TRAIN], limit=1)), None)
    return {
        "Devices": f"{done} {chosen} chosen" if found and found.result else f"{pending} Looking for devices",
        "Data": f"{done} {ready}" if name in data.is_ready else f"{pending} Being prepared",
        "Model": f"{done} {filters} filters, {OPTIMIZER_NAMES[draft.value('model.optimizer')]}",
        "Training": f"{LOOKS[run.status][0]} {_last(run)}" if run else f"{pending} No run yet",
    }


def _last(run: Job) -> str:
    return f"Last run {run.status}" if run.status.is_final else f"A run is {run.status}"


def _cards(states: dict[str, str]) -> None:
    for number, (column, step) in enumerate(zip(st.columns(len(STEPS)), STEPS, strict=True), start=1):
        with column, st.container(border=True, height="stretch"):
            link(step, f"**{number}. {step.name}**")
            st.markdown(_TEACHES[step.name])
            st.caption(states[step.name])


def _lesson(store: Store, data: Readiness) -> None:
    name = data.use("reuters")
    allowed = limits()
    epochs = RunConfig().training.epochs
    if allowed is not None:
        epochs = min(epochs, allowed.epochs)
    with st.container(horizontal=True, vertical_alignment="center"):
        reason = why_not(Action.START)
        started = st.button(
            "Start the lesson",
            key="lesson",
            type="primary",
            icon=":material/play_arrow:",
            disabled=name not in data.is_ready or reason is not None,
            help=reason,
        )
        if name in data.is_ready:
            st.caption(
                f"Trains the chapter's model on {DATASET_NAMES[name]} newswires, on two logical devices,"
                f" for {units.plural(epochs, 'epoch')}."
            )
        else:
            st.caption("The newswires are being prepared. It takes some seconds, once.")
    if started:
        config = RunConfig.model_validate({"data": {"dataset": name}, "training": {"epochs": epochs}})
        with boundary():
            draft.choose_run(store.submit(Kind.TRAIN, config.model_dump(mode="json")))
            st.switch_page(STEPS[-1].script, query_params=draft.address())


def _row(store: Store, job: Job, best: tuple[int, float] | None) -> dict[str, Any]:
    """A run in the table of recent ones.

    Args:
        store: Where it is.
        job: The run.
        best: Zero-based epoch and value of its lowest validation loss.
    """
    config = parse_config(job.config)
    return {
        "Run": job.title,
        "Status": str(job.status),
        "Dataset": DATASET_NAMES[config.data.dataset].capitalize(),
        "Replicas": config.layout.replicas,
        "Epochs": f"{store.epochs_done(job)} of {config.training.epochs:,}",
        "Best epoch": best[0] + 1 if best else None,
        "Lowest validation loss": best[1] if best else None,
        "Started": units.moment(job.created_at),
        "Took": units.duration(job.duration_s),
    }


def _recent(store: Store) -> None:
    """The last runs; while one goes on, drawn anew by itself."""
    with boundary():
        runs = store.jobs(kinds=[Kind.TRAIN], limit=_RECENT)
        if not runs:
            st.info("Runs appear here. They are kept when the browser is closed.", icon=":material/history:")
            return
        best = store.best_epochs()
        # Streamlit keeps a selection by position: another list of runs must be another table.
        event = st.dataframe(
            pd.DataFrame([_row(store, job, best.get(job.number)) for job in runs]),
            hide_index=True,
            key=f"recent_{'_'.join(job.id for job in runs)}",
            on_select="rerun",
            selection_mode="single-cell",
            placeholder="–",
            column_config={
                "Run": st.column_config.TextColumn(pinned=True),
                "Lowest validation loss": st.column_config.NumberColumn(format="%.3f"),
            },
        )
        cells = event.selection.cells
        if cells:
            draft.choose_run(runs[cells[0][0]].id)
            st.switch_page(STEPS[-1].script, query_params=draft.address())
        st.caption("Choose a row to open its run.")


with page(
    "Mirrorboard",
    "From a machine's devices to a trained Keras model, live: what each step does, and where learning turns"
    " into memorising.",
) as store:
    found = machine(store)
    data = readiness(store)
    _lesson(store, data)
    reuters_missing(store, data)
    _cards(_states(store, found, data))
    st.caption(f":material/computer: {plain(_machine_line(found))}")
    if found is not None and found.error is not None:
        problem(found.error["message"], found.error["hint"])
    st.subheader("Recent runs", anchor=False)
    goes_on = unfinished_run(store) is not None
    with st.container(key="recent"):
        fragment(_recent, key=_RUNS)(store)
    if goes_on:
        # What begins or ends makes the sidebar's status draw the whole page anew.
        follow(lambda: [_RUNS])
    for job in (found, data.preparing):
        if job is not None:
            rerun_when_done(store, job)
