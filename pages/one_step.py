"""One training step in slow motion: what each replica holds, computes, exchanges and ends up with."""

from __future__ import annotations

import time
from typing import Any

import streamlit as st

from core.access import Action
from core.config import RunConfig
from core.dashboard import draft, forms
from core.dashboard.about import summary
from core.dashboard.access import over_limits, why_not
from core.dashboard.fragments import fragment
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import boundary, plain, problem
from core.dashboard.navigation import problem_of_step
from core.dashboard.one_step import PARTS, on_one_device
from core.dashboard.server import latest_answer, load_corpus, machine, missing_device, readiness
from core.errors import ConfigError
from core.records import Job, Kind
from core.store import Store

# Seconds that each part stays while it plays, and between two looks at the clock.
_PLAY_S = 4.0
_TICK_S = 0.5
_PLAYS, _NEXT_AT = "step_plays", "step_next_at"
# What of the training's settings a single step depends on.
_MATTER = ("batch_size", "learning_rate", "seed", "deterministic")


def _asked(config: RunConfig, batch: int) -> dict[str, Any]:
    run = config.model_dump(mode="json")
    run["training"] = {name: run["training"][name] for name in _MATTER}
    return {"run": run, "batch": batch - 1}


def _choose_batch(store: Store, config: RunConfig) -> int:
    last = config.steps(len(load_corpus(store, config.data.dataset).rows("train")))
    st.session_state["step.batch"] = min(max(draft.value("step.batch"), 1), last)
    return int(
        st.number_input(
            "Batch of the first epoch",
            1,
            last,
            key="step.batch",
            help=f"Batch {last:,} is the last one, which is seldom full.",
            persist_state="session",
            width=240,
        )
    )


def _ask(store: Store, asked: dict[str, Any]) -> Job | None:
    """The button, and the newest answer to what it asks."""
    job = latest_answer(store, Kind.STEP, asked)
    goes_on = job is not None and not job.status.is_final
    reason = why_not(Action.WORK)
    if st.button(
        "Take this step" if job is None else "Take it again",
        key="take_step",
        icon=":material/play_arrow:",
        type="primary",
        disabled=goes_on or reason is not None,
        help=reason,
    ):
        with boundary():
            store.submit(Kind.STEP, asked)
            st.session_state[_PLAYS] = False
            st.rerun()
    return job


def _play() -> None:
    """Plays from here, from the start when it is at the end; or pauses."""
    plays = not st.session_state.get(_PLAYS, False)
    st.session_state[_PLAYS] = plays
    st.session_state[_NEXT_AT] = time.monotonic() + _PLAY_S
    if plays and draft.value("step.at") == len(PARTS):
        st.session_state["step.at"] = 1


def _parts(result: dict[str, Any], *, timed: bool) -> None:
    """The six parts, one at a time; `timed` says that this is called again by itself."""
    with boundary():
        at = draft.value("step.at")
        if st.session_state.get(_PLAYS) and time.monotonic() >= st.session_state[_NEXT_AT]:
            at = min(at + 1, len(PARTS))
            st.session_state["step.at"] = at
            st.session_state[_NEXT_AT] = time.monotonic() + _PLAY_S
            st.session_state[_PLAYS] = at < len(PARTS)
        if st.session_state.get(_PLAYS, False) != timed:
            st.rerun()  # only the page can start and stop the timer
        with st.container(horizontal=True, vertical_alignment="center", key="step_control"):
            forms.view(
                "step.at",
                "Part of the step",
                {at: f"{at}. {name}" for at, (name, _) in enumerate(PARTS, start=1)},
            )
            st.button(
                "Pause" if timed else "Play",
                key="play_step",
                icon=":material/pause:" if timed else ":material/slideshow:",
                on_click=_play,
            )
        PARTS[at - 1][1](result)
        draft.keep_in_address("step")


def _answer(job: Job) -> None:
    if not job.status.is_final:
        phase = plain(job.phase or "starting TensorFlow")
        st.info(f"A fresh engine process is at it: {phase}.", icon=":material/hourglass_top:")
    elif job.result is None:
        failed = job.error or {}
        problem(failed.get("message", "The step was not finished."), failed.get("hint", ""))
    else:
        plays = st.session_state.get(_PLAYS, False)
        fragment(_parts, run_every=_TICK_S if plays else None)(job.result, timed=plays)
        if len(job.result["replicas"]) > 1:
            on_one_device(job.result)


def _config(store: Store) -> RunConfig | None:
    """The draft's run on a dataset that is there; None when it cannot be had yet, and the page says why."""
    try:
        wanted = draft.value("data.dataset")
        ready = readiness(store, wanted)
        name = ready.use(wanted)
        config = draft.config(data={"dataset": name})
        wrong = missing_device(machine(store), config.layout) or over_limits(config, trains=False)
        if wrong is not None:
            raise wrong
    except ConfigError as error:
        problem_of_step(error)
        return None
    if name in ready.is_ready:
        return config
    st.info("The newswires are being prepared. It takes some seconds, once.", icon=":material/hourglass_top:")
    if ready.preparing is not None:
        rerun_when_done(store, ready.preparing, every_s=0.5)
    return None


with page(
    "Inside one step", "Why two lines are enough: what the replicas do between two updates of the model."
) as store:
    config = _config(store)
    if config is not None:
        line = summary(config)
        st.caption(plain(f"{line[:1].upper()}{line[1:]}. Global batch {config.global_batch_size:,}."))
        with st.container(horizontal=True, vertical_alignment="bottom", key="step_form"):
            job = _ask(store, _asked(config, _choose_batch(store, config)))
        if job is None:
            st.info(
                "Nothing has been taken apart yet. It takes a fresh engine process some seconds.",
                icon=":material/slow_motion_video:",
            )
        else:
            _answer(job)
            rerun_when_done(store, job)
