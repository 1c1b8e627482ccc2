"""Step 4: start a run, watch it, and see where it begins to overfit."""

from __future__ import annotations

import streamlit as st

from core.config import DEFAULT_LEARNING_RATE, Dataset, RunConfig, parse_config
from core.dashboard import charts, draft, forms, units
from core.dashboard.frame import (
    LOOKS,
    STEPS,
    badge,
    boundary,
    link,
    page,
    plain,
    problem,
    rerun_when_done,
    run_share,
)
from core.dashboard.live import RunView, view
from core.dashboard.server import machine, missing_device, readiness
from core.errors import ConfigError, RunNotFound
from core.store import Job, Kind, Status, Store

_MONITORS = {"val_loss": "Validation loss", "val_sparse_categorical_accuracy": "Validation accuracy"}
_ACCURACIES = {
    "sparse_categorical_accuracy": "Accuracy",
    "sparse_top_k_categorical_accuracy": "Top-5 accuracy",
}
_AXES: dict[charts.Axis, str] = {"epoch": "Epochs", "step": "Steps"}
_DATASETS = {"reuters": "Reuters newswires", "synthetic": "synthetic newswires"}
_REFRESH_S = 1.0


def _summary(config: RunConfig) -> str:
    layout = config.layout
    where = (
        f"MirroredStrategy on {units.plural(layout.replicas, f'logical {layout.device_type}')}"
        if layout.strategy == "mirrored"
        else f"a single {layout.device_type}"
    )
    return (
        f"{_DATASETS[config.data.dataset]}, {config.data.max_len:,} words each; {where};"
        f" {config.model.optimizer.capitalize()}"
    )


def _form(error: ConfigError | None) -> None:
    one, two, three, four = st.columns(4)
    with one:
        forms.number("training.epochs", "Epochs", error, help="Passes over all training newswires.")
    with two:
        forms.number(
            "training.batch_size",
            "Global batch size",
            error,
            help="Rows of one step, over all replicas together.",
        )
    with three:
        usual = DEFAULT_LEARNING_RATE[draft.value("model.optimizer")]
        forms.number(
            "training.learning_rate",
            "Learning rate",
            error,
            step=0.001,
            form="%g",
            empty=f"{usual:g} (default)",
            help="Empty takes Keras's default for the optimizer.",
        )
    with four:
        forms.number(
            "training.seed", "Seed", error, help="The same seed gives the same order and first weights."
        )
    one, two, three, four = st.columns(4)
    with one:
        forms.number(
            "training.patience",
            "Stop early after (epochs)",
            error,
            empty="Never",
            help="Epochs without improvement after which the training ends by itself.",
        )
    with two:
        forms.switch(
            "training.deterministic",
            "Deterministic",
            error,
            help="Makes a run repeatable to the last bit, and equal on any number of replicas up to rounding."
            " It costs some speed.",
        )
    if draft.value("training.patience") is not None:
        with three:
            st.selectbox(
                "Monitored",
                list(_MONITORS),
                format_func=_MONITORS.__getitem__,
                key="training.monitor",
                persist_state="session",
            )
        with four:
            forms.switch(
                "training.restore_best",
                "Restore the best weights",
                error,
                help="After an early stop, go back to the weights of the best epoch.",
            )


def _batch(config: RunConfig) -> None:
    wanted, used = config.training.batch_size, config.global_batch_size
    replicas = config.layout.replicas
    equation = f"global {used:,} = {replicas:,} × {config.per_replica_batch_size:,}"
    if used == wanted:
        st.markdown(
            f"**{equation}**: in a step each replica gets"
            f" {units.plural(config.per_replica_batch_size, 'row')}."
        )
    else:
        st.info(
            f"The global batch size was changed from {wanted:,} to {used:,}, so that {replicas} replicas"
            f" share it evenly: **{equation}**.",
            icon=":material/info:",
        )


