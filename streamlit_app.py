"""The start page: the lesson's steps, this machine, the running job and recent runs."""

from __future__ import annotations

import streamlit as st

from core import report
from core.analysis.overfitting import diagnose
from core.config import DATASET_NAMES, RunConfig
from core.corpus import CLASSES
from core.dashboard import draft, units
from core.dashboard.frame import LOOKS, STEPS, link, page, plain, problem, rerun_when_done, reuters_missing
from core.dashboard.server import Readiness, machine, readiness
from core.records import Job, Kind
from core.store import Store

_RECENT = 8
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
    runs = store.jobs(kinds=[Kind.TRAIN], limit=1)
    return {
        "Devices": f"{done} {chosen} chosen" if found and found.result else f"{pending} Looking for devices",
        "Data": f"{done} {ready}" if name in data.is_ready else f"{pending} Being prepared",
        "Model": f"{done} {filters} filters, {draft.value('model.optimizer').capitalize()}",
        "Training": f"{LOOKS[runs[0].status][0]} Last run {runs[0].status}"
        if runs
        else f"{pending} No run yet",
    }


def _cards(states: dict[str, str]) -> None:
    for number, (column, step) in enumerate(zip(st.columns(len(STEPS)), STEPS, strict=True), start=1):
        with column, st.container(border=True, height="stretch"):
            link(step, f"**{number}. {step.name}**")
            st.markdown(_TEACHES[step.name])
            st.caption(states[step.name])


def _lesson(store: Store, data: Readiness) -> None:
    name = data.use("reuters")
    with st.container(horizontal=True, vertical_alignment="center"):
        started = st.button(
            "Start the lesson",
            key="lesson",
            type="primary",
            icon=":material/play_arrow:",
            disabled=name not in data.is_ready,
        )
        if name in data.is_ready:
            st.caption(
                f"Trains the chapter's model on {DATASET_NAMES[name]} newswires, on two logical devices,"
                " for 10 epochs."
            )
        else:
            st.caption("The newswires are being prepared. It takes some seconds, once.")
    if started:
        config = RunConfig.model_validate({"data": {"dataset": name}})
        draft.choose_run(store.submit(Kind.TRAIN, config.model_dump(mode="json")))
        st.switch_page(STEPS[-1].script, query_params=draft.address())


def _recent(store: Store) -> None:
    st.subheader("Recent runs", anchor=False)
    runs = store.jobs(kinds=[Kind.TRAIN], limit=_RECENT)
    if not runs:
        st.info("Runs appear here. They are kept when the browser is closed.", icon=":material/history:")
        return
    rows = []
    for job in runs:
        config = RunConfig.model_validate(job.config)
        history = report.history(store, job)
        diagnosis = diagnose(history, num_classes=CLASSES)
        rows.append(
            {
                "Run": job.id,
                "Status": str(job.status),
                "Dataset": DATASET_NAMES[config.data.dataset].capitalize(),
                "Replicas": config.layout.replicas,
                "Epochs": f"{len(history)} of {config.training.epochs}",
                "Best epoch": diagnosis.best_epoch,
                "Lowest validation loss": diagnosis.best_val_loss,
                "Started": units.moment(job.created_at),
                "Took": units.duration(job.duration_s),
            }
        )
    event = st.dataframe(
        rows,
        hide_index=True,
        key="recent",
        on_select="rerun",
        selection_mode="single-cell",
        column_config={"Lowest validation loss": st.column_config.NumberColumn(format="%.3f")},
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
    _recent(store)
    for job in (found, data.preparing):
        if job is not None:
            rerun_when_done(store, job)
