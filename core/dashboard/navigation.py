"""The pages and the links between them."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from core.dashboard import draft
from core.dashboard.messages import problem
from core.errors import ConfigError


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
