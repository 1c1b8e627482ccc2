"""Step 4: start a run, watch it, and see where it begins to overfit."""

from __future__ import annotations

import streamlit as st

from core.access import Action
from core.analysis.lint import check_config
from core.config import DEFAULT_LEARNING_RATE, Dataset, RunConfig
from core.dashboard import draft, forms, units
from core.dashboard.about import about, summary
from core.dashboard.access import over_limits, why_not
from core.dashboard.chooser import choose
from core.dashboard.downloads import downloads
from core.dashboard.fragments import fragment
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done, unfinished_run
from core.dashboard.lifecycle import MONITORS
from core.dashboard.lint_panel import config_findings
from core.dashboard.live import view
from core.dashboard.messages import boundary, plain, problem, reuters_missing
from core.dashboard.navigation import EVALUATE, link, problem_of_step
from core.dashboard.pulse import follow
from core.dashboard.run_panel import PANEL, Drawn, live_panel, news
from core.dashboard.server import load_corpus, machine, missing_device, readiness, too_large
from core.errors import ConfigError, DatasetError, RunNotFound
from core.records import RUNS, Kind
from core.store import Store


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
                list(MONITORS),
                format_func=MONITORS.__getitem__,
                key="training.monitor",
                persist_state="session",
            )
        with four:
            forms.switch(
                "training.restore_best",
                "Restore the best weights",
                error,
                help="For the code to take home: after an early stop, it goes back to the weights of the best"
                " epoch. A run keeps the last ones, and those of its lowest validation loss.",
            )


def _execution(error: ConfigError | None) -> None:
    """How TensorFlow is driven, for those who want to overrule the engine."""
    names = ("steps_per_execution", "intra_op_threads", "inter_op_threads", "jit_compile")
    changed = any(draft.value(f"execution.{name}") != draft.default(f"execution.{name}") for name in names)
    with st.expander("Execution", icon=":material/speed:", expanded=changed):
        st.caption(
            "The engine chooses what is fast on this machine and safe with the layout; what it took stands"
            " under “What this run is”. The numbers of a run do not depend on it, beyond rounding."
        )
        one, two, three, four = st.columns(4)
        with one:
            forms.number(
                "execution.steps_per_execution",
                "Steps per execution",
                error,
                empty="Automatic",
                help="Training steps inside one call of the compiled function. Each step is recorded all the"
                " same; they arrive in bundles, and a stop waits for the bundle's end.",
            )
        with two:
            forms.number(
                "execution.intra_op_threads",
                "Intra-op threads",
                error,
                empty="Automatic",
                help="Threads that share one operation. 0 is TensorFlow's own choice.",
            )
        with three:
            forms.number(
                "execution.inter_op_threads",
                "Inter-op threads",
                error,
                empty="Automatic",
                help="Operations that run side by side. 0 is TensorFlow's own choice.",
            )
        with four:
            forms.switch(
                "execution.jit_compile",
                "Compile with XLA",
                error,
                help="jit_compile=True. Single device only. On a CPU it gains nothing and takes some seconds"
                " longer to start.",
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


def _findings(store: Store, config: RunConfig, ready: Dataset | None) -> None:
    try:
        corpus = load_corpus(store, ready) if ready else None
    except DatasetError:
        corpus = None  # the run prepares it anew
    config_findings(check_config(config, corpus))


def _new_run(store: Store) -> None:
    """The form, and Start."""
    wanted: Dataset = draft.value("data.dataset")
    state = readiness(store, wanted)
    name = state.use(wanted)
    error: ConfigError | None = None
    config = None
    try:
        config = draft.config(data={"dataset": name})
        error = missing_device(machine(store), config.layout) or over_limits(config)
    except ConfigError as refused:
        error = refused
    _form(error)
    _execution(error)
    if config is not None:
        _batch(config)
        st.caption(plain(f"On {summary(config)}."))
        warning = too_large(machine(store), config)
        if warning:
            st.warning(warning, icon=":material/memory_alt:")
    if error is not None and not error.field.startswith(("training.", "execution.")):
        problem_of_step(error)
    if wanted == "reuters":
        reuters_missing(store, state)
    if name not in state.is_ready:
        st.caption("The newswires are being prepared. It takes some seconds, once.")
    if state.preparing is not None:
        rerun_when_done(store, state.preparing, every_s=0.5)
    if config is not None:
        _findings(store, config, name if name in state.is_ready else None)
    reason = why_not(Action.START)
    if st.button(
        "Start training",
        key="start",
        type="primary",
        icon=":material/play_arrow:",
        disabled=error is not None or name not in state.is_ready or reason is not None,
        help=reason,
    ):
        assert config is not None
        with boundary():
            draft.choose_run(store.submit(Kind.TRAIN, config.model_dump(mode="json")))
            st.rerun()


def _run(store: Store, run_id: str) -> None:
    try:
        shown = view(store, run_id)
    except RunNotFound as error:
        problem(error.message, "Choose one of the runs above, or start a new one.")
        return
    job = shown.job
    # A finished run is drawn once; it costs nothing however long somebody looks at it.
    drawn = None if job.status.is_final else Drawn()
    fragment(live_panel, key=PANEL)(store, run_id, drawn)
    about(job)
    if drawn is not None:
        follow(lambda: news(view(store, run_id), drawn), lambda: shown.is_starting)
    else:
        if job.checkpoint_epochs:
            link(EVALUATE, "Evaluate this run's model")
        downloads(store, job)


def _draw(store: Store) -> None:
    """All of it; in a function, because a session keeps its page's module with all that it names."""
    runs = store.jobs(kinds=RUNS, limit=100)
    chosen = draft.chosen_run()
    if chosen is None and (unfinished := unfinished_run(store)) is not None:
        chosen = unfinished.id
        draft.choose_run(chosen)
    with st.expander("New run", icon=":material/add_circle:", expanded=chosen is None):
        _new_run(store)
    if runs:
        choose(runs)
    if chosen is not None:
        _run(store, chosen)
    elif not runs:
        st.info(
            "No run has been started yet. Start one above; the curves appear here.",
            icon=":material/show_chart:",
        )


with page("Training", "Start a run, watch it learn, and see where it begins to overfit.") as store:
    _draw(store)
