"""What a finished run's model gets right, what it confuses, and which words it goes by."""

from __future__ import annotations

from typing import get_args

import streamlit as st

from core.config import parse_config
from core.dashboard import draft, forms
from core.dashboard.chooser import choose, chooser, label
from core.dashboard.confusion import confusion
from core.dashboard.evaluation import Judged, calibration, classes, headline, judged
from core.dashboard.frame import page
from core.dashboard.messages import boundary, problem
from core.dashboard.navigation import STEPS, link
from core.dashboard.newswire import field
from core.errors import RunNotFound
from core.exports import Which
from core.records import RUNS, Job
from core.store import Store

_WHICH: dict[Which, str] = {"best": "Best epoch", "last": "Last epoch"}


def _compare(runs: list[Job], run: Job) -> tuple[Job, Which] | None:
    """Lets the viewer choose a second model: another run's, or the same run's other one."""
    which: Which = draft.value("which")
    other = next(each for each in get_args(Which) if each != which)
    names = {}
    if run.checkpoint_epochs:
        names[run.id] = f"This run, its {other} epoch"
        dataset = parse_config(run.config).data.dataset
        names |= {
            each.id: label(each)
            for each in runs
            if each.id != run.id
            and each.checkpoint_epochs
            and each.status.is_final
            and parse_config(each.config).data.dataset == dataset
        }
    chosen = draft.value("compare")
    chooser(
        "Compare with",
        names,
        chosen,
        lambda run_id: st.session_state.update(compare=run_id),
        key="compare_chooser",
        placeholder="No other model",
        none="",
        help="Runs on the same newswires.",
    )
    second = next((each for each in runs if each.id == chosen and chosen in names), None)
    if second is None:
        return None
    return second, other if second.id == run.id else which


def _show(store: Store, models: list[Judged]) -> None:
    headline(models)
    classes(models)
    confusion(store, models)
    calibration(models)
    field(store, models)


def _draw(store: Store) -> None:
    """All of it; in a function, because a session keeps its page's module with all that it names."""
    runs = store.jobs(kinds=RUNS, limit=100)
    run_id = draft.chosen_run()
    run = None
    if run_id is not None:
        try:
            run = store.run(run_id)
        except RunNotFound as error:
            problem(
                error.message,
                "Choose one of the runs below." if runs else "Start a run on the page Training.",
            )
    if not runs:
        st.info(
            "No run has been trained yet. Train one first; it can be evaluated here once it has ended.",
            icon=":material/fact_check:",
        )
        link(STEPS[-1], "Start a run on the page Training")
    else:
        left, middle, right = st.columns([5, 3, 5], vertical_alignment="bottom")
        with left:
            choose(runs)
        with middle:
            forms.view("which", "Model", _WHICH)
        with right:
            second = _compare(runs, run) if run is not None else None
        if run is None:
            st.info("Choose a run to see what its model gets right.", icon=":material/fact_check:")
        else:
            models = [judged(store, run, draft.value("which"))]
            if second is not None:
                with boundary():  # whatever is wrong with it, the first is shown
                    models.append(judged(store, *second))
            if models[0] is not None:
                _show(store, [model for model in models if model is not None])


with page(
    "Evaluate", "What a finished run's model gets right, what it confuses, and which words it goes by."
) as store:
    _draw(store)
