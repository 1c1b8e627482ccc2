"""A run's model judged on the newswires it was validated on: asked for, read, and shown in figures."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from core.analysis.evaluation import TOP_K, Evaluation, evaluate
from core.config import RunConfig, parse_config
from core.corpus import Corpus
from core.dashboard import charts, units
from core.dashboard.answers import answer
from core.dashboard.fragments import fragment
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import boundary, plain, problem
from core.dashboard.server import load_corpus
from core.errors import RunStateError
from core.exports import Which
from core.predictions import Predictions, order, predicted, read
from core.records import Job, Kind, Status
from core.store import Store

# Streamlit looks for garbage after every script run: what scikit-learn brings would take 40 ms of it.
gc.collect()
gc.freeze()

_AT_ONCE = 15
"""Rows of a table that are seen without scrolling it."""


@dataclass(frozen=True)
class Judged:
    """A model, its answers, and what they are worth.

    Attributes:
        run: Whose model it is.
        asked: Which of its models; what `core.predictions.order` gave.
        corpus: The newswires.
        predictions: The model's answers.
        evaluation: What they are worth.
    """

    run: Job
    asked: dict[str, Any]
    corpus: Corpus
    predictions: Predictions
    evaluation: Evaluation

    @property
    def title(self) -> str:
        """What people call the model; two runs may have the same name."""
        run = f"{self.run.name} ({self.run.id})" if self.run.name else self.run.id
        return f"{run}, {self.asked['which']} epoch {self.asked['epoch']}"

    @property
    def config(self) -> RunConfig:
        """Of the run."""
        return parse_config(self.run.config)


def judged(store: Store, run: Job, which: Which) -> Judged | None:
    """A run's model on the newswires it was validated on.

    Args:
        store: Where the run is.
        run: The run.
        which: Of its models.

    Returns:
        None while an engine is at it, or when it cannot be; the page then says so.
    """
    try:
        asked = order(run, which)
    except RunStateError as error:
        if run.status.is_final:
            problem(error.message, error.hint)
        else:
            st.info(f"{plain(error.message)} {plain(error.hint)}", icon=":material/hourglass_top:")
            rerun_when_done(store, run, every_s=1.0)
        return None
    file = predicted(store.checkpoints(run.id), asked)
    if not file.exists():
        job = answer(store, Kind.EVALUATE, asked, key=f"evaluate_again_{run.id}", is_gone=True)
        if job is None:
            return None
        if job.status is not Status.COMPLETED:
            fragment(_stage, run_every=0.5)(store, job.id, run.title)
            return None
    corpus = load_corpus(store, parse_config(run.config).data.dataset)
    predictions, evaluation = _read(file, file.stat().st_mtime_ns, corpus.name, corpus)
    return Judged(run, asked, corpus, predictions, evaluation)


def _stage(store: Store, job_id: str, title: str) -> None:
    with boundary():
        job = store.job(job_id)
        done, of = job.progress.get("done", 0), job.progress.get("of", 0)
        count = f", {done:,} of {units.plural(of, 'newswire')}" if of else ""
        phase = job.phase or "waiting for an engine process"
        st.progress(done / of if of else 0.0, f"Evaluating run {plain(title)}: {plain(phase)}{count}")


@st.cache_resource(show_spinner=False, max_entries=8)
def _read(
    file: Path,
    changed_ns: int,  # noqa: ARG001 - part of the key
    dataset: str,  # noqa: ARG001
    _corpus: Corpus,
) -> tuple[Predictions, Evaluation]:
    predictions = read(file, _corpus)
    training = _corpus.split_labels("train")
    return predictions, evaluate(predictions.probabilities, predictions.labels, training)


@dataclass(frozen=True)
class _Figure:
    """A figure of an evaluation: its name, its value, what it means."""

    name: str
    of: Callable[[Evaluation], float | None]
    meaning: str


def _figures(model: Judged) -> list[_Figure]:
    majority = model.corpus.class_names[model.evaluation.majority]
    return [
        _Figure("Accuracy", lambda e: e.accuracy, "Share of newswires whose likeliest class is right."),
        _Figure(
            "Top-5 accuracy",
            lambda e: e.top_5,
            f"Share of newswires whose right class is among the {TOP_K} likeliest.",
        ),
        _Figure(
            "Macro F1",
            lambda e: e.macro_f1,
            "Mean of the classes' F1, so that a small class counts as much as a large one.",
        ),
        _Figure(
            "Calibration error",
            lambda e: e.calibration_error,
            "Expected calibration error (ECE): how far confidence and accuracy are apart on average.",
        ),
        _Figure(
            "Majority class",
            lambda e: e.baseline,
            f"Accuracy of always answering “{plain(majority)}”, the largest class of the training newswires.",
        ),
    ]


def headline(models: Sequence[Judged]) -> None:
    """The figures of one model, or of two beside each other."""
    first = models[0].evaluation
    figures = _figures(models[0])
    if len(models) == 1:
        against = {"Accuracy": first.baseline, "Top-5 accuracy": first.baseline_top_5}
        with st.container(horizontal=True, gap="medium"):
            for figure in figures:
                value, baseline = figure.of(first), against.get(figure.name)
                st.metric(
                    figure.name,
                    units.percent(value),
                    None
                    if baseline is None or value is None
                    else f"{100 * (value - baseline):+.1f} points over the baseline",
                    help=figure.meaning,
                    width="content",
                )
    else:
        st.table(
            [
                {
                    "Figure": figure.name,
                    **{plain(model.title): units.percent(figure.of(model.evaluation)) for model in models},
                    "Difference": _difference(*(figure.of(model.evaluation) for model in models)),
                }
                for figure in figures
            ],
            hide_index=True,
        )
    majority = models[0].corpus.class_names[first.majority]
    st.caption(
        f"On {units.plural(first.examples, 'newswire')} of the test split, which the run was validated on."
        f" Always answering “{plain(majority)}”, the largest class, is right for"
        f" {units.percent(first.baseline)} of them ({units.percent(first.training_share)} of the training"
        f" newswires); the five largest classes hold {units.percent(first.baseline_top_5)}."
    )


def _difference(one: float | None, other: float | None) -> str:
    """The second against the first, in percentage points."""
    return "–" if one is None or other is None else f"{100 * (other - one):+.1f} points"


def classes(models: Sequence[Judged]) -> None:
    """The table of classes; a click on a column's name sorts it."""
    st.subheader("Classes", anchor=False)
    first = models[0]
    rows = pd.DataFrame(
        [
            {"Class": number, "Topic": name, **dataclasses.asdict(score)}
            for number, (name, score) in enumerate(
                zip(first.corpus.class_names, first.evaluation.scores, strict=True)
            )
        ]
    )
    shares = ["precision", "recall", "f1"]
    rows[shares] *= 100.0
    columns: dict[str, Any] = {
        "Topic": st.column_config.TextColumn(pinned=True),
        "support": st.column_config.NumberColumn("Support", help="Newswires of the class."),
        "predicted": st.column_config.NumberColumn("Answered", help="Newswires taken for the class."),
        **{
            name: st.column_config.ProgressColumn(title, help=meaning, format="%.1f %%", max_value=100.0)
            for name, title, meaning in (
                ("precision", "Precision", "Of the newswires taken for the class, the share that is of it."),
                ("recall", "Recall", "Of the newswires of the class, the share that was recognised."),
                ("f1", "F1", "Harmonic mean of precision and recall."),
            )
        },
    }
    if len(models) > 1:
        other = models[1]
        rows["other"] = [100.0 * score.f1 for score in other.evaluation.scores]
        rows["difference"] = rows["other"] - rows["f1"]
        columns |= {
            "f1": st.column_config.ProgressColumn(f"F1, {first.title}", format="%.1f %%", max_value=100.0),
            "other": st.column_config.ProgressColumn(f"F1, {other.title}", format="%.1f %%", max_value=100.0),
            "difference": st.column_config.NumberColumn(
                "Difference (points)", help="The second F1 less the first.", format="%+.1f"
            ),
        }
        rows = rows.drop(columns=["predicted", "precision", "recall"])
    rows = rows.sort_values("support", ascending=False, kind="stable")
    st.dataframe(
        rows,
        hide_index=True,
        key="class_scores",
        column_config=columns,
        height=36 + 35 * min(len(rows), _AT_ONCE),
    )
    missing = sum(score.support == 0 for score in first.evaluation.scores)
    silent = sum(score.support > 0 and score.predicted == 0 for score in first.evaluation.scores)
    notes = []
    if silent and len(models) == 1:
        notes.append(f"{units.plural(silent, 'class was', 'classes were')} never answered.")
    if missing:
        notes.append(f"{units.plural(missing, 'class has', 'classes have')} no newswire here.")
    st.caption(" ".join(["Choose a column's name to sort by it.", *notes]))


def calibration(models: Sequence[Judged]) -> None:
    """How far the models' confidence can be believed."""
    st.subheader("Confidence", anchor=False)
    charts.show(
        charts.reliability_of({model.title: model.evaluation.diagram for model in models}),
        key="reliability_chart",
    )
    for model in models:
        error = model.evaluation.calibration_error
        st.caption(
            f"{plain(model.title)}: no answer has a finite confidence."
            if error is None
            else f"{plain(model.title)}: confidence and accuracy are {100 * error:.1f} percentage points"
            " apart on average (expected calibration error, ECE)."
        )
