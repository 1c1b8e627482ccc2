"""Parts of a page that are drawn by themselves, and what becomes of them when the page is left.

A browser learns of the next page only when the server begins to draw it. Until then the timers and widgets
of the page before go on asking for parts of it. Streamlit (1.67) answers such a late request after the page
that has come, as a run of the page that was left: the browser then clears what it shows, and stays blank for
good when something is drawn into a place that is gone. So no late request may be answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from core.dashboard import draft

P = ParamSpec("P")


def fragment(
    draw: Callable[P, None], *, key: str | None = None, run_every: float | None = None
) -> Callable[P, None]:
    """A part of this page, and of no other.

    ``st.fragment`` tells parts apart by their functions' names and places only, so that the same part of two
    pages, such as the sidebar's status, would answer for each other.

    Args:
        draw: Draws it.
        key: Name for ``st.rerun``.
        run_every: Seconds between two drawings; None when it is drawn on request only.
    """

    @wraps(draw)
    def part(*args: P.args, **kwargs: P.kwargs) -> None:
        draw(*args, **kwargs)

    part.__qualname__ = f"{draw.__qualname__} of {draft.page()}"
    return st.fragment(part, key=key, run_every=run_every)


def leave_others() -> NoReturn:
    """Drops the parts of the page before with all that is still asked of them, and begins this page anew."""
    context = get_script_run_ctx()
    assert context is not None
    context.fragment_storage.clear()  # what is asked of them from now on is refused
    st.rerun()  # takes the place of what has been asked so far
