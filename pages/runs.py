"""All runs: find, compare, rename, delete, export; and import the log of a training from elsewhere."""

from __future__ import annotations

import streamlit as st

from core import report, retention
from core.access import Action
from core.analysis.imported import MAX_BYTES, read_history
from core.dashboard import draft, units
from core.dashboard.access import why_not
from core.dashboard.compare import compare
from core.dashboard.frame import page
from core.dashboard.messages import plain, problem
from core.dashboard.run_table import actions, filters, table
from core.errors import MirrorboardError
from core.records import RUNS
from core.store import Store


def _import(store: Store) -> None:
    """The form for a log from elsewhere. What it brings in is in the table below at once."""
    with st.expander("Import a training log", icon=":material/upload_file:"):
        with st.form("import", clear_on_submit=True, border=False):
            st.markdown(
                "A file of `keras.callbacks.CSVLogger`, a `history.json`, or the event files of one"
                " `keras.callbacks.TensorBoard` training, those of both splits together."
            )
            reason = why_not(Action.IMPORT)
            uploads = st.file_uploader(
                "Log",
                accept_multiple_files=True,
                key="import_files",
                max_upload_size=MAX_BYTES // 1_000_000,
                label_visibility="collapsed",
                disabled=reason is not None,
                help=reason,
            )
            left, right = st.columns(2)
            with left:
                name = st.text_input("Name", key="import_name", max_chars=80, placeholder="The file's name")
            with right:
                classes = st.number_input(
                    "Classes",
                    min_value=2,
                    value=None,
                    step=1,
                    key="import_classes",
                    placeholder="Not known",
                    help="With the number of classes, a softmax applied twice can be recognised.",
                )
            asked = st.form_submit_button(
                "Import",
                key="import_now",
                icon=":material/upload:",
                disabled=reason is not None,
                help=reason,
            )
        if not asked:
            return
        if not uploads:
            problem("No file was chosen.", "Choose a log first.")
            return
        # Two files may have the same name in different folders.
        files = {f"{place}/{upload.name}": upload.getvalue() for place, upload in enumerate(uploads)}
        if len(uploads) == 1:
            files = {uploads[0].name: uploads[0].getvalue()}
        title = " ".join(name.split()) or uploads[0].name
        try:
            epochs = read_history(files, max_values=report.MAX_VALUES)
            run_id = report.add_import(store, epochs, file=uploads[0].name, name=title, num_classes=classes)
        except MirrorboardError as error:
            problem(error.message, error.hint)
            return
        st.session_state["runs"] = [*draft.value("runs"), run_id]
        st.success(
            f"{plain(title)} is run {run_id}: {units.plural(len(epochs), 'epoch')}. It is chosen below.",
            icon=":material/check_circle:",
        )


def _room(store: Store) -> None:
    """What all of it takes, and what may still come."""
    there = retention.room(store.home)
    quota = f" of a quota of {retention.size(there.quota_bytes)}" if there.quota_bytes else ""
    st.caption(
        f":material/hard_drive: The store takes {plain(retention.size(there.total_bytes))}{plain(quota)}:"
        f" measurements {plain(retention.size(there.database_bytes))}, checkpoints"
        f" {plain(retention.size(there.checkpoints_bytes))}, prepared data"
        f" {plain(retention.size(there.other_bytes))}. {plain(retention.size(there.left_bytes))} are left."
    )


def _draw(store: Store) -> None:
    """All of it; in a function, because a session keeps its page's module with all that it names."""
    _import(store)
    jobs = store.jobs(kinds=RUNS)
    if jobs:
        listed = filters(jobs)
        if listed:
            table(store, listed)
        else:
            st.info("No run fits the filter.", icon=":material/filter_alt_off:")
        wanted = draft.value("runs")
        chosen = [job for job in jobs if job.id in wanted]
        actions(store, chosen)
        _room(store)
        compare(store, chosen)
    else:
        st.info(
            "No run has been recorded yet. Start one on the page Training, or import a log.",
            icon=":material/table_rows:",
        )


with page("Runs", "Every run, to find again, compare, and take away.") as store:
    _draw(store)
