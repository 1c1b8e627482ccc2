"""The code to take home: what a strategy adds to a script for one device, and the script as a file."""

from __future__ import annotations

import streamlit as st

from core.config import RunConfig
from core.dashboard import draft, drawings, units
from core.dashboard.about import summary
from core.dashboard.chooser import chooser, label
from core.dashboard.downloads import code_buttons
from core.dashboard.file_buttons import file_buttons
from core.dashboard.frame import page
from core.dashboard.lint_panel import script_checker
from core.dashboard.messages import plain, problem
from core.dashboard.navigation import STEPS, link, problem_of_step
from core.errors import ConfigError, RunNotFound, RunStateError
from core.exports import configuration
from core.records import Kind
from core.store import Store
from core.take_home import comparison, device_lines, script

_STRATEGIES = {"mirrored": "MirroredStrategy", "tpu": "TPUStrategy"}
_DRAFT = ""
"""Stands for the settings on the pages among the runs' ids."""


def _choose(store: Store) -> str:
    """Whose code: a run's id, or `_DRAFT`."""
    runs = store.jobs(kinds=[Kind.TRAIN], limit=100)
    names = {_DRAFT: "The settings on the pages"} | {job.id: label(job) for job in runs}
    chosen = draft.chosen_run() or _DRAFT
    with st.container(width=420):
        chooser(
            "Code of",
            names,
            chosen,
            lambda run_id: draft.choose_run(run_id or None),
            key="code_of",
            placeholder="Choose a run",
        )
    return chosen


def _config(store: Store, run_id: str) -> RunConfig | None:
    """The configuration; None when there is none that works, and the page says why."""
    if run_id == _DRAFT:
        try:
            return draft.config()
        except ConfigError as error:
            problem_of_step(error)
    else:
        try:
            return configuration(store.run(run_id))
        except RunNotFound as error:
            problem(error.message, "Choose one of the runs above.")
        except RunStateError as error:
            problem(error.message, error.hint)
    return None


def _comparison(config: RunConfig) -> None:
    strategy = _STRATEGIES.get(config.layout.strategy)
    if strategy is None:
        st.subheader("What a strategy adds", anchor=False)
        st.info(
            "This is a single device's code, so no strategy adds anything. With MirroredStrategy it would be"
            " two lines more, with TPUStrategy six.",
            icon=":material/info:",
        )
        link(STEPS[0], "Choose a strategy on the page Devices")
        return
    lines = comparison(config)
    added = units.plural(sum(line.is_added for line in lines), "line")
    st.subheader(f"{strategy} adds {added}", anchor=False)
    st.markdown(
        "They are marked with a plus. All other lines are equal, but for their indentation under"
        " `with strategy.scope():`."
    )
    made = device_lines(config.layout)
    if made:
        st.caption("Before them, and before TensorFlow computes anything, the devices are made:")
        st.code("\n".join(made), language="python", wrap_lines=True)
    # How many cores a TPU has is not known before it answers.
    on = "" if config.layout.strategy == "tpu" else f", {units.plural(config.layout.replicas, 'replica')}"
    drawings.draw(drawings.code(lines, "Single device", f"{strategy}{on}"), key="comparison")


with page(
    "Code to take home",
    "A run in plain TensorFlow and Keras, without Mirrorboard: same seed, same order of the batches,"
    " same history.",
) as store:
    run_id = _choose(store)
    config = _config(store, run_id)
    if config is not None:
        line = summary(config)
        st.caption(plain(f"{line[:1].upper()}{line[1:]}. Global batch {config.global_batch_size:,}."))
        with file_buttons("code", run_id) as files, st.container(horizontal=True):
            code_buttons(files, config, run_id)
        _comparison(config)
        st.subheader("The whole script", anchor=False)
        st.code(script(config, run_id), language="python", line_numbers=True, height=520)
    st.subheader("Check a script of your own", anchor=False)
    script_checker()
