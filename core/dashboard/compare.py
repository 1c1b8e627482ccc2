"""The chosen runs beside each other: curves, differing parameters, figures against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from core import report
from core.analysis.comparison import change, differences, flat
from core.analysis.criteria import accuracy_name, epoch_numbers, series
from core.config import parse_config
from core.dashboard import charts, draft, forms, units
from core.dashboard.messages import plain
from core.errors import ConfigError
from core.records import Job, Kind
from core.store import Store

_ALONG: dict[charts.Along, str] = {"epoch": "Epochs", "step": "Steps", "time": "Wall time"}
_FEWEST = 2
_MOST = 24
"""Runs that colour and dash tell apart."""

_DIGITS = {
    "Best validation loss": 3,
    "Validation accuracy there": 3,
    "Last validation loss": 3,
    "Examples/s": 0,
    "Duration (s)": 1,
}
"""The figures that are compared, and their decimals."""


@dataclass(frozen=True)
class _Run:
    job: Job
    title: str
    history: list[dict[str, Any]]

    @property
    def losses(self) -> list[float | None]:
        return series(self.history, "val_loss")

    def x(self, along: charts.Along) -> list[float] | None:
        """Where each epoch ends; None when the run does not say."""
        epochs = [float(epoch) for epoch in epoch_numbers(self.history)]
        if along == "epoch":
            return epochs
        if along == "step":
            steps = (self.job.result or {}).get("steps_per_epoch")
            return [epoch * steps for epoch in epochs] if steps else None
        durations = series(self.history, "duration_s")
        if None in durations:
            return None
        return [float(end) for end in np.cumsum(np.array(durations, np.float64))]

    def figures(self) -> dict[str, float | None]:
        known = [(value, at) for at, value in enumerate(self.losses) if value is not None]
        best, at = min(known) if known else (None, None)
        accuracy = series(self.history, f"val_{accuracy_name(self.history)}")
        values = (
            best,
            None if at is None else accuracy[at],
            known[-1][0] if known else None,
            self.job.progress.get("examples_per_s"),
            self.job.duration_s,
        )
        return dict(zip(_DIGITS, values, strict=True))


def parameters(job: Job) -> dict[str, Any]:
    """What a run was asked to do, by dotted name; settings that came later have their defaults."""
    config = job.config
    if job.kind is Kind.TRAIN:
        # One with a setting that this version refuses is shown as it was written.
        with suppress(ConfigError):
            config = parse_config(config).model_dump(mode="json")
    return flat(config)


def compare(store: Store, jobs: Sequence[Job]) -> None:
    """Shows runs beside each other.

    Args:
        store: Where they are.
        jobs: The chosen ones.
    """
    st.subheader("Compare", anchor=False)
    if len(jobs) < _FEWEST:
        st.info("Choose two runs or more in the table to compare them.", icon=":material/check_box:")
        return
    if len(jobs) > _MOST:
        st.caption(f"The first {_MOST} of {len(jobs)} chosen runs are compared.")
    titles = _titles(jobs[:_MOST])
    runs = [_Run(job, titles[job.id], report.history(store, job)) for job in jobs[:_MOST]]
    _curves(runs)
    left, right = st.columns(2)
    with left:
        _parameters(runs)
    with right:
        _figures(runs)


def _titles(jobs: Sequence[Job]) -> dict[str, str]:
    """What each is called; the id is added where two have the same name."""
    names = [job.title for job in jobs]
    return {job.id: job.title if names.count(job.title) == 1 else f"{job.title} ({job.id})" for job in jobs}


def _curves(runs: Sequence[_Run]) -> None:
    forms.view("compare.along", "Along", _ALONG)
    along: charts.Along = draft.value("compare.along")
    drawn, missing = [], []
    for run in runs:
        x = run.x(along)
        if x is None or run.job.place is None:
            missing.append(run.title)
            continue
        losses = np.array([np.nan if loss is None else loss for loss in run.losses], np.float64)
        epochs = np.array(epoch_numbers(run.history), np.int32)
        drawn.append(charts.Overlaid(run.title, run.job.place, np.array(x, np.float64), losses, epochs))
    charts.show(lambda part: charts.overlaid_losses(drawn, along, part), key="compare_chart")
    if missing:
        what = {"step": "steps per epoch", "time": "epoch durations"}.get(along, "epochs")
        st.caption(f"Not drawn, because the {what} were not recorded: {plain(', '.join(missing))}.")


def _parameters(runs: Sequence[_Run]) -> None:
    st.markdown("**Parameters that differ**")
    ours = {run.title: parameters(run.job) for run in runs if run.job.kind is Kind.TRAIN}
    if len(ours) < len(runs):
        st.caption("Of imported runs no parameters are known.")
    rows = differences(ours)
    if not rows and len(ours) < _FEWEST:
        return
    if not rows:
        st.info("The chosen runs have the same parameters.", icon=":material/equal:")
        return
    st.table(
        [
            {"Parameter": plain(name), **{plain(run): plain(_text(value)) for run, value in row.items()}}
            for name, row in rows.items()
        ],
        hide_index=True,
        border="horizontal",
    )


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(runs: Sequence[_Run]) -> None:
    by_id: Mapping[str, _Run] = {run.job.id: run for run in runs}
    if draft.value("compare.baseline") not in by_id:
        st.session_state["compare.baseline"] = runs[-1].job.id
    baseline = by_id[
        st.selectbox(
            "Baseline",
            list(by_id),
            format_func=lambda run_id: by_id[run_id].title if run_id in by_id else run_id,
            key="compare.baseline",
            persist_state="session",
        )
    ]
    against = baseline.figures()
    figures = {run.title: run.figures() for run in runs}
    st.table(
        [
            {
                "Figure": name,
                **{
                    plain(run): _compared(
                        of[name], None if run == baseline.title else against[name], _DIGITS[name]
                    )
                    for run, of in figures.items()
                },
            }
            for name in against
        ],
        hide_index=True,
        border="horizontal",
    )
    st.caption(f"In brackets: the difference from {plain(baseline.title)}, in percent of its value.")


def _compared(value: float | None, baseline: float | None, digits: int) -> str:
    share = change(value, baseline)
    text = units.number(value, digits)
    # The spaces do not break: a narrow column must not part the number from its unit.
    return text if share is None else f"{text} ({100 * share:+.1f}\N{NO-BREAK SPACE}%)"
