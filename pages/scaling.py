"""Scaling: the same training on 1, 2, 4 … replicas, and what the added ones bring."""

from __future__ import annotations

import streamlit as st

from core.access import Action
from core.config import Dataset, RunConfig, parse_config
from core.dashboard import draft, forms, units
from core.dashboard.about import summary
from core.dashboard.access import over_limits, why_not
from core.dashboard.chooser import chooser
from core.dashboard.fragments import fragment
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import boundary, plain
from core.dashboard.navigation import problem_of_step
from core.dashboard.pulse import follow
from core.dashboard.server import load_corpus, machine, missing_device, readiness
from core.dashboard.study_panel import study_panel
from core.errors import ConfigError
from core.records import Job, Scaling
from core.store import Store
from core.study import comparable, configs, possible_replicas

_PANEL = "study"
"""Key of the fragment that shows a study."""
_LATEST = 50
_FEWEST_EPOCHS = 2
_FEWEST_STEPS = 16
"""Of an epoch. It takes two calls of the compiled step to time one, and some more for a median."""
_KEPT = {Scaling.STRONG: "Strong: same global batch", Scaling.WEAK: "Weak: same per-replica batch"}
_BATCHES = {Scaling.STRONG: "Global batch size", Scaling.WEAK: "Per-replica batch size"}


def _form(options: list[int], error: ConfigError | None) -> None:
    forms.choice(
        "scaling.kind",
        "Scaling",
        _KEPT,
        error,
        help="Strong scaling asks how much faster the same work is done, weak scaling how much more work is"
        " done in the same time.",
    )
    st.pills(
        "Replicas",
        options,
        selection_mode="multi",
        key="scaling.replicas",
        help="One run on each number, one after another.",
        persist_state="session",
    )
    draft.problem_at(error, "scaling.replicas")
    one, two, three = st.columns(3)
    with one:
        forms.number(
            "training.epochs", "Epochs", error, help="The first is not timed: it holds TensorFlow's tracing."
        )
    with two:
        forms.number("training.batch_size", _BATCHES[draft.value("scaling.kind")], error)
    with three:
        forms.number("training.seed", "Seed", error, help="The same for all runs.")


def _planned(store: Store, dataset: Dataset) -> list[RunConfig]:
    """The runs of the study as it stands.

    Raises:
        ConfigError: It cannot work.
    """
    config = draft.config(data={"dataset": dataset})
    planned = configs(config, draft.value("scaling.kind"), draft.value("scaling.replicas"))
    found = machine(store)
    for run in planned:
        wrong = missing_device(found, run.layout) or over_limits(run)
        if wrong is not None:
            raise wrong
    if config.training.epochs < _FEWEST_EPOCHS:
        raise ConfigError(
            "One epoch is not enough: the first one is not timed.", "Train two or more.", "training.epochs"
        )
    return planned


def _notes(store: Store, planned: list[RunConfig], dataset: Dataset, *, is_ready: bool) -> None:
    """What the runs have in common, and what is not quite as it was asked for."""
    st.caption(f"The last of {units.plural(len(planned), 'run')}: {plain(summary(planned[-1]))}.")
    rounded = [run for run in planned if run.global_batch_size != run.training.batch_size]
    for run in rounded:
        st.info(
            f"{run.layout.replicas} replicas cannot share {run.training.batch_size:,} rows evenly; that run"
            f" has a global batch of {run.global_batch_size:,}.",
            icon=":material/info:",
        )
    if not is_ready:
        st.caption("The newswires are being prepared. It takes some seconds, once.")
        return
    steps = planned[-1].steps(len(load_corpus(store, dataset).rows("train")))
    if steps < max(_FEWEST_STEPS, 2 * (planned[-1].execution.steps_per_execution or 1)):
        st.warning(
            f"With a global batch of {planned[-1].global_batch_size:,} an epoch has"
            f" {units.plural(steps, 'step')}, too few to be timed well. Choose a smaller batch.",
            icon=":material/timer_off:",
        )


def _new_study(store: Store) -> None:
    """The form, and the one button that queues all runs."""
    wanted: Dataset = draft.value("data.dataset")
    state = readiness(store, wanted)
    name = state.use(wanted)
    is_ready = name in state.is_ready
    error: ConfigError | None = None
    options: list[int] = []
    planned: list[RunConfig] = []
    try:
        options = possible_replicas(draft.layout())
        st.session_state["scaling.replicas"] = [n for n in draft.value("scaling.replicas") if n in options]
        planned = _planned(store, name)
    except ConfigError as refused:
        error = refused
    _form(options, error)
    if error is not None and not error.field.startswith(("training.", "scaling.")):
        problem_of_step(error)
    if planned:
        _notes(store, planned, name, is_ready=is_ready)
    if state.preparing is not None:
        rerun_when_done(store, state.preparing, every_s=0.5)
    reason = why_not(Action.START)
    if st.button(
        f"Start {units.plural(len(planned), 'run')}" if planned else "Start",
        key="start_study",
        type="primary",
        icon=":material/play_arrow:",
        disabled=not planned or not is_ready or reason is not None,
        help=reason,
    ):
        with boundary():
            st.session_state["study"] = store.submit_study(
                draft.value("scaling.kind"), [run.model_dump(mode="json") for run in planned]
            )
            st.rerun()


def _name(jobs: list[Job]) -> str:
    replicas = ", ".join(f"{parse_config(job.config).layout.replicas}" for job in comparable(jobs))
    when = units.moment(jobs[0].created_at)
    return f"{jobs[0].study}: {jobs[0].scaling} scaling, replicas {replicas}, {when}"


def _draw(store: Store) -> None:
    """All of it; in a function, because a session keeps its page's module with all that it names."""
    studies = store.studies(limit=_LATEST)
    if not draft.value("study") and studies:
        st.session_state["study"] = studies[0][0].study
    chosen = draft.value("study")
    with st.expander("New study", icon=":material/add_circle:", expanded=not chosen):
        _new_study(store)
    if studies:
        chooser(
            "Study",
            {jobs[0].study or "": _name(jobs) for jobs in studies},
            chosen,
            lambda study: st.session_state.update(study=study),
            key="study_chooser",
            placeholder="Choose a study",
        )
    if chosen:
        live = any(not job.status.is_final for job in store.study(chosen))
        fragment(study_panel, key=_PANEL)(store, chosen, live=live)
        if live:
            follow(lambda: [_PANEL])
    else:
        st.info(
            "No study has been started yet. Start one above; speed-up and efficiency appear here.",
            icon=":material/speed:",
        )


with page(
    "Scaling", "The same training on more and more replicas: what they gain, and what synchronising costs."
) as store:
    _draw(store)
