"""Questions about a model that a page asks by itself, and what it says while they have no answer."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.access import Action
from core.dashboard.access import why_not
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import boundary, problem
from core.dashboard.server import latest_answer, soon
from core.errors import MirrorboardError
from core.records import Job, Kind, Status
from core.store import Store

_PATIENCE_S = 1.0


def answer(store: Store, kind: Kind, asked: dict[str, Any], *, key: str, is_gone: bool = False) -> Job | None:
    """The newest job that was asked this; an engine is asked where there is none.

    Args:
        store: Where to ask.
        kind: What kind of job answers.
        asked: Its configuration.
        key: Of the button that asks again.
        is_gone: Whether what the answer made is not there any more.

    Returns:
        A job that goes on, after which the page is drawn again, or is completed. None where it failed or the
        viewer may not ask; the page then says so.
    """
    reason = why_not(Action.WORK)
    job = latest_answer(store, kind, asked)
    if job is None or (is_gone and job.status is Status.COMPLETED):
        if reason is not None:
            st.info(f"Nobody has asked the model about this yet. {reason}", icon=":material/block:")
            return None
        try:
            job = soon(store, store.submit(kind, asked), _PATIENCE_S)
        except MirrorboardError as error:
            problem(error.message, error.hint)
            return None
    if not job.status.is_final:
        rerun_when_done(store, job)
    elif job.status is not Status.COMPLETED:
        told = job.error or {"message": f"The model could not be asked: the job was {job.status}."}
        problem(told["message"], told.get("hint", ""))
        if st.button(
            "Try again", key=key, icon=":material/refresh:", disabled=reason is not None, help=reason
        ):
            with boundary():
                store.submit(kind, asked)
                st.rerun()
        return None
    return job