def _new_run(store: Store) -> None:
    """The form, and Start."""
    wanted: Dataset = draft.value("data.dataset")
    state = readiness(store, wanted)
    name = state.use(wanted)
    error: ConfigError | None = None
    config = None
    try:
        config = draft.config(data={"dataset": name})
        error = missing_device(machine(store), config.layout)
    except ConfigError as refused:
        error = refused
    _form(error)
    if config is not None:
        _batch(config)
        st.caption(f"On {_summary(config)}.")
    if error is not None and not error.field.startswith("training."):
        problem(error.message, error.hint)
        step = {"layout": STEPS[0], "data": STEPS[1], "model": STEPS[2]}.get(error.field.split(".")[0])
        if step is not None:
            link(step, f"Change it on the page {step.name}")
    if name not in state.is_ready:
        st.caption("The newswires are being prepared. It takes some seconds, once.")
    if state.preparing is not None:
        rerun_when_done(store, state.preparing, every_s=0.5)
    if st.button(
        "Start training",
        key="start",
        type="primary",
        icon=":material/play_arrow:",
        disabled=error is not None or name not in state.is_ready,
    ):
        assert config is not None
        draft.choose_run(store.submit(Kind.TRAIN, config.model_dump(mode="json")))
        st.rerun()


def _name(job: Job) -> str:
    config = parse_config(job.config)
    where = units.plural(config.layout.replicas, "replica")
    return f"{job.id}, {job.status}: {config.data.dataset}, {where}, {units.moment(job.created_at)}"


def _chooser(runs: list[Job]) -> None:
    names = {job.id: _name(job) for job in runs}
    chosen = draft.chosen_run()
    st.session_state["chooser"] = chosen if chosen in names else None

    def choose() -> None:
        draft.choose_run(st.session_state["chooser"])

    st.selectbox(
        "Run",
        list(names),
        format_func=lambda run_id: names.get(run_id, run_id),
        key="chooser",
        on_change=choose,
        index=None,
        placeholder="Choose a run",
    )


def _live(store: Store, run_id: str, seen: Status) -> None:
    """Everything of a run that changes while it goes on."""
    with boundary():
        shown = view(store, run_id)
        job = shown.job
        if job.status is not seen:
            st.rerun()
        _head(store, job)
        # A container for each part, empty or not: the charts must keep their place on the page, or the
        # browser would make new ones and forget what was zoomed and hidden.
        with st.container(key="run_outcome"):
            _outcome(job)
        with st.container(key="run_progress"):
            if job.status is Status.QUEUED:
                _queued(store, job)
            elif not job.status.is_final:
                _progress(job)
        with st.container(key="run_figures"):
            _figures(shown)
        with st.container(key="run_curves"):
            if job.status is not Status.QUEUED:
                _curves(shown)
        _log(store, job)


def _head(store: Store, job: Job) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="run_head"):
        st.markdown(f"**Run {job.id}** {badge(job.status)}")
        if not job.status.is_final:
            stopping = job.status is Status.STOPPING
            st.button(
                "Stopping…" if stopping else "Leave the queue" if job.status is Status.QUEUED else "Stop",
                key="stop",
                icon=":material/stop:",
                disabled=stopping,
                on_click=_stop,
                args=(store, job.id),
            )


def _stop(store: Store, run_id: str) -> None:
    store.request_stop(run_id)


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
        if error.get("details"):
            with st.expander("Details for developers", icon=":material/bug_report:"):
                st.code(error["details"], language=None, wrap_lines=True)
    early = (job.result or {}).get("early_stop")
    if early:
        restored = " and went back to its weights" if early["restored_best"] else ""
        st.info(
            f"Stopped early after epoch {early['epoch']}. Epoch {early['best_epoch']} was best{restored}.",
            icon=":material/flag:",
        )


