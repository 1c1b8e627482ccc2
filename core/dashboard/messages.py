"""What pages say: errors in their place, text as it is, statuses as badges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

import streamlit as st

from core.access import Action
from core.dashboard import access
from core.dashboard.markdown import plain as plain  # noqa: PLC0414 - what most messages are made with
from core.dashboard.server import Readiness
from core.errors import MirrorboardError
from core.records import Kind, Status
from core.store import Store

LOOKS: dict[Status, tuple[str, str]] = {
    Status.QUEUED: (":material/hourglass_empty:", "gray"),
    Status.RUNNING: (":material/play_circle:", "blue"),
    Status.STOPPING: (":material/stop_circle:", "orange"),
    Status.PAUSING: (":material/pause_circle:", "orange"),
    Status.PAUSED: (":material/pause_circle:", "violet"),
    Status.COMPLETED: (":material/check_circle:", "green"),
    Status.STOPPED: (":material/stop_circle:", "gray"),
    Status.FAILED: (":material/error:", "red"),
    Status.DIVERGED: (":material/trending_up:", "red"),
    Status.LOST: (":material/cloud_off:", "red"),
}
"""Icon and colour of each status."""
_log = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")


@contextmanager
def boundary() -> Iterator[None]:
    """Shows an error in its place instead of a traceback.

    Use it in every fragment too: an exception there does not come by the page's own boundary.
    """
    try:
        yield
    except MirrorboardError as error:
        problem(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - it is logged, and the rest of the page goes on
        _log.exception("A page failed")
        problem(
            f"This part of the page failed ({type(error).__name__}).",
            "Reload the page. If it comes back, the dashboard's log on the terminal has the details.",
        )


def told(change: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """A callback that tells of an error instead of raising it: no boundary stands around callbacks."""

    @wraps(change)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        with boundary():
            change(*args, **kwargs)

    return guarded


def problem(message: str, hint: str = "") -> None:
    """An error for people: what was wrong, and what to do."""
    message, hint = access.without_folders(message), access.without_folders(hint)
    st.error(f"**{plain(message)}**  \n{plain(hint)}" if hint else plain(message), icon=":material/error:")


def badge(status: Status) -> str:
    """A status as a Markdown badge."""
    icon, colour = LOOKS[status]
    return f":{colour}-badge[{icon} {status}]"


def reuters_missing(store: Store, state: Readiness) -> None:
    """Says why the synthetic dataset stands in for Reuters, when it does, and offers to try again."""
    if state.failed is None or state.failed.error is None:
        return
    error = state.failed.error
    message, hint = access.without_folders(error["message"]), access.without_folders(error["hint"])
    st.warning(
        f"**{plain(message)} Synthetic newswires take the place of Reuters.**  \n{plain(hint)}",
        icon=":material/cloud_off:",
    )
    reason = access.why_not(Action.WORK)
    if st.button(
        "Try Reuters again",
        key="retry_reuters",
        icon=":material/refresh:",
        disabled=reason is not None,
        help=reason,
    ):
        with boundary():
            store.submit(Kind.PREPARE, {"dataset": "reuters"})
            st.rerun()
    if error["details"] and not access.is_hosted():
        with st.expander("Details", icon=":material/description:"):
            st.code(error["details"], language=None, wrap_lines=True)
