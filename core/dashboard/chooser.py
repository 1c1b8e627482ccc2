"""Lists to choose a run from, or something else whose name may change while it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
    chooser(
        "Run",
        {job.id: label(job) for job in runs},
        draft.chosen_run(),
        draft.choose_run,
        key="chooser",
        placeholder="Choose a run",
    )


def chooser(
    title: str,
    names: Mapping[str, str],
    chosen: str | None,
    keep: Callable[[str], None],
    *,
    key: str,
    placeholder: str,
    none: str | None = None,
    help: str | None = None,  # noqa: A002 - as Streamlit calls it
) -> None:
    """A list of things by their ids.

    Args:
        title: Of the list.
        names: What each is called, by its id.
        chosen: Which is chosen; another than these leaves the list without a choice.
        keep: Is told the id of another one.
        key: Of the widget, in which nothing lasts: what is chosen stands elsewhere.
        placeholder: What stands there without a choice.
        none: What `keep` is told when the viewer takes the choice back; None makes the list choose it again.
        help: What the list is for.
    """
    st.session_state[key] = chosen if chosen in names else None

    def changed() -> None:
        picked = st.session_state[key]
        picked = none if picked is None else picked
        # The browser answers with the words it shows (Streamlit 1.67). When something has been renamed or
        # deleted since, they are nothing's any more, and Streamlit takes them for a new choice.
        if picked is not None and (picked in names or picked == none):
            keep(picked)

    st.selectbox(
        title,
        list(names),
        format_func=lambda one: names.get(one, one),
        key=key,
        on_change=changed,
        index=None,
        placeholder=placeholder,
        help=help,
    )
