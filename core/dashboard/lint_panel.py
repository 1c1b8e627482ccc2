"""Findings on the page: what is wrong, why, what it does, and a button that puts it right."""

from __future__ import annotations

import re
from collections.abc import Sequence

import streamlit as st

from core.analysis.lint import Finding
from core.analysis.notebook_cells import code_cells
from core.analysis.script_lint import check_script
from core.analysis.script_syntax import MAX_BYTES, where
from core.dashboard import units
from core.dashboard.messages import plain, problem
from core.errors import ConfigError


def config_findings(found: Sequence[Finding]) -> None:
    """Shows what is wrong with the draft, above its start button."""
    if not found:
        return
    with st.container(border=True, key="findings"):
        st.markdown(f":orange[:material/rule:] **Before you start: {units.plural(len(found), 'finding')}**")
        for finding in found:
            with st.expander(plain(finding.what)):
                _explain(finding)
                if finding.settings:
                    st.button(
                        f"Put it right: {', '.join(_setting(*one) for one in finding.settings)}",
                        key=f"fix_{finding.rule}",
                        icon=":material/build:",
                        on_click=_put_right,
                        args=(finding,),
                    )
        st.caption("You can start all the same: to see a mistake happen is a lesson, too.")


def script_checker() -> None:
    """A field for a script or notebook of one's own, and what is wrong with it."""
    st.caption(
        "Paste a training script, or the whole text of a notebook's file: it is read, never run, and looked"
        " through for the classic mistakes of distributed training. What it computes while it runs stays"
        " unknown."
    )
    source = st.text_area(
        "Script", key="script", height=240, max_chars=MAX_BYTES, placeholder="import tensorflow as tf\n…"
    )
    if not source.strip():
        return
    try:
        found = check_script(source)
    except ConfigError as error:
        problem(error.message, error.hint)
        return
    if not found:
        st.success("None of the classic mistakes is in this code.", icon=":material/check_circle:")
    cells = code_cells(source) or [source]
    for finding in found:
        assert finding.line is not None
        code = cells[(finding.cell or 1) - 1]
        lines = re.split(r"\r\n|\r|\n", code)  # as Python counts them; splitlines also parts at form feeds
        place = where(finding.line, finding.cell).capitalize()
        st.markdown(f":orange[:material/rule:] **{place}**")
        st.code(lines[finding.line - 1].strip(), language="python")
        st.markdown(f"**{plain(finding.what)}**")
        _explain(finding)


def _explain(finding: Finding) -> None:
    st.markdown(
        f"{plain(finding.why)} {plain(finding.effect)}  \n"
        f":green[:material/arrow_forward:] {plain(finding.remedy)}"
    )


def _setting(name: str, value: object) -> str:
    label = name.rpartition(".")[2].replace("_", " ")
    return f"{label} {'off' if value is False else f'{value:g}' if isinstance(value, float) else value}"


def _put_right(finding: Finding) -> None:
    for name, value in finding.settings:
        st.session_state[name] = value
