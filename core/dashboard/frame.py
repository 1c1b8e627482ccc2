"""The frame around every page: the sidebar, who may come in, and what to do when nothing works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from core.access import Person
from core.dashboard import access, draft, entrance
from core.dashboard.fragments import leave_others
from core.dashboard.job_status import FOLLOWED, job_status
from core.dashboard.messages import boundary, problem
from core.dashboard.navigation import CODE, EVALUATE, ONE_STEP, RUNS, SCALING, START, STEPS, link
from core.dashboard.server import open_store
from core.errors import ConfigError, MirrorboardError
from core.store import Store

_ICON = Path(__file__).with_name("icon.svg")
_LOGO = Path(__file__).with_name("logo.svg")
_STYLE = """<style>
[class*=st-key-address_], .st-key-pulse, [class*=st-key-][class*=_news] { display: none; }
[data-testid=stSidebarHeader] { height: 3.4rem; }
[data-testid=stMetric] { padding: 0.15rem 0; }
/* Room for two lines, so that a longer sentence does not push the charts about. */
.st-key-run_figures [data-testid=stAlertContainer] { min-height: 5.2rem; }
/* A table that is wider than the screen scrolls, and fades where it goes on. */
@keyframes goes-on { from { mask-size: 100% 100%; } 95%, to { mask-size: calc(100% + 3rem) 100%; } }
[data-testid=stTable] > div {
  mask: linear-gradient(to left, transparent, black 3rem) left / calc(100% + 3rem) 100% no-repeat;
  animation: goes-on linear; animation-timeline: scroll(self inline);
}
.st-key-runs-status [role=group], .st-key-runs-status [role=toolbar],
.st-key-matrix_controls [role=radiogroup] { flex-wrap: wrap; }
/* One blue cannot be readable both under white and on the dark background. */
[data-variant=segmented_control][data-selected=true],
[data-variant=pills][data-selected=true] { color: inherit !important; }
</style>"""


@contextmanager
def page(title: str, lead: str = "") -> Iterator[Store]:
    """Begins a page: configures it, draws the sidebar, and keeps errors off the screen.

    Args:
        title: The page's heading.
        lead: One sentence under it.

    Yields:
        The run store, which refuses what whoever is at the page may not do. When it cannot be used, or
        somebody has to sign in first, the page says so and ends here.
    """
    st.set_page_config(page_title=f"{title} · Mirrorboard", page_icon=str(_ICON), layout="wide")
    st.html(_STYLE)
    st.logo(str(_LOGO), icon_image=str(_ICON), size="large")
    person = _admitted()
    if draft.restore(title):
        leave_others()
    st.session_state[FOLLOWED] = False
    with st.sidebar:
        _links()
    try:
        store = access.gate(open_store(), person)
    except MirrorboardError as error:
        _without_store(error)
        st.stop()
    st.title(title, anchor=False)
    if lead:
        st.markdown(lead)
    entrance.banner(person)
    with boundary():
        yield store
    # After the page, which may just have begun something.
    with st.sidebar, boundary():
        job_status(store, title)
        entrance.who(person)
    draft.keep_in_address()


def _admitted() -> Person:
    """Who is at the page; it ends here for somebody who may not even look."""
    try:
        person = access.person()
        access.harden()
    except MirrorboardError as error:
        st.title("The settings for access are wrong", anchor=False)
        problem(error.message, error.hint)
        st.stop()
    if person is None:
        entrance.ask_to_sign_in()
        st.stop()
    return person


def _links() -> None:
    link(START, START.name)
    for number, step in enumerate(STEPS, start=1):
        link(step, f"{number}. {step.name}")
    link(ONE_STEP, ONE_STEP.name)
    link(EVALUATE, EVALUATE.name)
    link(RUNS, RUNS.name)
    link(SCALING, SCALING.name)
    link(CODE, CODE.name)
    st.divider()


def _without_store(error: MirrorboardError) -> None:
    if isinstance(error, ConfigError):
        st.title("A setting of the dashboard is wrong", anchor=False)
    else:
        st.title("The run store cannot be used", anchor=False)
        st.markdown(
            "Mirrorboard keeps runs, measurements and prepared datasets there, so nothing works without it."
        )
    problem(error.message, error.hint)
    st.button("Try again", key="open_again", icon=":material/refresh:", type="primary")
