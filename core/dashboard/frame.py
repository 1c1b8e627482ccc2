"""The frame around every page: the steps in order, the running job, and what to do when it breaks."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import streamlit as st

from core import retention
from core.access import Action, Person
from core.config import DATASET_NAMES, parse_config
from core.dashboard import access, draft, entrance, units
from core.dashboard.server import Readiness, open_store
from core.errors import ConfigError, MirrorboardError
from core.records import ACTIVE, Job, Kind, Status
from core.store import Store

_log = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")

_ICON = Path(__file__).with_name("icon.svg")
_LOGO = Path(__file__).with_name("logo.svg")
_STYLE = """<style>
.st-key-address, .st-key-pulse { display: none; }
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

JOB_STATUS = "job_status"
"""Key of the fragment in the sidebar."""
FOLLOWED = "followed"
"""In the session's state: whether a part of the page looks for news by itself, see `core.dashboard.pulse`."""
_ACTIVE_S = 1.0
_IDLE_S = 20.0
"""Seconds between two looks at the job status, with and without a job."""


@dataclass(frozen=True)
class Step:
    """A page, most of them a step of the lesson."""

    name: str
    script: str
    icon: str


START = Step("Start", "streamlit_app.py", ":material/home:")
STEPS = (
    Step("Devices", "pages/devices.py", ":material/memory:"),
    Step("Data", "pages/data.py", ":material/dataset:"),
    Step("Model", "pages/model.py", ":material/account_tree:"),
    Step("Training", "pages/training.py", ":material/show_chart:"),
)

ONE_STEP = Step("Inside one step", "pages/one_step.py", ":material/slow_motion_video:")
EVALUATE = Step("Evaluate", "pages/evaluate.py", ":material/fact_check:")
RUNS = Step("Runs", "pages/runs.py", ":material/table_rows:")
SCALING = Step("Scaling", "pages/scaling.py", ":material/speed:")
CODE = Step("Code to take home", "pages/take_home.py", ":material/code:")

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
    draft.restore(title)
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
        active = _active(store)
        # A live page has a pulse of its own, which draws this along with the rest.
        every_s = _ACTIVE_S if active and not st.session_state[FOLLOWED] else _IDLE_S
        status = st.fragment(_status, run_every=every_s, key=JOB_STATUS)
        status(store, _signature(active), title)
        entrance.who(person)
    draft.keep_in_address()


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


def rerun_when_done(store: Store, job: Job, every_s: float = 0.2) -> None:
    """Runs the page again as soon as a job has ended."""
    if not job.status.is_final:
        st.fragment(_wait, run_every=every_s)(store, job.id)


def _wait(store: Store, job_id: str) -> None:
    with boundary():
        if store.job(job_id).status.is_final:
            st.rerun()


def problem(message: str, hint: str = "") -> None:
    """An error for people: what was wrong, and what to do."""
    message, hint = access.without_folders(message), access.without_folders(hint)
    st.error(f"**{plain(message)}**  \n{plain(hint)}" if hint else plain(message), icon=":material/error:")


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


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|$<>~:])", r"\\\1", text)


def badge(status: Status) -> str:
    """A status as a Markdown badge."""
    icon, colour = LOOKS[status]
    return f":{colour}-badge[{icon} {status}]"


def link(step: Step, label: str, icon: str | None = None) -> None:
    """A link to a page that takes the settings along."""
    st.page_link(step.script, label=label, icon=icon or step.icon, query_params=draft.address())


def problem_of_step(error: ConfigError) -> None:
    """An error in the draft that belongs to another page, and the way there."""
    problem(error.message, error.hint)
    pages = {
        "layout": STEPS[0],
        "data": STEPS[1],
        "model": STEPS[2],
        "training": STEPS[3],
        "execution": STEPS[3],
    }
    step = pages.get(error.field.split(".")[0])
    if step is not None:
        link(step, f"Change it on the page {step.name}")


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


def _active(store: Store) -> list[Job]:
    """Jobs worth telling about: trainings and preparations, the running ones first."""
    jobs = store.jobs(kinds=[Kind.TRAIN, Kind.PREPARE], statuses=[*ACTIVE, Status.QUEUED])
    return sorted(jobs, key=lambda job: (job.status is Status.QUEUED, job.kind is Kind.PREPARE, job.number))


def _signature(jobs: list[Job]) -> tuple[tuple[str, Status], ...]:
    return tuple((job.id, job.status) for job in jobs)


def _status(store: Store, seen: tuple[tuple[str, Status], ...], title: str) -> None:
    with boundary():
        jobs = _active(store)
        if _signature(jobs) != seen:
            st.rerun()  # the page itself shows what has begun or ended, too
        for job in jobs[:2]:
            _job_line(job)
        first = next((job for job in jobs if job.kind is Kind.TRAIN), None)
        if first is not None and (title, draft.chosen_run()) != (STEPS[-1].name, first.id):
            _watch(first, title)
        waiting = len(jobs) - 2
        if waiting > 0:
            st.caption(f"{units.plural(waiting, 'more job')} waiting")
        free_bytes = shutil.disk_usage(store.home).free
        if free_bytes < retention.LOW_BYTES:
            left = plain(retention.size(free_bytes))
            st.warning(
                f"The disk of the run store is nearly full: {left} are left.", icon=":material/hard_drive:"
            )
        if not jobs:
            st.caption(f":material/radio_button_unchecked: Nothing is running. {_engine(store)}")


def _watch(job: Job, title: str) -> None:
    icon = ":material/visibility:"
    if title != STEPS[-1].name:
        query = {**draft.address(), "run": job.id}
        st.page_link(STEPS[-1].script, label="Watch", icon=icon, query_params=query)
    elif st.button("Watch", key=f"watch_{job.id}", icon=icon, type="tertiary"):
        draft.choose_run(job.id)
        st.rerun()


def _job_line(job: Job) -> None:
    progress = job.progress
    if job.kind is Kind.PREPARE:
        total = progress.get("total_bytes") or 0
        done = progress.get("downloaded_bytes") or 0
        st.progress(
            min(done / total, 1.0) if total else 0.0,
            f"Preparing {DATASET_NAMES[job.config['dataset']]} newswires",
        )
        return
    if job.status is Status.QUEUED:
        st.caption(f"{LOOKS[job.status][0]} Run {job.id} is queued")
    else:
        epochs = progress.get("epochs") or parse_config(job.config).training.epochs
        ending = job.status in (Status.STOPPING, Status.PAUSING)
        text = str(job.status) if ending else plain(job.phase or "starting")
        st.progress(
            run_share(job), f"**Run {job.id}**, epoch {progress.get('epoch', 0) + 1} of {epochs}: {text}"
        )


def run_share(job: Job) -> float:
    """How much of a run is done, from 0 to 1."""
    progress = job.progress
    steps, epochs = progress.get("steps"), progress.get("epochs")
    if not steps or not epochs:
        return 0.0
    return float(min((progress["epoch"] + progress["step"] / steps) / epochs, 1.0))


def _engine(store: Store) -> str:
    engines = store.engines()
    if any(engine.ready_at is not None for engine in engines):
        return "TensorFlow is ready."
    return "TensorFlow is starting." if engines else ""


def _without_store(error: MirrorboardError) -> None:
    if isinstance(error, ConfigError):
        st.title("A setting of the dashboard is wrong", anchor=False)
    else:
        st.title("The run store cannot be used", anchor=False)
        st.markdown(
            "Mirrorboard keeps runs, measurements and prepared datasets there, so nothing works without it."
        )
    problem(error.message, error.hint)
    st.button("Try again", icon=":material/refresh:", type="primary")
