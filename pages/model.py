"""Step 3: the network, what Keras makes of it, and what a replica needs for it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.access import Action
from core.config import OPTIMIZER_NAMES, RunConfig, parse_config
from core.dashboard import draft, drawings, forms, units
from core.dashboard.access import over_limits, why_not
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import problem
from core.dashboard.navigation import problem_of_step
from core.dashboard.server import latest_answer, machine, open_store, soon, too_large
from core.errors import ConfigError
from core.records import Job, Kind, Status
from core.store import Store

_METRICS = {
    "sparse_categorical_accuracy": "accuracy",
    "sparse_top_k_categorical_accuracy": "top-5 accuracy",
}
_UNANSWERED = (Status.LOST, Status.STOPPED)
"""How a job ends that nobody has answered, such as when the engines were restarted; it is asked again."""
_FROM_LOGITS = """
The chapter's script compiles `SparseCategoricalCrossentropy(from_logits=True)` on a model that already ends
in a softmax. The loss would then apply softmax a second time, to probabilities between 0 and 1. What comes
out is nearly even over the classes, and with 46 of them the loss cannot fall below ln(1 + 45/e) ≈ 2.865.

Keras 3.15 usually notices: it finds the values before the softmax, takes those, and warns in the run's log;
the numbers are then the same as with `from_logits=False`. In a deterministic run it cannot. The model then
works in double precision, the loss in single; the conversion between them hides where the output came from,
and softmax is applied twice. Try both with the switch among the settings.

The last layer here gives probabilities, so the loss rightly takes probabilities: `from_logits=False`.
"""


def _form(error: ConfigError | None) -> None:
    forms.number(
        "model.embedding_size",
        "Embedding size",
        error,
        help="Numbers that stand for a word.",
    )
    for field, label, text in (
        ("filters", "filters", "Patterns the convolution looks for."),
        ("kernels", "kernel (words)", "Words it looks at together."),
    ):
        left, right = st.columns(2)
        with left:
            forms.number(f"model.{field}.0", f"First {label}", None, help=text)
        with right:
            forms.number(f"model.{field}.1", f"Second {label}", None, help=text)
        draft.problem_at(error, f"model.{field}")
    left, right = st.columns(2)
    with left:
        forms.number("model.pool", "Pooling", None, help="How many neighbours become one.")
    with right:
        forms.number(
            "model.dropout",
            "Dropout",
            None,
            step=0.1,
            form="%.2f",
            help="Share of features left out in training.",
        )
    draft.problem_at(error, "model.pool", "model.dropout", "data.max_len")
    forms.choice("model.optimizer", "Optimizer", OPTIMIZER_NAMES, error)
    forms.switch(
        "model.from_logits",
        "Experiment: from_logits=True",
        error,
        help="Compiles the loss as the chapter's script does, on an output that is a softmax already.",
    )
    if draft.value("model.from_logits"):
        st.warning(
            "Where Keras does not notice, as in a deterministic run, softmax is applied twice and the loss"
            " cannot fall below 2.865: the model hardly learns.",
            icon=":material/science:",
        )


def _question(config: RunConfig) -> dict[str, Any]:
    """The parts of a configuration that a model's description depends on."""
    plain = config.model_dump(mode="json")
    return {
        "layout": plain["layout"],
        "data": {"max_len": config.data.max_len},
        "model": plain["model"],
        "training": {name: plain["training"][name] for name in ("batch_size", "deterministic")},
    }


def _described(store: Store, config: RunConfig) -> Job | None:
    """The description to show: of this configuration, or of the last one while Keras still builds."""
    question = _question(config)
    job = latest_answer(store, Kind.DESCRIBE, question)
    if job is None or job.status in _UNANSWERED:
        reason = why_not(Action.WORK)
        if reason is not None:
            st.info(f"{reason} This is the chapter's own model.", icon=":material/block:")
            question = _question(RunConfig())
            job = latest_answer(store, Kind.DESCRIBE, question)
        else:
            job = soon(store, store.submit(Kind.DESCRIBE, question))
    if job is None or job.status in _UNANSWERED:
        job = soon(store, open_store().submit(Kind.DESCRIBE, question))  # nobody's, once
    if job.status is Status.FAILED:
        error = job.error or {}
        problem(error.get("message", "Keras could not build this model."), error.get("hint", ""))
        reason = why_not(Action.WORK)
        if st.button(
            "Try again",
            key="describe_again",
            icon=":material/refresh:",
            disabled=reason is not None,
            help=reason,
        ):
            job = store.job(store.submit(Kind.DESCRIBE, question))
    if not job.status.is_final:
        rerun_when_done(store, job, every_s=0.1)
    if job.result is not None:
        st.session_state["described"] = job.id
        return job
    before = st.session_state.get("described")
    return store.job(before) if before else None


