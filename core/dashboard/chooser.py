"""The list of runs to choose from."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.config import DATASET_NAMES, parse_config
from core.dashboard import draft, units
from core.records import Job, Kind

_NAME = 24
"""Characters of a run's name."""


def label(job: Job) -> str:
    """What distinguishes a run comes first: a phone shows some 40 characters of it."""
    short = job.name if len(job.name) <= _NAME else f"{job.name[: _NAME - 1].rstrip()}…"
    begun = f"{short or job.id}, {units.moment(job.created_at)}"
    ident = f" ({job.id})" if job.name else ""
    if job.kind is Kind.IMPORT:
        return f"{begun}: imported{ident}"
    config = parse_config(job.config)
    where = units.plural(config.layout.replicas, "replica")
    return f"{begun}: {DATASET_NAMES[config.data.dataset]}, {where}{ident}"


def choose(runs: Sequence[Job]) -> None:
    """Lets the viewer choose the run to look at."""
    names = {job.id: label(job) for job in runs}
    chosen = draft.chosen_run()
    st.session_state["chooser"] = chosen if chosen in names else None

    def keep() -> None:
        # The browser answers with the words it shows (Streamlit 1.67). When a run has been renamed since,
        # they are no run's any more, and Streamlit takes them for a new choice.
        if st.session_state["chooser"] in names:
            draft.choose_run(st.session_state["chooser"])

    st.selectbox(
        "Run",
        list(names),
        format_func=lambda run_id: names.get(run_id, run_id),
        key="chooser",
        on_change=keep,
        index=None,
        placeholder="Choose a run",
    )
