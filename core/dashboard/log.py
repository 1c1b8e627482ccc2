"""A log on the page: each line as it is, how often it came, and what it means."""

from __future__ import annotations

import re
from collections.abc import Iterable

import streamlit as st

from core.analysis.log_lines import Entry, Verdict, fold
from core.dashboard import units
from core.dashboard.access import without_folders
from core.dashboard.messages import plain
from core.records import LogLine

_VERDICTS: dict[Verdict, str] = {
    "fine": ":green[:material/check_circle:]",
    "slower": ":orange[:material/speed:]",
    "wrong": ":red[:material/error:]",
}


def explained(lines: Iterable[LogLine]) -> None:
    """Shows the lines, repetitions folded, and an explanation under each that is known."""
    st.markdown("\n\n".join(_entry(entry) for entry in fold(lines)))


def _entry(entry: Entry) -> str:
    # A fence longer than any run of backticks in the text.
    text = " ".join(without_folders(entry.line.text).split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    line = f":gray[{units.clock(entry.line.at)} {plain(entry.line.source)}] {fence} {text} {fence}"
    if entry.count > 1:
        line += f" **{entry.count:,} times**"
    if entry.explanation is None:
        return line
    return f"{line}  \n{_VERDICTS[entry.explanation.verdict]} {entry.explanation.text}"