def _progress(job: Job) -> None:
    progress = job.progress
    phase = "stopping" if job.status is Status.STOPPING else job.phase or "starting TensorFlow"
    st.progress(run_share(job), f"{LOOKS[job.status][0]} {plain(phase[:1].upper() + phase[1:])}")
    if not progress.get("steps"):
        return
    validating = progress.get("validation_step") is not None
    rate, step_ms = progress.get("examples_per_s"), progress.get("step_ms")
    with st.container(horizontal=True, gap="medium"):
        st.metric("Epoch", f"{progress['epoch'] + 1} of {progress['epochs']}", width="content")
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
    job, history, diagnosis = shown.job, shown.history, shown.diagnosis
    if job.status is Status.QUEUED:
        return
    if history and job.status.is_final:
        best = next((row for row in history if row["epoch"] == diagnosis.best_epoch), None)
        accuracy = None if best is None else best.get("val_sparse_categorical_accuracy")
        with st.container(horizontal=True, gap="medium"):
            for label, text in (
                ("Best epoch", "–" if best is None else f"{best['epoch']} of {len(history)}"),
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


def _curves(shown: RunView) -> None:
    with st.container(horizontal=True, key="chart_controls"):
        axis: charts.Axis = st.segmented_control(
            "Axis",
            list(_AXES),
            format_func=_AXES.__getitem__,
            default="epoch",
            key="axis",
            required=True,
            label_visibility="collapsed",
            persist_state="session",
        )
        accuracy = st.segmented_control(
            "Accuracy",
            list(_ACCURACIES),
            format_func=_ACCURACIES.__getitem__,
            default="sparse_categorical_accuracy",
            key="accuracy",
            required=True,
            label_visibility="collapsed",
            persist_state="session",
        )
    left, right = st.columns(2)
    with left:
        charts.show(shown.loss(axis), key="loss_chart")
    with right:
        charts.show(shown.accuracy(axis, accuracy), key="accuracy_chart")
    if shown.history:
        charts.show(shown.gap(axis), key="gap_chart")


def _log(store: Store, job: Job) -> None:
    lines = store.logs(job, limit=200)
    with st.expander(f"Log ({units.plural(len(lines), 'line')})", icon=":material/article:"):
        if not lines:
            st.caption("Nothing has been logged.")
            return
        with st.container(height=260, border=False):
            text = "\n".join(f"{units.clock(line.at)}  {line.source}: {line.text}" for line in lines)
            st.code(text, language=None, wrap_lines=True)


def _about(config: RunConfig, job: Job) -> None:
    result = job.result or {}
    summary = _summary(config)
    rows = {
        "Epochs asked for": f"{config.training.epochs:,}",
        "Global batch size": f"{config.global_batch_size:,} = {config.layout.replicas} ×"
        f" {config.per_replica_batch_size:,}",
        "Learning rate": f"{config.learning_rate:g}",
        "Seed": f"{config.training.seed}",
    }
    if result:
        rows |= {
            "Parameters": f"{result['params']:,}",
            "Steps per epoch": f"{result['steps_per_epoch']:,} training,"
            f" {result['validation_steps']:,} validation",
            "Replicas on": ", ".join(result["devices"]),
            "Engine": ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in result["engine"].items()
            ),
        }
    with st.expander("What this run is", icon=":material/tune:"):
        st.markdown(plain(summary[:1].upper() + summary[1:]))
        st.table([{"Setting": name, "Value": text} for name, text in rows.items()], hide_index=True)


def _run(store: Store, run_id: str) -> None:
    try:
        shown = view(store, run_id)
    except RunNotFound as error:
        problem(error.message, "Choose one of the runs above, or start a new one.")
        return
    job = shown.job
    # A finished run is drawn once; it costs nothing however long somebody looks at it.
    live = st.fragment(_live, run_every=None if job.status.is_final else _REFRESH_S)
    live(store, run_id, job.status)
    _about(parse_config(job.config), job)


with page("Training", "Start a run, watch it learn, and see where it begins to overfit.") as store:
    runs = store.jobs(kinds=[Kind.TRAIN], limit=100)
    chosen = draft.chosen_run()
    if chosen is None and runs and not runs[0].status.is_final:
        chosen = runs[0].id
        draft.choose_run(chosen)
    with st.expander("New run", icon=":material/add_circle:", expanded=chosen is None):
        _new_run(store)
    if runs:
        _chooser(runs)
    if chosen is not None:
        _run(store, chosen)
    elif not runs:
        st.info(
            "No run has been started yet. Start one above; the curves appear here.",
            icon=":material/show_chart:",
        )