def _totals(result: dict[str, Any], config: RunConfig) -> None:
    memory = result["memory"]
    replicas = config.layout.replicas
    each = memory["total_bytes"]
    precision = "float64, for it is deterministic" if config.training.deterministic else "float32"
    with st.container(horizontal=True, gap="medium"):
        for label, text, meaning in (
            ("Parameters", f"{result['params']:,}", f"{result['trainable']:,} of them are trained."),
            ("Memory per replica", units.memory(each), f"Estimated from shapes, {precision}."),
            ("Replicas", f"{replicas}", "Each holds a full copy of the model."),
            ("Memory of all replicas", units.memory(each * replicas), "Every replica needs its own."),
        ):
            st.metric(label, text, help=meaning, width="content")


def _layers(result: dict[str, Any]) -> None:
    st.table(
        [
            {
                "Layer": layer["name"],
                "Type": layer["type"],
                "Output shape": str(tuple(layer["output_shape"])),
                "Parameters": f"{layer['params']:,}",
                "Settings": layer["config"],
            }
            for layer in result["layers"]
        ],
        hide_index=True,
    )


def _memory(result: dict[str, Any], config: RunConfig) -> None:
    memory = result["memory"]
    st.table(
        [
            {"Memory per replica": name, "Size": units.memory(memory[key]), "Why": why}
            for name, key, why in (
                ("Weights", "weights_bytes", "one copy on every replica"),
                ("Gradients", "gradients_bytes", "one for each weight, brought together after every step"),
                (
                    "Optimizer",
                    "optimizer_bytes",
                    f"what {result['optimizer']} remembers of earlier gradients",
                ),
                (
                    "Activations",
                    "activations_bytes",
                    f"outputs of {units.plural(config.per_replica_batch_size, 'row')} for the backward pass",
                ),
            )
        ],
        hide_index=True,
    )


def _compiled(result: dict[str, Any], config: RunConfig) -> None:
    metrics = " and ".join(_METRICS.get(name, name) for name in result["metrics"])
    st.markdown(
        f"**Compiled with** {result['optimizer']} (learning rate {config.learning_rate:g}),"
        f" loss `{result['loss']}` with `from_logits={config.model.from_logits}`, metrics: {metrics}."
    )
    with st.expander("from_logits: False here, True in the chapter", icon=":material/help:"):
        st.markdown(_FROM_LOGITS)


with page("Model", "An embedding, two convolutions with pooling, and a softmax over the classes.") as store:
    error: ConfigError | None = None
    job = warning = None
    try:
        config = draft.config()
        warning = too_large(machine(store), config)
        exceeded = over_limits(config, trains=False)
        if exceeded is not None:
            raise exceeded
        job = _described(store, config)
    except ConfigError as refused:
        error = refused
    if job is not None and job.result is not None:
        # A description of another model says nothing of this one's learning rate.
        shown = config if job.config == _question(config) else parse_config(job.config)
        drawings.draw(drawings.architecture(job.result["layers"], shown.data.max_len), key="architecture")
    left, right = st.columns([4, 9], gap="large")
    with left:
        st.subheader("Settings", anchor=False)
        _form(error)
        words = units.plural(draft.value("data.max_len"), "word")
        st.caption(f"The input has {words}, set on the page Data.")
    with right:
        st.subheader("What Keras makes of it", anchor=False)
        if warning:
            st.warning(warning, icon=":material/memory_alt:")
        if error is not None and not error.field.startswith("model."):
            problem_of_step(error)
        elif error is not None:
            st.info("Correct the marked setting to see the model.", icon=":material/edit:")
        elif job is None or job.result is None:
            st.info("Keras is building the model.", icon=":material/hourglass_top:")
        else:
            _totals(job.result, shown)
            _layers(job.result)
            _memory(job.result, shown)
            _compiled(job.result, shown)
